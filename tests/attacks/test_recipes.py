"""Every recipe: what it promises holds for every outcome, whatever is attacked beside it."""

from __future__ import annotations

import json

import numpy as np
import pytest
from tiny import SENTENCES
from toys import WordVictim, edited, result_of, toy_resources, word_pieces

from hf_robustcse.attacks import Example, Untargeted, attack_examples
from hf_robustcse.attacks.recipes import RECIPES, build_recipe, recipe_parameters
from hf_robustcse.attacks.resources import Resources
from hf_robustcse.attacks.resources.language_model import LanguageModel
from hf_robustcse.attacks.resources.lexicons import NeighbourTable
from hf_robustcse.attacks.search import RANKINGS, Attempt
from hf_robustcse.attacks.text import Edited
from hf_robustcse.attacks.victims import Asked
from hf_robustcse.errors import UserError

# Thresholds at which the toy encoder and vectors let some candidates through and some not.
PARAMETERS = {
    "textfooler": {"k": 8, "min_similarity": 0.6, "min_word_cosine": 0.2, "window": 5},
    "textbugger": {"min_similarity": 0.6},
    "bae": {"k": 12, "min_similarity": 0.5, "window": 5},
    "bert-attack": {"k": 8, "min_similarity": 0.5},
    "deepwordbug": {"max_edits": 4},
}


@pytest.fixture(scope="module")
def language_model(tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    model = LanguageModel.load(str(word_pieces(tmp_path_factory.mktemp("pieces"))), "cpu")
    model.model.double()
    return model


@pytest.fixture
def resources(language_model: LanguageModel) -> Resources:
    return toy_resources(language_model)


def examples(victim, sentences=SENTENCES):
    """Sentences with the class that the victim finds, so that none is skipped."""
    labels = np.asarray(victim(list(sentences))).argmax(axis=1)
    return [
        (i, Example({"text": text}, Untargeted(int(y))))
        for i, (text, y) in enumerate(zip(sentences, labels, strict=True))
    ]


def attacked(recipe, victim, of, **how):
    return dict(attack_examples(of, recipe, victim, **how))


def summary(outcomes):
    return {
        number: (one.status, one.perturbed.texts, one.queries, round(one.score_after, 9))
        for number, one in sorted(outcomes.items())
    }


@pytest.mark.parametrize("name", RECIPES)
def test_every_step_of_every_outcome_keeps_the_constraints(resources, name):
    recipe = build_recipe(name, resources, **PARAMETERS.get(name, {}))
    victim = WordVictim()
    of = examples(victim)
    for number, pair in enumerate(zip(SENTENCES, SENTENCES[::-1], strict=True), 100):
        goal = Untargeted(int(victim([pair])[0].argmax()))
        of.append((number, Example(dict(zip(("premise", "hypothesis"), pair, strict=True)), goal, ("premise",))))
    outcomes = attacked(recipe, victim, of)
    changed = 0
    for number, example in of:
        outcome = outcomes[number]
        state = outcome.perturbed
        if "premise" in example.columns:
            assert state.texts[0] == example.columns["premise"]
        original = Edited(state.document)
        while state._parent is not None:
            parent, at = state._parent, state.position
            again = parent.replace(at, state.word(at))
            for constraint in recipe.constraints:
                assert result_of(constraint.keep(original, parent, [again])) == [again], constraint
            assert state.document.words[at] not in recipe.stopwords
            assert at not in parent.replaced  # each position once
            changed += 1
            state = parent
        assert victim([outcome.perturbed.key])[0] == pytest.approx(outcome.after)
        succeeded = int(outcome.after.argmax()) != example.goal.label
        assert outcome.status == ("succeeded" if succeeded else "failed")
    assert changed > len(of) / 2


@pytest.mark.parametrize("name", RECIPES)
def test_a_victim_that_never_changes_its_mind_and_one_that_looks_at_one_word(resources, name):
    loose = {key: -1 for key in recipe_parameters(name) if key.startswith("min_")}
    recipe = build_recipe(name, resources, **loose)

    def stubborn(texts):
        return np.tile([0.9, 0.1], (len(texts), 1))

    assert {one.status for one in attacked(recipe, stubborn, examples(stubborn)).values()} == {"failed"}

    def one_word(texts):
        return np.array([[0.9, 0.1] if "dog" in text.split() else [0.1, 0.9] for text in texts])

    of = [one for one in examples(one_word) if "dog" in one[1].columns["text"]]
    outcomes = attacked(recipe, one_word, of)
    assert len(outcomes) == 2 and {one.status for one in outcomes.values()} == {"succeeded"}
    if name != "pwws-openattack":  # which replaces without looking whether that helps
        assert all([*one.perturbed.changed] == [one.original.words.index("dog")] for one in outcomes.values())


@pytest.mark.parametrize("name", RECIPES)
def test_outcomes_do_not_depend_on_what_runs_beside_them(language_model, name):
    def go(width, batch_size, batch_tokens, backwards):
        resources = toy_resources(language_model)
        language_model.batch_tokens = batch_tokens
        recipe = build_recipe(name, resources, **PARAMETERS.get(name, {}))
        victim = WordVictim(batch_size)
        of = examples(victim)[:: -1 if backwards else 1]
        return summary(attacked(recipe, victim, of, width=width))

    first = go(64, 32, 2048, False)
    assert go(1, 1, 10, False) == first
    assert go(3, 7, 60, True) == first


@pytest.mark.parametrize("name", ["textbugger", "deepwordbug", "random"])
def test_random_recipes_repeat_under_a_seed(resources, name):
    recipe, victim = build_recipe(name, resources), WordVictim()
    outcomes = [summary(attacked(recipe, victim, examples(victim), seed=seed)) for seed in (1, 1, 2)]
    assert outcomes[0] == outcomes[1] != outcomes[2]


@pytest.mark.parametrize("name", RECIPES)
def test_a_description_states_everything_and_is_json(resources, name):
    described = build_recipe(name, resources).describe()
    text = json.dumps(described)
    assert described["recipe"] == name and described["source"]
    for value in recipe_parameters(name).values():
        assert str(value) in text
    for sentence in described["departures"]:
        assert sentence.endswith(".") and sentence[0].isupper() or sentence.startswith(("toy", "/"))


def test_defaults_are_the_published_ones():
    assert {name: recipe_parameters(name) for name in RECIPES} == {
        "textfooler": {"k": 50, "min_word_cosine": 0.5, "min_similarity": 0.840845057, "window": 15},
        "textbugger": {"k": 5, "min_similarity": 0.8},
        "pwws": {},
        "bae": {"k": 50, "min_similarity": 0.936338023, "window": 15},
        "bert-attack": {"k": 48, "max_share": 0.4, "min_similarity": 0.2},
        "deepwordbug": {"max_edits": 30},
        "pwws-openattack": {},
        "random": {"substitute": "synonyms"},
    }


def test_what_is_left_out_is_stated(resources):
    resources.neighbours = NeighbourTable({"dog": ["hound"]}, "table.json")
    resources.encoder = resources.tagger = None
    recipe = build_recipe("textfooler", resources)
    departures = " ".join(recipe.departures)
    assert recipe.constraints == ()
    assert "cosine >= 0.5 is not checked: table.json" in departures and "at most 1 neighbours" in departures
    assert "--pos_tagger none" in departures and "--sentence_encoder none" in departures


def test_another_encoder_is_not_comparable(resources):
    assert any("toy encoder" in line and "not comparable with USE" in line
               for line in build_recipe("bae", resources).departures)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "option"),
    [("textfooler", "--word_neighbours"), ("textbugger", "--word_neighbours"), ("bae", "--masked_lm"),
     ("bert-attack", "--masked_lm")],
)  # fmt: skip
def test_a_recipe_without_its_resource_says_so(name, option):
    with pytest.raises(UserError, match=option):
        build_recipe(name, Resources())


def test_a_recipe_loads_only_what_it_needs():
    assert build_recipe("deepwordbug", Resources()).name == "deepwordbug"
    assert build_recipe("random", Resources(), substitute="characters").ranking == "random"


@pytest.mark.parametrize(
    ("name", "parameters", "message"),
    [
        ("texfooler", {}, "known: textfooler"),
        ("bae", {"K": 3}, "it has k, min_similarity, window"),
        ("pwws", {"k": 3}, "it has none"),
        ("deepwordbug", {"max_edits": 0}, "whole number from 1"),
        ("deepwordbug", {"max_edits": "many"}, "whole number from 1"),
        ("deepwordbug", {"max_edits": 2.5}, "whole number from 1"),
        ("textbugger", {"min_similarity": 80}, r"\[-1, 1\]"),
        ("textbugger", {"min_similarity": "nan"}, r"\[-1, 1\]"),
        ("random", {"substitute": "letters"}, "synonyms, neighbours or characters"),
    ],
)
def test_bad_names_and_parameters(resources, name, parameters, message):
    with pytest.raises(UserError, match=message):
        build_recipe(name, resources, **parameters)


def test_parameters_may_be_strings(resources):
    recipe = build_recipe("bert-attack", resources, k="8", max_share="0.25")
    assert recipe.transformation.likely.k == 8 and recipe.constraints[0].share == 0.25


def test_openattacks_pwws_goes_in_order_without_looking(resources):
    """By hand: the gains of the words on the lower-cased text decide what is put where, and in which order."""
    table = {"dog": ["cat", "bird"], "park": ["house"], "old": ["red"]}
    resources.tagged_synonyms = lambda word, tag: table.get(word, [])
    weights = {"dog": 1.0, "cat": 0.2, "bird": 0.9, "park": 0.8, "house": 0.9, "old": 0.5, "red": 0.3}
    asked = []

    def victim(texts):
        asked.extend(texts)
        right = np.array([sum(weights.get(word, 0) for word in text.lower().split()) / 2.5 for text in texts])
        return np.stack([right, 1 - right], axis=1)

    recipe = build_recipe("pwws-openattack", resources)
    of = [(0, Example({"text": "The OLD dog in Park"}, Untargeted(0)))]
    outcome = attacked(recipe, victim, of)[0]
    assert asked[:2] == ["The OLD dog in Park", "the old dog in park"]
    assert {f"the old {word} in park" for word in ("<UNK>", "cat", "bird")} <= set(asked)
    # dog -> cat gains most, then old -> red; park -> house loses, and is put all the same.
    assert asked[-2:] == ["the red cat in park", "the red cat in house"]  # the first step was asked before
    assert outcome.status == "failed" and outcome.perturbed.texts == ("the red cat in house",)
    assert outcome.queries == 1 + 1 + 3 + 4 + 3 == len(asked) + 1
    limited = attacked(recipe, victim, of, budget=6)[0]
    assert limited.queries == 6 and limited.out_of_budget and limited.status == "failed"


def test_the_best_candidate_of_each_position_counts_in_pwws(resources):
    """Ranking by saliency x best candidate, against a loop that asks the victim itself."""
    recipe, victim = build_recipe("pwws", resources), WordVictim()
    for number, example in examples(victim):
        original = edited(example.columns["text"])
        positions = [at for at in original.document.free if original.word(at) not in recipe.stopwords]
        attempt = Attempt(Asked(victim), example.goal)
        order = result_of(RANKINGS["weighted-saliency"](original, positions, recipe, attempt))

        def score(text, goal=example.goal):
            return goal.score(victim([text])[0])

        saliency = np.exp([score(original.with_word(at, "[UNK]")[0]) for at in positions])
        best = []
        for at in positions:
            words = resources.synonym_table(original.word(at))
            best.append(max((score(original.replace(at, word).texts[0]) for word in words), default=0))
        values = saliency / saliency.sum() * best
        assert order == [positions[i] for i in np.argsort(-values, kind="stable")], number


def test_openattacks_pwws_keeps_letters_that_lower_case_makes_longer(resources):
    resources.tagged_synonyms = lambda word, tag: {"film": ["movie"]}.get(word, [])
    recipe = build_recipe("pwws-openattack", resources)
    example = Example({"text": "İİ İ, a FILM"}, Untargeted(0))
    outcome = attacked(
        recipe, lambda texts: [[0.1, 0.9] if "movie" in t else [0.9, 0.1] for t in texts], [(0, example)]
    )[0]
    assert outcome.perturbed.texts == ("ii i, a movie",)
    assert [outcome.original.words[at] for at in outcome.perturbed.changed] == ["FILM"]
