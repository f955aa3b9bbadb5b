"""The greedy search on victims that can be followed by hand."""

from __future__ import annotations

import random

import numpy as np
import pytest

from hf_robustcse.attacks import Dissimilar, Example, Recipe, Untargeted, attack_examples
from hf_robustcse.attacks.transformations import Synonyms

TABLE = {"good": ["fine", "great"], "film": ["movie", "picture"], "plot": ["story"], "very": ["really"]}


def recipe(ranking="delete", constraints=(), stopwords=frozenset(), table=TABLE):
    return Recipe(
        "test", "", Synonyms(lambda word: table.get(word, []), "a table"), constraints, ranking, stopwords=stopwords
    )


class Victim:
    """p(1) = sigmoid(sum of the weights of the words)."""

    def __init__(self, **weights):
        self.weights = weights
        self.asked: list[str] = []

    def __call__(self, texts):
        self.asked += texts
        sums = np.array([sum(self.weights.get(word.strip(".,"), 0.0) for word in _text(t).split()) for t in texts])
        return np.stack([1 / (1 + np.exp(sums)), 1 / (1 + np.exp(-sums))], axis=1)


def _text(text):
    return text if isinstance(text, str) else " ".join(text)


def attack(text, victim, label=1, used=None, **options):
    columns = text if isinstance(text, dict) else {"text": text}
    example = Example(columns, Untargeted(label), options.pop("frozen", ()))
    ((number, outcome),) = attack_examples([(7, example)], used or recipe(), victim, **options)
    assert number == 7
    return outcome


@pytest.mark.parametrize("ranking", ["delete", "unk", "weighted-saliency", "random"])
def test_it_finds_the_one_word_that_counts(ranking):
    outcome = attack("a good film, very good plot", Victim(good=1.0, fine=-3.0), used=recipe(ranking))
    assert outcome.status == "succeeded"
    assert "fine" in outcome.perturbed.text and outcome.after.argmax() == 0
    assert outcome.score_after > 0.5 > outcome.score_before


def test_the_most_important_word_is_first_and_the_best_candidate_wins():
    victim = Victim(good=2.0, film=0.5, fine=1.5, great=0.2, movie=-0.4, picture=-0.5)
    outcome = attack("a good film", victim)
    assert outcome.status == "succeeded"
    assert outcome.perturbed.changed == {1: "great", 2: "picture"}
    # the text, two or three deletions, two candidates of good, two of film
    assert outcome.queries == 1 + 3 + 2 + 2 == len(victim.asked)


def test_a_candidate_that_does_not_help_is_not_taken():
    outcome = attack("a good film", Victim(good=1.0, fine=2.0, great=1.0, film=1.0, movie=1.0, picture=3.0))
    assert outcome.status == "failed" and not outcome.perturbed.changed
    assert outcome.score_after == outcome.score_before


def test_wrong_examples_are_skipped():
    outcome = attack("a good film", Victim(good=1.0), label=0)
    assert outcome.status == "skipped" and outcome.queries == 1


def test_stop_words_stay_and_their_case_counts():
    used = recipe(stopwords=frozenset({"good"}))
    assert attack("good Good", Victim(good=1.0, fine=-9.0), used=used).status == "failed"
    table = {"Good": ["fine"]}
    assert (
        attack("Good", Victim(Good=1.0, fine=-9.0), used=recipe(stopwords={"good"}, table=table)).status == "succeeded"
    )


def test_frozen_columns_stay():
    pair = {"premise": "good good good", "hypothesis": "a good film"}
    outcome = attack(pair, Victim(good=1.0, fine=-9.0), frozen=("premise",))
    assert outcome.status == "succeeded" and outcome.perturbed.texts == ("good good good", "a fine film")


@pytest.mark.parametrize("budget", [1, 2, 4, 6])
def test_the_budget_is_kept(budget):
    victim = Victim(good=5.0, film=5.0, plot=5.0)
    outcome = attack("good film plot", victim, budget=budget)
    assert outcome.queries == budget == len(victim.asked) and outcome.status == "failed" and outcome.out_of_budget


def test_queries_count_repeated_texts():
    victim = Victim(good=5.0)
    outcome = attack("good good", victim)  # without the first and without the second good it is the same text ...
    assert outcome.queries == 1 + 2 + 2 + 2
    assert len(victim.asked) == len(set(victim.asked)) == 1 + 2 + 2 + 2  # ... but for the space that stays at the end


def test_among_successes_the_most_similar_one_is_chosen():
    class Liking:
        def keep(self, original, current, candidates):
            yield from ()
            for candidate in candidates:
                candidate.similarity = {"fine": 0.9, "great": 0.8}.get(candidate.word(candidate.position), 0.0)
            return candidates

    victim = Victim(good=1.0, fine=-1.0, great=-5.0)
    assert attack("a good film", victim).perturbed.text == "a great film"
    assert attack("a good film", victim, used=recipe(constraints=(Liking(),))).perturbed.text == "a fine film"


def test_weighted_saliency_against_a_loop():
    victim = Victim(good=0.8, film=0.9, plot=0.1, story=-0.7, fine=0.7, great=0.75, movie=0.85, picture=0.88)
    text = "good film plot"
    weighted = {}
    words = text.split()
    saliency = [1 - victim([text.replace(word, "[UNK]")])[0][1] for word in words]
    total = sum(np.exp(value) for value in saliency)
    for word, value in zip(words, saliency, strict=True):
        best = max(1 - victim([text.replace(word, other)])[0][1] for other in TABLE[word])
        weighted[word] = np.exp(value) / total * best
    order = sorted(words, key=lambda word: -weighted[word])
    victim.asked.clear()
    outcome = attack(text, victim, used=recipe("weighted-saliency"))
    assert outcome.status == "failed" and outcome.queries == 1 + 3 + 5 + 5
    assert [at for at in outcome.perturbed.replaced] == [words.index(word) for word in order]


def test_outcomes_do_not_depend_on_company():
    draw = random.Random(0)
    words = [*TABLE, *(word for words in TABLE.values() for word in words), "a", "the", "end"]
    victim = Victim(**{word: draw.uniform(-1, 1) for word in words})
    texts = [" ".join(draw.choices(words, k=draw.randint(0, 12))) for _ in range(40)]
    examples = [(number, Example({"text": text}, Untargeted(number % 2))) for number, text in enumerate(texts)]
    for ranking in ("delete", "unk", "weighted-saliency", "random"):
        runs = []
        for width, order in [(64, examples), (1, examples), (3, examples[::-1])]:
            found = dict(attack_examples(order, recipe(ranking), victim, width=width, seed=3))
            runs.append([(found[n].status, found[n].perturbed.texts, found[n].queries) for n in range(40)])
        assert runs[0] == runs[1] == runs[2]


def test_a_similarity_is_driven_away_from_its_gold_score():
    class Overlap:
        def __call__(self, pairs):
            sets = [(set(a.split()), set(b.split())) for a, b in pairs]
            return np.array([len(a & b) / len(a | b) for a, b in sets])

    pair = {"sentence1": "good film plot", "sentence2": "good film plot"}
    goal = Dissimilar(gold=1.0, distance=0.5)
    ((_, outcome),) = attack_examples([(0, Example(pair, goal, ("sentence1",)))], recipe(), Overlap())
    assert outcome.status == "succeeded" and len(outcome.perturbed.changed) == 1
    assert outcome.score_before == 0.0 and outcome.score_after == 0.5
    assert goal.score(np.array(-0.3)) == 1.0  # a negative cosine counts as 0


def test_a_rise_by_rounding_is_none():
    class Noisy(Victim):
        def __call__(self, texts):
            noise = np.array([[1.0, -1.0] if "Good" in text else [0.0, 0.0] for text in texts])
            return super().__call__([text.lower() for text in texts]) + 1e-7 * noise

    outcome = attack("a good film", Noisy(good=1.0), used=recipe(table={"good": ["Good"]}))
    assert outcome.status == "failed" and not outcome.perturbed.changed
