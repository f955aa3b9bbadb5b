"""PWWS against outcomes of TextAttack itself: see benchmarks/make_golden_attacks.py."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest

from hf_robustcse.attacks import Example, Untargeted, attack_examples
from hf_robustcse.attacks.recipes import build_recipe
from hf_robustcse.attacks.resources import Resources

GOLDEN = json.loads((Path(__file__).parent / "golden_pwws.json").read_text(encoding="utf-8"))
NEAR_FREE = Path(__file__).parents[2] / "benchmarks" / "near_free.py"


@pytest.fixture(scope="module")
def outcomes():
    synonyms = {word: found.split() for word, found in GOLDEN["synonyms"].items()}
    resources = Resources()
    resources.synonym_table = lambda word: synonyms.get(word, [])
    recipe = build_recipe("pwws", resources)
    assert recipe.stopwords == set(GOLDEN["stopwords"].split())
    victim = runpy.run_path(str(NEAR_FREE))["near_free"]
    examples = [Example(one["columns"], Untargeted(one["label"])) for one in GOLDEN["examples"]]
    return dict(attack_examples(enumerate(examples), recipe, victim, width=7))


@pytest.mark.parametrize("number", range(len(GOLDEN["examples"])))
def test_outcome_is_that_of_textattack(number, outcomes):
    ours, theirs = outcomes[number], GOLDEN["examples"][number]["outcome"]
    assert ours.status == theirs["status"]
    assert dict(zip(ours.original.names, ours.perturbed.texts, strict=True)) == theirs["columns"]
    assert ours.queries == theirs["queries"]
    assert (ours.before.argmax(), ours.after.argmax()) == (theirs["prediction_before"], theirs["prediction_after"])
    assert ours.score_before == pytest.approx(theirs["score_before"], abs=1e-12)
    assert ours.score_after == pytest.approx(theirs["score_after"], abs=1e-12)


def test_fixtures_hold_what_they_are_for():
    statuses = [one["outcome"]["status"] for one in GOLDEN["examples"]]
    assert len(statuses) == 30 and {"succeeded", "failed", "skipped"} == set(statuses)
    assert any(one["columns"]["premise"] != one["outcome"]["columns"]["premise"] for one in GOLDEN["examples"][26:])
