"""SkyRL's own losses beside ours: run by ``make test-integrations`` in SkyRL's environment."""

import pickle
import typing
from typing import Any

import typing_extensions

typing.TypedDict = typing_extensions.TypedDict  # SkyRL 0.3.0 is not importable on Python 3.11 with a new pydantic otherwise

import pytest  # noqa: E402
import torch  # noqa: E402
from skyrl.backends.skyrl_train.utils.ppo_utils import (  # noqa: E402
    AdvantageEstimatorRegistry,
    PolicyLossRegistry,
    apply_loss_reduction_to_advantages_minibatch,
)
from skyrl.train.config.config import AlgorithmConfig  # noqa: E402

from lossary.integrations.gate import IntegrationError  # noqa: E402
from lossary.integrations.skyrl import register  # noqa: E402

register()


def stepped(kind: str, name: str, reduction: str = "token_mean", **settings: Any) -> tuple[float, torch.Tensor, dict[str, float]]:
    g = torch.Generator().manual_seed(3)
    mask = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1], [1, 0, 0, 0, 0], [1, 1, 0, 1, 1]]).double()
    old = -torch.rand(4, 5, generator=g, dtype=torch.float64)
    new = (old + 0.6 * torch.randn(4, 5, generator=g, dtype=torch.float64)).requires_grad_()
    a = torch.randn(4, 1, generator=g, dtype=torch.float64).expand(4, 5)
    a = apply_loss_reduction_to_advantages_minibatch(a, mask, reduction, 4, 5)
    config = AlgorithmConfig(policy_loss_type=kind, **settings)
    loss, metrics = PolicyLossRegistry.get(name)(new, old, a, config=config, loss_mask=mask, rollout_logprobs=old - 0.2)
    loss.backward()
    return loss.item(), new.grad, metrics


@pytest.mark.parametrize("reduction", ["token_mean", "sequence_mean"])
@pytest.mark.parametrize(("kind", "ours"), [("regular", "lossary/ppo-clip"), ("dual_clip", "lossary/dual-clip")])
def test_the_clipped_losses_are_theirs(kind: str, ours: str, reduction: str) -> None:
    """Theirs takes the exponent in float32, so that is how far they agree."""
    theirs, mine = stepped(kind, kind, reduction, eps_clip_high=0.28), stepped(kind, ours, reduction, eps_clip_high=0.28)
    assert mine[0] == pytest.approx(theirs[0], rel=1e-6, abs=1e-7)
    assert (mine[1] - theirs[1]).abs().max() < 1e-6
    assert mine[2]["clip_ratio"] == pytest.approx(theirs[2]["clip_ratio"])


def test_its_own_correction_reaches_ours() -> None:
    from skyrl.train.config.config import OffPolicyCorrectionConfig

    told = {
        "off_policy_correction": OffPolicyCorrectionConfig(tis_ratio_type="token", token_tis_ratio_clip_high=1.1),
        "eps_clip_high": 0.28,
    }
    theirs, mine = stepped("regular", "regular", **told), stepped("regular", "lossary/ppo-clip", **told)
    assert mine[0] == pytest.approx(theirs[0], rel=1e-6)
    assert theirs[0] != pytest.approx(stepped("regular", "regular", eps_clip_high=0.28)[0], rel=1e-3)


def test_a_loss_that_its_reduction_would_not_reach_is_refused() -> None:
    with pytest.raises(IntegrationError, match="not proportional to the advantages"):
        stepped("regular", "lossary/kl-cov")


def test_estimators_and_pickling() -> None:
    rewards = torch.tensor([[0, 1.0], [0, 0.0], [0, 1.0], [0, 1.0]])
    told = {
        "token_level_rewards": rewards,
        "response_mask": torch.ones(4, 2),
        "index": ["a", "a", "b", "b"],
        "values": None,
        "config": None,
    }
    told |= {"grpo_norm_by_std": True, "gamma": 1.0, "lambd": 1.0}
    mine = pickle.loads(pickle.dumps(AdvantageEstimatorRegistry.get("lossary/rloo")))(**told)
    assert torch.equal(mine[0], AdvantageEstimatorRegistry.get("rloo")(**told)[0])
