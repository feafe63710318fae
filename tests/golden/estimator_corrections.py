"""Records of corrections and of the distance between sampler and trainer: what ours gives beside theirs."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from golden import policy_corrections as policy
from golden.policy_corrections import measured, rule
from golden.policy_plans import Term
from golden.records import Pairs, Record, call, corrected, inputs, outputs, totals_of
from torch import Tensor

from lossary.batch import Batch
from lossary.numerics import mismatch

NAMES = {
    "old_log_prob": ("old_log_probs", "proximal_logprobs", "prox_logp"),
    "rollout_log_prob": ("rollout_log_probs", "inference_logprobs", "old_logprobs", "old_logp"),
    "log_prob": ("log_probs", "trainer_logprobs"),
    "teacher_log_prob": ("ref_logprobs",),
    "advantages": ("advantages",),
}


def batch_of(r: Record) -> tuple[Batch, Tensor, Tensor]:
    """Return the batch of a record, its padded mask, and its padded log-probabilities, which want a gradient."""
    i = inputs(r)
    mask = i["mask"] if "mask" in i else i["loss_mask"]
    found = {ours: i[name] for ours, theirs in NAMES.items() for name in theirs if name in i}
    leaf = found.get("log_prob", torch.zeros_like(mask)).clone().requires_grad_()
    on = mask > 0
    runs = (on & ~torch.nn.functional.pad(on, (1, 0))[:, :-1]).cumsum(1)
    return Batch.from_padded(mask, **{**found, "log_prob": leaf}, turns=runs), mask, leaf


def chained(batch: Batch, terms: Iterable[Term]) -> tuple[Tensor, Tensor]:
    return corrected(batch, [(term.name, term.params) for term in terms])


def padded(batch: Batch, mask: Tensor, theirs: Tensor, ours: Tensor) -> tuple[Tensor, Tensor]:
    """Return ours and theirs of the sampled tokens."""
    wide = theirs.expand(mask.shape) if theirs.dim() == 2 else theirs.reshape(mask.shape)
    return ours.to(theirs.dtype), batch.pack(wide)


def weights_and_masks(r: Record, terms: Iterable[Term], weight: str, keep: str, *, raw: bool = False) -> Pairs:
    """Compare weights (of kept tokens only, if they are ``raw``: there theirs has the weight before the mask) and masks."""
    batch, mask, _ = batch_of(r)
    ours, kept = chained(batch, terms)
    theirs, pairs = outputs(r), []
    if keep in theirs:
        pairs.append(("keep", *padded(batch, mask, theirs[keep], kept)))
    if weight in theirs:
        mine, other = padded(batch, mask, theirs[weight], ours)
        pairs.append(("weight", mine[kept], other[kept]) if raw else ("weight", mine, other))
    assert pairs
    return pairs


# ── weights and masks ────────────────────────────────────────────────────────────────────────────────────────────────


def verl(r: Record) -> Pairs:
    h, theirs = r["hyper"], outputs(r)
    if "rollout_rs" in h:
        return weights_and_masks(r, policy.verl_rejections(h), "", "modified_mask")
    return weights_and_masks(r, policy.verl_weights(h), "weights", "") + told(r, theirs["metrics"])


def told(r: Record, theirs: Mapping[str, float]) -> Pairs:
    """Compare verl's mean and effective sample size, where nothing is dropped: they are of the truncated weights of tokens."""
    h = r["hyper"]
    if h["rollout_is"] != "token" or isinstance(h["rollout_is_threshold"], str) or h["rollout_is_batch_normalize"]:
        return []
    batch, _, _ = batch_of(r)
    w = chained(batch, policy.verl_weights(h))[0]
    ours = {"rollout_is_mean": w.mean(), "rollout_is_eff_sample_size": w.mean().square() / w.square().mean()}
    return [(name, ours[name], torch.tensor(float(x), dtype=torch.float64)) for name, x in theirs.items()]


def trl(r: Record) -> Pairs:
    return weights_and_masks(r, (policy.vllm_is(r["hyper"], ""),), "ratio", "")


def slime(r: Record) -> Pairs:
    """mis.py: weights, further rejections that shrink the mask, and a factor over what is left."""
    h = r["hyper"]
    level, mode = h["tis_level"], h["tis_mode"]
    bounds = {"lower": h.get("tis_lower_bound"), "upper": h["tis_upper_bound"]}
    terms = []
    if h.get("rs_veto_threshold") is not None:
        terms.append(rule("veto", threshold=h["rs_veto_threshold"]))
    if h.get("use_rs"):
        agg = {"token": "token", "sequence": "sum", "geometric": "mean"}[h["rs_level"]]
        terms.append(rule("reject-k1", agg=agg, lower=h.get("rs_lower_bound"), upper=h["rs_upper_bound"]))
    if mode == "mask":
        terms.append(rule("masked-is", level=level, **bounds))
    else:
        floor = bounds["lower"] or 0.0 if mode == "clip" else 0.0
        terms.append(rule("truncated-is", level=level, floor=floor, cap=bounds["upper"]))
    if h.get("tis_batch_normalize"):
        terms.append(rule("batch-normalise"))
    return weights_and_masks(r, terms, "weights", "modified_masks", raw=True)


def areal(r: Record) -> Pairs:
    return weights_and_masks(r, policy.areal_chain(r["hyper"]), "behave_imp_weight", "loss_mask", raw=True)


def roll(r: Record) -> Pairs:
    h, terms = r["hyper"], []
    for f in h["filters"]:
        agg = {"geometric": "mean", "sequence": "sum"}.get(f["agg_type"], f["agg_type"])
        if f.get("enabled", True) and f.get("ratio_enabled"):
            terms.append(rule("reject-k1", agg=agg, lower=f["ratio_low"], upper=f["ratio_high"]))
        if f.get("enabled", True) and f.get("diff_enabled"):
            terms.append(rule("reject-probability", agg=agg, lower=f["diff_low"], upper=f["diff_high"]))
    terms.sort(key=lambda term: term.params["agg"] == "token")  # theirs are joined, not chained
    weigh = rule("truncated-is", level=h["weight_type"], cap=h["upper_bound"], log_ratio_bound=None)
    first = weights_and_masks(r, (weigh,), "is_weight", "")  # theirs takes the weights over all tokens
    return first + weights_and_masks(r, terms, "", "filter_mask")


def m2po(r: Record) -> Pairs:
    return weights_and_masks(r, (rule("m2po", m2_threshold=r["hyper"]["m2_threshold"]),), "", "mask")


def off_policy_sequence(r: Record) -> Pairs:
    h, trl = r["hyper"], r["item"].endswith("trl")
    delta = h["threshold"] if trl else h["opsm_delta"]
    term = rule("off-policy-sequence", behaviour="rollout" if trl else "old", opsm_delta=delta)
    return weights_and_masks(r, (term,), "", "keep" if trl else "mask")


def skyrl(r: Record) -> Pairs:
    """A loss of each token is weighed, and the mask shrinks; of a dropped token theirs still has a loss."""
    batch, mask, _ = batch_of(r)
    weight, keep = chained(batch, policy.skyrl_chain(r["hyper"]))
    theirs = outputs(r)
    loss, other = padded(batch, mask, theirs["loss"], weight * batch.pack(inputs(r)["loss_mat"]))
    return [("keep", *padded(batch, mask, theirs["loss_mask"], keep)), ("loss", loss[keep], other[keep])]


# ── losses ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def loss_of(r: Record, term: Term, terms: Iterable[Term] = (), aggregation: str = "token-mean") -> tuple[Tensor, Tensor, Batch, Tensor]:
    """Return ``(loss, padded gradient, batch, keep)`` with the original denominator."""
    batch, _, leaf = batch_of(r)
    weight, keep = chained(batch, terms)
    share = call("aggregation", aggregation, {}, batch, totals_of(batch, "drop", {}))[keep]
    per_token = call(term.kind, term.name, term.params, batch.select(keep))[0]
    loss = (share * weight[keep] * per_token).sum()
    loss.backward()
    assert leaf.grad is not None
    return loss.detach(), leaf.grad, batch, keep


def nemo(r: Record) -> Pairs:
    h, theirs = r["hyper"], outputs(r)
    term = Term("ppo-clip", {"clip_ratio_low": h["clip"], "clip_ratio_high": h["clip"], "log_ratio_bound": None})
    terms = policy.nemo_chain(h["type"], h["ratio_min"], h["ratio_max"])
    loss, grad, _, _ = loss_of(r, term, terms, "token-mean" if h["token_level"] else "seq-mean-token-mean")
    return [("loss", loss, theirs["loss"]), ("grad", grad, theirs["grad"])]


def openrlhf(r: Record) -> Pairs:
    h, theirs = r["hyper"], outputs(r)
    term = Term("ppo-clip", {"clip_ratio_low": h["clip_eps"], "clip_ratio_high": h["clip_eps"]})
    loss, grad, batch, keep = loss_of(r, term, policy.openrlhf_chain(h))
    kl = measured(mismatch(batch["old_log_prob"], batch["rollout_log_prob"], batch.sequences))["kl"]
    found = [("loss", loss, theirs["loss"]), ("grad", grad, theirs["grad"]), ("vllm_kl", kl, theirs["vllm_kl"])]
    return found if (filtered := filter_ratio(r, batch, keep)) is None else [*found, ("filtered", filtered, theirs["is_filter_ratio"])]


def filter_ratio(r: Record, batch: Batch, keep: Tensor) -> Tensor | None:
    """Return the share of clipped or dropped tokens, or of dropped sequences; theirs drops a row without a token, ours has none."""
    h = r["hyper"]
    if h["is_correction_mode"] == "clip":
        (term,) = policy.openrlhf_chain(h)
        return measured(call("correction", term.name, term.params, batch)[1])["rollout_is_clipfrac"]
    if h["is_correction_level"] == "token":
        return (~keep).double().mean()
    return None if (batch.sequences.lengths == 0).any() else (batch.select(keep).sequences.lengths == 0).double().mean()


def prime(r: Record) -> Pairs:
    kind = r["item"].split("/")[1].removesuffix("_loss_fn").replace("_", "-")
    name = {"default": "prime-rl", "ipo": "prime-ipo", "ref-kl": "prime-ref-kl"}[kind]
    params: dict[str, Any] = {**r["hyper"], "log_ratio_bound": None}
    loss, grad, _, _ = loss_of(r, Term(name, params), (), "token-sum")
    theirs = outputs(r)
    return [("loss", loss, theirs["loss_sum"]), ("grad", grad, theirs["grad"].reshape(grad.shape))]


def metrics(r: Record) -> Pairs:
    batch, _, _ = batch_of(r)
    ours = measured(mismatch(batch["old_log_prob"], batch["rollout_log_prob"], batch.sequences))
    return [(name, ours[name], torch.as_tensor(x, dtype=torch.float64)) for name, x in outputs(r).items()]
