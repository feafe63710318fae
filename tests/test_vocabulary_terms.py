"""Components over the whole vocabulary: in chunks, from hidden states, with tokens that cannot be said, and critics of bins."""

import math

import pytest
import torch
from golden.records import COMPONENTS
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.distributions import Normal
from torch.utils._python_dispatch import TorchDispatchMode
from wordwise import INF, K, N, V, close, kept_for_backward, kl, masked, random, value_and_grad
from worlds import World

import lossary
from lossary import Logits, numerics
from lossary.registry import ColumnError, faults_of


class Sizes(TorchDispatchMode):
    """Remembers the most elements that one result had."""

    def __init__(self):
        super().__init__()
        self.largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        for x in found if isinstance(found, (tuple, list)) else (found,):
            if isinstance(x, torch.Tensor):
                self.largest = max(self.largest, x.numel())
        return found


SUPPORT = {"low": -2.0, "high": 3.0}


CASES = [
    ("kl", "full", {}),
    ("kl", "full", {"direction": "forward"}),
    *(
        ("auxiliary_loss", "distill", {"divergence": d})
        for d in ("forward", "reverse", "jsd", "skewed-forward", "skewed-reverse", "adaptive")
    ),
    *(("auxiliary_loss", "distill", {"divergence": "jsd", "beta": b, "temperature": 2.0}) for b in (0.0, 0.3, 1.0)),
    *(
        ("auxiliary_loss", "distill-topk", {"divergence": d, "others": o})
        for d in ("forward", "reverse", "mixed")
        for o in ("tail", "renormalise", "ignore", "never")
    ),
    ("auxiliary_loss", "distill-topk", {"others": "ignore", "log_prob_min_clamp": -3.0, "loss_min_clamp": 0.0, "loss_max_clamp": 2.0}),
    *(
        ("auxiliary_loss", "distill-student-topk", {"topk": K, "beta": b, "others": o})
        for b in (0.0, 0.3, 1.0)
        for o in ("tail", "renormalise")
    ),
    ("auxiliary_loss", "distill-student-topk", {"topk": K, "is_clip": 2.0}),
    ("value_loss", "two-hot", SUPPORT),
    ("value_loss", "hl-gauss", SUPPORT),
]


each = pytest.mark.parametrize(("kind", "name", "params"), CASES, ids=lambda x: str(x).replace("'", ""))


def world(n=N, dtype=torch.float64, vocabulary=V):
    """Columns for every case; the teacher's top K is its own."""
    teacher = random(n, vocabulary, seed=1)
    top = teacher.log_softmax(-1).topk(K)
    old = random(n, seed=4, scale=0.5)
    columns = {
        "logits": random(n, vocabulary),
        "ref_logits": random(n, vocabulary, seed=5),
        "teacher_logits": teacher,
        "value_logits": random(n, vocabulary, seed=6),
        "returns": random(n, seed=7),
        "log_prob": old + random(n, seed=8, scale=0.5),
        "old_log_prob": old,
        "teacher_topk_log_prob": top.values,
        "teacher_topk_ids": top.indices,
    }
    return {k: v.to(dtype) if v.is_floating_point() else v for k, v in columns.items()}


def run(kind, name, params, columns):
    """``(loss, report)`` of a component, called as the pipeline does."""
    c = COMPONENTS[kind, name]
    found = c.function(*(columns[i.name] for i in c.inputs), **c.params.model_validate(params).model_dump())
    return found if isinstance(found, tuple) else (found, {})


def learns(kind):
    return "value_logits" if kind == "value_loss" else "logits"


def loss_and_grad(kind, name, params, columns):
    leaf = columns[learns(kind)].detach().clone().requires_grad_()
    loss, _ = run(kind, name, params, {**columns, learns(kind): leaf})
    return loss.detach(), torch.autograd.grad(loss.sum(), leaf)[0]


@each
def test_a_component_is_one_number_per_token_with_its_gradient(kind, name, params):
    columns = world()
    loss, report = run(kind, name, params, columns)
    assert loss.shape == (N,)
    assert all(m.x.shape == (N,) and not m.x.requires_grad for m in report.values())
    if params.get("divergence") != "adaptive":  # its weight has no gradient
        x = columns[learns(kind)].requires_grad_()
        assert torch.autograd.gradcheck(lambda z: run(kind, name, params, {**columns, learns(kind): z})[0], x)


@each
def test_chunks_put_together_are_the_whole(kind, name, params):
    columns = world(7)
    want = loss_and_grad(kind, name, params, columns)
    parts = [loss_and_grad(kind, name, params, {k: v[a:b] for k, v in columns.items()}) for a, b in ((0, 1), (1, 1), (1, 5), (5, 7))]
    close(torch.cat([p[0] for p in parts]), want[0])
    close(torch.cat([p[1] for p in parts]), want[1])


@each
def test_half_precision_is_widened_first(kind, name, params):
    columns = world(dtype=torch.bfloat16)
    columns |= {k: columns[k].float() for k in ("log_prob", "old_log_prob")}  # as columns come through the door
    loss, grad = loss_and_grad(kind, name, params, columns)
    want, want_grad = loss_and_grad(kind, name, params, {k: v.float() if v.is_floating_point() else v for k, v in columns.items()})
    assert loss.dtype == torch.float32
    assert torch.equal(loss, want)
    assert torch.equal(grad, want_grad.to(torch.bfloat16))


@each
def test_extremes_and_tokens_that_cannot_be_said_stay_finite(kind, name, params):
    for dtype in (torch.float32, torch.float64):
        columns = world(dtype=dtype)
        for k in ("logits", "ref_logits", "teacher_logits", "value_logits"):
            columns[k] = masked(torch.where(columns[k].abs() > 2, columns[k].sign() * 1e4, columns[k]), len(k))
            columns[k][:, 0] = 0.0
        columns["teacher_topk_log_prob"][1, 1:] = -1e4
        columns["returns"][0] = 1e6
        if kind == "value_loss":
            columns["value_logits"] = columns["value_logits"].nan_to_num(neginf=-1e4)  # every bin can be a target
        loss, grad = loss_and_grad(kind, name, params, columns)
        assert loss.isfinite().all()
        assert grad.isfinite().all()


@each
def test_no_component_needs_data_to_look_at_or_more_than_a_vocabulary(kind, name, params):
    columns = world(vocabulary=301)
    leaf = columns[learns(kind)].requires_grad_()
    with Sizes() as sizes:
        run(kind, name, params, columns)[0].sum().backward()
    assert sizes.largest <= leaf.numel() + N  # K bins have K + 1 edges
    assert kept_for_backward(lambda z: run(kind, name, params, {**columns, learns(kind): z}), leaf)[0] <= 2
    mode = FakeTensorMode()
    fake = {k: mode.from_tensor(v.detach()).requires_grad_(k == learns(kind)) for k, v in columns.items()}
    with mode:
        loss, _ = run(kind, name, params, fake)
        loss.sum().backward()
    assert loss.shape == (N,)
    assert fake[learns(kind)].grad.shape == leaf.shape


@each
def test_a_component_says_what_it_reads_and_takes_no_sequences(kind, name, params):
    c = COMPONENTS[kind, name]
    assert c.scope == "token"
    assert "sequences" not in c.columns
    assert learns(kind) in c.columns


def test_the_exact_kl_is_what_the_estimates_are_on_average():
    columns = world()
    log_p, log_q = columns["logits"].log_softmax(-1), columns["ref_logits"].log_softmax(-1)
    exact, _ = run("kl", "full", {}, columns)
    for name in ("k1", "k3"):
        estimate = COMPONENTS["kl", name].function(log_p, log_q)
        close((log_p.exp() * estimate).sum(-1), exact)


@pytest.mark.parametrize(("divergence", "f"), [("forward", numerics.forward_kl), ("reverse", numerics.reverse_kl)])
def test_over_all_tokens_the_top_k_is_the_whole(divergence, f):
    columns = world()
    top = columns["teacher_logits"].log_softmax(-1).topk(V)
    columns |= {"teacher_topk_log_prob": top.values, "teacher_topk_ids": top.indices}
    want = f(columns["logits"], columns["teacher_logits"])
    for others in ("renormalise", "ignore", "never"):
        close(run("auxiliary_loss", "distill-topk", {"divergence": divergence, "others": others}, columns)[0], want)
    tail, _ = run("auxiliary_loss", "distill-topk", {"divergence": divergence, "others": "tail"}, columns)
    close(tail, want, atol=1e-6)


@pytest.mark.parametrize("divergence", ["forward", "reverse", "mixed"])
def test_what_becomes_of_the_others(divergence):
    """The four choices, each as distributions that are written out."""
    columns = world()
    p, q = columns["logits"].softmax(-1), columns["teacher_logits"].softmax(-1)
    ids = columns["teacher_topk_ids"]
    pk, qk = p.gather(1, ids), q.gather(1, ids)

    def between(a, b, reverse_too=0.0):
        forward, reverse = (b * (b / a).log()).sum(-1), (a * (a / b).log()).sum(-1) + reverse_too
        return {"forward": forward, "reverse": reverse, "mixed": 0.25 * forward + 0.75 * reverse}[divergence]

    def rest(x):
        return torch.cat([x, 1 - x.sum(-1, keepdim=True)], -1)

    outside = torch.ones_like(p).scatter(1, ids, 0.0)
    want = {
        "tail": between(rest(pk), rest(qk)),
        "renormalise": between(pk / pk.sum(-1, keepdim=True), qk / qk.sum(-1, keepdim=True)),
        "ignore": between(pk, qk),
        "never": between(pk, qk, (outside * p * (p.log() + 50.0)).sum(-1)),
    }
    for others, value in want.items():
        params = {"divergence": divergence, "others": others, "mixed_kl_weight": 0.25, "log_infinitesimal": -50.0}
        found, report = run("auxiliary_loss", "distill-topk", params, columns)
        close(found, value)
        close(report["student_mass"].x, pk.sum(-1))
        close(report["teacher_mass"].x, qk.sum(-1))
    assert (want["tail"] <= between(p, q) + 1e-12).all()


@pytest.mark.parametrize("others", ["tail", "renormalise", "ignore", "never"])
@pytest.mark.parametrize("divergence", ["forward", "reverse", "mixed"])
def test_places_that_the_teacher_did_not_fill_do_not_count(divergence, others):
    params, columns = {"divergence": divergence, "others": others}, world()
    fewer = {k: v[:, :2] if k.startswith("teacher_topk") else v for k, v in columns.items()}
    columns["teacher_topk_log_prob"][:, 2:] = -INF
    for padding in (0, -1):
        columns["teacher_topk_ids"][:, 2:] = padding
        for a, b in zip(*(loss_and_grad("auxiliary_loss", "distill-topk", params, x) for x in (fewer, columns)), strict=True):
            close(b, a)
    unsaid = {**columns, "teacher_topk_log_prob": columns["teacher_topk_log_prob"].clamp(min=-50.0)}  # the ids alone say so
    for a, b in zip(*(loss_and_grad("auxiliary_loss", "distill-topk", params, x) for x in (fewer, unsaid)), strict=True):
        close(b, a)
    columns["teacher_topk_log_prob"][:] = -INF  # the teacher said nothing at all
    loss, grad = loss_and_grad("auxiliary_loss", "distill-topk", params, columns)
    assert loss.isfinite().all()
    assert grad.isfinite().all()
    if others != "never":
        assert (loss == 0).all()
        assert (grad == 0).all()


def test_clamps_bind_without_a_gradient():
    columns = world()
    plain_loss, _ = loss_and_grad("auxiliary_loss", "distill-topk", {"others": "ignore"}, columns)
    middle = float(plain_loss.sort().values[2:4].mean())
    loss, grad = loss_and_grad("auxiliary_loss", "distill-topk", {"others": "ignore", "loss_max_clamp": middle}, columns)
    close(loss, plain_loss.clamp(max=middle))
    assert (grad[plain_loss > middle] == 0).all()
    assert (grad[plain_loss < middle] != 0).any()


def test_the_student_chooses_its_own_and_may_choose_all():
    columns = world()
    want = numerics.jensen_shannon(columns["logits"], columns["teacher_logits"], 0.3)
    found, report = run("auxiliary_loss", "distill-student-topk", {"topk": 10**6, "beta": 0.3, "others": "renormalise"}, columns)
    close(found, want)
    close(report["student_mass"].x, torch.ones(N, dtype=torch.float64))
    some, report = run("auxiliary_loss", "distill-student-topk", {"topk": 2, "beta": 0.0, "others": "tail"}, columns)
    p, q = columns["logits"].softmax(-1), columns["teacher_logits"].softmax(-1)
    ids = p.topk(2).indices
    p, q = (torch.cat([x.gather(1, ids), 1 - x.gather(1, ids).sum(-1, keepdim=True)], -1) for x in (p, q))
    close(some, kl(q, p))
    close(report["teacher_mass"].x, q[:, :2].sum(-1))


def test_the_ratio_of_a_student_weighs_without_a_gradient_and_needs_its_columns():
    columns = world()
    bare, _ = loss_and_grad("auxiliary_loss", "distill-student-topk", {"topk": K}, columns)
    leaf = columns["log_prob"].requires_grad_()
    loss, _ = run("auxiliary_loss", "distill-student-topk", {"topk": K, "is_clip": 1.1}, columns)
    close(loss, bare * (leaf - columns["old_log_prob"]).exp().clamp(max=1.1).detach())
    assert not loss.requires_grad
    with pytest.raises(ColumnError, match="is_clip needs 'log_prob' and 'old_log_prob'"):
        run("auxiliary_loss", "distill-student-topk", {"is_clip": 1.1}, {**columns, "old_log_prob": None})


@pytest.mark.parametrize("chunk", [3, 1000])
def test_in_a_recipe_they_run_in_chunks_from_hidden_states(chunk):
    """All kinds at once: total, gradients of the head and metrics are those of explicit sums over the whole batch."""
    w, g = World(1), torch.Generator().manual_seed(0)
    ids = torch.randint(0, V, (*w.mask.shape, K), generator=g)
    said = -torch.rand(*w.mask.shape, K, generator=g, dtype=torch.float64) * 3 - 1
    recipe = {
        "kl": {"use": "full", "coef": 0.5},
        "auxiliary": [{"use": "distill", "coef": 0.3, "divergence": "jsd"}, {"use": "distill-topk", "coef": 0.2, "others": "ignore"}],
        "value_loss": {"use": "hl-gauss", "coef": 2.0, "low": -4.0, "high": 1.0},
    }
    objective = lossary.Objective(lossary.compose(recipe).plan, chunk_tokens=chunk)
    batch = objective.weigh(w.batch(teacher_topk_log_prob=said, teacher_topk_ids=ids))
    shape = w.mask.shape
    hidden, weight = random(*shape, 5).requires_grad_(), random(V, 5, seed=1).requires_grad_()
    ref, teacher, bins = random(*shape, V, seed=2), random(*shape, V, seed=3), random(*shape, 9, seed=4).requires_grad_()
    made = {"logits": Logits(hidden, weight), "ref_logits": ref, "teacher_logits": teacher, "value_logits": bins}
    out = objective.loss(batch, **made)
    out.total.backward()
    leaf, head, crit = (x.detach().clone().requires_grad_() for x in (hidden, weight, bins))
    z, m = (leaf @ head.T)[w.mask], w.mask
    p, q, r = z.softmax(-1), teacher[m].softmax(-1), ref[m].softmax(-1)
    top = (said[m].exp() * (said[m] - p.log().gather(1, ids[m]))).sum(-1)
    centres = numerics.bin_centres(crit[m], -4.0, 1.0)
    target = numerics.hl_gauss(w.columns["returns"][m], centres, 0.75)
    middle = (p + q) / 2
    actor = 0.5 * kl(p, r) + 0.3 * 0.5 * (kl(p, middle) + kl(q, middle)) + 0.2 * top
    want = (actor - 2.0 * (target * crit[m].log_softmax(-1)).sum(-1)).mean()
    want.backward()
    close(out.total, want, rtol=1e-10)
    for ours, theirs in ((hidden, leaf), (weight, head), (bins, crit)):
        close(ours.grad, theirs.grad, rtol=1e-9, atol=1e-13)
    told = objective.metrics(out)
    assert told["actor/student_mass"] == pytest.approx(float(p.detach().gather(1, ids[m]).sum(-1).mean()))
    assert told["critic/returns_outside"] == 0


RETURNS = torch.tensor([-2.0, -1.99, 0.0, 0.26, 1.0, 2.9, 3.0, -7.0, 1e4], dtype=torch.float64)


def test_two_hot_shares_a_return_between_its_neighbours():
    points = numerics.bin_points(torch.zeros(1, 11, dtype=torch.float64), -2.0, 3.0)
    target = numerics.two_hot(RETURNS, points)
    close(target.sum(-1), torch.ones(9, dtype=torch.float64))
    close(target @ points, RETURNS.clamp(-2, 3))
    assert ((target > 1e-12).sum(-1) <= 2).all()
    want = torch.zeros(9, 11, dtype=torch.float64)
    for row, x in enumerate(RETURNS.clamp(-2, 3).tolist()):
        below = min(int((x + 2) / 0.5), 9)
        want[row, below + 1] = (x + 2) / 0.5 - below
        want[row, below] = 1 - want[row, below + 1]
    close(target, want, atol=1e-12)


@pytest.mark.parametrize("ratio", [0.1, 0.75, 3.0])
def test_hl_gauss_is_a_normal_distribution_seen_through_bins(ratio):
    logits = torch.zeros(1, 10, dtype=torch.float64)
    centres = numerics.bin_centres(logits, -2.0, 3.0)
    close(centres, torch.linspace(-1.75, 2.75, 10, dtype=torch.float64))
    edges = torch.linspace(-2, 3, 11, dtype=torch.float64)
    found = numerics.hl_gauss(RETURNS, centres, ratio)
    for x, row in zip(RETURNS.clamp(-2, 3), found, strict=True):
        below = Normal(x, torch.tensor(ratio * 0.5, dtype=torch.float64)).cdf(edges)
        close(row, below.diff() / (below[-1] - below[0]), atol=1e-12)
    close(found.sum(-1), torch.ones(9, dtype=torch.float64))


@pytest.mark.parametrize(("name", "points"), [("two-hot", numerics.bin_points), ("hl-gauss", numerics.bin_centres)])
def test_a_critic_of_bins_learns_the_return(name, points):
    """By gradient descent on its loss alone; the value that it decodes to is the mean of the returns that it saw."""
    returns = torch.tensor([0.0, 1.0, 1.0, 1.0], dtype=torch.float64)
    leaf = torch.zeros(1, 41, dtype=torch.float64, requires_grad=True)
    for _ in range(3000):
        loss, report = run("value_loss", name, {"low": -1.0, "high": 2.0}, {"value_logits": leaf.expand(4, -1), "returns": returns})
        (grad,) = torch.autograd.grad(loss.mean(), leaf)
        with torch.no_grad():
            leaf -= 2.0 * grad
    value = numerics.decoded(leaf.detach(), points(leaf, -1.0, 2.0))
    assert value.item() == pytest.approx(0.75, abs=0.01)
    close(report["vpred_mean"].x, value.expand(4), rtol=1e-2)


@pytest.mark.parametrize("name", ["two-hot", "hl-gauss"])
def test_what_lies_outside_the_support_is_said_and_low_is_below_high(name):
    _, report = run("value_loss", name, SUPPORT, {"value_logits": random(9, V), "returns": RETURNS})
    assert report["returns_outside"].x.tolist() == [False] * 7 + [True] * 2
    params = COMPONENTS["value_loss", name].params
    assert [said for _, said in faults_of(params, {"low": 1.0, "high": 1.0})] == ["low is 1 and high 1; low must be below high"]
    assert faults_of(params, {}) == []


@pytest.mark.parametrize("name", ["two-hot", "hl-gauss"])
def test_one_bin_is_none(name):
    with pytest.raises(ColumnError, match="at least two"):
        run("value_loss", name, SUPPORT, {"value_logits": random(9, 1), "returns": RETURNS})


def test_a_bin_that_is_no_target_may_be_impossible():
    logits = torch.zeros(1, 11, dtype=torch.float64)
    logits[0, 0] = -INF
    loss, grad = value_and_grad(lambda z: run("value_loss", "two-hot", SUPPORT, {"value_logits": z, "returns": RETURNS[2:3]})[0], logits)
    close(loss, torch.tensor([math.log(10)], dtype=torch.float64))
    assert grad.isfinite().all()


def test_sdar_pushes_up_by_its_gate():
    log_prob, teacher = torch.tensor([-1.0, -2.0, -0.5], dtype=torch.float64), torch.tensor([-0.5, -2.0, -9.0], dtype=torch.float64)
    loss, grad = value_and_grad(lambda x: COMPONENTS["auxiliary_loss", "sdar"].function(x, teacher)[0], log_prob)
    gate = 1 / (1 + (-5 * (teacher - log_prob)).exp())
    close(loss, gate * (teacher - log_prob))
    close(grad, -gate)
