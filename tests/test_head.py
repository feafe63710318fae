"""The head: the same values, gradients and metrics as all logits at once, for every loss, dtype and kind of layer."""

import math

import pytest
import torch
from heads import WIDTH, WORDS, composed, error, headed, hidden_of, layer, measured, others, plain, world
from torch import nn

import lossary
from lossary import LossaryError, LossHead, Mean, PerSequence, PerToken
from lossary.registry import Vocab

BOOK = [c for c in lossary.catalog() if c.distribution == "lossary"]
PPO = {"policy_loss": "dual-clip", "kl": {"use": "k3", "coef": 0.1}, "entropy": {"coef": 0.01}}


def _recipes():
    """Every loss of the actor that there is, and what goes with them."""
    slots = {"policy_loss": "policy_loss", "kl": "kl", "auxiliary_loss": "auxiliary"}
    for c in (c for c in BOOK if c.kind.name in slots):
        slot = slots[c.kind.name]
        use = {"use": c.name} if slot == "policy_loss" else {"use": c.name, "coef": 0.7}
        yield pytest.param({slot: use} if slot != "kl" else {slot: use, "policy_loss": "reinforce"}, id=f"{slot}/{c.name}")
    yield pytest.param(PPO, id="dual-clip, k3, entropy")
    yield pytest.param({"policy_loss": "gspo", "kl": {"use": "full", "coef": 0.3}, "entropy": 0.1}, id="gspo, full")
    yield pytest.param({**PPO, "value_loss": {"use": "clipped-mse", "coef": 0.5}}, id="with a critic")
    yield pytest.param({**PPO, "value_loss": {"use": "two-hot", "coef": 0.5}}, id="with a critic of bins")
    yield pytest.param({**PPO, "old_log_prob": "current"}, id="old_log_prob: current")
    for rule in ("drop-impossible", "off-policy-sequence", "high-entropy"):
        late = {"use": rule, "denominator": "original"}
        yield pytest.param({**PPO, "correction": late, "approximate": "micro-batch"}, id=f"late {rule}")
        yield pytest.param({"policy_loss": "sppo", "kl": {"use": "full", "coef": 0.3}, "correction": late}, id=f"late {rule}, sppo, full")
        yield pytest.param({"auxiliary": {"use": "distill", "coef": 1}, "correction": late}, id=f"late {rule}, distill alone")
        both = [{"use": "icepop", "denominator": "original"}, late]
        yield pytest.param({**PPO, "kl": {"use": "full", "coef": 0.3}, "correction": both}, id=f"early and late {rule}, full")
    for denominator in ("kept", "original"):
        early = [{"use": "icepop", "denominator": denominator}, {"use": "truncated-is"}]
        yield pytest.param({**PPO, "correction": early}, id=f"early, {denominator}")
        yield pytest.param({**PPO, "kl": {"use": "full", "coef": 0.3}, "correction": early}, id=f"early, full, {denominator}")
        yield pytest.param({**PPO, "policy_loss": "gspo", "correction": early}, id=f"early, gspo, {denominator}")


def _same(objective, where, tolerance=1e-9, **options):
    wanted, found = (measured(how, objective, where, **options) for how in (plain, headed))
    assert math.isclose(found[0], wanted[0], rel_tol=tolerance, abs_tol=1e-12)
    assert len(found[1]) == len(wanted[1])
    for f, w in zip(found[1], wanted[1], strict=True):
        assert f.isfinite().all()
        assert error(f, w) < tolerance or w.norm() < 1e-12 > f.norm()
    assert found[2].keys() == wanted[2].keys()
    for name, value in wanted[2].items():
        assert math.isclose(found[2][name], value, rel_tol=tolerance, abs_tol=1e-11), name
    return wanted


@pytest.mark.filterwarnings("ignore::lossary.builtin.RecipeWarning")
@pytest.mark.parametrize("recipe", list(_recipes()))
def test_every_loss_is_what_it_is_with_all_logits_at_once(recipe):
    _same(composed(recipe), world())


def test_the_objective_chooses_one_pass_where_every_term_looks_at_one_token():
    one = [PPO, {"auxiliary": {"use": "sft", "coef": 1}}, {"policy_loss": "ppo-clip", "kl": {"use": "full", "coef": 1}}]
    assert all(composed(r).one_pass for r in [*one, {**PPO, "value_loss": "clipped-mse"}])
    late = {"use": "off-policy-sequence", "denominator": "original"}
    more = [{"policy_loss": "gspo"}, {"policy_loss": "vespo"}, {**PPO, "policy_loss": "kl-cov"}, {**PPO, "correction": late}]
    assert not any(composed(r).one_pass for r in more)


@lossary.policy_loss(scope="token")
def looks_around(log_prob: PerToken, rewards: PerSequence, sequences: lossary.Sequences) -> PerToken:
    """Claims to look at one token and does not."""
    return -log_prob * sequences.spread(rewards * sequences.sum(log_prob.detach()))


@lossary.auxiliary_loss(scope="token")
def partition(logits: Vocab, log_z: PerToken) -> PerToken:
    """Learns through something that no head gives."""
    return (logits.logsumexp(-1) - log_z).square()


def test_a_loss_that_sees_its_sequences_is_not_run_on_pieces():
    objective = composed({"policy_loss": "looks-around"}, components=[looks_around])
    assert not objective.one_pass
    _same(objective, world())


def test_a_loss_of_logits_that_also_learns_elsewhere_is_refused():
    objective = composed({"auxiliary": {"use": "partition", "coef": 1}}, components=[partition])
    with pytest.raises(LossaryError, match=r"auxiliary_loss 'partition' reads logits beside what no head gives"):
        measured(headed, objective, world())


@pytest.mark.parametrize("options", [{"scale": 0.5}, {"softcap": 2.0}, {"scale": 1.5, "softcap": 3.0}, {"bias": False}])
@pytest.mark.parametrize("recipe", [PPO, {**PPO, "kl": {"use": "full", "coef": 1}}, {"policy_loss": "gspo", "entropy": 0.1}])
def test_scale_softcap_and_bias(recipe, options):
    _same(composed(recipe), world(), **options)


@pytest.mark.parametrize("chunk", [1, 3, 1000])
@pytest.mark.parametrize("recipe", [PPO, {"policy_loss": "vespo"}])
def test_any_chunk_is_the_same(recipe, chunk):
    wanted = measured(plain, composed(recipe), world(2))
    found = measured(headed, composed(recipe), world(2), chunk=chunk)
    assert all(error(f, w) < 1e-12 for f, w in zip(found[1], wanted[1], strict=True))


@pytest.mark.parametrize("recipe", [PPO, {"policy_loss": "gspo"}, {"auxiliary": {"use": "distill", "coef": 1}}])
def test_float32_is_as_exact_as_float32_is(recipe):
    objective = composed(recipe)
    wanted = measured(plain, objective, world(3), hidden=hidden_of(world(3)).float().double())
    found = measured(headed, objective, world(3, torch.float32), hidden=hidden_of(world(3)).float())
    assert found[0].dtype == torch.float32
    assert error(found[0], wanted[0]) < 1e-5
    assert all(f.dtype == torch.float32 and error(f, w) < 1e-5 for f, w in zip(found[1], wanted[1], strict=True))


def _half(recipe, dtype, **options):
    """Errors of gradients in half precision, against float64, of head and of plain autograd with a softmax in float32."""
    n, width, words = 96, 32, 300
    g = torch.Generator().manual_seed(0)
    columns = {k: torch.randn(n, generator=g) * 0.3 - 6 for k in ("old_log_prob", "ref_log_prob")}
    batch = lossary.Batch.from_packed(
        [20, 40, 36], token_ids=torch.randint(0, words, (n,), generator=g), advantages=torch.randn(n, generator=g), **columns
    )
    objective = composed(recipe)
    micro, x = objective.weigh(batch), torch.randn(n, width, generator=g).to(dtype)
    linear = layer(True, torch.float32, words, width)
    made = []
    scale = options.get("grad_scale", 1.0)
    for how, real in ((plain, torch.float64), (plain, dtype), (headed, dtype)):
        hidden, net = (0.3 * x).to(real, copy=True).requires_grad_(), nn.Linear(width, words)
        net.load_state_dict(linear.state_dict())
        net = net.to(dtype).to(real)
        more = {"wide": torch.promote_types(real, torch.float32)} if how is plain else {"chunk": 16, **options}
        (how(objective, micro, hidden, net, **more).total * scale).backward()
        made.append([hidden.grad / scale, *(p.grad / scale for p in net.parameters())])
    return [[error(f, w) for f, w in zip(grads, made[0], strict=True)] for grads in made[1:]], made[2]


@pytest.mark.parametrize("recipe", [PPO, {"policy_loss": "gspo", "entropy": 0.1}])
def test_half_precision_loses_no_more_than_a_softmax_in_float32(recipe):
    (naive, ours), grads = _half(recipe, torch.bfloat16)
    assert all(o <= 1.2 * n for o, n in zip(ours, naive, strict=True)), (ours, naive)
    assert all(g.dtype == torch.bfloat16 for g in grads)


def test_float16_is_run_with_the_scale_that_the_loss_will_get_and_refused_without():
    (naive, ours), _ = _half(PPO, torch.float16, grad_scale=1024.0)
    assert all(o <= 1.2 * n for o, n in zip(ours, naive, strict=True)), (ours, naive)
    with pytest.raises(LossaryError, match="float16 gradients vanish unless the loss is scaled"):
        _half(PPO, torch.float16)


def test_weight_gradients_are_added_up_in_float32():
    """Many small chunks: added in bfloat16, what the later ones bring would be lost against the sum of the earlier ones."""
    n, objective = 512, composed({"auxiliary": {"use": "sft", "coef": 1}})
    batch = objective.weigh(lossary.Batch.from_packed([n], token_ids=torch.zeros(n, dtype=torch.long)))
    linear, hidden = nn.Linear(4, 3, bias=True).to(torch.bfloat16), torch.ones(n, 4, dtype=torch.bfloat16)
    nn.init.zeros_(linear.weight)
    nn.init.zeros_(linear.bias)
    headed(objective, batch, hidden, linear, chunk=1).total.backward()
    wanted = torch.tensor([-2 / 3, 1 / 3, 1 / 3])
    assert torch.allclose(linear.weight.grad.float(), wanted[:, None].expand(3, 4), rtol=5e-3)
    assert torch.allclose(linear.bias.grad.float(), wanted, rtol=5e-3)


@pytest.mark.parametrize("recipe", [PPO, {"policy_loss": "gspo"}])
def test_a_scale_of_the_loss_reaches_the_gradients_whatever_was_foreseen(recipe):
    where, objective, found = world(), composed(recipe), []
    for foreseen, factor in ((None, 1.0), (None, 8.0), (8.0, 8.0), (torch.tensor(4.0), 8.0)):
        hidden, linear, micro = hidden_of(where).requires_grad_(), layer(), objective.weigh(where.batch())
        out = headed(objective, micro, hidden, linear, grad_scale=foreseen, host_divides_by=3)
        (out.total * factor).backward()
        found.append((hidden.grad / factor, linear.weight.grad / factor))
    wanted = measured(plain, objective, where, host_divides_by=3)[1]
    for grads in found:
        assert all(error(f, w) < 1e-12 for f, w in zip(grads, wanted[:2], strict=True))


@pytest.mark.parametrize("recipe", [PPO, {"policy_loss": "gspo"}])
@pytest.mark.parametrize("learning", ["hidden", "weight", "nothing"])
def test_what_is_frozen_gets_no_gradient(recipe, learning):
    where, objective = world(), composed(recipe)
    found = []
    for how in (plain, headed):
        hidden, linear, micro = hidden_of(where), layer(), objective.weigh(where.batch())
        hidden.requires_grad_(learning == "hidden")
        linear.requires_grad_(learning == "weight")
        out = how(objective, micro, hidden, linear)
        assert out.total.requires_grad == (learning != "nothing")
        if learning != "nothing":
            out.total.backward()
        found.append([out.total.detach(), hidden.grad, linear.weight.grad, linear.bias.grad])
    for a, b in zip(*found, strict=True):
        assert (a is None) == (b is None)
        assert a is None or error(b, a) < 1e-12


@pytest.mark.parametrize("recipe", [PPO, {"policy_loss": "gspo"}])
def test_a_weight_that_is_tied_to_the_embedding_gets_both_gradients(recipe):
    where, objective, found = world(), composed(recipe), []
    for how in (plain, headed):
        embedding, linear = nn.Embedding(WORDS, WIDTH, dtype=torch.float64), layer(False)
        embedding.weight = linear.weight
        micro = objective.weigh(where.batch())
        how(objective, micro, torch.tanh(embedding(where.columns["token_ids"])), linear).total.backward()
        found.append(linear.weight.grad)
    assert error(found[1], found[0]) < 1e-12


@pytest.mark.parametrize("recipe", [PPO, {"policy_loss": "gspo"}, {"policy_loss": "real"}])
def test_micro_batches_accumulate_to_the_whole(recipe):
    where, objective = world(4), composed(recipe)
    wanted = measured(plain, objective, where)
    hidden, linear, outs = hidden_of(where).requires_grad_(), layer(), []
    for micro in objective.split(objective.weigh(objective.estimate(where.batch())), parts=2):
        outs.append(headed(objective, micro, hidden[micro.rows], linear, **others(where, micro)))
        outs[-1].total.backward()
    assert error(sum(o.total for o in outs).detach(), wanted[0]) < 1e-12
    assert all(error(f, w) < 1e-12 for f, w in zip((hidden.grad, linear.weight.grad, linear.bias.grad), wanted[1], strict=True))
    told = objective.metrics(outs)
    assert told.keys() == wanted[2].keys()
    assert all(math.isclose(told[k], wanted[2][k], rel_tol=1e-9, abs_tol=1e-11) for k in told)


def test_losses_may_be_added_up_before_one_backward():
    where, objective = world(4), composed(PPO)
    wanted = measured(plain, objective, where)[1]
    hidden, linear, head = hidden_of(where).requires_grad_(), layer(), None
    head = LossHead(linear, chunk_tokens=3)
    micros = objective.split(objective.weigh(where.batch()), parts=3)
    sum(objective.loss(m, policy=head.on(hidden[m.rows])).total for m in micros).backward()
    assert all(error(f, w) < 1e-12 for f, w in zip((hidden.grad, head.weight.grad, head.bias.grad), wanted, strict=True))


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1)])
def test_losses_that_wait_may_be_differentiated_in_any_order(order):
    where, objective = world(4), composed(PPO)
    wanted = measured(plain, objective, where)[1]
    hidden, head = hidden_of(where).requires_grad_(), LossHead(layer(), chunk_tokens=3)
    waiting = [objective.loss(m, policy=head.on(hidden[m.rows])).total for m in objective.split(objective.weigh(where.batch()), parts=3)]
    for i in order:
        waiting[i].backward()
    assert all(error(f, w) < 1e-12 for f, w in zip((hidden.grad, head.weight.grad, head.bias.grad), wanted, strict=True))


def test_a_second_backward_raises():
    where, objective = world(), composed(PPO)
    out = headed(objective, objective.weigh(where.batch()), hidden_of(where).requires_grad_(), layer())
    out.total.backward(retain_graph=True)
    with pytest.raises(LossaryError, match="can be differentiated once"):
        out.total.backward()


def test_scores_are_differentiable_and_take_a_batch_or_ids():
    where = world()
    batch, head, hidden = where.batch(), LossHead(layer(), scale=0.5, chunk_tokens=4), hidden_of(where).requires_grad_()
    log_prob, entropy = head.scores(hidden, batch)
    (log_prob.square() + entropy.exp()).sum().backward()
    other = hidden.detach().clone().requires_grad_()
    log_p = (layer()(batch.pack(other)) * 0.5).log_softmax(-1)
    chosen, h = log_p.gather(-1, batch["token_ids"][:, None])[:, 0], -(log_p.exp() * log_p).sum(-1)
    (chosen.square() + h.exp()).sum().backward()
    assert torch.allclose(log_prob, chosen, rtol=1e-12)
    assert torch.allclose(entropy, h, rtol=1e-12)
    assert error(hidden.grad, other.grad) < 1e-12
    again = head.scores(batch.pack(hidden), batch["token_ids"])
    assert torch.equal(again.log_prob, log_prob)
    assert torch.autograd.gradcheck(
        lambda x, w: _scores(x, w), (torch.randn(5, 3).double().requires_grad_(), layer(words=4, width=3).weight)
    )


def _scores(hidden, weight):
    linear = nn.Linear(3, 4, bias=False)
    linear.weight = weight
    return tuple(LossHead(linear, chunk_tokens=2).scores(hidden, torch.tensor([0, 3, 1, 1, 2])))


@pytest.mark.parametrize("recipe", [PPO, {"policy_loss": "gspo"}, {"policy_loss": "gspo", "kl": {"use": "full", "coef": 1}}])
def test_no_token_one_token_and_garbage_under_the_mask(recipe):
    objective = composed(recipe)
    where = world(5, rows=3)
    wanted = measured(plain, objective, where)[1]
    found = measured(headed, objective, where, hidden=hidden_of(where, garbage=float("nan")))[1]
    assert all(error(f, w) < 1e-12 for f, w in zip(found, wanted, strict=True))
    where.mask[:] = False
    total, grads, told = measured(headed, objective, where, hidden=hidden_of(where, garbage=float("inf")))
    assert total == 0
    assert all((g == 0).all() for g in grads)
    assert told.get("actor/entropy") is None
    where.mask[1, 2] = True
    _same(objective, where)


def test_a_word_that_cannot_be_said_poisons_nothing():
    """Padded vocabularies have a bias of -inf behind their last word."""
    where, found = world(), []
    objective = composed(PPO)
    for words in (WORDS, WORDS + 2):
        linear, hidden = layer(), hidden_of(where).requires_grad_()
        wide = nn.Linear(WIDTH, words, dtype=torch.float64)
        wide.weight.data = torch.cat([linear.weight.data, torch.ones(words - WORDS, WIDTH)])
        wide.bias.data = torch.cat([linear.bias.data, torch.full((words - WORDS,), -torch.inf)])
        out = headed(objective, objective.weigh(where.batch()), hidden, wide)
        out.total.backward()
        found.append((out.total.detach(), hidden.grad, wide.weight.grad[:WORDS]))
    assert all(error(b, a) < 1e-12 for a, b in zip(*found, strict=True))
    assert (wide.weight.grad[WORDS:] == 0).all()


def test_a_coefficient_that_follows_its_term_sees_the_same_from_pieces():
    follows = {"use": "k3", "coef": {"use": "adaptive-kl", "kl_coef": 0.1, "target": 0.01, "horizon": 20}}
    told = []
    for how in (plain, headed):
        objective = composed({**PPO, "kl": follows})
        for _ in range(3):
            metrics = measured(how, objective, world())[2]
            objective.commit()
        told.append(metrics)
    assert told[0]["actor/kl_coef"] != pytest.approx(0.1)
    assert all(math.isclose(told[0][k], told[1][k], rel_tol=1e-9, abs_tol=1e-11) for k in told[0])


@lossary.auxiliary_loss(scope="token")
def reporting(logits: Vocab, log_prob: PerToken) -> tuple[PerToken, dict]:
    """Reports under the name that another term takes."""
    return logits.logsumexp(-1), {"approx": Mean(log_prob.detach(), log_prob < -1)}


@lossary.policy_loss(scope="sequence")
def reporting_too(log_prob: PerToken) -> tuple[PerToken, dict]:
    """Takes it."""
    return -log_prob, {"approx": Mean(log_prob.detach())}


def test_two_terms_that_report_the_same_name_stay_apart():
    recipe = {"policy_loss": "reporting-too", "auxiliary": {"use": "reporting", "coef": 0.1}}
    told = _same(composed(recipe, components=[reporting, reporting_too]), world())[2]
    assert told["actor/approx"] != told["actor/reporting_approx"]


def test_autocast_is_followed_and_its_weights_stay_float32():
    where, objective = world(6, torch.float32), composed(PPO)
    wanted = measured(plain, objective, world(6))[1]
    hidden, linear = hidden_of(where, dtype=torch.float32).requires_grad_(), layer(dtype=torch.float32)
    micro = objective.weigh(where.batch())
    with torch.autocast("cpu", torch.bfloat16):
        total = headed(objective, micro, hidden, linear).total
    total.backward()
    assert all(g.dtype == torch.float32 for g in (hidden.grad, linear.weight.grad))
    assert 1e-5 < error(hidden.grad, wanted[0]) < 4e-2
    assert 1e-5 < error(linear.weight.grad, wanted[1]) < 4e-2
