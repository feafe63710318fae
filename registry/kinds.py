"""The kinds of component: what each may ask for and what it gives."""

from dataclasses import dataclass

from .fields import Level


@dataclass(frozen=True)
class Kind:
    """One family of interchangeable components."""

    name: str
    gives: str
    """What a component of this kind returns, in words."""
    returns: tuple[Level, ...] = ()
    """The levels at which its tensor may live; empty: the result is no tensor of a batch."""
    forbidden: tuple[str, ...] = ()
    """Columns it must not name: how gradient isolation is kept in the vocabulary."""
    columns: bool = True
    """May name columns at all."""


_LOSS = (Level.TOKEN, Level.SEQUENCE, Level.GROUP)
_WORDS = ("logits", "ref_logits", "teacher_logits", "value_logits")
_MODEL = ("log_prob", "entropy", "values", "log_z", *_WORDS)
_VALUES = ("values", "value_logits")
_CRITIC = ("values", "old_values")

KINDS = {
    kind.name: kind
    for kind in (
        Kind("policy_loss", "the loss of each token, or of each sequence or group", _LOSS, (*_VALUES, "totals", "measured", "state")),
        Kind(
            "value_loss",
            "the critic's loss of each token",
            _LOSS,
            ("log_prob", "entropy", "log_z", "logits", "ref_logits", "teacher_logits", "totals", "measured", "state"),
        ),
        Kind(
            "auxiliary_loss", "a further loss of the actor, per token, sequence or group", _LOSS, (*_VALUES, "totals", "measured", "state")
        ),
        Kind("kl", "the KL estimate of each token, in nats", (Level.TOKEN,), (*_CRITIC, "value_logits", "totals", "measured", "state")),
        Kind("advantage", "advantages, alone or as {column: tensor}", (Level.TOKEN, Level.SEQUENCE), (*_MODEL, "totals", "measured")),
        Kind("aggregation", "the weight of each token", (Level.TOKEN,), (*_MODEL, "measured", "state")),
        Kind(
            "correction",
            "(weight, keep) of each token; None for either",
            (Level.TOKEN,),
            (*_WORDS, "values", "log_z", "totals", "measured", "state"),
        ),
        Kind(
            "reward",
            "the reward of each token or sequence, changed",
            (Level.TOKEN, Level.SEQUENCE),
            (*_MODEL, "totals", "measured", "state"),
        ),
        Kind("filter", "whether each sequence stays", (Level.SEQUENCE,), (*_MODEL, "totals", "measured", "state")),
        Kind("coefficient", "the number that multiplies a term", (), _MODEL),
        Kind("task", "a task: prompts and their rewards", columns=False),
        Kind("tracker", "a place where metrics go", columns=False),
    )
}
