"""Words, replacing, deleting, windows: hand-made cases, and every edit against one by plain slicing."""

from __future__ import annotations

import random

import pytest

from hf_robustcse.attacks.text import Document, Edited, is_one_word, words_of


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", []),
        ("  ... !?", []),
        ("Don't stop-me, now!", ["Don't", "stop-me", "now"]),
        ("'quoted' -dash- _x_ @home *star*", ["quoted", "dash", "x", "home", "star"]),
        ("me@home.org costs $3.50", ["me@home", "org", "costs", "3", "50"]),
        ("naïve café 日本 שלום", ["naïve", "café", "日本", "שלום"]),
        ("a\tb\nc\x00d 🙂 e", ["a", "b", "c", "d", "e"]),
        ("---", []),
    ],
)
def test_words(text, words):
    assert [text[start:end] for start, end in words_of(text)] == words


def test_one_word():
    assert is_one_word("well-known") and is_one_word("'tis")
    assert not is_one_word("two words") and not is_one_word("...") and not is_one_word("")


def test_replacing_keeps_everything_else():
    document = Document({"text": "The film, the  FILM: the film."})
    state = Edited(document).replace(3, "movie").replace(1, "picture")
    assert state.texts == ("The picture, the  movie: the film.",)
    assert state.words == ["The", "picture", "the", "movie", "the", "film"]
    assert state.changed == {1: "picture", 3: "movie"}
    assert Edited(document, state.replaced).texts == state.texts
    assert state.replace(1, "film").changed == {3: "movie"}


@pytest.mark.parametrize(
    ("position", "text"),
    [(0, "film, a film."), (1, "A, a film."), (2, "A film, film."), (3, "A film, a.")],
)
def test_deleting_takes_one_space(position, text):
    assert Edited(Document({"text": "A film, a film."})).without(position) == (text,)


def test_deleting_the_last_word_of_all_leaves_its_space():
    assert Edited(Document({"text": "one two"})).without(1) == ("one ",)
    pair = Edited(Document({"premise": "one two", "hypothesis": "three four"}))
    assert pair.without(1) == ("one", "three four") and pair.without(3) == ("one two", "three ")


def test_columns_and_what_is_frozen():
    document = Document({"premise": "A dog runs.", "hypothesis": "A cat sits."}, frozen=["premise"])
    assert document.free == [3, 4, 5]
    state = Edited(document).replace(4, "kitten").replace(5, "lies")
    assert state.texts == ("A dog runs.", "A kitten lies.") == state.key
    assert state.text == "A dog runs.\nA kitten lies."
    assert Edited(Document({"text": "one"})).key == "one"


def test_windows():
    words = [f"w{number}" for number in range(20)]
    state = Edited(Document({"text": " ".join(words) + "!"}))
    assert state.window(10, 5) == "w8 w9 w10 w11 w12"
    assert state.window(1, 5) == "w0 w1 w2 w3 w4"
    assert state.window(18, 5) == "w15 w16 w17 w18 w19"
    assert state.window(3, None) == " ".join(words)  # from the first word to the last
    assert state.window(3, 50) == " ".join(words)


def test_any_chain_of_edits_is_slicing():
    draw = random.Random(0)
    for _ in range(50):
        columns = {
            name: " ".join(draw.choices(["a", "bb,", "-ccc", "d's", "e!"], k=8)) for name in "xyz"[: draw.randint(1, 3)]
        }
        document = Document(columns)
        state, expected = Edited(document), [list(text) for text in document.texts]
        for position in draw.sample(document.free, 5):
            state = state.replace(position, draw.choice(["q", "long-er", "two words"]))
        for position in sorted(state.replaced, reverse=True):  # from the back, so that the spans stay true
            start, end = document.spans[position]
            expected[document.column_of[position]][start:end] = state.replaced[position]
        assert state.texts == tuple("".join(text) for text in expected)
        for position in document.free:
            for size in (3, 5, None):
                fresh = Edited(document, state.replaced)
                assert state.window(position, size) == fresh.window(position, size)
            assert state.with_word(position, "#") == fresh.replace(position, "#").texts
