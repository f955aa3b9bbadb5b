"""Sentences with typing mistakes: swapped, dropped and doubled letters, and neighbouring keys."""

from __future__ import annotations

import random
import unicodedata
from collections.abc import Iterable
from itertools import groupby

from hf_robustcse.errors import UserError

LEAST = 4  # a typo in a shorter word often makes another word of it: "cat" and "act", "in" and "on"
_ROWS = ((0.0, "qwertyuiop"), (0.25, "asdfghjkl"), (0.75, "zxcvbnm"))  # a keyboard's rows and how far each is moved
_KEYS = {
    letter: (offset + column, row) for row, (offset, keys) in enumerate(_ROWS) for column, letter in enumerate(keys)
}
NEIGHBOURS = {
    letter: "".join(o for o, (u, v) in _KEYS.items() if o != letter and abs(u - x) <= 1 and abs(v - y) <= 1)
    for letter, (x, y) in _KEYS.items()
}
"""A lower-case Latin letter -> the letters around it on a QWERTY keyboard."""


def add_typos(text: str, *, rate: float, seed: int) -> str:
    """The text with a typo in some of its words; in at least one, if the rate is above 0 and a word has two letters.

    A typo swaps two letters, drops one, inserts one (a neighbouring key, or the letter twice) or hits a neighbouring
    key; the first letter of a word stays, and case is kept. A letter is taken with its combining marks, and letters
    that are on no QWERTY keyboard are swapped, dropped and doubled, so that any script is served. Words of fewer than
    `LEAST` letters are left alone unless there are no longer ones.

    A text and a seed always give the same result, in every process and however often they are asked, and the typos of
    a lower rate are among those of a higher one.

    Args:
        text: any; all but the words with a typo stays as it is.
        rate: probability that a word gets a typo, in [0, 1].
        seed: of the choice.

    Raises:
        UserError: if the rate is outside [0, 1].
    """
    if not 0 <= rate <= 1:
        raise UserError(f"the rate of typos must be between 0 and 1, not {rate:g}")
    draw = random.Random(f"{seed} {text}")  # a string seeds by its SHA-512
    parts = [_letters(run) if word else ["".join(run)] for word, run in groupby(text, _in_word)]
    lengths = [len(part) for part in parts]  # in letters; what is between words counts 1
    least = LEAST if max(lengths, default=0) >= LEAST else 2
    words = [number for number, length in enumerate(lengths) if length >= least]
    if not words or not rate:
        return text
    always = draw.choice(words)
    for number in words:
        hit, changed = draw.random() < rate, _typo(parts[number], draw)
        if hit or number == always:
            parts[number] = changed
    return "".join("".join(part) for part in parts)


def pieces(text: str) -> list[tuple[str, bool]]:
    """A text in pieces that together are the text: words, numbers, signs with their marks, and white space.

    Args:
        text: any.

    Returns:
        Each piece, and whether it is a word of at least `LEAST` letters. Characters without a width (soft hyphens,
        joiners) are part of the word that they stand in.
    """
    joined: list[str] = []
    before = "none"
    for character in text:
        kind = _kind(character)
        if belongs := kind == "part" and before not in ("none", "space"):
            kind = before  # of the letter, digit or sign that it stands behind
        if belongs or kind == before != "sign":
            joined[-1] += character
        else:
            joined.append(character)
        before = kind
    return [(piece, piece[0].isalpha() and sum(map(str.isalpha, piece)) >= LEAST) for piece in joined]


def _kind(character: str) -> str:
    if character.isspace():
        return "space"
    if character.isalpha():
        return "letter"
    if unicodedata.category(character) in ("Mn", "Mc", "Me", "Cf"):
        return "part"
    return "digit" if character.isdigit() else "sign"


def leave_out(text: str, *, rate: float, seed: int) -> str:
    """The text without some of what `add_typos` leaves alone: words of fewer than `LEAST` letters, numbers, signs.

    An encoder that is to find a sentence with typos again can do it by these alone. What is left out leaves a space,
    and spaces are not repeated. A text without a word of `LEAST` letters, which would be left with nothing, stays as
    it is.

    A text and a seed always give the same result, and what a lower rate leaves out a higher one does too.

    Args:
        text: any.
        rate: probability that a short word, a number or a sign is left out, in [0, 1].
        seed: of the choice.

    Raises:
        UserError: if the rate is outside [0, 1].
    """
    if not 0 <= rate <= 1:
        raise UserError(f"the rate of what is left out must be between 0 and 1, not {rate:g}")
    if not rate:  # as in every positive with typos alone: nothing is taken apart for it
        return text
    parts = pieces(text)
    if not any(long for _, long in parts):
        return text
    draw = random.Random(f"leave out {seed} {text}")
    kept = [part if part.isspace() or long or draw.random() >= rate else " " for part, long in parts]
    return " ".join("".join(kept).split())


def swap_inside(word: str, draw: random.Random) -> str:
    """The word with two neighbouring letters swapped, its first and last letter not among them, and case kept.

    Args:
        word: letters with their combining marks.
        draw: chooses the letters.

    Returns:
        The word as it is, where it is too short or has no two letters to swap that differ.
    """
    letters = _letters(word)
    swaps = [i for i in range(1, len(letters) - 2) if letters[i] != letters[i + 1]]
    if not swaps:
        return word
    i = draw.choice(swaps)
    return "".join([*letters[:i], letters[i + 1], letters[i], *letters[i + 2 :]])


def _in_word(character: str) -> bool:
    return character.isalpha() or unicodedata.category(character)[0] == "M"


def _letters(run: Iterable[str]) -> list[str]:
    """The letters of a word, each with the marks behind it."""
    word = "".join(run)
    if word.isascii():
        return list(word)
    letters: list[str] = []
    for character in word:
        if letters and unicodedata.category(character)[0] == "M":
            letters[-1] += character
        else:
            letters.append(character)
    return letters


def _typo(letters: list[str], draw: random.Random) -> list[str]:
    """A word of two letters or more with one typo behind its first letter, never the same word."""
    at = draw.randrange(1, len(letters))
    letter, near = letters[at], NEIGHBOURS.get(letters[at].lower(), "")
    swaps = [i for i in range(1, len(letters) - 1) if letters[i].lower() != letters[i + 1].lower()]
    kind = draw.choice(["drop", "insert"] + ["swap"] * bool(swaps) + ["key"] * bool(near))
    key = draw.choice(near) if near else letter
    key = key.upper() if letter.isupper() else key
    if kind == "swap":
        i = draw.choice(swaps)
        return [*letters[:i], letters[i + 1], letters[i], *letters[i + 2 :]]
    if kind == "drop":
        return letters[:at] + letters[at + 1 :]
    if kind == "insert":
        return [*letters[: at + 1], draw.choice([key, letter]), *letters[at + 1 :]]
    return [*letters[:at], key, *letters[at + 1 :]]
