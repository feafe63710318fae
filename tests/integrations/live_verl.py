"""verl 0.9.1 itself with our plugin installed: run by ``make test-integrations`` in verl's own environment, not by ``make test``."""

import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import ray
import torch
import verl  # noqa: F401 - importing it loads the plugin
from tensordict import NonTensorData, TensorDict
from verl.trainer.config import AlgoConfig
from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY, get_adv_estimator_fn
from verl.workers.config import ActorConfig, PolicyLossConfig
from verl.workers.utils.losses import ppo_loss

LENGTHS = (5, 1, 7, 3, 4)
SEEN = "import verl; from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY as r; print(sum(n.startswith('lossary/') for n in r))"


def jagged(parts: list[torch.Tensor]) -> torch.Tensor:
    return torch.nested.as_nested_tensor(parts, layout=torch.jagged)


def stepped(mode: str, weights: bool = False, ranks: int = 2, **settings: Any) -> tuple[torch.Tensor, torch.Tensor, dict[str, Any]]:
    """Return loss, gradient and metrics of verl's own ``ppo_loss`` in float64."""
    g = torch.Generator().manual_seed(7)
    config = ActorConfig(strategy="fsdp", rollout_n=8, use_dynamic_bsz=True, policy_loss=PolicyLossConfig(loss_mode=mode), **settings)
    old = [-torch.rand(n, generator=g, dtype=torch.float64) for n in LENGTHS]
    new = torch.cat([torch.cat([o + 0.8 * torch.randn(len(o), generator=g, dtype=torch.float64), torch.zeros(1)]) for o in old])
    new.requires_grad_()
    advantages = [torch.randn(1, generator=g, dtype=torch.float64).expand(n).clone() for n in LENGTHS]
    ones = [torch.ones(n, dtype=torch.long) for n in LENGTHS]
    columns = {
        "prompts": jagged([torch.zeros(1, dtype=torch.long) for _ in LENGTHS]),
        "responses": jagged(ones),
        "response_mask": jagged(ones),
        "old_log_probs": jagged(old),
        "advantages": jagged(advantages),
    }
    if weights:
        columns["rollout_is_weights"] = jagged([2 * torch.rand(n, generator=g, dtype=torch.float64) for n in LENGTHS])
    data = TensorDict(columns, batch_size=[len(LENGTHS)])
    for name, value in (("dp_size", ranks), ("batch_num_tokens", 2 * sum(LENGTHS)), ("global_batch_size", 2 * len(LENGTHS))):
        data[name] = NonTensorData(value)
    loss, metrics = ppo_loss(config, {"log_probs": new}, data)
    loss.backward()
    return loss.detach(), new.grad, metrics


@pytest.mark.parametrize("weights", [False, True])
@pytest.mark.parametrize("aggregation", ["token-mean", "token-sum", "seq-mean-token-sum"])
@pytest.mark.parametrize(("ours", "c"), [("lossary/ppo-clip", 1e30), ("lossary/dual-clip", 1.5)])
def test_the_clipped_loss_is_vanilla(ours: str, c: float, aggregation: str, weights: bool) -> None:
    settings = {"clip_ratio_low": 0.2, "clip_ratio_high": 0.28, "clip_ratio_c": c, "loss_agg_mode": aggregation}
    theirs, mine = stepped("vanilla", weights, **settings), stepped(ours, weights, **settings)
    assert abs(theirs[0] - mine[0]) <= 1e-12
    assert (theirs[1] - mine[1]).abs().max() <= 1e-12
    for name in ("actor/pg_clipfrac", "actor/ppo_kl"):
        assert mine[2][name].aggregate() == pytest.approx(theirs[2][name].aggregate(), abs=1e-6)
    if c < 10:
        assert theirs[2]["actor/pg_clipfrac_lower"].aggregate() > 0, "the dual clip binds"


def test_gspo_is_theirs_where_both_average_over_sequences() -> None:
    """verl adds 1e-8 to the length that it divides by; its own token form is ours called gspo-token."""
    settings = {"clip_ratio_low": 3e-4, "clip_ratio_high": 4e-4, "loss_agg_mode": "seq-mean-token-mean"}
    theirs, mine = stepped("gspo", **settings), stepped("lossary/gspo-token", **settings)
    assert (theirs[1] - mine[1]).abs().max() <= 1e-8


def test_a_recipe_says_what_verl_must_be_told() -> None:
    with pytest.raises(Exception, match=r"actor\.kl_loss_coef=0\.001|actor\.use_kl_loss=True"):
        stepped("lossary/recipe/grpo", loss_agg_mode="seq-mean-token-mean")
    loss, *_ = stepped("lossary/dapo", clip_ratio_low=0.2, clip_ratio_high=0.28)
    assert torch.isfinite(loss)


def test_a_missing_column_is_named() -> None:
    with pytest.raises(Exception, match="needs the column 'rollout_log_prob'"):
        stepped("lossary/rollout-is")


def test_an_estimator_of_ours_is_verls() -> None:
    g = torch.Generator().manual_seed(1)
    mask = torch.tensor([[1, 1, 1, 0], [1, 1, 0, 0], [1, 1, 1, 1], [1, 0, 0, 0]])
    rewards = torch.zeros(4, 4).scatter_(1, mask.sum(1, keepdim=True) - 1, torch.rand(4, 1, generator=g))
    uid = np.array(["a", "a", "b", "b"], dtype=object)

    def run(name: str) -> torch.Tensor:
        """As verl's compute_advantage calls it, which needs verl's whole trainer to be imported."""
        known = {"token_level_rewards": rewards, "response_mask": mask, "config": AlgoConfig(), "index": uid}
        return get_adv_estimator_fn(name)(**known)[0]

    torch.testing.assert_close(run("lossary/rloo"), run("rloo"), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(run("lossary/recipe/dapo"), run("grpo_vectorized"), rtol=1e-5, atol=1e-5)


def test_a_process_that_ray_starts_lists_our_losses() -> None:
    here = sum(name.startswith("lossary/") for name in POLICY_LOSS_REGISTRY)
    assert here > 50
    told = subprocess.run([sys.executable, "-c", SEEN], capture_output=True, text=True, check=True)
    assert told.stdout.split()[-1] == str(here)
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    try:

        @ray.remote
        def count() -> int:
            import verl  # noqa: F401
            from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY as book

            return sum(name.startswith("lossary/") for name in book)

        assert ray.get(count.remote(), timeout=120) == here
    finally:
        ray.shutdown()
