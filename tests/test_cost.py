"""What a step costs, by measures without noise: operations, waits for the device, and none that depends on the data."""

from dataclasses import replace

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

import lossary

DEFAULT = {"policy_loss": "ppo-clip", "kl": {"use": "k3", "coef": 0.001}, "entropy": {"coef": 0.001}, "aggregation": "token-mean"}
WAITS = {"_local_scalar_dense", "nonzero", "item", "is_nonzero", "unique", "masked_select", "equal"}


class Counting(TorchDispatchMode):
    """Counts aten operations, and those by which the host waits for the device."""

    def __init__(self):
        super().__init__()
        self.ops, self.waits = 0, []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.overloadpacket.__name__
        if func.namespace == "aten":
            self.ops += 1
            if name in WAITS:
                self.waits.append(name)
        return func(*args, **(kwargs or {}))


def micro_batch(objective, sequences):
    g = torch.Generator().manual_seed(sequences)
    lengths = torch.randint(1, 9, (sequences,), generator=g)
    names = ("old_log_prob", "rollout_log_prob", "ref_log_prob", "teacher_log_prob", "advantages", "old_values", "returns", "noise")
    columns = {name: torch.randn(int(lengths.sum()), generator=g) for name in names}
    columns["policy_version"] = torch.arange(int(lengths.sum())) % 3
    columns["turns"] = torch.arange(int(lengths.sum())) // 3
    columns["policy_version"] = torch.arange(int(lengths.sum())) % 3
    columns |= {name: torch.randn(sequences, generator=g) for name in ("rewards", "log_z")}
    return objective.weigh(lossary.Batch.from_packed(lengths, **columns, group_ids=torch.arange(sequences) // 2))


@pytest.mark.parametrize("sequences", [1, 4, 64, 512])
def test_the_default_step_is_at_most_120_operations_and_never_waits(sequences):
    objective = lossary.compose(DEFAULT)
    micro = micro_batch(objective, sequences)
    n = micro.sequences.index.shape[0]
    log_prob, entropy = torch.randn(n, requires_grad=True), torch.rand(n, requires_grad=True)
    with Counting() as count:
        objective.loss(micro, log_prob=log_prob, entropy=entropy).total.backward()
    assert count.waits == []
    assert count.ops <= 120


@pytest.mark.filterwarnings("ignore::lossary.builtin.RecipeWarning")  # not every loss suits this aggregation
@pytest.mark.parametrize("name", [c.name for c in lossary.catalog() if c.kind.name == "policy_loss" and c.distribution == "lossary"])
def test_a_step_runs_where_there_is_no_data_to_look_at(name):
    """Fake tensors have shapes but no values: whatever depends on a value raises there. So no shape and no branch does."""
    recipe = {**DEFAULT, "policy_loss": name, "value_loss": "clipped-mse"}
    objective = lossary.compose(recipe | {"aggregation": "seq-mean-token-mean"})
    micro = micro_batch(objective, 16)
    n = micro.sequences.index.shape[0]
    mode = FakeTensorMode()
    fake = _Fake(mode)
    with mode:
        columns, weights = fake(dict(micro.columns)), fake(dict(micro.weights))
        faked = replace(
            micro,
            sequences=fake(micro.sequences),
            columns=columns,
            weights=weights,
            coefficients=fake(dict(micro.coefficients)),
            totals=type(micro.totals)(*(fake(t) for t in vars(micro.totals).values())),
            rows=fake(micro.rows),
        )
        outputs = {k: torch.randn(n, requires_grad=True) for k in ("log_prob", "entropy", "values")}
        out = objective.loss(faked, **outputs)
        out.total.backward()
    assert out.total.shape == ()
    assert outputs["log_prob"].grad.shape == (n,)


class _Fake:
    def __init__(self, mode):
        self.mode = mode

    def __call__(self, tree):
        return tree_map_only(torch.Tensor, self.mode.from_tensor, tree)


@pytest.mark.parametrize("ranks", [1, 2])
def test_metrics_wait_once(ranks):
    objective = lossary.compose(DEFAULT)
    micro = micro_batch(objective, 8)
    n = micro.sequences.index.shape[0]
    outs = [objective.loss(micro, log_prob=torch.randn(n), entropy=torch.rand(n)) for _ in range(5)]
    waits = []
    real = torch.Tensor.tolist
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.Tensor, "tolist", lambda self: (waits.append("tolist"), real(self))[1])
        patch.setattr(torch.Tensor, "item", lambda self: waits.append("item"))
        objective.metrics(outs)
    assert waits == ["tolist"]
