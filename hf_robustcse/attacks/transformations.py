"""Candidates for a word: synonyms, neighbours, misspellings, the words of a masked language model."""

from __future__ import annotations

import random
import re
import string
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from hf_robustcse.attacks.constraints import Tagger, context
from hf_robustcse.attacks.engine import Steps, ask
from hf_robustcse.attacks.recipe import Transformation
from hf_robustcse.attacks.resources.language_model import LikelyPieces, MostLikely
from hf_robustcse.attacks.resources.lexicons import NeighbourTable, WordVectors
from hf_robustcse.attacks.text import Edited, is_one_word, words_of

_LETTER = re.compile("[a-zA-Z]")


@dataclass(frozen=True)
class Synonyms:
    """Synonyms out of a table: all lemmas of all synsets of a word (Ren et al. 2019).

    Attributes:
        lookup: word -> its synonyms.
        resource: what the table is, for the results.
    """

    lookup: Callable[[str], Sequence[str]]
    resource: str

    def candidates(self, current: Edited, position: int, draw: random.Random) -> Steps[Sequence[str]]:
        """The synonyms that are one word; see `Transformation`."""
        yield from ()
        return [word for word in self.lookup(current.word(position)) if is_one_word(word)]

    def describe(self) -> dict[str, Any]:
        """Its parameters and resources."""
        return {"name": "synonyms", "resource": self.resource}


@dataclass(frozen=True)
class TaggedSynonyms:
    """Synonyms of the part of speech that the word has in the original text.

    Attributes:
        lookup: (word, universal tag) -> synonyms.
        resource: what the table is, for the results.
        tagger: of words in context.
        before, after: words of the context.
    """

    lookup: Callable[[str, str], Sequence[str]]
    resource: str
    tagger: Tagger
    before: int = 4
    after: int = 3

    def candidates(self, current: Edited, position: int, draw: random.Random) -> Steps[Sequence[str]]:
        """See `Transformation`."""
        word = current.document.words[position]
        item, number = context(current.document, position, word, self.before, self.after)
        (tags,) = yield from ask(self.tagger, [item])
        return self.lookup(current.word(position), tags[number])

    def describe(self) -> dict[str, Any]:
        """Its parameters and resources."""
        names = {"name": "synonyms-of-part-of-speech", "resource": self.resource, "tagger": self.tagger.name}
        return {**names, "words_before": self.before, "words_after": self.after}


@dataclass(frozen=True)
class Nearest:
    """The nearest words of a word, in its case.

    Attributes:
        resource: word vectors or a table of neighbours.
        k: how many.
    """

    resource: WordVectors | NeighbourTable
    k: int

    def __call__(self, words: list[str]) -> list[list[str]]:
        """A service: lower-case words -> their neighbours."""
        return self.resource.neighbours(words, self.k)

    def candidates(self, current: Edited, position: int, draw: random.Random) -> Steps[Sequence[str]]:
        """See `Transformation`."""
        word = current.word(position)
        (found,) = yield from ask(self, [word.lower()])
        return [in_case_of(other, word) for other in found]

    def describe(self) -> dict[str, Any]:
        """Its parameters and resources."""
        known = {} if self.resource.longest is None else {"longest_list": self.resource.longest}
        return {"name": "nearest-words", "resource": self.resource.name, "k": self.k, **known}


def in_case_of(word: str, other: str) -> str:
    """A word in lower case, capitals or with a capital in front, as another word is; else as it stands."""
    if other.islower():
        return word.lower()
    if other.isupper() and len(other) > 1:
        return word.upper()
    if other[0].isupper() and other[1:].islower():
        return word.capitalize()
    return word


@dataclass(frozen=True)
class CharacterEdit:
    """One edit at a random place of the word; a word of one character stays.

    Attributes:
        kind: insert (never behind the last character), delete, swap (of two neighbours) or substitute.
        inner: whether the first and the last character stay where they are.
        letters: that may be put in.
    """

    kind: str
    inner: bool = False
    letters: str = string.ascii_letters

    def __post_init__(self) -> None:
        if self.kind not in ("insert", "delete", "swap", "substitute"):
            raise ValueError(f"no kind of edit is called {self.kind!r}")

    def candidates(self, current: Edited, position: int, draw: random.Random) -> Steps[Sequence[str]]:
        """The edited word; see `Transformation`."""
        yield from ()
        word = current.word(position)
        places = range(int(self.inner), len(word) - self.inner - (self.kind == "swap"))
        if len(word) < 2 or not places:
            return []
        at = draw.choice(places)
        if self.kind == "swap":
            return [word[:at] + word[at + 1] + word[at] + word[at + 2 :]]
        letter = "" if self.kind == "delete" else draw.choice(self.letters)
        return [word[:at] + letter + word[at + (self.kind != "insert") :]]

    def describe(self) -> dict[str, Any]:
        """Its parameters."""
        letters = {"letters": self.letters} if self.kind in ("insert", "substitute") else {}
        return {"name": f"{self.kind}-character", "inner": self.inner, **letters}


@dataclass(frozen=True)
class Lookalikes:
    """Each character that has a look-alike, replaced by it: one candidate a character.

    Attributes:
        table: character -> look-alike.
    """

    table: Mapping[str, str]

    def candidates(self, current: Edited, position: int, draw: random.Random) -> Steps[Sequence[str]]:
        """See `Transformation`."""
        yield from ()
        word = current.word(position)
        return [word[:at] + self.table[old] + word[at + 1 :] for at, old in enumerate(word) if old in self.table]

    def describe(self) -> dict[str, Any]:
        """Its parameters."""
        return {"name": "look-alike-character", "characters": len(self.table)}


@dataclass(frozen=True)
class MaskedWords:
    """What a masked language model puts in place of the masked word of the current text (BAE-R).

    Attributes:
        likely: the service that asks the model.
    """

    likely: MostLikely

    def candidates(self, current: Edited, position: int, draw: random.Random) -> Steps[Sequence[str]]:
        """The words with a letter; see `Transformation`."""
        (words,) = yield from ask(self.likely, [(current.text, *current.span(position))])
        return [word for word in words if _LETTER.search(word)]

    def describe(self) -> dict[str, Any]:
        """Its parameters and resources."""
        return {"name": "masked-words", "masked_lm": self.likely.model.name, "k": self.likely.k}


@dataclass(frozen=True)
class LikelyWords:
    """What a masked language model finds likely where the word stands, unmasked (BERT-Attack).

    For a word of one piece these are the whole words among the model's k most likely entries; for a word of several
    pieces, the first k combinations of each piece's k most likely ones that are one word, the last piece varying first.

    Attributes:
        likely: the service that asks the model.
    """

    likely: LikelyPieces

    def candidates(self, current: Edited, position: int, draw: random.Random) -> Steps[Sequence[str]]:
        """See `Transformation`."""
        (pieces,) = yield from ask(self.likely, [(current.text, *current.span(position))])
        model = self.likely.model
        if len(pieces) == 1:
            # Byte-level vocabularies mark a word by the space before it, which the first word of a text lacks.
            first = position == 0 and not model.wordpiece
            return [model.texts[entry] for entry in pieces[0] if model.word[entry] and (first or model.begins[entry])]
        texts = [[model.texts[entry] for entry in piece if entry not in model.special] for piece in pieces]
        return list(islice(_one_word(texts), self.likely.k)) if texts else []

    def describe(self) -> dict[str, Any]:
        """Its parameters and resources."""
        return {"name": "likely-words", "masked_lm": self.likely.model.name, "k": self.likely.k}


def _one_word(pieces: list[list[str]]) -> Iterator[str]:
    """The pieces joined in the order of `itertools.product`, as far as they make one word.

    There are k to the power of the pieces, so no kind of dead end is gone into twice.
    """
    dead: set[tuple[int, int, int]] = set()

    def joined(number: int, found: str) -> Iterator[str]:
        words = len(words_of(found))
        # What can follow depends on the words so far, and on whether a letter would begin another one.
        state = (number, words, len(words_of(found + "x")))
        if words > 1 or state in dead:
            return
        if number == len(pieces):
            if words:
                yield found
            return
        none = True
        for piece in pieces[number]:
            for word in joined(number + 1, found + piece):
                none = False
                yield word
        if none:
            dead.add(state)

    return joined(0, "")


@dataclass(frozen=True)
class Union:
    """The candidates of several transformations.

    Attributes:
        parts: the transformations.
    """

    parts: tuple[Transformation, ...]

    def candidates(self, current: Edited, position: int, draw: random.Random) -> Steps[Sequence[str]]:
        """See `Transformation`."""
        words: list[str] = []
        for part in self.parts:
            words += yield from part.candidates(current, position, draw)
        return words

    def describe(self) -> dict[str, Any]:
        """Its parts."""
        return {"name": "union", "parts": [part.describe() for part in self.parts]}


@dataclass(frozen=True)
class OneAtRandom:
    """One candidate of another transformation, drawn at random.

    Attributes:
        of: the transformation.
    """

    of: Transformation

    def candidates(self, current: Edited, position: int, draw: random.Random) -> Steps[Sequence[str]]:
        """See `Transformation`."""
        words = yield from self.of.candidates(current, position, draw)
        others = [word for word in dict.fromkeys(words) if word != current.word(position)]
        return [draw.choice(others)] if others else []

    def describe(self) -> dict[str, Any]:
        """Its part."""
        return {"name": "one-at-random", "of": self.of.describe()}
