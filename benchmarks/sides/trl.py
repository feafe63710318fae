"""TRL's own loss method and log-probability functions, without a model around them."""

from collections import defaultdict
from importlib.metadata import version
from types import SimpleNamespace
from typing import Any

from trl.kernels.chunked_logprob import ChunkedLogProbFunction
from trl.trainer import utils
from trl.trainer.grpo_trainer import GRPOTrainer

VERSION = version("trl")


class Stub(GRPOTrainer):
    """A trainer that has only what ``_compute_loss`` reads; the model's answer is what it was given."""

    def __init__(self, x: dict[str, Any]) -> None:
        self.given: Any = None
        self.model = SimpleNamespace(training=True)
        self.accelerator = SimpleNamespace(
            num_processes=1,
            sync_gradients=False,
            gather=lambda v: v,
            gather_for_metrics=lambda v: v,
            reduce=lambda v, reduction: v,
        )
        self.args = SimpleNamespace(delta=x["cap"], use_bias_correction_kl=False)
        self._metrics: Any = {"train": defaultdict(list)}
        self.aux_loss_enabled, self.use_vllm, self.use_adaptive_entropy = False, False, False
        self.top_entropy_quantile, self.off_policy_mask_threshold = 1.0, None
        self.importance_sampling_level, self.loss_type, self.beta = "token", "bnpo", x["kl_coef"]
        self.epsilon_low = self.epsilon_high = x["clip"]
        self.entropy_coef, self._entropy_bonus_enabled = x["entropy_coef"], True
        self.current_gradient_accumulation_steps = 1

    def _get_per_token_logps_and_entropies(self, *_: Any, **__: Any) -> Any:
        return *self.given, None


def _objective(x: dict[str, Any]) -> Any:
    stub, mask = Stub(x), x["mask"].int()
    ids = mask.long()
    inputs = {"prompt_ids": ids[:, :1], "prompt_mask": mask[:, :1], "completion_ids": ids, "completion_mask": mask}
    inputs |= {"advantages": x["advantages"], "old_per_token_logps": x["old_log_prob"], "ref_per_token_logps": x["ref_log_prob"]}

    def run(log_prob: Any, entropy: Any) -> Any:
        stub.given = (log_prob, entropy)
        stub._metrics["train"].clear()
        return stub._compute_loss(None, inputs)

    return run


def loss(x: dict[str, Any]) -> Any:
    objective = _objective(x)
    log_prob, entropy = x["log_prob"].requires_grad_(), x["entropy"].requires_grad_()

    def step() -> Any:
        log_prob.grad = entropy.grad = None
        total = objective(log_prob, entropy)
        total.backward()
        return total

    return step, lambda: {"loss": step(), "log_prob": log_prob.grad, "entropy": entropy.grad}


def head(x: dict[str, Any], how: str) -> Any:
    objective, shape = _objective(x), x["mask"].shape
    hidden, weight = x["hidden"].requires_grad_(), x["weight"].requires_grad_()

    def step() -> Any:
        hidden.grad = weight.grad = None
        if how == "chunked":
            size = utils._CHUNKED_LOGPROB_CHUNK_SIZE
            log_prob, entropy, *_ = ChunkedLogProbFunction.apply(hidden, weight, None, x["ids"], 1.0, size, None, 1.0, ("entropy",))
        else:
            log_prob, entropy = utils.selective_log_softmax_and_entropy((hidden @ weight.T).view(*shape, -1), x["ids"].view(shape))
        total = objective(log_prob.view(shape), entropy.view(shape))
        total.backward()
        return total

    return step, lambda: {"loss": step(), "hidden": hidden.grad, "weight": weight.grad}
