"""Candidates for a word, on hand-made cases and against brute force."""

from __future__ import annotations

import random
import string
from itertools import product
from pathlib import Path

import pytest
from toys import ToyTagger, edited, result_of, toy_vectors, word_pieces

from hf_robustcse.attacks.resources.language_model import LanguageModel, LikelyPieces, MostLikely
from hf_robustcse.attacks.resources.lexicons import NeighbourTable
from hf_robustcse.attacks.resources.word_lists import LOOKALIKES
from hf_robustcse.attacks.text import is_one_word
from hf_robustcse.attacks.transformations import (
    CharacterEdit,
    LikelyWords,
    Lookalikes,
    MaskedWords,
    Nearest,
    OneAtRandom,
    Synonyms,
    TaggedSynonyms,
    Union,
    _one_word,
    in_case_of,
)


def words(transformation, text: str, position: int, seed: int = 0) -> list[str]:
    return list(result_of(transformation.candidates(edited(text), position, random.Random(seed))))


@pytest.fixture(scope="module")
def pieces(tmp_path_factory: pytest.TempPathFactory) -> LanguageModel:
    folder: Path = word_pieces(tmp_path_factory.mktemp("pieces"))
    model = LanguageModel.load(str(folder), "cpu")
    model.model.double()
    return model


def every_edit(word: str, kind: str, inner: bool) -> set[str]:
    """All that one edit can make of a word, by cutting it everywhere."""
    cuts = [(word[:i], word[i:]) for i in range(len(word) + 1)]
    letters = string.ascii_letters
    if kind == "insert":
        return {a + c + b for a, b in cuts if b for c in letters if not inner or (a and len(b) > 1)}
    if kind == "delete":
        return {a + b[1:] for a, b in cuts if b and (not inner or (a and len(b) > 1))}
    if kind == "substitute":
        return {a + c + b[1:] for a, b in cuts if b for c in letters if not inner or (a and len(b) > 1)}
    return {a + b[1] + b[0] + b[2:] for a, b in cuts if len(b) > 1 and (not inner or (a and len(b) > 2))}


@pytest.mark.parametrize("inner", [False, True])
@pytest.mark.parametrize("kind", ["insert", "delete", "swap", "substitute"])
def test_a_character_edit_can_make_exactly_what_it_should(kind, inner):
    for word in ("a", "ab", "abc", "kino"):
        part, text, draw = CharacterEdit(kind, inner), edited(word), random.Random(0)
        made = {word for _ in range(3000) for word in result_of(part.candidates(text, 0, draw))}
        expected = every_edit(word, kind, inner) if len(word) > 1 else set()
        assert made <= expected and len(made) >= 0.95 * len(expected)


def test_textbugger_puts_spaces_inside():
    made = {word for seed in range(50) for word in words(CharacterEdit("insert", True, " "), "good", 0, seed)}
    assert made == {"g ood", "go od"}


def test_an_unknown_edit_is_refused():
    with pytest.raises(ValueError, match="twist"):
        CharacterEdit("twist")


def test_lookalikes_replace_one_character_each():
    assert words(Lookalikes(LOOKALIKES), "an Ox", 0) == ["ɑn", "aո"]
    assert words(Lookalikes(LOOKALIKES), "an Ox", 1) == ["O×"]
    assert words(Lookalikes({}), "an Ox", 1) == []


def test_synonyms_are_single_words():
    table = {"big": ["large", "grown up", "big", "so-called"]}
    assert words(Synonyms(table.__getitem__, "table"), "a big dog", 1) == ["large", "big", "so-called"]


def test_synonyms_of_the_part_of_speech_in_the_original_text():
    tagger = ToyTagger()
    part = TaggedSynonyms(lambda word, tag: [f"{word}-{tag}"], "table", tagger)
    assert words(part, "the dog runs in a park now and then", 2) == ["runs-VERB"]
    assert tagger.asked == [("the", "dog", "runs", "in", "a", "park")]


@pytest.mark.parametrize(
    ("other", "expected"),
    [("dog", "cat"), ("Dog", "Cat"), ("DOG", "CAT"), ("I", "cat"), ("McDog", "cat"), ("7", "cat")],
)
def test_case_is_copied(other, expected):
    assert in_case_of("cat", other) == expected


def test_nearest_words_in_the_case_of_the_word():
    table = NeighbourTable({"movie": ["film", "cinema", "flick"]}, "table")
    assert words(Nearest(table, 2), "a MOVIE here", 1) == ["FILM", "CINEMA"]
    assert words(Nearest(table, 2), "a Movie here", 1) == ["Film", "Cinema"]
    assert words(Nearest(table, 2), "a movies here", 1) == []
    assert len(words(Nearest(toy_vectors(), 7), "the dog", 1)) == 7


def test_union_keeps_the_order_of_its_parts_and_one_at_random_repeats():
    first, second = Synonyms(lambda word: ["x", "y"], "1"), Synonyms(lambda word: ["y", "z", word], "2")
    union = Union((first, second))
    assert words(union, "a dog", 1) == ["x", "y", "y", "z", "dog"]
    drawn = [words(OneAtRandom(union), "a dog", 1, seed) for seed in range(40)]
    assert {word for one in drawn for word in one} == {"x", "y", "z"} and all(len(one) == 1 for one in drawn)
    assert drawn == [words(OneAtRandom(union), "a dog", 1, seed) for seed in range(40)]
    assert words(OneAtRandom(Synonyms(lambda word: [word], "itself")), "a dog", 1) == []


def test_masked_words_have_a_letter_and_no_marks(pieces):
    found = words(MaskedWords(MostLikely(pieces, 200)), "the dog runs", 1)
    assert set(found) >= {"cat", "s", "ing", "un"}  # sub-words count, without their marks
    assert not {"1", ",", "-", "[UNK]", "[MASK]", "."} & set(found) and not any("#" in word for word in found)


def entries_at(pieces: LanguageModel, text: str, tokens: list[int], k: int) -> list[list[str]]:
    """The k most likely entries at tokens of a text, from the whole model at once."""
    logits = pieces.model(**pieces.tokenizer(text, return_tensors="pt")).logits[0]
    top = [logits[token, : len(pieces.texts)].argsort(descending=True)[:k].tolist() for token in tokens]
    return [pieces.tokenizer.convert_ids_to_tokens(row) for row in top]


def test_a_word_of_one_piece_has_the_whole_words_among_the_k_most_likely(pieces):
    text = "the dog runs in the park"
    (entries,) = entries_at(pieces, text, [2], 30)
    expected = [entry for entry in entries if is_one_word(entry) and entry[0] not in "#["]
    found = words(LikelyWords(LikelyPieces(pieces, 30)), text, 1)
    assert found == expected and 5 < len(found) < 30


@pytest.mark.parametrize("k", [1, 3, 8, 40])
def test_a_word_of_several_pieces_has_the_first_k_products(pieces, k):
    text = "the dog walking in the park"  # walk ##ing
    entries = [[entry for entry in row if entry[0] != "["] for row in entries_at(pieces, text, [3, 4], k)]
    joined = ["".join(combination).replace("##", "") for combination in product(*entries)]
    expected = [word for word in joined if is_one_word(word)][:k]
    assert words(LikelyWords(LikelyPieces(pieces, k)), text, 2) == expected


def test_many_pieces_are_not_enumerated(pieces):
    text = "the " + "un" + "ing" * 12 + " dog"  # 60^13 products
    assert len(words(LikelyWords(LikelyPieces(pieces, 60)), text, 1)) == 60


def test_descriptions_state_every_parameter(pieces):
    parts = [
        LikelyWords(LikelyPieces(pieces, 8)), MaskedWords(MostLikely(pieces, 8)), Nearest(toy_vectors(), 3),
        CharacterEdit("insert"), Lookalikes(LOOKALIKES), Synonyms(lambda word: [], "table"),
    ]  # fmt: skip
    described = Union((OneAtRandom(parts[0]), *parts)).describe()
    assert described["parts"][0]["of"] == {"name": "likely-words", "masked_lm": pieces.name, "k": 8}
    assert described["parts"][3] == {"name": "nearest-words", "resource": "toy vectors", "k": 3}
    assert described["parts"][4]["letters"] == string.ascii_letters


def test_pieces_that_never_make_a_word_end_soon():
    marks = [",", ".", "!", "?", ";", ":", "(", ")"]
    assert list(_one_word([["foo"], *[marks] * 12, ["bar"]])) == []
    pieces = [["foo", "-", "."], ["-", "bar", "a b"], [".", "baz"]]
    expected = [word for word in map("".join, product(*pieces)) if is_one_word(word)]
    assert list(_one_word(pieces)) == expected and len(expected) > 5
