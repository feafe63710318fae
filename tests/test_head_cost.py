"""What the head costs, by measures without noise: matrix products, bytes, and how often a loss is called."""

from dataclasses import replace

import pytest
import torch
from heads import WIDTH, WORDS, Products, composed, headed, hidden_of, layer, world
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint

import lossary
from lossary import LossHead, PerToken
from lossary.pipeline.head import _OVER_WORDS
from lossary.registry import Vocab

PPO = {"policy_loss": "dual-clip", "kl": {"use": "k3", "coef": 0.1}, "entropy": {"coef": 0.01}}
GSPO = {"policy_loss": "gspo", "kl": {"use": "k3", "coef": 0.1}, "entropy": {"coef": 0.01}}


def batch_of(objective, n, words):
    g = torch.Generator().manual_seed(n)
    columns = {k: torch.randn(n, generator=g) for k in ("old_log_prob", "ref_log_prob", "advantages")}
    return objective.weigh(lossary.Batch.from_packed([n // 2, n - n // 2], token_ids=torch.randint(0, words, (n,), generator=g), **columns))


@pytest.mark.parametrize(
    ("recipe", "learning", "each"),
    [
        (PPO, "both", 3), (PPO, "hidden", 2), (PPO, "weight", 2), (PPO, "nothing", 1),
        (GSPO, "both", 4), (GSPO, "hidden", 3), (GSPO, "weight", 3), (GSPO, "nothing", 1),
        ({"auxiliary": {"use": "sft", "coef": 1}}, "both", 3),
        ({"policy_loss": "ppo-clip", "kl": {"use": "full", "coef": 0.1}}, "both", 3),
    ],
)  # fmt: skip
def test_products_of_each_chunk(recipe, learning, each):
    objective, linear, n = composed(recipe), layer(dtype=torch.float32), 40
    micro, hidden = batch_of(objective, n, WORDS), torch.randn(n, WIDTH, requires_grad=learning in ("both", "hidden"))
    linear.requires_grad_(learning in ("both", "weight"))
    with Products() as count:
        total = headed(objective, micro, hidden, linear, chunk=10, ref_logits=torch.randn(n, WORDS)).total
        if learning != "nothing":
            total.backward()
    assert len(count.found) == 4 * each


@pytest.mark.parametrize("recipe", [PPO, GSPO])
def test_without_gradients_no_gradient_is_made(recipe):
    objective, linear, n = composed(recipe), layer(dtype=torch.float32), 40
    micro, hidden = batch_of(objective, n, WORDS), torch.randn(n, WIDTH, requires_grad=True)
    with torch.no_grad(), Products() as count:
        out = headed(objective, micro, hidden, linear, chunk=10)
        log_prob, _ = LossHead(linear, chunk_tokens=10).scores(hidden, micro)
    assert not out.total.requires_grad
    assert not log_prob.requires_grad
    assert len(count.found) == 4 + 4


def test_the_backward_of_one_pass_has_no_product():
    objective, n = composed(PPO), 40
    total = headed(objective, batch_of(objective, n, WORDS), torch.randn(n, WIDTH, requires_grad=True), layer(dtype=torch.float32)).total
    with Products() as count:
        total.backward()
    assert count.found == []


def peak(work):
    """Bytes at the highest point above those at the beginning, and those left at the end."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as prof:
        kept = work()
    events = [e for e in prof.profiler.kineto_results.events() if e.name() == "[memory]"]
    now = highest = 0
    for e in sorted(events, key=lambda e: e.start_ns()):
        now += e.nbytes()
        highest = max(highest, now)
    del kept
    return highest


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("recipe", [PPO, GSPO])
def test_memory_beyond_the_gradients_is_two_chunks_at_most_however_many_tokens_there_are(recipe, dtype):
    chunk, words, width = 64, 4096, 16
    linear, objective, extra = layer(True, dtype, words, width), composed(recipe), []
    for n in (128, 512):
        micro, hidden = batch_of(objective, n, words), torch.randn(n, width).to(dtype).requires_grad_()

        def work(micro=micro, hidden=hidden):
            hidden.grad = linear.weight.grad = linear.bias.grad = None
            headed(objective, micro, hidden, linear, chunk=chunk).total.backward()

        work()
        hidden.grad = linear.weight.grad = linear.bias.grad = None
        wide = words * (width + 1) * torch.promote_types(dtype, torch.float32).itemsize
        extra.append(peak(work) - wide - hidden.numel() * dtype.itemsize)
    row = words * dtype.itemsize
    assert 0.9 * chunk * row < extra[0] <= 2 * chunk * row, [x / (chunk * row) for x in extra]
    assert extra[1] - extra[0] < 0.06 * (512 - 128) * row  # vectors with a few numbers for each token, and nothing of the size of a row


@pytest.mark.parametrize(
    "recipe", [{"kl": {"use": "full", "coef": 1}}, {"auxiliary": {"use": "distill", "coef": 1, "divergence": "adaptive"}}]
)
def test_memory_of_losses_over_the_vocabulary_is_what_their_chunks_are_measured_for(recipe):
    chunk, words, width = 64, 4096, 16
    linear, objective, extra = layer(False, torch.float32, words, width), composed({"policy_loss": "ppo-clip", **recipe}), []
    other = lossary.Logits(torch.randn(512, width), torch.randn(words, width))
    for n in (128, 512):
        micro, hidden = batch_of(objective, n, words), torch.randn(n, width).requires_grad_()
        given = {name: replace(other, hidden=other.hidden[:n]) for name in ("ref_logits", "teacher_logits")}

        def work(micro=micro, hidden=hidden, given=given):
            hidden.grad = linear.weight.grad = None
            headed(objective, micro, hidden, linear, chunk=chunk, **given).total.backward()

        work()
        hidden.grad = linear.weight.grad = None
        extra.append((peak(work) - 4 * (words * width + hidden.numel())) / (4 * chunk * words))
    assert 3 < extra[0] <= _OVER_WORDS
    assert abs(extra[1] - extra[0]) < 0.05


def test_shapes_and_branches_do_not_follow_the_data():
    """Fake tensors have shapes and no values."""
    objective, n = composed({**PPO, "kl": {"use": "full", "coef": 1}}), 40
    micro = batch_of(objective, n, WORDS)
    with FakeTensorMode(allow_non_fake_inputs=True):
        hidden, linear = torch.randn(n, WIDTH, requires_grad=True), torch.nn.Linear(WIDTH, WORDS)
        headed(objective, micro, hidden, linear, chunk=16, ref_logits=torch.randn(n, WORDS)).total.backward()
        assert hidden.grad.shape == (n, WIDTH)
        assert linear.weight.grad.shape == (WORDS, WIDTH)


CALLS = []


@lossary.policy_loss(scope="token")
def counted(log_prob: PerToken, advantages: PerToken) -> PerToken:
    """Counts."""
    CALLS.append(log_prob.shape[0])
    return -(log_prob.exp() * advantages)


@lossary.auxiliary_loss(scope="token")
def counted_words(logits: Vocab, log_prob: PerToken) -> PerToken:
    """Counts."""
    CALLS.append(logits.shape[0])
    return logits.square().mean(-1) - log_prob


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("more", [{}, {"auxiliary": {"use": "counted-words", "coef": 0.1}}])
def test_under_activation_checkpointing_losses_are_called_twice_at_most(reentrant, more):
    objective = composed({"policy_loss": "counted", **more}, components=[counted, counted_words])
    where, linear, body = world(), layer(), torch.nn.Linear(WIDTH, WIDTH, dtype=torch.float64)
    micro = objective.weigh(where.batch())
    chunks, found = -(-micro.sequences.index.shape[0] // 4), []

    def run(x):
        total = headed(objective, micro, torch.tanh(body(x)), linear).total
        return total * total.detach().exp()  # something behind the head that is recomputed

    for again in (False, True):
        CALLS.clear()
        x = hidden_of(where).requires_grad_()
        (checkpoint(run, x, use_reentrant=reentrant) if again else run(x)).backward()
        found.append((x.grad, linear.weight.grad.clone(), body.weight.grad.clone()))
        body.weight.grad = linear.weight.grad = None
        assert len(CALLS) <= (1 + again) * chunks * (1 + len(more))
    assert all(torch.allclose(a, b, rtol=1e-12) for a, b in zip(*found, strict=True))


@pytest.mark.parametrize("recipe", [PPO, GSPO])
def test_hooks_that_carry_tensors_elsewhere_change_nothing(recipe):
    objective, where, found = composed(recipe), world(), []
    for moved in (False, True):
        hidden, linear = hidden_of(where).requires_grad_(), layer()
        with torch.autograd.graph.save_on_cpu() if moved else torch.enable_grad():
            total = headed(objective, objective.weigh(where.batch()), hidden, linear).total
        total.backward()
        found.append((hidden.grad, linear.weight.grad))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_nothing_waits_for_the_device():
    waits = {"_local_scalar_dense", "nonzero", "item", "is_nonzero", "unique", "masked_select", "equal"}
    seen = []

    class Watching(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func.overloadpacket.__name__)
            return func(*args, **(kwargs or {}))

    where = world()
    early = {"correction": {"use": "icepop", "denominator": "kept"}}
    for recipe in (PPO, GSPO, {**PPO, **early}, {**PPO, "kl": {"use": "full", "coef": 1}}):
        objective = composed(recipe)
        micro = objective.weigh(objective.estimate(where.batch()))
        with Watching():
            headed(objective, micro, hidden_of(where).requires_grad_(), layer(), ref_logits=where.ref_logits).total.backward()
    assert not waits & set(seen)
    assert "mm" in seen or "addmm" in seen


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of what the compiler imports
def test_compiled_rows_are_the_same_and_one_graph_does_for_all_lengths():
    from torch._dynamo.utils import counters

    objective, found, graphs = composed(PPO), [], []
    torch._dynamo.reset()
    for n in (24, 29, 40, 90):
        micro, values = batch_of(objective, n, WORDS), []
        for compiled in (False, True):
            counters.clear()
            linear = layer(dtype=torch.float32)
            x = torch.randn(n, WIDTH, generator=torch.Generator().manual_seed(0)).requires_grad_()
            head = LossHead(linear, scale=0.7, chunk_tokens=30, compile=compiled)
            objective.loss(micro, policy=head.on(x)).total.backward()
            values.append((x.grad, linear.weight.grad, linear.bias.grad))
        graphs.append(counters["stats"]["unique_graphs"])
        found.append(values)
    assert graphs == [2, 0, 0, 0]
    assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-7) for eager, fused in found for a, b in zip(eager, fused, strict=True))
