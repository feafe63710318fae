"""What other frameworks, and older versions of them, call our hyperparameters: for a hint, never for a silent rewrite."""

from collections.abc import Iterable

from .errors import listing

_BOTH = ("clip_ratio_low", "clip_ratio_high")
RENAMED: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(["cliprange", "clip_range"], (*_BOTH, "cliprange_value")),
    **dict.fromkeys(["clip_ratio", "eps_clip", "epsilon", "pg_clip"], _BOTH),
    **dict.fromkeys(
        ["cliprange_low", "clip_low", "eps_clip_low", "clip_eps_low", "pg_clip_low", "ratio_clip_min", "epsilon_low"], _BOTH[:1]
    ),
    **dict.fromkeys(
        [
            "cliprange_high",
            "clip_high",
            "eps_clip_high",
            "eps_clip_higher",
            "clip_eps_high",
            "pg_clip_high",
            "ratio_clip_max",
            "epsilon_high",
        ],
        _BOTH[1:],
    ),
    **dict.fromkeys(["dual_clip", "dual_clip_c", "ratio_clip_c"], ("clip_ratio_c",)),
    "value_clip": ("cliprange_value",),
    **dict.fromkeys(["gae_lambda", "lambd", "lambda"], ("lam",)),
    "discount": ("gamma",),
    "eps": ("epsilon",),
    **dict.fromkeys(["scale_rewards", "norm_adv_by_std_in_grpo"], ("scale",)),
}


def here_called(key: str, known: Iterable[str]) -> str:
    """Return ``" Here it is called ..."``, or nothing: what goes by ``key`` elsewhere, if it is among the ``known``."""
    there = set(known)
    names = [name for name in RENAMED.get(key.replace("-", "_").lower(), ()) if name in there]
    return f" Here it is called {listing(map(repr, names))}." if names else ""
