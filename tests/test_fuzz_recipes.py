"""Fuzz: a mutated recipe is either right, or refused with places; never a bare traceback, never a key that nobody looked at."""

import copy
from pathlib import Path

import pytest
from fuzzing import KEYS, NUMBERS, SEEDS, STEPS, VALUES, as_text, at, mutated_text, mutated_values, places_of, refusal, said_in_full
from hypothesis import given, settings
from hypothesis import strategies as st

import lossary
from lossary import RecipeError, load_recipe
from lossary.cli.explaining import settings_of
from lossary.cli.resolved import for_machines
from lossary.pipeline import build
from lossary.pipeline.hinting import ALL, KIND_OF, OWN, TRAINING
from lossary.trainer.settings import Settings

many = settings(max_examples=4_000, deadline=None, derandomize=True, database=None)
few = settings(many, max_examples=120)


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz") / "r.yaml"


def outcome(file: Path, text: str, overrides=(), environment=()):
    """What a recipe resolves to, or the faults that it is refused with."""
    file.write_text(text, "utf-8", newline="")
    found = []

    def resolve():
        recipe = load_recipe(file, overrides, environment=dict(environment))
        settings = Settings.of(recipe) if "task" in recipe.values else None
        plan = settings.plan if settings else build(recipe, lossary.catalog())
        found.append((recipe, plan, settings))

    error = refusal(resolve)
    if error is not None:
        assert isinstance(error, RecipeError)
        said_in_full(error, text)
        assert "Traceback" not in str(error)
        assert not for_machines(None, list(error.faults))["ok"]
        return None, error.faults
    ((recipe, plan, settings),) = found
    every_key_is_known(recipe.values)
    told = [s.for_machines() for s in settings_of(recipe, plan, settings)]
    assert for_machines(plan, [])["ok"]
    assert all(t["origin"] != "file" or t["line"] for t in told)
    return recipe, ()


def every_key_is_known(values):
    """Whatever was accepted holds no key that the sections and their components do not have."""
    assert set(values) <= {*ALL}
    for section, kind in KIND_OF.items():
        for slot in values.get(section) if isinstance(values.get(section), list) else [values.get(section)]:
            if isinstance(slot, dict):
                component = lossary.catalog().resolve(kind, "entropy" if section == "entropy" else slot["use"])
                assert set(slot) - {"use"} <= {*component.params.model_fields, *(k for k in OWN if section in OWN[k])}
                if isinstance(slot.get("coef"), dict):
                    params = lossary.catalog().resolve("coefficient", slot["coef"]["use"]).params
                    assert set(slot["coef"]) - {"use"} <= set(params.model_fields)
    for section in set(TRAINING) - {"task", "trackers"} if "task" in values else ():
        assert set(values.get(section) or {}) <= set(TRAINING[section])


def values_one(file, seed, steps, style):
    outcome(file, as_text(mutated_values(seed, steps), style))


def text_one(file, seed, steps):
    outcome(file, mutated_text(as_text(SEEDS[seed % len(SEEDS)], seed), steps))


def planted_one(file, seed, where, which, steps):
    """A key that nobody has, or that belongs elsewhere, planted last into any mapping of a recipe."""
    recipe = copy.deepcopy(SEEDS[seed % len(SEEDS)])
    homes = [p for p in places_of(recipe) if isinstance(at(recipe, p), dict)]
    path = homes[where % len(homes)]
    home = at(recipe, path)
    key = ("unknown", "clip_ratio_hihg", "model_config", "__class__", "self", "x" * 200, "é", "coef ", "CLIP_RATIO_HIGH", "lambd", "use_")[
        which % 11
    ]
    assert key not in home
    home[key] = copy.deepcopy(VALUES[steps % len(VALUES)])
    _, faults = outcome(file, as_text(recipe, steps))
    said = [f for f in faults if f.path == ".".join(map(str, (*path, key)))]
    assert len(said) == 1, (as_text(recipe), [str(f) for f in faults])
    assert "unknown key" in said[0].message or "there is no section" in said[0].message


def outside_one(file, seed, steps, texts):
    """Mutated overrides and variables upon a recipe that is right."""
    overrides, variables = [], {}
    for (what, where, which), text in zip(steps, texts, strict=False):
        paths = places_of(SEEDS[seed % len(SEEDS)])[1:]
        parts = [*map(str, paths[where % len(paths)])]
        if what % 3 == 0:
            parts.append(KEYS[which % len(KEYS)])
        value = text if what % 2 else as_text([VALUES[which % len(VALUES)]], 2).strip()[1:-1]
        if what % 5:
            overrides.append(
                mutated_text(f"{'.'.join(parts)}={value}", [(what, where, which)]) if what % 7 == 0 else f"{'.'.join(parts)}={value}"
            )
        else:
            variables[f"LOSSARY_SET__{'__'.join(parts).upper()}"] = value.replace("\0", "")
    outcome(file, as_text(SEEDS[seed % len(SEEDS)]), overrides, variables.items())


TEXTS = st.lists(st.text("abk3.:=# {}[]'\"\\,0-1e&*!|>?%@~\n\té", max_size=12), min_size=4, max_size=4)
LANES = {
    "values": (values_one, (NUMBERS, STEPS, NUMBERS)),
    "text": (text_one, (NUMBERS, STEPS)),
    "planted": (planted_one, (NUMBERS, NUMBERS, NUMBERS, NUMBERS)),
    "outside": (outside_one, (NUMBERS, STEPS, TEXTS)),
}


def driven(lane, file, how):
    one, strategies = LANES[lane]

    @how
    @given(st.tuples(*strategies))
    def drive(drawn):
        one(file, *drawn)

    drive()


@pytest.mark.parametrize("lane", LANES)
def test_a_few_hundred_mutated_recipes(lane, file):
    driven(lane, file, few)


@pytest.mark.slow
@pytest.mark.parametrize(("lane", "examples"), [("values", 4_000), ("text", 3_000), ("planted", 1_500), ("outside", 1_500)])
def test_ten_thousand_mutated_recipes(lane, examples, file):
    driven(lane, file, settings(many, max_examples=examples))


def test_a_recipe_that_is_too_long_is_refused_at_once(file):
    text = "policy_loss: ppo-clip\n" + "".join(f"key{i}: {{a: 1, b: [x, y]}}\n" for i in range(40_000))
    _, (fault,) = outcome(file, text)
    assert fault.message == f"{len(text)} characters; a recipe has at most 100000, for it is written by hand"


@pytest.mark.parametrize("seed", range(len(SEEDS)))
def test_the_seeds_are_right(seed, file):
    recipe, faults = outcome(file, as_text(SEEDS[seed], seed))
    assert [str(f) for f in faults] == []
    assert recipe is not None
