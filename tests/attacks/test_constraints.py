"""Constraints on hand-made texts, and the edit distance against the recursive definition."""

from __future__ import annotations

import math
import random
from functools import cache

import numpy as np
import pytest
from toys import ToyTagger, edited, result_of

from hf_robustcse.attacks.constraints import (
    EditDistance,
    MaxWordsChanged,
    PartOfSpeech,
    SentenceSimilarity,
    WordSimilarity,
    edit_distance,
)
from hf_robustcse.attacks.resources.lexicons import WordVectors
from hf_robustcse.attacks.text import Edited


def kept(constraint, original: Edited, current: Edited, position: int, *words: str) -> list[str]:
    candidates = [current.replace(position, word) for word in words]
    return [candidate.word(position) for candidate in result_of(constraint.keep(original, current, candidates))]


def test_word_similarity_is_to_the_original_word_and_unknown_words_pass():
    angles = {"good": 0, "fine": 50, "great": 70, "bad": 180}
    rows = np.array([[math.cos(math.radians(angle)), math.sin(math.radians(angle))] for angle in angles.values()])
    constraint = WordSimilarity(WordVectors(list(angles), 3 * rows, "toy"), 0.5)
    original = edited("a Good one and nowhere")
    words = ("fine", "FINE", "great", "bad", "unheard-of")
    assert kept(constraint, original, original, 1, *words) == ["fine", "FINE", "unheard-of"]
    assert kept(constraint, original, original.replace(1, "great"), 1, *words) == ["fine", "FINE", "unheard-of"]
    assert kept(constraint, original, original, 4, "bad") == ["bad"]  # the original word is unknown
    assert constraint.describe() == {"name": "word-similarity", "vectors": "toy", "min_cosine": 0.5}


def test_part_of_speech_among_the_words_of_the_original_text():
    tagger = ToyTagger()
    original = edited("one two three four five six seven eight nine ten")
    current = original.replace(4, "changed")
    assert kept(PartOfSpeech(tagger), original, current, 5, "dog", "dogs", "happy") == ["dog", "dogs"]
    words = ("six", "dog", "dogs", "happy")
    assert tagger.asked == [("two", "three", "four", "five", word, "seven", "eight", "nine") for word in words]
    tagger.asked.clear()
    assert kept(PartOfSpeech(tagger), original, current, 1, "a", "b") == ["b"]
    assert tagger.asked[0] == ("one", "two", "three", "four", "five")


def test_nouns_and_verbs_exchange_but_no_others():
    original = edited("the happy dog runs")
    assert kept(PartOfSpeech(ToyTagger()), original, original, 1, "old", "dog", "runs", "a") == ["old"]
    assert kept(PartOfSpeech(ToyTagger()), original, original, 3, "cat", "eats", "old") == ["cat", "eats"]


def test_a_word_that_stands_twice_has_its_own_tag():
    class Counting(ToyTagger):
        def __call__(self, items):
            return [("NOUN",) * 2 + ("ADJ",) + ("NOUN",) * (len(item) - 3) for item in items]

    original = edited("so so so it goes on")
    assert kept(PartOfSpeech(Counting()), original, original, 2, "it") == ["it"]
    assert kept(PartOfSpeech(Counting()), original, original, 1, "it") == ["it"]


def angle_encoder(asked: list[str]):
    """Texts -> unit vectors whose angle in degrees is the sum of the numbers in the text."""

    def encode(texts):
        asked.extend(texts)
        angles = [math.radians(sum(int(word) for word in text.split() if word.isdigit())) for text in texts]
        return np.array([[math.cos(angle), math.sin(angle)] for angle in angles]) * 7

    return encode


@pytest.mark.parametrize(
    ("metric", "expected"), [("cosine", lambda a: math.cos(math.radians(a))), ("angular", lambda a: 1 - a / 180)]
)
def test_similarity_of_the_whole_text(metric, expected):
    asked: list[str] = []
    constraint = SentenceSimilarity(angle_encoder(asked), "toy", expected(60) - 1e-9, metric)
    original = edited("(0 and 0)!")
    candidates = [original.replace(0, word) for word in ("30", "60", "61", "180")]
    found = result_of(constraint.keep(original, original, candidates))
    assert found == candidates[:2]
    assert [one.similarity for one in candidates] == pytest.approx([expected(angle) for angle in (30, 60, 61, 180)])
    assert asked == ["0 and 0", "30 and 0", "60 and 0", "61 and 0", "180 and 0"]  # from the first word to the last


def test_similarity_to_the_original_or_the_previous_text():
    original = edited("0 and 0")
    current = original.replace(0, "40")
    settings = {"encoder": "toy", "threshold": 0.7, "metric": "cosine"}
    against = {
        which: kept(SentenceSimilarity(angle_encoder([]), **settings, against=which), original, current, 2, "20", "40")
        for which in ("original", "previous")
    }
    assert against == {"original": [], "previous": ["20", "40"]}


def test_the_window_and_texts_that_are_shorter():
    asked: list[str] = []
    constraint = SentenceSimilarity(angle_encoder(asked), "toy", 0.5, window=3, short_pass=True)
    original = edited("90 b 0 , d e 90")
    assert kept(constraint, original, original, 2, "30", "80") == ["30"]
    assert asked == ["b 0 , d", "b 30 , d", "b 80 , d"]
    short = edited("0 0")
    candidate = short.replace(0, "180")
    assert result_of(constraint.keep(short, short, [candidate])) == [candidate] and candidate.similarity == 1
    assert kept(SentenceSimilarity(angle_encoder([]), "toy", 0.5, window=3), short, short, 0, "180") == []


def test_unknown_settings_are_refused():
    with pytest.raises(ValueError, match="metric"):
        SentenceSimilarity(angle_encoder([]), "toy", 0.5, "euclidean")


def test_the_share_of_changed_words_is_rounded_up():
    original = edited("one two three four five six")  # ceil(0.4 * 6) = 3
    constraint = MaxWordsChanged(0.4)
    current = original.replace(0, "a").replace(1, "b")
    assert kept(constraint, original, current, 2, "c") == ["c"]
    assert kept(constraint, original, current.replace(2, "c"), 3, "d") == []
    assert kept(constraint, original, current.replace(2, "c").replace(1, "two"), 3, "d") == ["d"]  # changed back


def slow_distance(first: str, second: str) -> int:
    @cache
    def distance(i: int, j: int) -> int:
        if not i or not j:
            return i + j
        same = first[i - 1] == second[j - 1]
        return min(distance(i - 1, j) + 1, distance(i, j - 1) + 1, distance(i - 1, j - 1) + (not same))

    return distance(len(first), len(second))


def test_edit_distance_is_the_recursive_one():
    draw = random.Random(0)
    for _ in range(300):
        first, second = ("".join(draw.choices("abé𝚏", k=draw.randint(0, 9))) for _ in range(2))
        expected = slow_distance(first, second)
        for most in (0, 1, 2, 3, 9, 40):
            assert edit_distance(first, second, most) == min(expected, most + 1), (first, second, most)


def test_edit_distance_of_long_texts():
    text = "the dog runs in the park and sleeps . " * 30
    assert edit_distance(text, text[3:600] + "x" + text[601:], 30) == 4
    assert edit_distance(text, text.replace("dog", "dg"), 30) == 30
    assert edit_distance(text, text.replace("dog", "dg"), 29) == 30  # more than 29


def test_edits_are_counted_over_the_whole_text():
    original = edited("abc def ghi")
    assert kept(EditDistance(3), original, original, 0, "abcxyz", "abcwxyz", "") == ["abcxyz", ""]
    current = original.replace(0, "xxx")
    assert kept(EditDistance(4), original, current, 1, "de", "dexx") == ["de"]
    # Word by word 2 + 2 edits, but the text as a whole has 2: b moves.
    moved = edited("ab b").replace(0, "a")
    assert kept(EditDistance(2), edited("ab b"), moved, 1, "bb") == ["bb"]


def test_descriptions_state_every_parameter():
    assert SentenceSimilarity(angle_encoder([]), "toy", 0.8, "angular").describe() == {
        "name": "sentence-similarity", "encoder": "toy", "metric": "angular", "threshold": 0.8, "window": None,
        "against": "original", "shorter_texts_pass": False,
    }  # fmt: skip
    assert PartOfSpeech(ToyTagger()).describe() == {
        "name": "part-of-speech", "tagger": "toy", "words_before": 4, "words_after": 3, "noun_verb_swap": True,
    }  # fmt: skip
    assert MaxWordsChanged(0.4).describe() == {"name": "max-words-changed", "share": 0.4}
    assert EditDistance(30).describe() == {"name": "edit-distance", "max": 30}
