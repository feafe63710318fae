"""Our adapters against the hook points of verl, TRL, SkyRL and Tinker; the frameworks themselves are met by `make test-integrations`."""

import pickle
import types
from collections.abc import Iterator
from typing import Any

import foreign
import pytest
import torch
from foreign import ActorConfig, GRPOConfig, PolicyLossConfig, clipped, columns

import lossary
from lossary.integrations import skyrl, trl, verl
from lossary.integrations.gate import IntegrationError, require_version
from lossary.integrations.naming import offers
from lossary.integrations.tinker import as_tinker_loss
from lossary.registry import ColumnError, UnknownName


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    yield
    for cached in (verl._plan, verl._hosted, skyrl.hosted):
        cached.cache_clear()


# ── the door ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_versions_that_were_not_tried_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    foreign.installed(monkeypatch, verl="0.12.0", trl="")
    with pytest.raises(IntegrationError, match=r"verl 0\.12\.0 is installed; the adapter speaks to verl>=0\.9\.1,<0\.10"):
        require_version("verl")
    with pytest.raises(IntegrationError, match="trl is not installed"):
        require_version("trl")
    assert require_version("skyrl") == "0.3.0"


def test_every_loss_and_recipe_has_a_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    own = tmp_path / "mine.yaml"
    own.write_text("policy_loss: gspo\naggregation: seq-mean-token-mean\n")
    monkeypatch.setenv("LOSSARY_RECIPES", str(own))
    found = offers("policy_loss")
    losses = {c.name for c in lossary.catalog() if c.kind.name == "policy_loss"}
    assert {f"lossary/{name}" for name in losses} <= set(found)
    assert found["lossary/grpo"].component is not None, "a name of both is the component's"
    assert found["lossary/recipe/grpo"].recipe == "grpo"
    assert found["lossary/mine"].recipe == str(own)
    monkeypatch.setenv("LOSSARY_RECIPES", str(tmp_path / "gone.yaml"))
    with pytest.raises(IntegrationError, match="which is no file"):
        offers("policy_loss")


# ── verl ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def algos(monkeypatch: pytest.MonkeyPatch) -> Any:
    foreign.installed(monkeypatch)
    made = foreign.verl(monkeypatch)
    verl.register()
    return made


def in_verl(algos: Any, mode: str, x: dict[str, torch.Tensor], ranks: int = 1, **settings: Any) -> tuple[torch.Tensor, dict[str, float]]:
    config = ActorConfig(policy_loss=PolicyLossConfig(loss_mode=mode), **settings)
    return foreign.verl_calls(algos, config, x, ranks=ranks)


@pytest.mark.parametrize(("mode", "c"), [("lossary/ppo-clip", None), ("lossary/dual-clip", 1.5)])
def test_verl_gets_its_own_mean_and_its_own_settings(algos: Any, mode: str, c: float | None) -> None:
    x = columns()
    loss, metrics = in_verl(algos, mode, x, ranks=3, clip_ratio_high=0.28, clip_ratio_c=c or 3.0)
    wanted = clipped(x, high=0.28, c=c).sum() / (3 * x["mask"].sum()) * 3
    assert loss.item() == pytest.approx(wanted.item(), abs=1e-12)
    (gradient,) = torch.autograd.grad(loss, x["new"], retain_graph=True)
    torch.testing.assert_close(gradient, torch.autograd.grad(wanted, x["new"])[0], rtol=0, atol=1e-12)
    assert isinstance(metrics["actor/pg_clipfrac"], float)
    assert "actor/pg_loss" not in metrics, "verl enters that itself"


def test_verls_correction_multiplies_after_clipping(algos: Any) -> None:
    x = columns()
    x["weights"] = torch.rand(4, 5, dtype=torch.float64)
    loss, _ = in_verl(algos, "lossary/ppo-clip", x, loss_agg_mode="token-sum")
    assert loss.item() == pytest.approx((clipped(x) * x["weights"][x["mask"]]).sum().item(), abs=1e-12)


def test_verl_is_told_what_it_must_say_for_a_recipe(algos: Any) -> None:
    with (
        pytest.warns(lossary.RecipeWarning),
        pytest.raises(IntegrationError, match=r"actor\.loss_agg_mode=seq-mean-token-mean .*actor\.use_kl_loss=True"),
    ):
        in_verl(algos, "lossary/recipe/grpo", columns())
    told = {"loss_agg_mode": "seq-mean-token-mean", "use_kl_loss": True}
    with pytest.warns(lossary.RecipeWarning, match="clamps its low_var_kl at 10"):
        in_verl(algos, "lossary/recipe/grpo", columns(), **told)
    with pytest.raises(IntegrationError, match=r"entropy_coeff=0$"):
        in_verl(algos, "lossary/dapo", columns(), entropy_coeff=0.01)


@pytest.mark.filterwarnings("ignore::lossary.RecipeWarning")
@pytest.mark.parametrize(
    ("mode", "say"),
    [
        ("lossary/rollout-is", "needs the column 'rollout_log_prob', but verl gives only"),
        ("lossary/gvpo", "needs the column 'group_ids'"),
        ("lossary/kl-cov", "looks at the whole step"),
        ("lossary/sft", "this recipe has no policy_loss"),
    ],
)
def test_what_verl_cannot_feed_is_refused_by_name(algos: Any, mode: str, say: str) -> None:
    with pytest.raises(IntegrationError, match=say):
        in_verl(algos, mode, columns())


def test_verl_estimators(algos: Any) -> None:
    mask = torch.tensor([[1, 1, 0], [1, 1, 1], [1, 0, 0], [1, 1, 0]])
    rewards = torch.tensor([[0, 1.0, 0], [0, 0, 0], [1.0, 0, 0], [0, 0.5, 0]])
    told = {
        "token_level_rewards": rewards,
        "response_mask": mask,
        "config": types.SimpleNamespace(gamma=1.0, lam=1.0),
        "index": list("aabb"),
    }
    advantages, returns = algos.ADV_ESTIMATOR_REGISTRY["lossary/rloo"](**told)
    each = torch.tensor([1.0, -1.0, 0.5, -0.5])
    assert torch.equal(advantages, each[:, None] * mask)
    assert torch.equal(returns, advantages)
    with pytest.raises(IntegrationError, match=r"needs the column 'old_values'.*adv_estimator=gae"):
        algos.ADV_ESTIMATOR_REGISTRY["lossary/gae"](**told)
    with pytest.raises(IntegrationError, match=r"algorithm\.use_kl_in_reward=True"):
        algos.ADV_ESTIMATOR_REGISTRY["lossary/recipe/rloo"](**told)


def test_a_failure_to_register_is_said_aloud(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    foreign.installed(monkeypatch, verl="0.7.0")
    foreign.verl(monkeypatch)
    with pytest.raises(IntegrationError):
        verl.register_or_say()
    assert "no loss mode lossary/... is registered in verl: verl 0.7.0" in caplog.text
    monkeypatch.setenv("LOSSARY_STRICT", "1")
    with pytest.raises(SystemExit, match=r"verl 0\.7\.0"):
        verl.register_or_say()


def test_a_taken_name_is_not_overwritten(monkeypatch: pytest.MonkeyPatch) -> None:
    foreign.installed(monkeypatch)
    algos = foreign.verl(monkeypatch)
    algos.POLICY_LOSS_REGISTRY["lossary/ppo-clip"] = len
    with pytest.raises(IntegrationError, match="already has 'lossary/ppo-clip'"):
        verl.register()


def test_losses_travel_by_name() -> None:
    for made in (verl.PolicyLoss("lossary/gspo"), skyrl.PolicyLoss("lossary/gspo"), verl.Advantage("lossary/rloo")):
        assert pickle.loads(pickle.dumps(made)).name == made.name
    with pytest.raises(UnknownName, match="Did you mean 'lossary/ppo-clip'"):
        verl.hosted("lossary/pp-clip", "token-mean", ActorConfig())


# ── TRL ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Ours(trl.LossaryMixin, foreign.GRPOTrainer):
    pass


def in_trl(monkeypatch: pytest.MonkeyPatch, recipe: Any, ranks: int = 1, **settings: Any) -> Any:
    foreign.installed(monkeypatch)
    return Ours(columns(), GRPOConfig(**settings), ranks, recipe=recipe)


@pytest.mark.parametrize("ranks", [1, 2])
def test_trl_divides_once_by_its_own_count(monkeypatch: pytest.MonkeyPatch, ranks: int) -> None:
    trainer = in_trl(monkeypatch, {"policy_loss": "ppo-clip", "aggregation": "token-mean"}, ranks)
    x = trainer.x
    ids = torch.zeros(4, 2, dtype=torch.long)
    inputs = {
        "prompt_ids": ids, "prompt_mask": ids, "completion_ids": torch.zeros(4, 5), "completion_mask": x["mask"].long(),
        "advantages": x["advantages"][:, 0], "old_per_token_logps": x["old"], "num_items_in_batch": torch.tensor(60.0),
    }  # fmt: skip
    loss = trainer._compute_loss(None, inputs)
    assert loss.item() == pytest.approx((clipped(x).sum() / (60 / ranks * 2 / 2)).item(), abs=1e-12)
    assert trainer._metrics["train"]["lossary/actor/pg_clipfrac"]
    trainer._compute_loss(None, inputs)
    assert trainer.lossary.objective.memory.step == 1, "committed when the next step begins"


def test_trls_advantages_are_the_recipes(monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = in_trl(monkeypatch, {"advantage": "rloo", "policy_loss": "reinforce", "aggregation": "token-mean"})
    out = trainer._generate_and_score_completions(None)
    torch.testing.assert_close(out["advantages"], torch.tensor([1.0, -1.0, 0.5, -0.5]))


@pytest.mark.filterwarnings("ignore::lossary.RecipeWarning")
@pytest.mark.parametrize(
    ("recipe", "settings", "say"),
    [
        ("dapo", {"epsilon": 0.3}, r"epsilon=0\.3 would have no effect"),
        ("grpo", {}, r"beta=0\.0 and the recipe's KL differ; set beta=0\.001"),
        ("dapo", {"use_vllm": True}, "vllm_importance_sampling_correction=False"),
        ("ppo", {"beta": 0.02}, "value_loss"),
        ({"policy_loss": "rollout-is"}, {}, "'rollout_log_prob', but TRL gives only.*use_vllm=True"),
        ({"policy_loss": "gvpo"}, {}, "'group_ids'.*different micro-batches"),
        ({"advantage": "rloo", "filter": "group-spread", "policy_loss": "reinforce"}, {}, "TRL keeps every row"),
    ],
)
def test_what_trl_cannot_do_is_refused_at_the_start(monkeypatch: pytest.MonkeyPatch, recipe: Any, settings: Any, say: str) -> None:
    with pytest.raises(IntegrationError, match=say):
        in_trl(monkeypatch, recipe, **settings)


# ── SkyRL and Tinker ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_skyrl_gets_a_sum_by_its_settings() -> None:
    x = columns()
    config = types.SimpleNamespace(eps_clip_low=0.2, eps_clip_high=0.28, off_policy_correction=None)
    with pytest.MonkeyPatch.context():
        loss, metrics = skyrl.PolicyLoss("lossary/ppo-clip")(
            x["new"], x["old"], x["advantages"], config=config, loss_mask=x["mask"].double(), rollout_logprobs=None
        )
    assert loss.item() == pytest.approx(clipped(x, high=0.28).sum().item(), abs=1e-12)
    assert "clip_ratio" in metrics


def test_skyrl_refuses_what_its_reduction_does_not_reach() -> None:
    with pytest.raises(IntegrationError, match="not proportional to the advantages"):
        skyrl.hosted("lossary/dro", (("dro_beta", 0.1),))


def test_skyrls_estimators_are_verls(algos: Any) -> None:
    rewards = torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 9.0], [0.5, 0.0, 0.0], [0.0, 0.0, 0.25]])
    mask, index = torch.tensor([[1, 1, 1], [1, 1, 0], [1, 0, 0], [1, 1, 1]]), ["a", "a", "b", "b"]
    theirs = algos.ADV_ESTIMATOR_REGISTRY["lossary/rloo"](rewards, mask.bool(), config=None, index=index)
    ours = skyrl.Advantage("lossary/rloo")(rewards, mask.float(), index=index, something_new=3)
    for a, b in zip(ours, theirs, strict=True):
        assert torch.equal(a, b)
        assert (a * (1 - mask) == 0).all()
    assert ours[0][0, 0] == 1.0 - 9.0
    values = torch.full_like(rewards, 0.5)
    (gae, returns) = skyrl.Advantage("lossary/gae")(rewards, mask, values=values, gamma=1.0, lambd=1.0)
    assert gae[3].tolist() == [-0.25] * 3
    assert returns[3].tolist() == [0.25] * 3


def test_skyrls_registries_get_every_name(monkeypatch: pytest.MonkeyPatch) -> None:
    foreign.installed(monkeypatch)
    books: dict[str, dict[str, Any]] = {"loss": {}, "advantage": {}}
    kinds = {k: type(k, (), {"register": staticmethod(book.__setitem__)}) for k, book in books.items()}
    foreign.module(
        monkeypatch,
        "skyrl.backends.skyrl_train.utils.ppo_utils",
        PolicyLossRegistry=kinds["loss"],
        AdvantageEstimatorRegistry=kinds["advantage"],
    )
    assert set(skyrl.register()) == set(books["loss"])
    told = {"token_level_rewards": torch.eye(2), "response_mask": torch.ones(2, 2), "index": ["a", "a"], "values": torch.zeros(2, 2)}
    told |= {"grpo_norm_by_std": True, "gamma": 1.0, "lambd": 1.0, "config": None}
    advantages, _ = books["advantage"]["lossary/gae"](**told)
    assert torch.equal(advantages, torch.tensor([[1.0, 0.0], [1.0, 1.0]]))


def test_a_recipe_as_a_tinker_loss() -> None:
    x = columns()
    rows = [x["mask"][i].nonzero()[:, 0] for i in range(4)]
    data = [
        types.SimpleNamespace(loss_fn_inputs={"logprobs": x["old"][i, r], "advantages": x["advantages"][i, r], "mask": torch.ones(len(r))})
        for i, r in enumerate(rows)
    ]
    loss, metrics = as_tinker_loss({"policy_loss": "ppo-clip", "aggregation": "token-mean"})(
        data, [x["new"][i, r] for i, r in enumerate(rows)]
    )
    assert loss.item() == pytest.approx(clipped(x).mean().item(), abs=1e-12)
    assert "actor/pg_clipfrac" in metrics
    with pytest.raises(ColumnError, match="'ref_log_prob'"):
        as_tinker_loss("grpo")(data, [x["new"][i, r] for i, r in enumerate(rows)])
    with pytest.raises(IntegrationError, match="'entropy'"):
        as_tinker_loss({"policy_loss": "ppo-clip", "entropy": 0.1})
