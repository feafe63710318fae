"""Corrections in the pipeline: chains, denominators, rules that read the current policy, exactness over splits and ranks."""

import math
import warnings

import pytest
import torch
from rules import OWN, Both, ratio_cut
from worlds import World

import lossary
from lossary import ColumnError, PerSequence, PerToken, RecipeError, Sequences, SignatureError
from lossary.batch import SimulatedRanks

AGGREGATIONS = ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum", {"use": "constant-divisor", "divisor": 5.0}]


def composed(**sections):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lossary.RecipeWarning)
        return lossary.compose({"policy_loss": "plain", **sections}, components=OWN)


def run(objective, batch, world, rows=slice(None)):
    leaves = world.leaves()
    micros = objective.split(objective.weigh(batch))
    outs = [objective.loss(m, **{k: v[rows][m.rows] for k, v in leaves.items()}) for m in micros]
    for out in outs:
        out.total.backward()
    grads = {k: v.grad if v.grad is not None else torch.zeros_like(v) for k, v in leaves.items()}
    return sum(o.total.detach() for o in outs), grads, objective.metrics(outs)


# ── by hand ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("denominator", ["kept", "original"])
@pytest.mark.parametrize("aggregation", AGGREGATIONS)
def test_a_chain_against_plain_loops(aggregation, denominator):
    """Weights multiply; what an earlier link dropped the later one does not see; the mean is over what the recipe says."""
    world = World(1)
    chain = [{"use": "whole-rows", "denominator": denominator}, {"use": "ratio-cut", "denominator": denominator}, "doubled"]
    objective = composed(correction=chain, aggregation=aggregation)
    total, grads, _ = run(objective, objective.estimate(world.batch()), world)

    mask, lp, adv = world.mask, world.log_prob, world.columns["advantages"]
    d = world.columns["old_log_prob"] - world.columns["rollout_log_prob"]
    keep = mask.clone()
    for i in range(len(mask)):
        sampled = mask[i].nonzero().flatten()
        if len(sampled) and adv[i, sampled[0]] < 0:
            keep[i] = False
    keep &= d > 0
    counted = keep if denominator == "kept" else mask
    lengths, tokens = counted.sum(1), counted.sum()
    live = (lengths > 0).sum()
    per_token = {
        "token-mean": torch.full(mask.shape, 1 / float(tokens), dtype=torch.float64),
        "seq-mean-token-mean": (1 / lengths.clamp(min=1).double() / live)[:, None].expand(mask.shape),
        "seq-mean-token-sum": torch.full(mask.shape, 1 / float(live), dtype=torch.float64),
    }.get(aggregation if isinstance(aggregation, str) else "", torch.full(mask.shape, 0.2, dtype=torch.float64))
    want = torch.where(keep, per_token * 2 * d.exp() * -adv, 0.0)
    assert torch.allclose(grads["log_prob"], want, rtol=1e-12, atol=1e-15)
    assert torch.isclose(total, (want * lp).sum(), rtol=1e-12)


def test_the_critic_sees_every_token_and_the_weight_touches_the_policy_term_alone():
    world = World(2)
    rest = {
        "entropy": 0.3,
        "kl": {"use": "k2", "coef": 0.1},
        "value_loss": {"use": "clipped-mse", "coef": 0.5},
    }
    objective, without = composed(correction={"use": "ratio-cut", "denominator": "original"}, **rest), composed(**rest)
    _, grads, _ = run(objective, objective.estimate(world.batch()), world)
    _, free, _ = run(without, world.batch(), world)
    assert torch.equal(grads["values"], free["values"])
    keep = world.mask & (world.columns["old_log_prob"] > world.columns["rollout_log_prob"])
    assert torch.allclose(grads["entropy"], torch.where(keep, free["entropy"], 0.0), rtol=1e-12)  # fewer tokens, but no weight
    kl = 0.1 * (world.log_prob - world.columns["ref_log_prob"]) / world.mask.sum()
    w = (world.columns["old_log_prob"] - world.columns["rollout_log_prob"]).exp()
    want = torch.where(keep, -w * world.columns["advantages"] / world.mask.sum() + kl, 0.0)
    assert torch.allclose(grads["log_prob"], want, rtol=1e-12, atol=1e-15)


def test_a_loss_that_names_the_weight_is_not_multiplied_with_it():
    world = World(3)
    objective = composed(policy_loss="knowing", correction=["doubled"])
    _, grads, _ = run(objective, objective.estimate(world.batch()), world)
    want = torch.where(world.mask, -4 * world.columns["advantages"] / world.mask.sum(), 0.0)
    assert torch.allclose(grads["log_prob"], want, rtol=1e-12)


def test_a_link_reads_the_product_so_far():
    world = World(4)
    objective = composed(correction=["doubled", {"use": "ratio-cut", "denominator": "kept"}, "normalised"])
    batch = objective.estimate(world.batch())
    assert torch.isclose(batch.kept["correction"].mean(), torch.tensor(1.0, dtype=torch.float64), rtol=1e-12)


def test_what_was_dropped_may_be_anything():
    """A log-ratio of infinity under a token that goes: selection comes before the arithmetic."""
    world = World(5)
    clean = World(5)
    bad = world.mask & (world.columns["old_log_prob"] < world.columns["rollout_log_prob"])
    world.log_prob = torch.where(bad, torch.nan, world.log_prob)
    for objective in (
        composed(correction={"use": "ratio-cut", "denominator": d}, kl={"use": "k3", "coef": 0.1}) for d in ("kept", "original")
    ):
        a, b = (run(objective, objective.estimate(w.batch()), w) for w in (world, clean))
        assert torch.equal(a[0], b[0])
        assert torch.equal(a[1]["log_prob"], b[1]["log_prob"])


# ── splits and ranks ─────────────────────────────────────────────────────────────────────────────────────────────────

CHAINS = {
    "kept": [{"use": "ratio-cut", "denominator": "kept"}, "normalised"],
    "original": ["doubled", {"use": "whole-rows", "denominator": "original"}],
    "loss": [{"use": "ratio-cut", "denominator": "original"}, {"use": "falling", "denominator": "original"}],
    "measure": [{"use": "falling", "decide": "measure", "denominator": "kept"}],
}


@pytest.mark.parametrize("aggregation", AGGREGATIONS[:3])
@pytest.mark.parametrize("chain", CHAINS)
def test_any_split_and_any_ranks_give_the_whole(chain, aggregation):
    world = World(6)
    sections = {"correction": CHAINS[chain], "aggregation": aggregation, "entropy": 0.1, "value_loss": {"use": "clipped-mse", "coef": 0.5}}
    plan = composed(**sections).plan

    def prepared(ranks, rows):
        objective = lossary.Objective(plan, ranks)
        batch = objective.estimate(world.batch(rows))
        if objective.measures:
            batch = objective.measure(batch, log_prob=world.log_prob[rows])
        return objective, objective.weigh(batch)

    def gradients(objective, weighed, rows, parts):
        leaves = world.leaves()
        outs = []
        for micro in objective.split(weighed, parts=parts):
            out = objective.loss(micro, **{k: v[torch.tensor(rows)[micro.rows]] for k, v in leaves.items()})
            out.total.backward()
            outs.append(out)
        zero = {k: torch.zeros_like(v) for k, v in leaves.items()}
        return {k: v.grad if v.grad is not None else zero[k] for k, v in leaves.items()}, objective.metrics(outs)

    everything = list(range(len(world.mask)))
    want, metrics = gradients(*prepared(lossary.batch.ONE_RANK, everything), everything, 1)
    assert (want["log_prob"] != 0).any()
    for parts in (2, 5, 20):
        got, said = gradients(*prepared(lossary.batch.ONE_RANK, everything), everything, parts)
        assert all(torch.allclose(got[k], want[k], rtol=1e-12, atol=1e-14) for k in want)
        assert said.keys() == metrics.keys()
        assert all(math.isclose(said[k], metrics[k], rel_tol=1e-9, abs_tol=1e-12) for k in said)
    for cut in ([9], [2, 7], [1, 4, 4]):
        ends = [sum(cut[: i + 1]) for i in range(len(cut))]
        rows = [everything[e - c : e] for c, e in zip(cut, ends, strict=True)]
        found = SimulatedRanks.run(len(cut), lambda ranks, rank, rows=rows: gradients(*prepared(ranks, rows[rank]), rows[rank], 3))
        for k in want:
            assert torch.allclose(sum(f[0][k] for f in found) / len(cut), want[k], rtol=1e-12, atol=1e-14)
        assert all(math.isclose(found[0][1][k], metrics[k], rel_tol=1e-9, abs_tol=1e-12) for k in metrics)


def test_minibatches_take_what_was_kept_along():
    world = World(7)
    objective = composed(correction=CHAINS["kept"])
    batch = objective.estimate(world.batch())
    minis = objective.minibatches(batch, 3, seed=1)
    assert sum(m.kept.sequences.index.shape[0] for m in minis) == batch.kept.sequences.index.shape[0] > 0
    for m in minis:
        assert torch.equal(m["old_log_prob"][m.kept_tokens], m.kept["old_log_prob"])
        assert torch.equal(m.layout.source[m.kept_tokens], m.kept.layout.source)


# ── what is said ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_reports_say_how_much_went_by_the_sign_of_the_advantage_and_how_much_weight_is_left():
    world = World(11)
    objective = composed(correction=[{"use": "ratio-cut", "denominator": "kept"}])
    told = objective.metrics(objective.estimate(world.batch()))
    d, adv = (
        (world.columns[a] - world.columns[b])[world.mask] for a, b in (("old_log_prob", "rollout_log_prob"), ("advantages", "returns"))
    )
    adv = world.columns["advantages"][world.mask]
    gone, w = d <= 0, d.exp()[d > 0]
    assert math.isclose(told["correction/ratio_cut_dropped"], gone.double().mean(), rel_tol=1e-12)
    assert math.isclose(told["correction/ratio_cut_dropped_positive"], gone[adv > 0].double().mean(), rel_tol=1e-12)
    assert math.isclose(told["correction/ratio_cut_dropped_negative"], gone[adv < 0].double().mean(), rel_tol=1e-12)
    assert math.isclose(told["correction/weight"], w.mean(), rel_tol=1e-12)
    assert math.isclose(told["correction/weight/max"], w.max(), rel_tol=1e-12)
    assert math.isclose(told["correction/ess"], w.sum() ** 2 / (len(w) * (w**2).sum()), rel_tol=1e-12)
    assert math.isclose(told["correction/gap"], d.mean(), rel_tol=1e-12)


def test_the_distance_of_trainer_and_sampler_is_told_as_it_was_before_any_correction():
    world = World(12)
    objective = composed(correction=[{"use": "ratio-cut", "denominator": "kept"}])
    told = objective.metrics(objective.estimate(world.batch()))
    d = (world.columns["old_log_prob"] - world.columns["rollout_log_prob"])[world.mask]
    w = d.exp()
    assert math.isclose(told["rollout_corr/kl"], -d.mean(), rel_tol=1e-12)
    assert math.isclose(told["rollout_corr/chi2_token"], (w**2).mean() - 1, rel_tol=1e-12)
    assert math.isclose(told["rollout_corr/rollout_is_eff_sample_size"], w.sum() ** 2 / (len(w) * (w**2).sum()), rel_tol=1e-12)

    def over(ranks, rank):
        o = lossary.Objective(objective.plan, ranks)
        return o.metrics(o.estimate(world.batch([[0, 1, 2], [3, 4, 5, 6, 7, 8]][rank])))

    for other in SimulatedRanks.run(2, over):
        assert {k: v for k, v in other.items() if "rollout_corr" in k} == pytest.approx(
            {k: v for k, v in told.items() if "rollout_corr" in k}, rel=1e-12
        )


@pytest.mark.parametrize(
    ("sections", "said"),
    [
        ({"correction": "ratio-cut"}, r"correction: 'ratio-cut' drops tokens; say 'denominator': 'kept' .* or 'original'"),
        ({"correction": {"use": "doubled", "denominator": "kept"}}, "correction.denominator: 'doubled' drops no token"),
        ({"correction": {"use": "ratio-cut", "denominator": "keep"}}, r"'keep' is not one of kept and original\. Did you mean 'kept'"),
        ({"correction": {"use": "falling", "denominator": "kept"}}, "reads the current policy, so what it keeps is not known"),
        ({"correction": {"use": "ratio-cut", "denominator": "kept", "decide": "loss"}}, "does not read the current policy"),
        (
            {"correction": [{"use": "falling", "denominator": "original"}, "doubled"]},
            "correction.1: 'doubled' is decided in estimate, before the one above it; put it first",
        ),
        (
            {"correction": [{"use": "ratio-cut", "denominator": "original"}, {"use": "whole-rows", "denominator": "kept"}]},
            "share one denominator",
        ),
        ({"correction": {"use": "nothing-like-it"}}, "No correction is called 'nothing-like-it'"),
    ],
)  # fmt: skip
def test_recipes_that_cannot_be_meant(sections, said):
    with pytest.raises(RecipeError, match=said):
        composed(**sections)


def test_two_weights_for_one_mismatch_are_warned_of():
    with pytest.warns(lossary.RecipeWarning, match="'doubled' weighs what 'ratio-cut' has weighed already"):
        lossary.compose({"policy_loss": "plain", "correction": [{"use": "ratio-cut", "denominator": "kept"}, "doubled"]}, components=OWN)
    with pytest.warns(lossary.RecipeWarning, match="'rollout-is' corrects for the sampler itself; 'doubled' does it once more"):
        lossary.compose({"policy_loss": "rollout-is", "correction": "doubled"}, components=OWN)


@pytest.mark.parametrize(
    ("result", "said"),
    [
        (lambda x: x, r"must return \(weight, keep\)"),
        (lambda x: (x[:1], None), r"returned the shape \[1\]; expected \[\d+\], one value per token"),
        (lambda x: (None, x), r"returned torch.float64 \[\d+\] as 'keep'; expected one boolean per token"),
        (lambda x: (None, 1), r"returned int as 'keep'; expected one boolean per token"),
    ],
)
def test_a_correction_that_gives_something_else(result, said):
    @lossary.correction
    def odd(old_log_prob):
        return result(old_log_prob)

    objective = lossary.compose({"policy_loss": "plain", "correction": {"use": "odd", "denominator": "kept"}}, components=[odd, *OWN])
    with pytest.raises(ColumnError, match=f"correction 'odd' {said}"):
        objective.estimate(World(1).batch())


def test_a_correction_sees_neither_critic_nor_words():
    with pytest.raises(SignatureError, match="must not read 'values'"):

        @lossary.correction
        def f(values: PerToken) -> Both: ...

    with pytest.raises(SignatureError, match="must not read 'logits'"):

        @lossary.correction
        def g(logits) -> Both: ...


def test_columns_added_after_the_estimate_reach_what_was_kept():
    world = World(12)
    objective = composed(correction=CHAINS["kept"])
    batch = objective.estimate(world.batch())
    more = batch.with_columns(batch.levels["rewards"], rewards=batch["rewards"] + 1)
    assert torch.equal(more.kept["rewards"], batch["rewards"] + 1)
    more = batch.with_columns(batch.levels["advantages"], noise=torch.arange(float(len(batch["advantages"]))))
    assert torch.equal(more.kept["noise"], more["noise"][more.kept_tokens])
    assert "noise" not in more.without(["noise"]).kept


def test_nothing_kept_at_all_gives_the_gradient_zero():
    world = World(13)
    for denominator in ("kept", "original"):
        objective = composed(correction={"use": "ratio-cut", "at": 1e9, "denominator": denominator}, entropy=0.1)
        total, grads, metrics = run(objective, objective.estimate(world.batch()), world)
        assert total == 0
        assert all((g == 0).all() for g in grads.values())
        assert all(math.isfinite(v) for v in metrics.values())


def test_a_sequence_level_loss_is_weighed_token_by_token():
    """Its weight is the sum of its tokens' weights, each times that token's correction."""

    @lossary.policy_loss
    def of_rows(log_prob, advantages: PerToken, sequences: Sequences) -> PerSequence:
        """One loss per sequence."""
        return -sequences.sum(log_prob)

    world = World(14)
    objective = lossary.compose(
        {"policy_loss": "of-rows", "correction": {"use": "ratio-cut", "denominator": "original"}}, components=[of_rows, ratio_cut]
    )
    _, grads, _ = run(objective, objective.estimate(world.batch()), world)
    d = world.columns["old_log_prob"] - world.columns["rollout_log_prob"]
    keep = world.mask & (d > 0)
    row = torch.where(keep, d.exp(), 0.0).sum(1) / world.mask.sum()
    assert torch.allclose(grads["log_prob"], torch.where(keep, -row[:, None], 0.0), rtol=1e-12)
