"""Who broke a loss: planted in every column of several losses, and made by the losses themselves."""

import math
import time

import pytest
import torch

import lossary
from lossary.batch import Batch
from lossary.diagnostics.blame import blame_and_dump, localise
from lossary.diagnostics.dump import load_batch
from lossary.registry import Level

LOSSES = {
    "ppo-clip": {"policy_loss": {"use": "ppo-clip"}, "aggregation": "token-mean"},
    "gspo": {"policy_loss": {"use": "gspo"}, "aggregation": "seq-mean-token-mean"},
    "cispo": {"policy_loss": {"use": "cispo"}, "aggregation": "token-mean"},
    "gmpo": {"policy_loss": {"use": "gmpo"}, "aggregation": "seq-mean-token-mean"},
    "dual-clip with KL": {
        "policy_loss": {"use": "dual-clip"},
        "kl": {"use": "k3", "coef": 0.1, "apply": "loss"},
        "aggregation": "token-mean",
    },
}


def case(recipe, lengths=(5, 1, 7, 4), **replaced):
    torch.manual_seed(0)
    n = sum(lengths)
    old = -torch.rand(n) - 0.1
    columns = {"old_log_prob": old, "ref_log_prob": old - 0.05, "advantages": torch.randn(n)} | replaced
    objective = lossary.compose(recipe)
    batch = objective.weigh(Batch.from_packed(list(lengths), group_ids=torch.arange(len(lengths)) // 2, **columns))
    return objective, batch, {"log_prob": old + 0.1 * torch.randn(n)}


@pytest.mark.filterwarnings("ignore::lossary.builtin.RecipeWarning")
@pytest.mark.parametrize("column", ["log_prob", "old_log_prob", "advantages"])
@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_planted_value_is_named(name, column, value):
    objective, batch, columns = case(LOSSES[name])
    assert localise(objective, batch, columns) is None
    planted = {**batch.columns, **columns}[column].clone()
    planted[8] = value
    if column in columns:
        columns[column] = planted
    else:
        batch = batch.with_columns(Level.TOKEN, **{column: planted})
    found = localise(objective, batch, columns)
    if found is None:  # a bound on the log-ratio takes an infinity in
        assert value == math.inf
        out = objective.loss(batch, log_prob=columns["log_prob"].clone().requires_grad_())
        assert out.total.isfinite()
        return
    assert (found.column, found.sequence, found.token) == (column, 2, 2)
    assert found.term == "policy"
    assert found.component == f"policy_loss {LOSSES[name]['policy_loss']['use']!r}"
    assert found.value == value or math.isnan(value)
    assert set(found.columns) >= {"log_prob", "old_log_prob", "advantages"}
    assert f"column {column!r} is {value} at sequence 2, token 2" in str(found)


def test_the_term_that_reads_the_column_is_the_one():
    objective, batch, columns = case(LOSSES["dual-clip with KL"])
    broken = batch["ref_log_prob"].clone()
    broken[16] = math.nan
    found = localise(objective, batch.with_columns(Level.TOKEN, ref_log_prob=broken), columns)
    assert (found.term, found.component, found.column, found.sequence, found.token) == ("kl", "kl 'k3'", "ref_log_prob", 3, 3)


@lossary.policy_loss
def rooted(log_prob: lossary.PerToken, old_log_prob: lossary.PerToken, advantages: lossary.PerToken) -> lossary.PerToken:
    r"""Take the root of what may be 0; unlike ``reinforce`` its slope is infinite there.

    .. math:: L_t = \sqrt{\ell_t - \ell^{old}_t}
    """
    return -advantages * (log_prob - old_log_prob).sqrt()


@lossary.policy_loss
def halved(log_prob: lossary.PerToken, advantages: lossary.PerToken):
    r"""Report a ratio of nothing; unlike ``reinforce`` its metric divides by 0.

    .. math:: L_t = -A_t \ell_t
    """
    return -advantages * log_prob, {"odd": lossary.Mean(advantages / (advantages - advantages[0]))}


def built(function, **replaced):
    _, batch, columns = case(LOSSES["ppo-clip"], **replaced)
    objective = lossary.compose({"policy_loss": function.__name__, "aggregation": "token-mean"}, components=[function])
    return objective, objective.weigh(batch), columns


def test_the_operation_that_made_it_of_whole_columns_is_named():
    objective, batch, columns = built(rooted)
    columns["log_prob"] = batch["old_log_prob"] + 0.25
    columns["log_prob"][10] -= 1.0
    found = localise(objective, batch, columns)
    assert (found.what, found.column, found.sequence, found.token) == ("loss", None, 2, 4)
    assert found.operation.startswith("sqrt at test_blame.py:")


def test_a_gradient_breaks_where_its_loss_does_not():
    objective, batch, columns = built(rooted)
    columns["log_prob"] = batch["old_log_prob"] + 0.25
    columns["log_prob"][10] = batch["old_log_prob"][10]
    found = localise(objective, batch, columns)
    assert (found.what, found.column, found.sequence, found.token) == ("gradient of log_prob", None, 2, 4)
    assert found.operation == "div in the backward pass"


def test_a_metric_breaks_alone():
    found = localise(*built(halved))
    assert (found.what, found.sequence, found.token) == ("metric actor/odd", 0, 0)
    assert found.operation.startswith("div at test_blame.py:")


def test_an_explosion_is_followed_to_the_exponential():
    objective, batch, columns = case({"policy_loss": {"use": "ppo-clip", "log_ratio_bound": None}, "aggregation": "token-mean"})
    columns["log_prob"] = columns["log_prob"].clone()
    columns["log_prob"][6] += 60.0
    adverse = batch["advantages"].clone()
    adverse[6] = -1.0
    batch = batch.with_columns(Level.TOKEN, advantages=adverse)
    assert localise(objective, batch, columns) is None
    found = localise(objective, batch, columns, above=1e6)
    assert (found.what, found.column, found.sequence, found.token) == ("loss", None, 2, 0)
    assert found.operation.startswith("exp at ratio.py:")
    assert found.value > 1e20


def test_what_corrections_dropped_is_not_blamed_and_places_are_those_of_the_batch():
    band = {"use": "masked-is", "level": "token", "lower": 0.8, "upper": 1.25, "denominator": "kept"}
    objective, batch, columns = case(LOSSES["ppo-clip"])
    objective = lossary.compose({"policy_loss": "ppo-clip", "aggregation": "token-mean", "correction": band})
    rollout = batch["old_log_prob"].clone()
    rollout[[0, 3, 7]] -= 1.0
    batch = objective.weigh(objective.estimate(batch.with_columns(Level.TOKEN, rollout_log_prob=rollout)))
    broken = columns["log_prob"].clone()
    broken[3] = math.nan
    assert localise(objective, batch, {"log_prob": broken}) is None
    broken[9] = math.nan
    found = localise(objective, batch, {"log_prob": broken})
    assert (found.column, found.sequence, found.token) == ("log_prob", 2, 3)


def test_a_skipped_step_is_dumped_with_its_blame(tmp_path):
    recipe = LOSSES["ppo-clip"]
    objective, batch, columns = case(recipe)
    columns["log_prob"][8] = math.nan
    found = blame_and_dump(tmp_path / "step.safetensors", objective, batch, columns, recipe=recipe)
    assert str(found).endswith(f"The batch is in {tmp_path / 'step.safetensors'}.")
    dump = load_batch(tmp_path / "step.safetensors")
    assert dump.note in str(found)
    again = localise(dump.objective(lossary.catalog()), dump.batch, dump.outputs)
    assert (again.sequence, again.token, again.column) == (2, 2, "log_prob")


def test_nothing_is_left_behind_in_the_objective():
    objective, batch, columns = case(LOSSES["ppo-clip"])
    before = objective.state_dict()
    localise(objective, batch, columns)
    assert objective.state_dict() == before
    assert objective.memory._sums == {}


@pytest.mark.parametrize("column", ["log_prob", "advantages", "ref_log_prob"])
def test_one_token_in_a_million_is_found(column):
    lengths = [1000] * 1000
    objective, batch, columns = case(LOSSES["dual-clip with KL"], lengths)
    planted = {**batch.columns, **columns}[column].clone()
    planted[765_432] = math.nan
    if column in columns:
        columns[column] = planted
    else:
        batch = batch.with_columns(Level.TOKEN, **{column: planted})
    began = time.perf_counter()
    found = localise(objective, batch, columns)
    print(f"{column}: {time.perf_counter() - began:.2f} s")
    assert (found.term, found.column) == ("kl" if column == "ref_log_prob" else "policy", column)
    assert (found.sequence, found.token) == (765, 432)
