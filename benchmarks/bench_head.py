"""The head: hidden states in, loss and the gradients of hidden states and weight out."""

import cases
import pytest
import torch
from bench_bounds import fast_bf16
from race import Bound, Entrant
from sides import byhand

FP32, BF16 = torch.float32, torch.bfloat16
# (sequences, tokens of each, hidden, vocabulary, dtype, at most so much above three products)
FULL = [(8, 256, 1024, 8192, FP32, 1.3), (4, 128, 1024, 32768, BF16, 1.8)]
QUICK = [(4, 128, 256, 4096, FP32, None)]
CUDA = [*FULL, (32, 256, 2048, 131072, BF16, 1.8)]
NO_ENTROPY = {"with_entropy": False}


def _sizes(config):
    if config.getoption("--quick"):
        return QUICK
    return CUDA if config.getoption("--device") == "cuda" else FULL


def pytest_generate_tests(metafunc):
    sizes = _sizes(metafunc.config)
    metafunc.parametrize("size", sizes, ids=["x".join(map(str, s[:4])) + f"-{str(s[4])[6:]}" for s in sizes])


@pytest.mark.parametrize("how", ["one pass", "one pass, compiled", "recompute"])
def bench_head(races, benchmark, size, how):
    *shape, dtype, target = size
    rows, width, hidden, vocab = shape
    figure = f"head {str(dtype)[6:]} N={rows * width} H={hidden} V={vocab}, {how}"
    if dtype == BF16 and races.device.torch.type == "cpu" and not fast_bf16():
        races.left_out(figure, "this CPU has no instructions for bf16 products")
        pytest.skip("said in the table")
    x = cases.head(*shape, dtype=dtype)
    gemms, _ = byhand.gemms({n: x[n].to(races.device.torch) for n in ("hidden", "weight")})
    ours = Entrant(
        "ours", "head", options={"how": how.split(",")[0].replace(" ", "-"), "compiled": "compiled" in how}, slow="compiled" in how
    )
    against = [
        Entrant("byhand", "head", "whole logits"),
        Entrant("verl", "head", "logits", {"how": "logits"}),
        Entrant("verl", "head", "fused", {"how": "fused"}),
        Entrant("trl", "head", "logits", {"how": "logits"}),
        Entrant("trl", "head", "chunked", {"how": "chunked"}),
        Entrant("liger", "head", "no entropy", truth=NO_ENTROPY),
        Entrant("cce", "head", "no entropy", truth=NO_ENTROPY, slow=races.device.name != "cuda"),
    ]
    if how != "one pass":  # the peers were raced once
        against = [Entrant("ours", "head", "one pass", {"how": "one-pass"}, targets={"ratio": 1.5} if how == "recompute" else {})]
    bound = Bound("for three products", gemms, 1.0, None if how == "recompute" else target)
    # In bf16 some peers take the softmax of bf16 logits: 2e-2 away from float64.
    tolerance = 1e-4 if dtype == FP32 else 5e-2
    races.run(benchmark, figure, x, ours, against, bound=bound, rounds=5, tolerance=tolerance)
