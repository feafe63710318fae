"""What the machine itself can do: the bounds of everything else."""

import pytest
import torch
from device import Device
from sides import byhand


def _noted(races, benchmark, figure, step, amount, unit):
    step()
    benchmark.pedantic(step, rounds=5 if races.quick else 11, iterations=1)
    seconds = sorted(benchmark.stats.stats.data)[len(benchmark.stats.stats.data) // 2]
    rate = amount / seconds
    what = f"({rate / 1e12:.2f} T{unit})" if rate >= 1e12 else f"({rate / 1e9:.1f} G{unit})"
    nobody = {"name": "", "seconds": None, "note": "", "error": None}
    ours = {"seconds": None, "note": "-", "error": None}
    races.rows.append(
        {
            "figure": figure,
            "ours": ours,
            "peer": nobody,
            "bound": {"what": what, "seconds": seconds},
            "targets": {},
            "rounds": len(benchmark.stats.stats.data),
        }
    )


def fast_bf16():
    """Whether this CPU multiplies bf16 at all: without instructions for it a product takes a hundred times as long as in fp32."""
    step, work = byhand.square(256, torch.bfloat16, "cpu")
    step()
    return work / Device("cpu").seconds(step) > 20e9


@pytest.mark.parametrize("how", ["copy", "add"])
def bench_memory(races, benchmark, how):
    n = 1 << (28 if races.device.name == "cuda" else 24)
    step, moved = (byhand.copy if how == "copy" else byhand.stream)(n, races.device.torch)
    _noted(races, benchmark, f"bound: {how} of {4 * n >> 20} MiB", step, moved, "B/s")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
def bench_product(races, benchmark, dtype):
    n = 8192 if races.device.name == "cuda" else 1024 if dtype == torch.float32 or fast_bf16() else 256
    step, work = byhand.square(n, dtype, races.device.torch)
    _noted(races, benchmark, f"bound: {str(dtype)[6:]} product {n}³", step, work, "FLOP/s")
