"""What runs once per rollout: GAE over long responses, statistics of groups."""

import cases
import pytest
from race import Bound, Entrant
from sides import byhand

SHAPES = {(64, 4096): 0.06, (8, 32768): 0.01}


@pytest.mark.parametrize("holes", [True, False], ids=["holes", "plain"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def bench_gae(races, benchmark, shape, holes):
    if races.quick and shape == (8, 32768):
        pytest.skip("not in the quick run")
    x = cases.gae(*shape, holes)
    verl = Entrant("verl", "gae", "loop over time", targets={"ratio": SHAPES[shape]} if holes else {})
    against = [verl] if holes else [verl, Entrant("torchrl", "gae", "vectorised")]
    add, moved = byhand.stream(1 << 24, races.device.torch)
    bound = Bound("to move the bytes", add, 16 * int(x["mask"].sum()) / moved)
    figure = f"GAE {list(shape)} {'with' if holes else 'without'} holes"
    races.run(benchmark, figure, x, Entrant("ours", "gae"), against, bound=bound, rounds=5)
    mine, theirs = (races.rows[-len(against)][side]["error"] for side in ("ours", "peer"))
    assert theirs is None or mine <= 4 * theirs, "further from float64 than four times the loop in float32"


def bench_gae_across_the_border(races, benchmark):
    x = cases.gae(64, 4096, True)
    ours = Entrant("ours", "gae", options={"border": True})
    races.run(
        benchmark,
        "GAE [64, 4096] with holes, packing and unpacking included",
        x,
        ours,
        [Entrant("verl", "gae", "loop over time")],
        rounds=5,
    )


def bench_groups(races, benchmark):
    x = cases.groups(4096)
    against = [
        Entrant("verl", "groups", "dict loop", {"how": "loop"}, targets={"ratio": 0.02}),
        Entrant("verl", "groups", "vectorised", {"how": "vectorized"}, targets={"ratio": 0.3}),
    ]
    races.run(benchmark, "GRPO advantages B=4096, groups of 8", x, Entrant("ours", "groups"), against, rounds=7, iterations=3)
