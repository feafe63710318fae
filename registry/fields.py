"""The vocabulary: every name that a component may ask for, with its level, its unit and whether gradients flow."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from keyword import iskeyword
from typing import Annotated

from torch import Tensor

from .errors import SignatureError


class Level(Enum):
    """Where in a batch one value lives: the ladder token -> sequence -> group, and what lies beside it."""

    TOKEN = "token"
    SEQUENCE = "sequence"
    GROUP = "group"
    VOCAB = "vocab"
    SPECIAL = "special"


PerToken = Annotated[Tensor, Level.TOKEN]
"""``[N]``: one value per sampled token."""
PerSequence = Annotated[Tensor, Level.SEQUENCE]
"""``[S]``: one value per sequence."""
PerGroup = Annotated[Tensor, Level.GROUP]
"""``[G]``: one value per group of sequences that share a prompt."""
Vocab = Annotated[Tensor, Level.VOCAB]
"""``[n, V]``: one row per token of a chunk; never seen for a whole batch."""


@dataclass(frozen=True)
class Column:
    """One word of the vocabulary. Differentiable columns come from the model inside ``loss``; all others are detached at the door."""

    name: str
    level: Level
    unit: str
    doc: str
    differentiable: bool = False
    wide: bool = False
    """Carries one more axis: ``[N, K]`` or ``[S, K]``."""
    integer: bool = False
    nan_means: str = ""
    """What a NaN stands for; empty: a NaN is refused at the border."""
    inf_means: str = ""
    """What ``-inf`` stands for; empty: it is refused at the border. ``inf`` always is."""


def column(
    name: str,
    *,
    level: str,
    doc: str,
    unit: str = "",
    wide: bool = False,
    integer: bool = False,
    nan_means: str = "",
    inf_means: str = "",
) -> Column:
    """Declare a column of your own: ``valid = column("valid", level="sequence", doc="...")`` in a plugin or a script.

    It differs from the built-in vocabulary only in who wrote it. ``level`` is ``"token"`` or ``"sequence"``. A name that is no
    identifier or is already in the vocabulary raises ``SignatureError``.
    """
    if level not in ("token", "sequence"):
        raise SignatureError(f"column {name!r}: level is {level!r}; a column lives at 'token' or at 'sequence' level.")
    if not name.isidentifier() or iskeyword(name):
        raise SignatureError(f"column {name!r}: the name must be a Python identifier, since components ask for it as a parameter.")
    if name in FIELDS:
        raise SignatureError(f"column {name!r} is already in the vocabulary: {FIELDS[name].doc}")
    return Column(name, Level(level), unit, doc, wide=wide, integer=integer, nan_means=nan_means, inf_means=inf_means)


def _token(name: str, unit: str, doc: str, **traits: bool) -> Column:
    return Column(name, Level.TOKEN, unit, doc, **traits)  # type: ignore[arg-type]


def _sequence(name: str, unit: str, doc: str, **traits: bool) -> Column:
    return Column(name, Level.SEQUENCE, unit, doc, **traits)  # type: ignore[arg-type]


def _special(name: str, doc: str) -> Column:
    return Column(name, Level.SPECIAL, "", doc)


_COLUMNS = (
    _token("log_prob", "nats", "log-probability of the sampled token under the trained policy", differentiable=True),
    _token("old_log_prob", "nats", "the same under the policy as it was when the update began"),
    Column(
        "rollout_log_prob", Level.TOKEN, "nats", "the same as the sampler reported it", nan_means="the sampler did not score this token"
    ),
    _token("ref_log_prob", "nats", "the same under the frozen reference"),
    _token("teacher_log_prob", "nats", "the same under the teacher of a distillation"),
    _token("prm_log_prob", "nats", "the same under an implicit process-reward model"),
    _token("entropy", "nats", "entropy of the trained policy's distribution at this token", differentiable=True),
    _token("values", "reward", "value of the state before this token, by the trained critic", differentiable=True),
    _token("old_values", "reward", "the same by the critic as it was when the update began"),
    _token("advantages", "reward", "how much better this token was than expected"),
    _token("returns", "reward", "target of the critic"),
    _token("token_rewards", "reward", "reward paid at this token; adds to what `rewards` pays for the sequence"),
    _token("turns", "", "index of the turn in which the token was sampled", integer=True),
    _token("positions", "", "column of the token inside its response", integer=True),
    _token("token_ids", "", "id of the sampled token", integer=True),
    _token("policy_version", "", "version of the policy that sampled the token", integer=True),
    _token("correction", "", "weight of the token against the mismatch between sampler and trainer"),
    _token("sum_pi_squared", "", "sum over the vocabulary of the squared probabilities"),
    _token("demonstration", "", "1 where the token comes from a demonstration, 0 where the policy sampled it"),
    _token("noise", "", "one uniform number in [0, 1) per token, from (seed, step, sequence, position)"),
    Column(
        "teacher_topk_log_prob",
        Level.TOKEN,
        "nats",
        "the teacher's K largest log-probabilities",
        wide=True,
        inf_means="the teacher sent fewer than K tokens",
    ),
    _token("teacher_topk_ids", "", "the ids of the teacher's K likeliest tokens; below 0 where it sent fewer", wide=True, integer=True),
    _sequence("rewards", "reward", "reward of the whole sequence; adds to `token_rewards`"),
    Column(
        "component_rewards",
        Level.SEQUENCE,
        "reward",
        "rewards by component",
        wide=True,
        nan_means="this reward function does not apply to the sequence",
    ),
    _sequence("turn_rewards", "reward", "rewards by turn", wide=True),
    _sequence("group_ids", "", "which sequences answer the same prompt", integer=True),
    _sequence("sequence_ids", "", "which sequence this is, wherever it lies: what `noise` is keyed by", integer=True),
    _sequence("state_ids", "", "which sequences start in the same state", integer=True),
    _sequence("baseline_rewards", "reward", "reward of the greedy response to the same prompt"),
    Column(
        "frozen_rewards",
        Level.SEQUENCE,
        "reward",
        "rewards of K answers of the frozen reference to the same prompt",
        wide=True,
        nan_means="the reference gave fewer answers to this prompt",
    ),
    _sequence("bootstrap_values", "reward", "value of the state after the last token"),
    _sequence("truncated", "", "1 where the response was cut at the length limit"),
    _sequence("prompt_lengths", "tokens", "length of the prompt", integer=True),
    _sequence("rollout_lengths", "tokens", "sampled tokens of the whole rollout of which this sequence is a part", integer=True),
    Column("log_z", Level.SEQUENCE, "nats", "log of the partition function, trained", differentiable=True),
    Column("logits", Level.VOCAB, "nats", "unnormalised log-probabilities of the trained policy, in token chunks", differentiable=True),
    Column(
        "value_logits", Level.VOCAB, "nats", "unnormalised log-probabilities of the critic's bins, in token chunks", differentiable=True
    ),
    Column("ref_logits", Level.VOCAB, "nats", "the same of the frozen reference"),
    Column("teacher_logits", Level.VOCAB, "nats", "the same of the teacher"),
    _special("sequences", "where the sequences and groups lie in the tokens, and the sums over them"),
    _special("totals", "tokens, sequences and groups over all micro-batches and ranks"),
    _special("state", "what a stateful component keeps between steps"),
    _special("step", "how many optimizer steps have been committed, as a 0-d tensor"),
    _special("measured", "means over the last committed step of the quantity that a coefficient multiplies"),
)

FIELDS: Mapping[str, Column] = {c.name: c for c in _COLUMNS}
"""The built-in vocabulary, version 1."""


@dataclass(frozen=True)
class Vocabulary:
    """The built-in columns and those that plugins declared."""

    columns: Mapping[str, Column] = field(default_factory=lambda: dict(FIELDS))

    def extended(self, columns: Iterable[Column], brought: str = "") -> "Vocabulary":
        """Return a vocabulary with more words; the same word with another meaning raises ``SignatureError``."""
        new = dict(self.columns)
        for c in columns:
            if new.setdefault(c.name, c) != c:
                raise SignatureError(f"column {c.name!r}{f' of {brought}' if brought else ''} is already declared with another meaning.")
        return Vocabulary(new)

    def __contains__(self, name: str) -> bool:
        return name in self.columns

    def __getitem__(self, name: str) -> Column:
        return self.columns[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.columns)
