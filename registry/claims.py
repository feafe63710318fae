"""What a component may promise beyond its kind: a closed list, each claim tested by the conformance kit."""

from collections.abc import Iterable, Mapping

from .errors import SignatureError, listing, nearest

CLAIMS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "on-policy-gradient": (("policy_loss",), "On policy its gradient is the plain policy gradient."),
    "pulls-back": (("policy_loss",), "A token that has moved against its advantage, by up to a factor of 2, is still pulled back."),
    "zero-at-equality": (
        ("kl", "value_loss", "auxiliary_loss"),
        "It is 0 where the two sides that it compares agree.",
    ),
    "non-negative": (("kl", "value_loss", "auxiliary_loss"), "It is never negative."),
    "unbiased": (("kl",), "On policy its mean over the tokens that might have been sampled is the KL."),
    "unbiased-gradient": (("kl",), "On policy the mean of its gradient is the gradient of the KL."),
    "sums-to-one": (("aggregation",), "The weights of a step add up to 1."),
    "rewards-better": (("advantage",), "A sequence that is paid more has the greater advantage."),
    "shift-invariant": (("advantage",), "The same amount more for every sequence changes no advantage."),
    "scale-invariant": (("advantage",), "Rewards in another unit give the same advantages."),
    "scale-equivariant": (("advantage",), "Rewards twice as large give advantages twice as large."),
    "group-centred": (("advantage",), "The advantages of a group add up to 0."),
    "unit-deviation": (
        ("advantage",),
        "The advantages of a group, or of the whole step where that is the scope, have the deviation 1, estimated with n - 1.",
    ),
    "independent-baseline": (("advantage",), "What is taken off a reward does not depend on that reward, which would bias the gradient."),
    "causal": (("advantage",), "What was paid before a token does not change its advantage."),
    "zero-at-perfect-values": (("advantage",), "A critic that knew the rewards to come leaves every advantage at 0."),
    "corrects-direction": (("correction",), "What the trainer finds likelier than the sampler did weighs more."),
    "neutral-at-agreement": (("correction",), "Where sampler and trainer agree every token weighs 1 and stays."),
}
"""``{claim: (kinds that may make it, what it says)}``."""
CHECKS = (
    "signature", "documented", "referenced", "hyperparameters", "returns", "inputs-untouched", "deterministic", "no-global-rng",
    "never-waits", "any-device", "compiles", "finite-at-extremes", "empty-and-single", "precision", "keeps-dtype", "detached-columns",
    "gradient", "hyperparameters-used", "finite-at-bounds", "own-side", "order", "scope", "exact-over-ranks", "on-policy-direction",
    "ratio-upright", "weights", "weights-bounded", *CLAIMS,
)  # fmt: skip
"""What the conformance kit looks at: a deviation names one of these."""


def checked_claims(claims: Iterable[str], kind: str, where: str) -> tuple[str, ...]:
    """Return claims as they are spelt; one that nobody knows, or that this kind cannot make, raises ``SignatureError``."""
    if isinstance(claims, str):
        raise SignatureError(f'{where}: aliases and claims are tuples of names; write ("name",) for a single one.')
    found = []
    for claim in claims:
        spelt = str(claim).replace("_", "-")
        if spelt not in CLAIMS:
            raise SignatureError(f"{where} claims {claim!r}; known claims are {listing(CLAIMS)}.{nearest(spelt, CLAIMS)}")
        kinds = CLAIMS[spelt][0]
        if kind not in kinds:
            possible = [name for name, (may, _) in CLAIMS.items() if kind in may]
            raise SignatureError(f"{where} claims {claim!r}, which is for kind {listing(kinds)}; for {kind} there are {listing(possible)}.")
        found.append(spelt)
    return tuple(found if isinstance(claims, list | tuple) else sorted(found))


def checked_deviations(deviates: Mapping[str, str], where: str) -> dict[str, str]:
    """Return declared deviations; one without a reason, or from what is no check, raises ``SignatureError``."""
    if not isinstance(deviates, Mapping):
        raise SignatureError(f'{where}: deviates says why for each check, as {{"finite-at-extremes": "the reason"}}.')
    for check, reason in deviates.items():
        if not isinstance(reason, str) or not reason.strip():
            raise SignatureError(f"{where} deviates from {check!r} without a reason; say why in a sentence.")
    return {_spelt(str(check), where): reason for check, reason in deviates.items()}


def _spelt(key: str, where: str) -> str:
    check, at, choice = key.partition("@")
    spelt = check.replace("_", "-")
    if spelt not in CHECKS:
        raise SignatureError(f"{where} deviates from {check!r}, which is no check.{nearest(spelt, CHECKS)} Checks are {listing(CHECKS)}.")
    return f"{spelt}{at}{choice}"
