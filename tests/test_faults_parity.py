"""Known faults of paths that should agree and do not: each by its number."""

import pytest
import torch

from lossary import Batch, LossHead, PerToken, compose, correction, policy_loss


def t(x):
    return torch.tensor(x, dtype=torch.float64)


def leaf(x):
    return t(x).requires_grad_()


@correction
def given_weight(rollout_log_prob: PerToken) -> tuple[PerToken, None]:
    """The weight is what the batch says."""
    return rollout_log_prob, None


LOGP = [[-1.0, -1.4]]


@pytest.mark.parametrize("path", ["columns", "head"])
def test_parity_o1_a_weight_is_on_the_policy_and_not_on_the_kl_whatever_path_computes_it(path):
    o = compose(
        {
            "policy_loss": {"use": "ppo-clip", "clip_ratio_low": 0.2, "clip_ratio_high": 0.2, "log_ratio_bound": None},
            "kl": {"use": "k3", "coef": 0.1, "apply": "loss"},
            "correction": "given-weight",
            "aggregation": "token-mean",
        },
        components=[given_weight],
    )
    columns = {"old_log_prob": t([[-1.1, -1.2]]), "ref_log_prob": t([[-1.2, -1.0]]), "advantages": t([[1.0, -1.0]])}
    batch = Batch.from_padded(torch.ones(1, 2), rollout_log_prob=t([[0.5, 1.5]]), token_ids=torch.zeros(1, 2).long(), **columns)
    micro = o.weigh(o.estimate(batch))
    if path == "columns":
        out = o.loss(micro, log_prob=leaf(LOGP))
    else:  # two words, of which the first has the log-probability that is asked for
        p = t(LOGP[0]).exp()
        linear = torch.nn.Linear(2, 2, bias=False, dtype=torch.float64)
        linear.weight.data = torch.eye(2).double()
        out = o.loss(micro, policy=LossHead(linear).on(torch.stack([p, 1 - p], 1).log().requires_grad_()))
    out.total.backward()
    assert out.total.item() == pytest.approx(0.343283107826, abs=1e-6)


@policy_loss
def reinforced(log_prob: PerToken, advantages: PerToken) -> PerToken:
    """Policy gradient."""
    return -(log_prob - log_prob.detach()).exp() * advantages


def test_parity_o2_what_a_tool_wrote_counts_nowhere():
    logp = leaf([[-1.0, -3.0, -2.0]])
    o = compose({"policy_loss": "reinforced", "aggregation": "token-mean"}, components=[reinforced])
    completion, tool = t([[1, 1, 1]]).bool(), t([[1, 0, 1]]).bool()
    batch = Batch.from_padded(completion & tool, advantages=t([[2.0, 2.0, 2.0]]))
    o.loss(o.weigh(o.estimate(batch)), log_prob=logp).total.backward()
    torch.testing.assert_close(logp.grad, t([[-1.0, 0.0, -1.0]]), rtol=0, atol=1e-9)
