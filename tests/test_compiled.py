"""The compiled objective: one graph, no break, for every loss of the box; the numbers are those of the plain one.

Graphs are traced and counted here without a compiler behind them, which takes a second instead of twenty.
"""

import math
import warnings

import pytest
import torch
import torch._dynamo
from heads import headed, measured
from test_properties import LOSSES, REQUIRED, WHOLE
from torch._dynamo.testing import CompileCounter
from worlds import World

import lossary
from lossary.pipeline.compiled import _hooks_aside

SIZES = [(9, 7), (5, 12), (14, 3), (40, 9)]


def both(sections, aggregation="token-mean"):
    """The plain objective, the compiled one, and how many graphs it has made."""
    counter = CompileCounter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", lossary.RecipeWarning)
        plain = lossary.compose({**sections, "aggregation": {"use": aggregation, **REQUIRED.get(aggregation, {})}})
        fused = lossary.compose({**sections, "aggregation": {"use": aggregation, **REQUIRED.get(aggregation, {})}}, compile=True)
    fused = lossary.Objective(fused.plan, compile_with=counter)
    return plain, fused, counter


def run(objective, world):
    leaves = world.leaves()
    batch = objective.weigh(objective.estimate(world.batch()))
    out = objective.loss(batch, **{k: v[batch.rows] for k, v in leaves.items()})
    out.total.backward()
    return out.total.detach(), [x.grad for x in leaves.values()], objective.metrics(batch, out)


def assert_same(a, b):
    torch.testing.assert_close(a[0], b[0], rtol=1e-12, atol=1e-12)
    for x, y in zip(a[1], b[1], strict=True):
        torch.testing.assert_close(x, y, rtol=1e-12, atol=1e-12)
    assert a[2] == pytest.approx(b[2], rel=1e-12, abs=1e-14)


def _cases():
    """Every loss; in the quick lane every twelfth, those that take a path of their own, and all terms together."""
    own = ("gspo", "fipo", "real", "full", "importance-sequence", "huber", "distill")
    for i, p in enumerate(LOSSES):
        quick = i % 12 == 0 or p.id.rpartition("/")[2] in own
        yield pytest.param(*p.values, id=p.id, marks=[] if quick else pytest.mark.slow)
    yield pytest.param(WHOLE, id="all-terms")


@pytest.mark.parametrize("sections", list(_cases()))
def test_every_loss_is_one_graph_for_all_sizes_and_changes_no_number(sections):
    plain, fused, counter = both(sections)
    for seed, (rows, width) in enumerate(SIZES):
        world = World(seed, rows, width)
        assert_same(run(fused, world), run(plain, world))
        plain.commit()
        fused.commit()  # coefficients and the step move on without another graph
    over_words = {"logits", "value_logits"} & {name for t in fused.plan.terms for name in t.bound.reads}
    scans = {"fipo", "iw-opd"} & {t.bound.component.name for t in fused.plan.terms}  # which take a level more for 32 times the tokens
    assert counter.frame_count in ((1, 2) if scans else (1,) if not over_words or len(fused.plan.terms) > 1 else (0,))


def test_scheduled_and_measuring_coefficients_make_no_graph_of_their_own():
    sections = {
        "policy_loss": "dual-clip",
        "kl": {"use": "k3", "coef": {"use": "adaptive-kl", "kl_coef": 0.1, "target": 0.01, "horizon": 20}},
        "entropy": {"coef": {"use": "linear", "start": 0.1, "end": 0.0, "steps": 5}},
    }
    plain, fused, counter = both(sections)
    for seed in range(4):
        world = World(seed)
        assert_same(run(fused, world), run(plain, world))
        plain.commit()
        fused.commit()
    assert counter.frame_count == 1


def test_the_sizes_none_and_one_have_at_most_a_graph_each():
    plain, fused, counter = both(WHOLE)
    for rows, width in ((9, 7), (1, 4), (30, 6)):
        world = World(3, rows, width)
        world.mask[:] = True
        assert_same(run(fused, world), run(plain, world))
    world.mask[:] = False
    assert_same(run(fused, world), run(plain, world))
    assert counter.frame_count <= 3


@pytest.mark.parametrize("denominator", ["kept", "original"])
def test_what_corrections_drop_is_dropped_in_a_graph_too(denominator):
    chain = [{"use": "masked-is", "lower": 0.8, "upper": 1.2, "denominator": denominator}]
    plain, fused, counter = both({**WHOLE, "correction": chain})
    late = both({"policy_loss": "ppo-clip", "correction": {"use": "high-entropy", "denominator": "original"}})
    for seed, (rows, width) in enumerate(SIZES):
        world = World(seed, rows, width)
        assert_same(run(fused, world), run(plain, world))
        assert_same(run(late[1], world), run(late[0], world))
    assert (counter.frame_count, late[2].frame_count) == (1, 1)


def test_with_a_head_the_pieces_share_one_graph():
    """Three sizes of batch and a shorter last piece in each; losses over the vocabulary stay outside."""
    sections = {"policy_loss": "dual-clip", "kl": {"use": "k3", "coef": 0.1}, "entropy": {"coef": 0.01}}
    plain, fused, counter = both(sections)
    for seed, (rows, width) in enumerate(SIZES):
        world = World(seed, rows, width)
        want, got = (measured(headed, objective, world, chunk=4) for objective in (plain, fused))
        assert_same(got, want)
    assert 1 <= counter.frame_count <= 3  # and one each for a last piece of one token or none


def test_roles_are_differentiated_apart_and_by_any_factor():
    """What a graph gives is a loss like any other: each side has its own backward, and a host may scale it."""
    plain, fused, _ = both(WHOLE)
    found = []
    for objective in (plain, fused):
        world = World(4)
        leaves = world.leaves()
        batch = objective.weigh(objective.estimate(world.batch()))
        out = objective.loss(batch, host_divides_by=3, **{k: v[batch.rows] for k, v in leaves.items()})
        (out.critic * 0.5).backward(retain_graph=True)
        of_critic = {k: None if x.grad is None else x.grad.clone() for k, x in leaves.items()}
        out.actor.backward()
        found.append((of_critic, {k: x.grad for k, x in leaves.items()}))
    (critic, whole), (fused_critic, fused_whole) = found
    assert {k for k, x in critic.items() if x is not None} == {k for k, x in fused_critic.items() if x is not None} != set(critic)
    for want, got in ((critic, fused_critic), (whole, fused_whole)):
        for k in (k for k, x in want.items() if x is not None):
            torch.testing.assert_close(got[k], want[k], rtol=1e-12, atol=1e-12)


def test_a_host_that_offloads_or_recomputes_what_is_saved_does_not_mind():
    """Hooks on saved tensors hold again afterwards, in their order, also after an error in a graph."""
    plain, fused, _ = both({"policy_loss": "dual-clip"})
    with torch.autograd.graph.save_on_cpu():
        assert_same(run(fused, World(2)), run(plain, World(2)))
    recomputed = torch.utils.checkpoint.checkpoint(lambda: run(fused, World(3)), use_reentrant=False)
    assert_same(recomputed, run(plain, World(3)))
    seen: list[str] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda x: seen.append("outer") or x, lambda x: x):
        with torch.autograd.graph.saved_tensors_hooks(lambda x: seen.append("inner") or x, lambda x: x):
            run(fused, World(4))
            with pytest.raises(RuntimeError, match="a bad graph"), _hooks_aside():
                raise RuntimeError("a bad graph")
            seen.clear()
            torch.ones(3, requires_grad=True).exp()
        torch.ones(3, requires_grad=True).exp()
    assert seen == ["inner", "outer"]


def test_gradients_are_handed_over_once():
    _, fused, _ = both({"policy_loss": "reinforce"})
    world = World(0)
    batch = fused.weigh(fused.estimate(world.batch()))
    out = fused.loss(batch, log_prob=world.leaves()["log_prob"][batch.rows])
    out.total.backward(retain_graph=True)
    with pytest.raises(lossary.LossaryError, match="a compiled loss can be differentiated once"):
        out.total.backward()


def test_what_no_term_learns_from_has_no_gradient_worked_out():
    """Not asked for: a column without a gradient, one that no term reads, and everything under no_grad."""
    plain, fused, counter = both({"policy_loss": "dual-clip", "kl": {"use": "k3", "coef": 0.1}})
    for objective in (plain, fused):
        world = World(1)
        batch = objective.weigh(objective.estimate(world.batch()))
        log_prob, entropy = (x[batch.rows] for x in (world.leaves()["log_prob"], torch.rand_like(world.mask, dtype=torch.float64)))
        entropy.requires_grad_()
        out = objective.loss(batch, log_prob=log_prob, entropy=entropy)
        (slope,) = torch.autograd.grad(out.total, [entropy], allow_unused=True)
        assert slope is None or slope.count_nonzero() == 0
        with torch.no_grad():
            still = objective.loss(batch, log_prob=log_prob, entropy=entropy)
        assert not still.total.requires_grad
        torch.testing.assert_close(still.total, out.total.detach(), rtol=1e-12, atol=1e-12)
    assert counter.frame_count == 2


def test_a_recipe_may_ask_for_it():
    assert lossary.compose({"policy_loss": "reinforce", "compile": True}).plan.compile
    assert not lossary.compose({"policy_loss": "reinforce", "compile": True}, compile=False).plan.compile
    with pytest.raises(lossary.RecipeError, match="compile: 'yes' is not one of true and false"):
        lossary.compose({"policy_loss": "reinforce", "compile": "yes"})


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, about itself
def test_with_the_real_compiler_values_and_gradients_agree():
    objective = lossary.compose(WHOLE, compile=True)
    plain = lossary.compose(WHOLE)
    for seed, (rows, width) in enumerate(SIZES):
        world = World(seed, rows, width)
        assert_same(run(objective, world), run(plain, world))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch, about itself
def test_all_that_compiled_code_allocates_is_less_than_four_padded_columns(monkeypatch):
    """Both gradients included: an upper bound of the peak, told by the allocator that compiled code calls."""
    held, allocate = [], torch._C._dynamo.guards._empty_strided_cpu

    def counted(shape, strides, dtype):
        held.append(math.prod(shape) * dtype.itemsize)
        return allocate(shape, strides, dtype)

    monkeypatch.setattr(torch._C._dynamo.guards, "_empty_strided_cpu", counted)
    torch._dynamo.reset()
    kept = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.2, "clip_ratio_c": 3.0}
    recipe = {"policy_loss": {"use": "dual-clip", **kept}, "kl": {"use": "k3", "coef": 0.1}, "entropy": {"coef": 0.01}}
    objective = lossary.compose({**recipe, "aggregation": "token-mean"}, compile=True)
    mask = torch.arange(4096) < torch.linspace(200, 3076, 64).long()[:, None]  # four tenths of it
    columns = {name: torch.randn(mask.shape) for name in ("old_log_prob", "ref_log_prob", "advantages")}
    batch = objective.weigh(lossary.Batch.from_padded(mask, **columns))
    log_prob, entropy = (torch.rand(len(batch.sequences.index), requires_grad=True) for _ in range(2))
    objective.loss(batch, log_prob=log_prob, entropy=entropy).total.backward()
    gradients = (log_prob.grad.numel() + entropy.grad.numel()) * 4
    assert gradients <= sum(held) <= 4 * mask.numel() * 4, (held, "nothing counted means that compiled code allocates elsewhere")
