"""What the library costs beyond the arithmetic, where there is next to no arithmetic: four sequences of at most 32 tokens."""

import cases
from race import Entrant


def bench_framework(races, benchmark):
    x = cases.loss(4, 32)
    against = [
        Entrant("byhand", "step", "the same arithmetic and metrics, packed", targets={"over": 20e-6}),
        Entrant("verl", "step", "ppo_loss on jagged containers"),
        Entrant("verl", "loss", "its functions on dense tensors"),
        Entrant("trl", "loss"),
    ]
    races.run(benchmark, "one step B=4 T=32", x, Entrant("ours", "loss"), against, rounds=31, iterations=20)
