"""From what a recipe says to what an objective runs: every name looked up, every value checked, all faults reported at once."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..registry import (
    Catalog,
    Fault,
    LossaryError,
    PluginError,
    RecipeError,
    Rule,
    SignatureError,
    UnknownName,
    clipped,
    faults_of,
    listing,
    nearest,
)
from .bound import Bound
from .document import Path_, steps
from .hinting import ALL, Hints, a
from .lint import lint_chain, lint_corrections, lint_params, lint_sign, lint_term
from .planning import widest
from .recipe import Recipe
from .terms import Coefficient, Correction, Plan, RewardKL, Term
from .vocabulary import over_words

MAY_STEER = ("step", "state", "measured")
CHOICES = {"old_log_prob": ("recorded", "current"), "empty": ("drop", "count"), "approximate": ("micro-batch",)}


def build(recipe: Recipe, catalog: Catalog) -> Plan:
    """Return what an objective runs; anything wrong with the recipe raises ``RecipeError`` with every fault."""
    plan, _, faults = survey(recipe, catalog)
    if plan is None:
        raise RecipeError(faults)
    return plan


def survey(recipe: Recipe, catalog: Catalog) -> tuple[Plan | None, Catalog, list[Fault]]:
    """Return the plan (None if anything is wrong), the catalog with the recipe's plugins, and every fault."""
    builder = _Builder(recipe, catalog)
    plan = builder.plan()
    return plan, builder.catalog, builder.faults


def bind(recipe: Recipe, catalog: Catalog, kind: str, section: str, faults: list[Fault]) -> Bound | None:
    """Resolve a section that names one component, for whoever runs that kind; what is wrong goes to ``faults``.

    ``catalog`` is the one that ``survey`` returned, in which the recipe's plugins are.
    """
    builder = _Builder(recipe, catalog)
    builder.faults = []
    bound = builder.slot(kind, (section,), recipe.values.get(section), {})
    faults += builder.faults
    return bound


def bind_each(recipe: Recipe, catalog: Catalog, kind: str, section: str, faults: list[Fault]) -> list[Bound]:
    """Resolve a section that names one component or a list of them; otherwise as ``bind``."""
    builder = _Builder(recipe, catalog)
    builder.faults = []
    found = [builder.slot(kind, path, raw, {}) for path, raw in builder._listed(section)]
    faults += builder.faults
    return [bound for bound in found if bound is not None]


class _Builder:
    def __init__(self, recipe: Recipe, catalog: Catalog) -> None:
        self.recipe, self.catalog, self.document = recipe, catalog, recipe.document
        self.faults: list[Fault] = list(recipe.document.faults)
        self.aggregations: dict[str, Bound] = {}
        self.notes: list[str] = []
        self.missing = False
        self.hints = Hints(recipe.values, catalog)

    def fault(self, path: Path_, message: str) -> None:
        if any(path[:n] in self.document.unread for n in range(len(path) + 1)):
            return  # a follow-up: why there is no value has been said
        self.faults.append(Fault(".".join(map(str, path)), self.document.place(path), message))

    def plan(self) -> Plan | None:
        values = self.recipe.values
        self._plugins()
        self.hints = hints = Hints(values, self.catalog)
        for key in (key for key in values if key not in ALL):
            self.fault((key,), hints.no_section(key))
        said = {key: self._choice((key,), values.get(key), allowed) for key, allowed in CHOICES.items()}
        if not isinstance(values.get("compile", False), bool):
            self.fault(("compile",), f"{values['compile']!r} is not one of true and false.")
        default = self._aggregation(("aggregation",), values.get("aggregation", "token-mean"))
        rewards, filters, advantages = (self._chain(section) for section in ("reward", "filter", "advantage"))
        corrections, denominator = self._corrections(said["old_log_prob"] == "current")
        terms: list[Term | None] = []
        if "policy_loss" in values:
            terms.append(self._term("policy_loss", ("policy_loss",), values["policy_loss"], default, "policy", 1.0))
        reward_kl = self._kl(terms, default)
        if "entropy" in values:
            raw = values["entropy"]
            if isinstance(raw, Mapping) and "use" in raw:
                self.fault(("entropy", "use"), "unknown key: the entropy has no other form; other losses go under 'auxiliary'.")
            raw = {**raw, "use": "entropy"} if isinstance(raw, Mapping) else {"use": "entropy", "coef": raw}
            terms.append(self._term("auxiliary_loss", ("entropy",), raw, default, "entropy", None))
        for path, raw in self._listed("auxiliary"):
            terms.append(self._term("auxiliary_loss", path, raw, default, "", None))
        if "value_loss" in values:
            terms.append(self._term("value_loss", ("value_loss",), values["value_loss"], default, "value", 1.0))
        for bound, why in lint_chain(advantages):
            self.fault(("advantage", *map(int, bound.slot.split(".")[1:])), why)
        self._sensible([*rewards, *filters, *advantages, *(c.bound for c in corrections)], reward_kl)
        if self.faults:
            return None
        self._late(corrections, [t for t in terms if t is not None])
        if self.faults:
            return None
        if said["old_log_prob"] == "current":
            self.notes.append("old_log_prob is the current policy's own: every ratio is 1, so nothing is ever clipped.")
        kept = self._unique([t for t in terms if t is not None])
        scope = widest([b.component.scope for b in (*(t.bound for t in kept), *(c.bound for c in corrections if c.when == "loss"))])
        warnings = [w for t in kept for w in lint_term(t, self.aggregations[t.aggregation].component.name)]
        others = (*rewards, *filters, *advantages, *(c.bound for c in corrections), *(k.bound for k in reward_kl))
        warnings += [w for b in others for w in lint_params(b)] + [w for k in reward_kl for w in lint_sign(k.bound, k.coefficient)]
        warnings += lint_corrections(corrections, kept)
        if reward_kl and any(t.bound.component.kind.name == "kl" for t in kept):
            self.notes.append("KL acts twice, in the reward and in the loss, as the list under 'kl' says.")
        return Plan(
            self.recipe.name, kept, tuple(rewards), tuple(reward_kl), tuple(filters), tuple(advantages), tuple(corrections), denominator,
            self.aggregations, str(said["old_log_prob"] or "recorded"), str(said["empty"] or "drop"), said["approximate"], scope, values.get("compile") is True,
            tuple(self.notes), tuple(warnings),
        )  # fmt: skip

    def _sensible(self, early: list[Bound], reward_kl: list[RewardKL]) -> None:
        """Check what no section can know alone."""
        values = self.recipe.values
        strange = set(values) - {*ALL}  # a misspelt section is a fault of its own; this would only repeat it
        empty = "policy_loss" not in values and not values.get("auxiliary") and "value_loss" not in values
        if empty and not strange and (values or not self.faults):
            self.fault((), "nothing to learn from: a recipe needs policy_loss, auxiliary or value_loss.")
        asked = {name for bound in early for name, _, _ in bound.levels if bound.component.kind.name != "reward"}
        if not self.faults and not asked & {"rewards", "token_rewards"}:
            if reward_kl:
                where: Path_ = (*reward_kl[0].path, "apply")
                self.fault(where, "the KL is to change the reward, but no advantage estimator of this recipe reads rewards.")
            if "reward" in values:
                self.fault(("reward",), "the reward is to be changed, but nothing in this recipe reads rewards.")

    def _late(self, corrections: list[Correction], terms: list[Term]) -> None:
        """Refuse what would still see the tokens that a correction drops inside ``loss``, where their number must shape nothing."""
        dropping = [i for i, c in enumerate(corrections) if c.when == "loss" and c.bound.component.drops]
        if not dropping:
            return
        first, path = corrections[dropping[0]].bound, self._listed("correction")[dropping[0]][0]
        after = [c.bound for c in corrections[dropping[0] + 1 :]]
        for bound in (*(t.bound for t in terms if t.role == "actor"), *after):
            if bound.component.scope != "token":
                self.fault(
                    path,
                    f"{first.component.name!r} drops tokens inside the loss, where {bound.component.name!r}, which looks at more than one "
                    "token, would still see them: say 'decide: measure' and call objective.measure(...) before each step.",
                )
                return

    # ── sections ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _plugins(self) -> None:
        raw = self.recipe.values.get("plugins")
        if raw is None:
            return
        if not isinstance(raw, list) or not all(isinstance(p, str) for p in raw):
            self.fault(("plugins",), "expected a list of modules or .py files, as in [my_losses.py]")
            self.missing = True
            return
        for i, name in enumerate(raw):
            try:
                self.catalog = self.catalog.with_plugin(name, self.recipe.folder)
            except (PluginError, SignatureError) as error:
                self.fault(("plugins", i), str(error))
                self.missing = True

    def _choice(self, path: Path_, value: Any, allowed: tuple[str, ...]) -> str | None:
        if isinstance(value, str) and value in allowed:
            return value
        if value is not None:
            self.fault(path, f"{value!r} is not one of {listing(allowed)}.{nearest(str(value), allowed)}")
        return None

    def _listed(self, section: str) -> list[tuple[Path_, Any]]:
        raw = self.recipe.values.get(section)
        if raw is None and section not in self.recipe.values:
            return []
        if isinstance(raw, list):
            if not raw:
                self.fault((section,), "an empty list; leave the section out instead")
            return [((section, i), item) for i, item in enumerate(raw)]
        return [((section,), raw)]

    def _chain(self, section: str) -> list[Bound]:
        found = (self.slot(section, path, raw, {}) for path, raw in self._listed(section))
        return [bound for bound in found if bound is not None]

    def _corrections(self, current: bool) -> tuple[list[Correction], str]:
        """Return the chain and its denominator. Whether what goes also leaves the mean is for the recipe to say, never for a default."""
        chain: list[Correction] = []
        denominators: dict[str, Path_] = {}
        for path, raw in self._listed("correction"):
            said: dict[str, Any] = {}
            bound = self.slot("correction", path, raw, said, ("denominator", "decide"))
            keys = {"denominator": ("kept", "original"), "decide": ("loss", "measure")}
            told = {key: self._choice((*path, key), "null" if x is None else x, keys[key]) for key, x in said.items()}
            if bound is None or None in told.values():
                continue
            asks = {name for name, _, _ in bound.levels}
            live = bool(asks & {"log_prob", "entropy"}) or (current and "old_log_prob" in asks)
            if "decide" in told and not live:
                self.fault((*path, "decide"), f"{bound.component.name!r} does not read the current policy: it is decided in estimate.")
                continue
            when = str(told.get("decide", "loss")) if live else "estimate"
            self._said(bound, path, when, told.get("denominator"), denominators)
            order = ("estimate", "measure", "loss")
            if chain and order.index(chain[-1].when) > order.index(when):
                self.fault(path, f"{bound.component.name!r} is decided in {when}, before the one above it; put it first.")
            chain.append(Correction(bound, when))
        if len(denominators) > 1:
            self.fault(
                (*list(denominators.values())[1], "denominator"), "the corrections of a recipe share one denominator: kept or original."
            )
        return chain, next(iter(denominators), "original")

    def _said(self, bound: Bound, path: Path_, when: str, denominator: str | None, seen: dict[str, Path_]) -> None:
        name = bound.component.name
        if not bound.component.drops:
            if denominator is not None:
                self.fault((*path, "denominator"), f"{name!r} drops no token, so no denominator is in question.")
        elif denominator is None:
            meaning = "'kept' (the mean is over the tokens that are left) or 'original' (over all, as if what was dropped had a loss of 0)"
            self.fault(path, f"{name!r} drops tokens; say 'denominator': {meaning}.")
        elif denominator == "kept" and when == "loss":
            self.fault(
                (*path, "denominator"),
                f"{name!r} reads the current policy, so what it keeps is not known when the mean is weighed: say 'denominator: original', "
                "or 'decide: measure' and call objective.measure(...) before each step.",
            )
        else:
            seen.setdefault(denominator, path)

    def _kl(self, terms: list[Term | None], default: str) -> list[RewardKL]:
        in_reward = []
        for path, raw in self._listed("kl"):
            apply = raw.get("apply", "loss") if isinstance(raw, Mapping) else "loss"
            if apply == "loss":
                terms.append(self._term("kl", path, raw, default, "kl", None, drop=("apply",)))
            elif apply == "reward":
                coefficient: dict[str, Any] = {}
                bound = self.slot("kl", path, raw, coefficient, ("coef", "apply"))
                if bound and over_words(bound):
                    self.fault((*path, "apply"), f"{bound.component.name!r} reads logits, which only a loss sees.")
                made = self._coefficient((*path, "coef"), coefficient.get("coef"), None)
                if bound and made and not made.off:
                    in_reward.append(RewardKL(self._label(path, "kl"), bound, made, path))
                elif bound and made:
                    self.notes.append(f"{'.'.join(map(str, path))}: coef is 0, so the KL is not computed.")
            else:
                both = isinstance(apply, list)
                say = (
                    " KL in the reward and in the loss at once is two entries of a list under 'kl', each with its own coef." if both else ""
                )
                self.fault((*path, "apply"), f"{apply!r} is not one of loss and reward.{say}")
        return in_reward

    def _label(self, path: Path_, base: str) -> str:
        return base if len(path) == 1 or path[-1] == 0 else f"{base}_{path[-1]}"

    def _term(
        self, kind: str, path: Path_, raw: Any, default: str, name: str, coef: float | None, drop: tuple[str, ...] = ()
    ) -> Term | None:
        said: dict[str, Any] = {}
        bound = self.slot(kind, path, raw, said, ("coef", "aggregation", *drop))
        aggregation = self._aggregation((*path, "aggregation"), said["aggregation"]) if "aggregation" in said else default
        coefficient = self._coefficient((*path, "coef"), said.get("coef"), coef)
        if bound is None or coefficient is None:
            return None
        label = self._label(path, name) if name else bound.component.name.replace("-", "_")
        if coefficient.off:
            self.notes.append(f"{'.'.join(map(str, path))}: coef is 0, so {bound.component.name!r} is not computed.")
            return None
        return Term(label, "critic" if kind == "value_loss" else "actor", bound, coefficient, aggregation)

    def _unique(self, terms: list[Term]) -> tuple[Term, ...]:
        taken = {"pg", "vf"} - {t.name for t in terms}  # what the metrics call the policy's and the critic's own loss
        out = []
        for t in terms:
            names = (t.name, *(f"{t.name}_{i}" for i in range(2, len(terms) + 4)))
            free = next(n for n in names if n not in taken)
            taken.add(free)
            out.append(t if t.name == free else replace(t, name=free))
        return tuple(out)

    # ── slots ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def slot(self, kind: str, path: Path_, raw: Any, said: dict[str, Any], own: tuple[str, ...] = ()) -> Bound | None:
        """Resolve one slot: a name, a callable, or a mapping with ``use``; keys of the slot itself go to ``said``."""
        if isinstance(raw, str) or callable(raw):
            raw = {"use": raw}
        if not isinstance(raw, Mapping):
            self.fault(path, f"expected the name of {a(kind)}, or a mapping with 'use'{_null(raw)}")
            return None
        said.update({key: raw[key] for key in own if key in raw})
        use = raw.get("use")
        if not (isinstance(use, str) and use) and not callable(use):
            known = ", ".join(self.catalog.names(kind))
            self.fault((*path, "use") if "use" in raw else path, f"'use' must name {a(kind)}{_null(use)}; known: {known}")
            return None
        if (
            self.missing
            and isinstance(use, str)
            and ":" not in use
            and use.replace("_", "-").rpartition("/")[2] not in self.catalog.names(kind)
        ):
            return None  # the plugin that failed may well define it
        try:
            component = self.catalog.resolve(kind, use)
        except LossaryError as error:
            if not (self.missing and isinstance(error, UnknownName)):
                self.fault((*path, "use"), (isinstance(use, str) and self.hints.wrong_section(use, kind)) or str(error))
            return None
        given = {key: value for key, value in raw.items() if key != "use" and key not in own}
        found = faults_of(component.params, given)
        for key, message in found:
            where = (*path, *steps(given, key))
            if message.startswith("unknown key."):
                message = self.hints.no_key(message, key.rpartition(".")[2], str(path[0]), component)
            self.fault(where, f"{message} ({kind} {component.name!r})")
        if found:
            return None
        model = component.params.model_validate(given)
        params = {k: getattr(model, k) for k in type(model).model_fields}
        for name, text in component.requires.items():
            if (rule := Rule.of(text)) is not None and not rule.holds(params[name], params):
                self.fault((*path, name), f"{params[name]:g} must be {text} ({kind} {component.name!r})")
                return None
        return Bound.of(component, params, ".".join(map(str, path)), self.catalog.fields)

    def _aggregation(self, path: Path_, raw: Any) -> str:
        bound = self.slot("aggregation", path, raw, {})
        if bound is None:
            return ""
        given = ", ".join(f"{k}={v}" for k, v in bound.params.items())
        key = f"{bound.component.name}({given})" if given else bound.component.name
        self.aggregations.setdefault(key, bound)
        return key

    def _coefficient(self, path: Path_, raw: Any, default: float | None) -> Coefficient | None:
        key = ".".join(map(str, path))
        if raw is None and default is not None:
            return Coefficient(key, default)
        if raw is None:
            self.fault(path, "required: how much the term counts, a number or a coefficient such as {use: linear, ...}")
            return None
        if isinstance(raw, Mapping):
            bound = self.slot("coefficient", path, raw, {})
            if bound and (strange := [name for name, _, _ in bound.levels if name not in MAY_STEER]):
                self.fault(path, f"the coefficient {bound.component.name!r} reads {strange[0]!r}; it may read {listing(MAY_STEER)}.")
                return None
            return Coefficient(key, None, bound) if bound else None
        try:
            value = float("nan") if isinstance(raw, bool) else float(raw)
        except (TypeError, ValueError, OverflowError):
            value = float("nan")
        if isinstance(raw, str) and "_" in raw:
            value = float("nan")
        if value != value or value in (float("inf"), float("-inf")):
            self.fault(path, f"{str(raw).lower() if isinstance(raw, bool) else clipped(repr(raw))} is not a number")
            return None
        return Coefficient(key, value)


def _null(raw: Any) -> str:
    return "; it is null" if raw is None else f"; it is {clipped(repr(raw))}"
