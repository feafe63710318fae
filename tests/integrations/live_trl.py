"""TRL 1.16.0's own GRPO trainer beside ours on a tiny random Llama: run by ``make test-integrations`` in TRL's environment."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"

import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast
from trl import GRPOConfig, GRPOTrainer

from lossary.integrations.gate import IntegrationError
from lossary.integrations.trl import LossaryGRPOTrainer

sys.path.insert(0, str(Path(__file__).parents[2] / "examples/plugin/src"))
DAPO = {"recipe": "dapo", "overrides": ["advantage.epsilon=1e-4"]}
"""TRL adds 1e-4 to the deviation; the recipe in the box adds less."""


def words() -> PreTrainedTokenizerFast:
    known = ["<pad>", "<eos>", *map(chr, range(97, 123)), " "]
    made = Tokenizer(models.WordLevel({w: i for i, w in enumerate(known)}, unk_token="<eos>"))
    made.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    return PreTrainedTokenizerFast(tokenizer_object=made, pad_token="<pad>", eos_token="<eos>", padding_side="left")


def often_a(completions: list[str], **_: Any) -> list[float]:
    return [c.count("a") + 0.1 * len(c) for c in completions]


def trained(
    tmp: Path, trainer: Any = GRPOTrainer, told: dict[str, Any] | None = None, steps: int = 8, **settings: Any
) -> list[dict[str, float]]:
    torch.manual_seed(0)
    small = LlamaConfig(
        vocab_size=29, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2, pad_token_id=0, eos_token_id=1
    )
    LlamaForCausalLM(small).save_pretrained(tmp / "model")  # a reference model is loaded from where the model came
    config = GRPOConfig(
        output_dir=str(tmp), use_cpu=True, report_to=[], per_device_train_batch_size=4, gradient_accumulation_steps=2, num_generations=4,
        max_completion_length=10, num_iterations=4, max_steps=steps, logging_steps=1, learning_rate=1e-2, seed=3, save_strategy="no",
        bf16=False, disable_tqdm=True, **settings,
    )  # fmt: skip
    prompts = Dataset.from_dict({"prompt": ["abc", "hello", "xyz", "loss"] * 8})
    made = trainer(
        model=LlamaForCausalLM.from_pretrained(tmp / "model", dtype=torch.float64),
        reward_funcs=often_a,
        args=config,
        train_dataset=prompts,
        processing_class=words(),
        **(told or {}),
    )
    made.train()
    return [row for row in made.state.log_history if "loss" in row]


def test_dapo_is_stock_trl_over_eight_steps_off_policy(tmp_path: Path) -> None:
    stock = trained(tmp_path / "a", epsilon=0.2, epsilon_high=0.28)
    ours = trained(tmp_path / "b", LossaryGRPOTrainer, DAPO)
    assert len(stock) == len(ours) == 8
    assert max(row["clip_ratio/region_mean"] for row in stock) > 0.02, "clipping binds, so the steps are off policy"
    for a, b in zip(stock, ours, strict=True):
        assert b["loss"] == pytest.approx(a["loss"], abs=1e-6)
        assert b["grad_norm"] == pytest.approx(a["grad_norm"], rel=1e-6, abs=1e-6)
        assert b.get("reward") == a.get("reward")
        assert b["lossary/actor/pg_clipfrac"] == pytest.approx(a["clip_ratio/region_mean"], abs=1e-6)


def test_a_kl_and_a_mean_over_sequences_are_trls(tmp_path: Path) -> None:
    told = {
        "advantage": {"use": "grpo", "epsilon": 1e-4, "scale": "none"},
        "policy_loss": {"use": "grpo", "clip_ratio_low": 0.2, "clip_ratio_high": 0.2},
        "kl": {"use": "k3-importance", "coef": 0.05, "log_ratio_bound": None, "importance_cap": None},
        "aggregation": "seq-mean-token-mean",
    }
    stock = trained(tmp_path / "a", steps=4, loss_type="grpo", beta=0.05, scale_rewards="none")
    ours = trained(tmp_path / "b", LossaryGRPOTrainer, {"recipe": told}, steps=4, beta=0.05)
    for a, b in zip(stock, ours, strict=True):
        assert b["loss"] == pytest.approx(a["loss"], abs=1e-6)
        assert b["grad_norm"] == pytest.approx(a["grad_norm"], rel=1e-5)


@pytest.mark.parametrize("loss", ["gspo", "sapo", "lossary_doubt.rollback:rollback"])
def test_it_trains_with_other_losses(tmp_path: Path, loss: str) -> None:
    aggregation = "token-mean" if ":" in loss else "seq-mean-token-mean"
    rows = trained(
        tmp_path, LossaryGRPOTrainer, {"recipe": {"advantage": "grpo", "policy_loss": loss, "aggregation": aggregation}}, steps=3
    )
    assert len(rows) == 3
    assert all(row["grad_norm"] > 0 for row in rows[:1])


def test_what_would_go_unheard_is_refused(tmp_path: Path) -> None:
    with pytest.raises(IntegrationError, match=r"epsilon=0\.3"):
        trained(tmp_path, LossaryGRPOTrainer, DAPO, epsilon=0.3)
    with pytest.raises(IntegrationError, match=r"beta=0\.0.*set beta=0\.001"):
        trained(tmp_path, LossaryGRPOTrainer, {"recipe": "grpo"})
