"""Known faults of KL, advantages and returns: the case's number in the name, its expected result, and the wrong one that must not come."""

import pytest
import torch

from lossary import Batch, PerToken, RecipeError, RecipeWarning, catalog, compose, load_recipe, policy_loss
from lossary.batch import SimulatedRanks
from lossary.registry import ColumnError
from lossary.trainer.settings import Settings

NAN = float("nan")


@policy_loss(scope="token")
def nothing(log_prob: PerToken) -> PerToken:
    """No loss at all, so that another term acts alone."""
    return 0 * log_prob


def t(x, dtype=torch.float64):
    return torch.tensor(x, dtype=dtype)


def leaf(x, dtype=torch.float64):
    return t(x, dtype).requires_grad_()


def kl(name):
    return catalog().get("kl", name).function


def stepped(recipe, batch, **outputs):
    o = compose(recipe, components=[nothing])
    out = o.loss(o.weigh(o.estimate(batch)), **outputs)
    out.total.backward()
    return out.total.item(), o.metrics(out)


def estimated(advantage, mask, *, dtype=torch.float64, **columns):
    """The advantages as padded ``[B, T]``, or ``[B]`` where they are per sequence, and the batch."""
    o = compose({"policy_loss": "reinforce", "advantage": advantage})
    batch = o.estimate(Batch.from_padded(t(mask, dtype), **columns))
    x = batch["advantages"]
    return (x if batch.levels["advantages"].value == "sequence" else batch.unpack(x)).tolist(), batch


def close(got, expected, tol=1e-9):
    torch.testing.assert_close(t(got), t(expected), rtol=0, atol=tol)


# ── KL ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_kl_o1_k3_in_float32_on_an_extreme_token():
    logp = leaf([[-1.0, -2.0], [-120.0, -1.0]], torch.float32)
    value = kl("k3")(logp, t([[-1.5, -1.5], [-1.0, -1.0]], torch.float32))
    value.sum().backward()
    close(value[0].tolist(), [0.106530659713, 0.1487212707], 1e-6)
    close(logp.grad[0].tolist(), [0.393469340287, -0.6487212707], 1e-6)
    assert value[1].isfinite().all()
    assert (value[1] >= 0).all()
    assert logp.grad[1].isfinite().all()
    assert logp.grad[1, 0] <= 0


@pytest.mark.parametrize(
    ("name", "gradient", "expected"),
    [
        ("k1", "own", [0.0, 0.0, 0.0]),
        ("k2", "own", [0.0535764131795, -0.172328693606, 0.118752280427]),
        ("k3", "own", [0.0789813630621, -0.201185076695, 0.122203713633]),
        ("k1", "straight-through", [0.0535764131795, -0.172328693606, 0.118752280427]),
        ("k3", "straight-through", [0.0535764131795, -0.172328693606, 0.118752280427]),
    ],
)
def test_kl_o2_only_k2_has_the_gradient_of_the_kl_itself(name, gradient, expected):
    logits, ref = leaf([0.3, -0.1, 0.2]), t([0.0, 0.4, -0.3]).log_softmax(0)
    log_prob = logits.log_softmax(0)
    (log_prob.detach().exp() * kl(name)(log_prob, ref, gradient=gradient)).sum().backward()
    close(logits.grad.tolist(), expected)


def test_kl_o2_the_true_gradient_is_that_of_k2():
    logits, ref = leaf([0.3, -0.1, 0.2]), t([0.0, 0.4, -0.3]).log_softmax(0)
    log_prob = logits.log_softmax(0)
    true = (log_prob.exp() * (log_prob - ref)).sum()
    true.backward()
    assert true.item() == pytest.approx(0.0894216599857, abs=1e-9)
    close(logits.grad.tolist(), [0.0535764131795, -0.172328693606, 0.118752280427])


def test_kl_o3_the_value_of_k3_with_the_gradient_of_k2():
    logp = leaf([[-1.0, -2.0]])
    value = kl("k3")(logp, t([[-1.8, -1.6]]), gradient="straight-through")
    value.sum().backward()
    close(value[0].tolist(), [0.249328964117, 0.0918246976413])
    close(logp.grad[0].tolist(), [0.8, -0.4])


def test_kl_o4_the_kl_pulls_towards_the_reference():
    logp = leaf([[-1.0]])
    batch = Batch.from_padded(t([[1]]), ref_log_prob=t([[-3.0]]), old_log_prob=t([[-1.0]]), advantages=t([[0.0]]))
    loss, _ = stepped({"policy_loss": "ppo-clip", "kl": {"use": "k3", "coef": 0.1}}, batch, log_prob=logp)
    assert loss == pytest.approx(0.113533528324, abs=1e-9)
    close(logp.grad.tolist(), [[0.0864664716763]])


@pytest.mark.filterwarnings("ignore::lossary.RecipeWarning")
@pytest.mark.parametrize(("name", "expected"), [("k1", -0.15), ("k2", 0.2225), ("k3", 0.266035794103)])
def test_kl_o5_the_mean_of_each_estimator_over_sampled_tokens(name, expected):
    batch = Batch.from_padded(t([[1, 1, 0]]), ref_log_prob=t([[-1.0, -1.2, -1.0]]))
    recipe = {"policy_loss": "nothing", "kl": {"use": name, "coef": 1.0}}
    loss, metrics = stepped(recipe, batch, log_prob=leaf([[-0.5, -2.0, -9.0]]))
    assert loss == pytest.approx(expected, abs=1e-9)
    assert metrics["actor/kl_loss"] == pytest.approx(expected, abs=1e-9)


def test_kl_o6_kl_in_the_reward_and_in_the_loss_must_be_said_twice():
    twice = {"use": "k3", "coef": 0.05, "apply": ["reward", "loss"]}
    recipe = {"policy_loss": "ppo-clip", "advantage": "gae"}
    with pytest.raises(RecipeError) as caught:
        compose({**recipe, "kl": twice})
    assert all(word in str(caught.value) for word in ("KL", "reward", "loss"))
    plan = compose({**recipe, "kl": [{"use": "k3", "coef": 0.05, "apply": "reward"}, {"use": "k3", "coef": 0.05}]}).plan
    assert (len(plan.reward_kl), [x.name for x in plan.terms]) == (1, ["policy", "kl_1"])
    assert any("KL acts twice, in the reward and in the loss" in note for note in plan.notes)


@pytest.mark.parametrize(("key", "value"), [("target", "0.0"), ("horizon", "0"), ("target", "-1")])
def test_kl_o7_a_controller_without_a_target_is_refused(key, value, tmp_path):
    words = {"kl_coef": "0.1", "target": "0.1", "horizon": "100"} | {key: value}
    written = ", ".join(f"{k}: {v}" for k, v in words.items())
    file = tmp_path / "r.yaml"
    file.write_text(f"policy_loss: ppo-clip\nkl: {{use: k3, coef: {{use: adaptive-kl, {written}}}}}\n")
    with pytest.raises(RecipeError, match=rf"r\.yaml:2:\d+: kl\.coef\.{key}: .* is out of bounds; expected a number > 0"):
        compose(file)


@pytest.mark.filterwarnings("ignore::lossary.RecipeWarning")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_kl_o8_a_saturated_token_is_capped_in_every_precision(dtype):
    logp = leaf([[-1.25, -200.0]], dtype)
    batch = Batch.from_padded(t([[1, 1]]), ref_log_prob=t([[-0.5, 0.0]], dtype))
    recipe = {"policy_loss": "nothing", "aggregation": "token-sum", "kl": {"use": "k3", "coef": 1.0, "cap": 10.0}}
    loss, _ = stepped(recipe, batch, log_prob=logp)
    tol = 1e-6 if dtype == torch.float32 else 2e-2
    assert loss == pytest.approx(10.367000016613, rel=tol)
    assert logp.grad[0, 0].item() == pytest.approx(-1.11700001661, rel=tol)
    assert logp.grad[0, 1].item() == 0


# ── advantages ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_adv_o1_no_deviation_that_leaves_the_sample_out():
    got, _ = estimated("rloo", [[1]] * 4, rewards=t([2.0, 2, 2, 5]), group_ids=[0] * 4)
    assert got == pytest.approx([-1.0, -1.0, -1.0, 3.0])
    got, _ = estimated("grpo", [[1]] * 4, rewards=t([2.0, 2, 2, 5]), group_ids=[0] * 4)
    assert max(map(abs, got)) <= 10


def test_adv_o2_a_group_that_differs_by_rounding_is_tied():
    rewards = t([1000.0, 1000.00006, 1000.0, 1000.0], torch.float32)
    assert rewards[0] != rewards[1]
    got, _ = estimated("grpo", [[1]] * 4, rewards=rewards, group_ids=[0] * 4)
    assert max(map(abs, got)) <= 1e-3


def test_adv_o3_whitening_a_single_token_gives_the_documented_zero():
    got, _ = estimated("whiten", [[1, 0]], advantages=t([[4.0, 0.0]]))
    assert got == [[0.0, 0.0]]
    assert "A single token gives 0" in catalog().get("advantage", "whiten").doc


def test_adv_o4_whitening_looks_at_sampled_tokens_only():
    use = {"use": "whiten", "unbiased": False, "epsilon": 0.0}
    advantages = t([[1.0, 3, 0, 0], [5.0, 0, 0, 0]])
    got, _ = estimated(use, [[1.0, 1, 0, 0], [1.0, 0, 0, 0]], advantages=advantages)
    close(got, [[-1.22474487139, 0, 0, 0], [1.22474487139, 0, 0, 0]])


def test_adv_o5_groups_are_keyed_by_prompt():
    use, rewards = {"use": "grpo", "scale": "none"}, t([1.0, 0, 1, 1])
    got, _ = estimated(use, [[1]] * 4, rewards=rewards, group_ids=["p7", "p7", "p9", "p9"])
    close(got, [0.5, -0.5, 0, 0])
    with pytest.warns(UserWarning, match="expected several of each, got 1"):
        got, _ = estimated(use, [[1]] * 4, rewards=rewards, group_ids=["t1", "t2", "t3", "t4"])
    assert got == [0, 0, 0, 0]


def test_adv_o6_interleaved_groups_in_any_order():
    use, rewards, ids = {"use": "grpo", "epsilon": 0.0}, [1.0, 4.0, 3.0, 8.0], ["a", "b", "a", "b"]
    expected = [-0.707106781187, -0.707106781187, 0.707106781187, 0.707106781187]
    for order in ([0, 1, 2, 3], [3, 0, 2, 1], [2, 3, 1, 0]):
        got, _ = estimated(use, [[1]] * 4, rewards=t([rewards[i] for i in order]), group_ids=[ids[i] for i in order])
        close(got, [expected[i] for i in order])


def test_adv_o7_a_group_estimator_needs_two_samples_of_each_prompt(tmp_path):
    file = tmp_path / "r.yaml"
    file.write_text("policy_loss: reinforce\nadvantage: rloo\ntask: sort-letters\nrollout: {samples_per_prompt: 1}\n")
    with pytest.raises(RecipeError, match=r"r\.yaml:4:11: rollout\.samples_per_prompt: samples_per_prompt must be >= 2: 'rloo'"):
        Settings.of(load_recipe(file))


def test_adv_o8_whitened_advantages_meet_both_branches_of_the_clip():
    recipe = {"policy_loss": "ppo-clip", "advantage": {"use": "whiten", "unbiased": False, "epsilon": 0.0}}
    batch = Batch.from_padded(t([[1, 1]]), old_log_prob=t([[-1.0, -1.0]]), advantages=t([[-1.0, -5.0]]))
    loss, _ = stepped(recipe, batch, log_prob=leaf([[-0.9, -1.5]]))
    assert loss == pytest.approx(-0.152585459038, abs=1e-9)


@pytest.mark.parametrize("lengths", [[1, 9, 1, 1], [1, 1, 1, 1], [3, 2, 9, 4]])
def test_adv_o9_each_group_is_scaled_once_whatever_its_lengths(lengths):
    mask = (torch.arange(9) < torch.tensor(lengths)[:, None]).double().tolist()
    got, _ = estimated({"use": "grpo", "epsilon": 0.0}, mask, rewards=t([1.0, 0, 10, 6]), group_ids=[0, 0, 1, 1])
    close(got, [0.707106781187, -0.707106781187, 0.707106781187, -0.707106781187])


@pytest.mark.parametrize("name", ["rloo", "rloo_vectorized"])
@pytest.mark.parametrize(("singleton", "alone"), [("zero", 0.0), ("reward", 2.0)])
def test_adv_o10_leave_one_out_in_a_ragged_group(name, singleton, alone):
    use = {"use": name, "singleton": singleton}
    got, _ = estimated(use, [[1]] * 4, rewards=t([3.0, 0, 0, 2]), group_ids=["a", "a", "a", "b"])
    close(got, [3.0, -1.5, -1.5, alone])


@pytest.mark.parametrize("empty", [torch.zeros(1, 1), torch.zeros(0, 1)], ids=["a row without tokens", "no row"])
def test_adv_o11_whitening_over_ranks_of_which_one_has_nothing(empty):
    masks = [torch.ones(1, 2), torch.ones(1, 1), empty]
    values = [t([[1.0, 2.0]]), t([[7.0]]), torch.zeros_like(empty, dtype=torch.float64)]
    recipe = {"policy_loss": "reinforce", "advantage": {"use": "whiten", "unbiased": False, "epsilon": 0.0}}

    def work(ranks, rank):
        o = compose(recipe, ranks=ranks)
        return o.estimate(Batch.from_padded(masks[rank], advantages=values[rank]))["advantages"].tolist()

    shards = SimulatedRanks.run(3, work)
    close(shards[0], [-0.889000889001, -0.508000508001])
    close(shards[1], [1.397001397])
    assert shards[2] == []


def test_adv_o12_a_mean_over_what_remains_counts_what_remains():
    batch = Batch.from_padded(t([[1, 1, 0, 0]]), token_rewards=t([[1.0, 1, 0, 0]]))
    remaining = batch.sequences.reverse_scan(batch["token_rewards"])
    positions = batch.sequences.reverse_scan(torch.ones_like(remaining))
    assert batch.unpack(remaining / positions).tolist() == [[1.0, 1.0, 0.0, 0.0]]


# ── returns ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_gae_o1_an_observation_in_the_middle_is_skipped():
    columns = {"token_rewards": t([[0.0, 0.1, 0, 1]]), "old_values": t([[0.2, 0.4, 9.0, 0.5]])}
    got, batch = estimated({"use": "gae", "gamma": 0.9, "lam": 0.8}, [[1, 1, 0, 1]], **columns)
    close(got, [[0.5272, 0.51, 0, 0.5]])
    close(batch.unpack(batch["returns"]).tolist(), [[0.7272, 0.91, 0, 1.0]])


def test_gae_o2_a_gap_changes_no_return():
    _, gapped = estimated("reinforce-plus-plus", [[1, 1, 0, 1]], token_rewards=t([[0.0, 0, 0, 4]]))
    _, compact = estimated("reinforce-plus-plus", [[1, 1, 1]], token_rewards=t([[0.0, 0, 4]]))
    assert gapped["returns"].tolist() == compact["returns"].tolist() == [4.0, 4.0, 4.0]


def test_gae_o3_rewards_on_padding_are_refused_or_dropped():
    columns = {"token_rewards": t([[-0.1, -0.2, 1.0, -5.0, -5.0]]), "old_values": t([[0.3, 0.5, 0.6, 0, 0]])}
    mask = t([[1, 1, 1, 0, 0]])
    with pytest.raises(ColumnError, match="'token_rewards' pays 2 rewards at masked positions"):
        Batch.from_padded(mask, **columns)
    o = compose({"policy_loss": "reinforce", "advantage": "gae"})
    batch = o.estimate(Batch.from_padded(mask, masked_rewards="drop", **columns))
    close(batch.unpack(batch["returns"]).tolist(), [[0.7, 0.8, 1.0, 0, 0]])
    close(batch.unpack(batch["advantages"]).tolist(), [[0.4, 0.3, 0.4, 0, 0]])


def test_gae_o4_a_score_is_paid_at_the_last_token():
    use = {"use": "gae", "gamma": 0.0, "lam": 0.0}  # leaves the reward of each token itself
    got, _ = estimated(use, [[1, 1, 1, 0], [1, 1, 1, 1]], rewards=t([5.0, 7.0]), old_values=torch.zeros(2, 4))
    assert got == [[0, 0, 5, 0], [0, 0, 0, 7]]


def test_gae_o5_kl_of_an_observation_costs_nothing_and_decays_nothing():
    recipe = {
        "policy_loss": "reinforce",
        "advantage": {"use": "reinforce-plus-plus", "gamma": 0.8},
        "kl": {"use": "k1", "coef": 0.5, "apply": "reward"},
    }
    columns = {"old_log_prob": t([[0.2, 5.0, 0.1, 0.3]]), "ref_log_prob": torch.zeros(1, 4).double()}
    batch = compose(recipe).estimate(Batch.from_padded(t([[1, 0, 1, 1]]), rewards=t([2.0]), **columns))
    close(batch.unpack(batch["returns"]).tolist(), [[1.044, 0, 1.43, 1.85]])
    assert "costs" in catalog().get("advantage", "reinforce-plus-plus").doc


def test_k1_as_a_loss_is_warned_of_unless_it_borrows_a_gradient():
    with pytest.warns(RecipeWarning, match="'k1' as a loss gives no useful gradient"):
        compose({"policy_loss": "reinforce", "kl": {"use": "k1", "coef": 0.1}})
    compose({"policy_loss": "reinforce", "kl": {"use": "k1", "coef": 0.1, "gradient": "straight-through"}})


@pytest.mark.parametrize("gradient", ["straight-through", "unbiased", "importance-token"])
def test_k1_with_another_gradient_is_a_loss(gradient):
    compose({"policy_loss": "reinforce", "kl": {"use": "k1", "coef": 0.1, "gradient": gradient}})


@pytest.mark.parametrize("kl", [{"use": "k3"}, {"use": "k3", "gradient": "importance-token"}, {"use": "k3-importance"}])
def test_a_cap_that_ends_the_pull_is_warned_of(kl):
    with pytest.warns(RecipeWarning, match=r"cap: 10 does not suit .* the tokens that drifted most get no pull"):
        compose({"policy_loss": "reinforce", "kl": {**kl, "coef": 0.1, "cap": 10.0}})


def test_a_cap_on_the_value_alone_or_in_the_reward_is_fine():
    compose({"policy_loss": "reinforce", "kl": {"use": "k3", "coef": 0.1, "cap": 10.0, "gradient": "straight-through"}})
    compose({"policy_loss": "reinforce", "advantage": "grpo", "kl": {"use": "k3", "coef": 0.1, "cap": 10.0, "apply": "reward"}})
