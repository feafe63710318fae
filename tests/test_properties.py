"""What must hold for every registered component, whatever it computes: exact splits, no trace of padding, no order, no NaN."""

import itertools
import math
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from worlds import FROZEN, TRAINED, World

import lossary
from lossary.batch import SimulatedRanks
from lossary.registry import bounds_of

BOOK = lossary.catalog()
REQUIRED = {"seq-mean-token-sum-norm": {"loss_scale_factor": 5.0}, "constant-divisor": {"divisor": 5.0}}
AGGREGATIONS = [c.name for c in BOOK if c.kind.name == "aggregation" and c.distribution == "lossary"]
SLOTS = {"policy_loss": "policy_loss", "kl": "kl", "value_loss": "value_loss", "auxiliary_loss": "auxiliary"}


STEPS = {
    "reward": {"advantage": "grpo", "policy_loss": "reinforce"},
    "filter": {"advantage": "grpo", "policy_loss": "ppo-clip"},
    "correction": {"policy_loss": "ppo-clip"},
    "advantage": {"policy_loss": "reinforce"},
}
"""What stands beside a step of ``estimate``."""
NEEDED = {
    "overlong": {"max_resp_len": 6, "overlong_buffer_len": 3},
    "seq-logprob-error": {"seq_logprob_error_threshold": 4.0},
    "length-penalty": {"num_input_tokens_weight": 0.0},
    "group-spread": {"tolerance": 1.5},
    "clip-rewards": {"reward_clip_range": [-0.5, 0.5]},
}


def _terms():
    """Every loss of the box alone, and every step before it, as recipe sections."""
    ours = [c for c in BOOK if c.distribution == "lossary"]
    for c in (c for c in ours if c.kind.name in SLOTS):
        slot = SLOTS[c.kind.name]
        use = {"use": c.name} if slot == "policy_loss" else {"use": c.name, "coef": 0.7}
        anchor = {} if slot != "kl" else {"policy_loss": "reinforce"}
        yield pytest.param({slot: use, **anchor}, id=f"{slot}/{c.name}")
    for c in (c for c in ours if c.kind.name in STEPS):
        use = {"use": c.name, **NEEDED.get(c.name, {})}
        sections = {**STEPS[c.kind.name], c.kind.name: [use]}
        if c.kind.name == "advantage" and "advantages" in c.columns:
            sections["advantage"] = ["rloo", use]
        if c.kind.name != "correction" or not c.drops:
            yield pytest.param(sections, id=f"{c.kind.name}/{c.name}")
            continue
        late = {"log_prob", "entropy"} & set(c.columns)  # inside the loss the means are weighed already
        for denominator in ("original",) if late else ("kept", "original"):
            marks = [] if late or denominator == "kept" else pytest.mark.slow
            yield pytest.param(
                {**sections, "correction": [{**use, "denominator": denominator}]}, id=f"correction/{c.name}/{denominator}", marks=marks
            )


TERMS = list(_terms())
LOSSES = [t for t in TERMS if not set(STEPS) & set(t.values[0])]
WHOLE = {
    "policy_loss": "dual-clip",
    "kl": {"use": "k3", "coef": 0.1},
    "entropy": {"coef": 0.01, "aggregation": "seq-mean-token-sum"},
    "auxiliary": [{"use": "sft", "coef": 0.1}],
    "value_loss": {"use": "clipped-mse", "coef": 0.5, "aggregation": "seq-mean-token-mean"},
}


def composed(sections, aggregation="token-mean", **rest):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lossary.RecipeWarning)  # pairings that lint warns about are tested like any other
        return lossary.compose({**sections, "aggregation": {"use": aggregation, **REQUIRED.get(aggregation, {})}, **rest})


def outputs(world, leaves, rows=slice(None)):
    return {k: v[rows] for k, v in leaves.items()}


def ready(objective, batch):
    return objective.weigh(objective.estimate(batch))


def whole(objective, world) -> tuple[Tensor, dict[str, Tensor], dict[str, float]]:
    """Loss, gradients and metrics of the batch in one piece."""
    leaves, batch = world.leaves(), ready(objective, world.batch())
    out = objective.loss(batch, **outputs(world, leaves, batch.rows))
    out.total.backward()
    grads = {k: v.grad if v.grad is not None else torch.zeros_like(v) for k, v in leaves.items()}
    return out.total.detach(), grads, objective.metrics(batch, out)


def assert_same(a, b, tol=1e-12):
    assert torch.allclose(a[0], b[0], rtol=tol, atol=tol)
    for name in a[1]:
        assert torch.allclose(a[1][name], b[1][name], rtol=tol, atol=tol), name
    assert a[2].keys() == b[2].keys()
    for name in a[2]:
        assert math.isclose(a[2][name], b[2][name], rel_tol=1e-9, abs_tol=1e-11), name


def _pairs():
    """Every term under the commonest aggregation and under another one, and all terms under all; the other pairs are slow together."""
    yield from (pytest.param(WHOLE, a, id=f"all-terms-{a}") for a in AGGREGATIONS)
    for i, term in enumerate(TERMS):
        fast = {"token-mean", AGGREGATIONS[i % len(AGGREGATIONS)]}
        for a in AGGREGATIONS:
            yield pytest.param(*term.values, a, id=f"{term.id}-{a}", marks=term.marks if a in fast else pytest.mark.slow)


PAIRS = list(_pairs())


@pytest.mark.parametrize(("sections", "aggregation"), PAIRS)
def test_every_split_that_the_scope_allows_equals_the_whole(sections, aggregation):
    """Micro-batches by number and by tokens, and 1, 2 and 4 ranks of unequal size with groups straddling them."""
    world, objective = World(1), composed(sections, aggregation)
    want = whole(objective, world)
    for parts in (2, 5, 20):
        leaves, batch = world.leaves(), ready(objective, world.batch())
        micros = objective.split(batch, parts=parts)
        assert len(micros) == parts
        outs = [objective.loss(m, **outputs(world, leaves, m.rows)) for m in micros]
        for out in outs:
            out.total.backward()
        got = sum(o.total.detach() for o in outs), {k: v.grad for k, v in leaves.items()}, objective.metrics(batch, outs)
        assert_same(want, _zeroed(got, leaves))
    if objective.scope in ("token", "sequence"):
        for cut in ([9], [2, 7], [2, 2, 4, 1] if set(STEPS) & set(sections) else [0, 4, 4, 1]):
            assert_same(want, over_ranks(objective, world, cut))


def _zeroed(got, leaves):
    return got[0], {k: v if v is not None else torch.zeros_like(leaves[k]) for k, v in got[1].items()}, got[2]


def over_ranks(objective, world, cut, max_tokens=9):
    """Rows dealt to ranks by size; gradients averaged over ranks as DDP does."""
    n = max(len(cut), 1)
    ends = list(itertools.accumulate(cut))
    # A rank needs a row to forward: one without any sampled token stands for a rank that has nothing to do.
    rows = [list(range(e - c, e)) or [len(world.mask) // 2] for c, e in zip(cut, ends, strict=True)]
    idle = [c == 0 for c in cut]

    def work(ranks, rank):
        mine = lossary.Objective(objective.plan, ranks)
        leaves = world.leaves()
        batch = world.batch(rows[rank])
        if idle[rank]:
            batch = batch.select(torch.zeros(len(batch.sequences.index), dtype=torch.bool))
        batch = ready(mine, batch)
        micros = mine.split(batch, max_tokens)
        outs = [mine.loss(m, **outputs(world, leaves, torch.tensor(rows[rank])[m.rows])) for m in micros]
        for out in outs:
            out.total.backward()
        return sum(o.total.detach() for o in outs), leaves, mine.metrics(batch, outs), len(micros)

    results = SimulatedRanks.run(n, work)
    assert len({r[3] for r in results}) == 1  # equally many micro-batches, or DDP would wait for ever
    assert all(r[2] == results[0][2] for r in results)
    grads = {}
    for name in results[0][1]:
        parts = [r[1][name].grad for r in results]
        grads[name] = sum(p if p is not None else torch.zeros_like(results[0][1][name]) for p in parts) / n
    return sum(r[0] for r in results) / n, grads, results[0][2]


@pytest.mark.parametrize("sections", TERMS)
def test_garbage_under_the_mask_changes_no_bit(sections):
    objective = composed(sections)
    want = whole(objective, World(2))
    for garbage in (float("nan"), float("inf"), float("-inf"), 1e30):
        got = whole(objective, World(2, garbage=garbage))
        assert torch.equal(want[0], got[0])
        for name in want[1]:
            assert torch.equal(want[1][name], got[1][name])
        assert want[2] == got[2]


@pytest.mark.parametrize("sections", TERMS)
def test_padded_packed_and_nested_agree(sections):
    objective, world = composed(sections), World(3)
    want = whole(objective, world)
    flat = {k: v[world.mask] if v.shape[:2] == world.mask.shape else v for k, v in world.columns.items()}
    packed = lossary.Batch.from_packed(world.mask.sum(1), **flat)
    leaves, batch = world.leaves(), ready(objective, packed)
    out = objective.loss(batch, **{k: v[batch.rows][world.mask[batch.rows]] for k, v in leaves.items()})
    out.total.backward()
    assert torch.equal(out.total.detach(), want[0])
    for name, x in leaves.items():
        assert torch.equal(x.grad if x.grad is not None else torch.zeros_like(x), want[1][name])

    jag = lambda v: torch.nested.nested_tensor(list(v), layout=torch.jagged)  # noqa: E731
    nested = lossary.Batch.from_nested(
        jag(world.mask), **{k: jag(v) if v.shape[:2] == world.mask.shape else v for k, v in world.columns.items()}
    )
    batch = ready(objective, nested)
    out = objective.loss(batch, **{k: jag(v.detach()[batch.rows]) for k, v in world.leaves().items()})
    assert torch.equal(out.total, want[0])


@pytest.mark.parametrize(("sections", "aggregation"), PAIRS)
def test_the_order_of_sequences_means_nothing(sections, aggregation):
    objective, world = composed(sections, aggregation), World(4)
    want = whole(objective, world)
    order = torch.randperm(len(world.mask), generator=torch.Generator().manual_seed(0))
    leaves = world.leaves()
    batch = ready(objective, world.batch(order.tolist()))
    out = objective.loss(batch, **outputs(world, leaves, order[batch.rows]))
    out.total.backward()
    assert_same(want, _zeroed((out.total.detach(), {k: v.grad for k, v in leaves.items()}, objective.metrics(batch, out)), leaves))


@pytest.mark.parametrize("sections", TERMS)
def test_nothing_sampled_gives_zero_loss_and_gradient_and_no_metric(sections):
    world, objective = World(5), composed(sections)
    world.mask[:] = False
    total, grads, metrics = whole(objective, world)
    assert total == 0
    assert all((g == 0).all() for g in grads.values())
    assert all(math.isfinite(v) for v in metrics.values())


@pytest.mark.parametrize("sections", TERMS)
def test_one_token_sequences(sections):
    world, objective = World(6), composed(sections, "seq-mean-token-mean")
    world.mask[:] = torch.arange(7) == 2
    total, grads, _ = whole(objective, world)
    assert total.isfinite()
    assert all(g.isfinite().all() for g in grads.values())


@pytest.mark.parametrize("sections", TERMS)
@pytest.mark.parametrize("drift", [700.0, -700.0])
def test_extreme_log_ratios_stay_finite_in_float32(sections, drift):
    """At the default bound, where one float32 exponential would overflow past 88; for advantages of both signs and zero."""
    torch.manual_seed(0)
    world, objective = World(7, dtype=torch.float32), composed(sections)
    world.log_prob = torch.full_like(world.log_prob, min(drift, 0.0) - 1)
    for name in ("old_log_prob", "ref_log_prob", "rollout_log_prob", "teacher_log_prob"):
        world.columns[name] = torch.where(torch.rand(world.mask.shape) < 0.5, world.log_prob - drift, world.log_prob - 0.1)
    world.columns["advantages"] = torch.randint(-1, 2, world.mask.shape).float()
    for name in ("logits", "value_logits", *FROZEN):
        setattr(world, name, torch.where(torch.rand(getattr(world, name).shape) < 0.5, drift, 0.1))
    total, grads, metrics = whole(objective, world)
    assert total.isfinite()
    assert all(g.isfinite().all() for g in grads.values())
    assert all(math.isfinite(v) for v in metrics.values())


@pytest.mark.parametrize("sections", TERMS)
@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_half_precision_is_widened_at_the_door(sections, half):
    """The loss of bf16 inputs is the float32 loss of the same numbers: nothing is rounded on the way."""
    objective, world = composed(sections), World(8, dtype=torch.float32)
    rounded = World(8, dtype=torch.float32)
    for name in (*TRAINED, *FROZEN):
        setattr(rounded, name, getattr(world, name).to(half).float())
    rounded.columns = {k: v.to(half).float() if v.is_floating_point() else v for k, v in world.columns.items()}
    want = whole(objective, rounded)
    for name in (*TRAINED, *FROZEN):
        setattr(world, name, getattr(world, name).to(half))
    world.columns = {k: v.to(half) if v.is_floating_point() else v for k, v in world.columns.items()}
    got = whole(objective, world)
    assert torch.equal(want[0], got[0])
    for name in want[1]:
        assert torch.equal(want[1][name].to(half), got[1][name])


@pytest.mark.parametrize("garbage", [float("nan"), float("inf")])
def test_garbage_hidden_states_packed_before_the_head_reach_nothing(garbage):
    """A NaN hidden state under the mask would poison the head's weight gradient through 0 * NaN; packing first keeps it out."""
    torch.manual_seed(0)
    objective, world = composed(WHOLE), World(9)
    ids = torch.randint(0, 11, world.mask.shape)
    found = []
    for fill in (0.0, garbage):
        head, hidden = torch.nn.Linear(6, 11, dtype=torch.float64), torch.randn(*world.mask.shape, 6, dtype=torch.float64)
        with torch.no_grad():
            head.weight.copy_(torch.linspace(-1, 1, 66).view(11, 6))
            head.bias.zero_()
            hidden.copy_(torch.linspace(-2, 2, hidden.numel()).view_as(hidden))
            hidden[~world.mask] = fill
        hidden.requires_grad_()
        batch = objective.weigh(world.batch())
        logits = head(batch.pack(hidden))
        log_all = logits.log_softmax(-1)
        log_prob = log_all.gather(1, batch.pack(ids)[:, None])[:, 0]
        out = objective.loss(batch, log_prob=log_prob, entropy=-(log_all.exp() * log_all).sum(-1), values=logits[:, 0])
        out.total.backward()
        found.append((out.total.detach(), head.weight.grad, head.bias.grad, hidden.grad))
    for clean, dirty in zip(*found, strict=True):
        assert dirty.isfinite().all()
        assert torch.equal(clean, dirty)


ESTIMATORS = [c for c in BOOK if c.kind.name == "advantage" and c.distribution == "lossary"]


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10_000), cut=st.sampled_from([[9], [3, 6], [1, 4, 2, 2], [0, 9]]))
@pytest.mark.parametrize("component", ESTIMATORS, ids=lambda c: c.name)
def test_estimates_are_exact_over_ranks(component, seed, cut):
    """Group statistics and moments reach over ranks wherever the sequences lie, and KL in the reward with its adaptive coefficient too."""
    if any(d == "required" for _, _, _, d, _ in bounds_of(component.params)):
        pytest.fail("an estimator with a required hyperparameter needs an example here")
    world = World(seed)
    recipe = {
        "advantage": ["rloo", component.name] if "advantages" in component.columns else component.name,
        "policy_loss": "reinforce",
        "kl": {"use": "k2", "apply": "reward", "coef": {"use": "adaptive-kl", "kl_coef": 0.1, "target": 0.01, "horizon": 20}},
    }
    if not {"rewards", "token_rewards", "advantages"} & set(component.columns):
        del recipe["kl"]  # it reads other rewards than those that the KL is taken from
    plan = lossary.compose(recipe).plan
    ends = list(itertools.accumulate(cut))
    rows = [list(range(e - c, e)) for c, e in zip(cut, ends, strict=True)]

    def estimated(ranks, mine):
        objective, columns = lossary.Objective(plan, ranks), []
        for _ in range(2):  # twice: the coefficient has moved by then
            batch = objective.estimate(world.batch(mine))
            columns.append(batch.column("advantages", lossary.registry.Level.TOKEN))
            objective.commit()
        return columns, objective.metrics(batch), batch.lengths

    want, want_metrics, lengths = estimated(lossary.batch.ONE_RANK, list(range(len(world.mask))))
    results = SimulatedRanks.run(len(cut), lambda ranks, rank: estimated(ranks, rows[rank]))
    assert sum((r[2] for r in results), ()) == lengths
    for i in range(2):
        assert torch.allclose(want[i], torch.cat([r[0][i] for r in results]), rtol=1e-11, atol=1e-11)
    for r in results:
        assert r[1].keys() == want_metrics.keys()
        assert all(math.isclose(r[1][k], want_metrics[k], rel_tol=1e-9, abs_tol=1e-11) for k in want_metrics)


@pytest.mark.parametrize("empty", ["drop", "count"])
def test_empty_sequences_count_or_not_as_the_recipe_says(empty):
    world = World(10)
    objective = composed({"policy_loss": "reinforce"}, "seq-mean-token-sum", empty=empty)
    batch = objective.weigh(world.batch())
    live = int((world.mask.sum(1) > 0).sum())
    assert batch.totals.sequences == (live if empty == "drop" else len(world.mask))
    assert torch.allclose(batch.weights["seq-mean-token-sum"], 1 / batch.totals.sequences)


def test_a_rank_without_work_adds_no_sequence_to_the_denominator():
    """Two rows dealt into three minibatches: the third is a row to keep step with, and counts as nothing even under ``empty: count``."""
    world = World(12)
    objective = composed({"policy_loss": "reinforce"}, "seq-mean-token-sum", empty="count")
    with pytest.warns(UserWarning, match="3 minibatches of 2 sequences: 1 of them have no token to learn from"):
        minis = objective.minibatches(world.batch([1, 2]), 3, seed=0)
    assert [(m.idle, float(objective.weigh(m).totals.sequences)) for m in minis] == [(False, 1), (False, 1), (True, 0)]


def test_actor_and_critic_never_share_a_gradient():
    world, objective = World(11), composed(WHOLE)
    for side, touched in (("actor", {"log_prob", "entropy"}), ("critic", {"values"})):
        leaves = world.leaves()
        getattr(objective.loss(objective.weigh(world.batch()), **leaves), side).backward()
        moved = {k for k, v in leaves.items() if v.grad is not None and (v.grad != 0).any()}
        assert moved == touched
