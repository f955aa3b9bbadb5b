"""Typos: the same in every process, in words only, in any script."""

from __future__ import annotations

import re
import subprocess
import sys
import unicodedata

import pytest

from hf_robustcse.errors import UserError
from hf_robustcse.typos import NEIGHBOURS, add_typos, leave_out, pieces

TEXTS = [
    "A man is playing the guitar in Berlin, loudly: 12 songs!",
    "NATO's leaders  met\tin Café Einstein; déjà vu?",
    "一个男人在公园里弹吉他。",
    "Мужчина играет на гитаре.",
    "एक आदमी गिटार बजा रहा है",
    "cafe\u0301s re\u0301sume\u0301s",
]


def words(text: str) -> list[str]:
    return re.findall(r"\S+", text)


def is_typo(word: str, other: str) -> bool:
    """Whether one swap, drop, insertion or other letter behind the first letter makes one of the other."""
    a, b = (unicodedata.normalize("NFC", x) for x in (word, other))
    if a[0] != b[0] or a == b:
        return False
    drops = {a[:i] + a[i + 1 :] for i in range(1, len(a))}
    swaps = {a[:i] + a[i + 1] + a[i] + a[i + 2 :] for i in range(1, len(a) - 1)}
    inserted = len(b) == len(a) + 1 and a in {b[:i] + b[i + 1 :] for i in range(1, len(b))}
    replaced = len(a) == len(b) and sum(x != y for x, y in zip(a, b, strict=True)) == 1
    return b in drops | swaps or inserted or replaced


@pytest.mark.parametrize("text", TEXTS[:4])
def test_every_word_has_one_typo_and_nothing_else_changes(text: str) -> None:
    for seed in range(60):
        changed = add_typos(text, rate=1.0, seed=seed)
        letters = re.compile(r"[^\W\d_]+")
        before, after = letters.findall(text), letters.findall(changed)
        assert letters.split(text) == letters.split(changed)  # digits, marks and white space
        for word, other in zip(before, after, strict=True):
            assert is_typo(word, other) if len(word) >= 4 else word == other, (word, other)


def test_all_kinds_of_typos_occur_and_case_is_kept() -> None:
    seen = {add_typos("House", rate=1.0, seed=seed) for seed in range(400)}
    assert {"Huose", "Hose", "Housse", "Hpuse"} <= seen and "House" not in seen
    assert all(word.startswith("H") and word[1:].islower() for word in seen)
    assert all(add_typos("HOUSE", rate=1.0, seed=seed).isupper() for seed in range(50))
    assert set(NEIGHBOURS["w"]) == set("qeas")
    assert all(letter in NEIGHBOURS[other] for letter, others in NEIGHBOURS.items() for other in others)


def test_marks_stay_with_their_letters() -> None:
    for seed in range(100):
        changed = add_typos("re\u0301sume\u0301", rate=1.0, seed=seed)
        for before, mark in zip("x" + changed, changed, strict=False):
            assert mark != "\u0301" or before == "e", changed
        assert not any(
            unicodedata.category(word[0])[0] == "M" for word in words(add_typos(TEXTS[4], rate=1, seed=seed))
        )


@pytest.mark.parametrize("text", TEXTS)
def test_at_least_one_word_and_more_with_the_rate(text: str) -> None:
    for seed in range(20):
        versions = [add_typos(text, rate=rate, seed=seed) for rate in (0, 1e-9, 0.3, 0.6, 1)]
        assert versions[0] == text != versions[1]
        spaced = [words(version) for version in versions]
        assert sum(a != b for a, b in zip(*spaced[:2], strict=True)) == 1


def test_typos_of_a_lower_rate_are_among_those_of_a_higher_one() -> None:
    text = "several people were playing different instruments outside the station yesterday"
    spaced = [words(add_typos(text, rate=rate, seed=5)) for rate in (0, 0.3, 0.6, 1)]
    for lower, higher in zip(spaced, spaced[1:], strict=False):
        assert all(b in (a, clean) for clean, a, b in zip(spaced[0], higher, lower, strict=True))


def test_short_words_only_when_there_are_no_longer_ones() -> None:
    for seed in range(30):
        assert words(add_typos("I am in it", rate=0.01, seed=seed))[0] == "I"
        assert add_typos("I am in it", rate=0.01, seed=seed) != "I am in it"
        assert words(add_typos("in the garden", rate=1, seed=seed))[:2] == ["in", "the"]
    for text in ("", "12 345 !", "a b c"):
        assert add_typos(text, rate=1.0, seed=0) == text


def test_the_rate_is_that_of_the_words() -> None:
    text = " ".join(f"word{'abcdefghij'[i % 10]}x" for i in range(5000))
    share = sum(a != b for a, b in zip(words(text), words(add_typos(text, rate=0.2, seed=3)), strict=True)) / 5000
    assert share == pytest.approx(0.2, abs=0.03)


def test_the_same_in_every_process() -> None:
    call = f"ascii([add_typos(text, rate=0.5, seed=7) for text in {TEXTS!r}])"
    code = f"from hf_robustcse.typos import add_typos\nprint({call})"
    done = subprocess.run([sys.executable, "-X", "utf8", "-c", code], capture_output=True, text=True, check=True)
    here = [add_typos(text, rate=0.5, seed=7) for text in TEXTS]
    assert done.stdout.strip() == ascii(here)
    assert here != [add_typos(text, rate=0.5, seed=8) for text in TEXTS]


@pytest.mark.parametrize("rate", [-0.1, 1.1, float("nan")])
def test_a_rate_out_of_range(rate: float) -> None:
    with pytest.raises(UserError, match="between 0 and 1"):
        add_typos("some words", rate=rate, seed=0)


def test_what_typos_leave_alone_is_left_out() -> None:
    text = "A man isn't in the café, déjà-vu: 12.5 songs!"
    assert leave_out(text, rate=1.0, seed=0) == "café déjà songs"
    assert leave_out(TEXTS[5], rate=1.0, seed=0) == TEXTS[5]  # letters with their marks are counted
    assert leave_out("He is in.", rate=1.0, seed=0) == "He is in."  # nothing would be left
    assert leave_out(text, rate=0.0, seed=0) == text
    with pytest.raises(UserError, match=r"between 0 and 1, not 1\.5"):
        leave_out(text, rate=1.5, seed=0)


def test_what_has_no_width_belongs_to_what_it_stands_in() -> None:
    for text, left in (
        ("the gui\u00adtar", "gui\u00adtar"), ("I ❤️ guitar", "guitar"), ("می\u200cخواهم و", "می\u200cخواهم"),
        ("", ""), (" \u0301a b", " \u0301a b"), ("a_b 12x long", "long"),
    ):  # fmt: skip
        assert leave_out(text, rate=1.0, seed=0) == left
        assert "".join(piece for piece, _ in pieces(text)) == text


def test_how_often_and_always_the_same() -> None:
    text = " ".join(["is", "guitar"] * 2000)
    for rate in (0.25, 0.5):
        kept = leave_out(text, rate=rate, seed=3).split()
        assert kept.count("guitar") == 2000 and kept.count("is") / 2000 == pytest.approx(1 - rate, abs=0.04)
    for seed in range(20):
        left = (leave_out(TEXTS[0], rate=rate, seed=seed) for rate in (0.3, 0.7))
        low, high = (re.findall(r"\w+|[^\w\s]", text) for text in left)
        rest = iter(low)
        assert all(word in rest for word in high), "what a lower rate leaves out a higher one does too"
