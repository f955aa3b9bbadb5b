"""What a candidate must keep: meaning of the word and of the text, part of speech, number and size of changes."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from hf_robustcse.attacks.engine import Service, Steps, ask
from hf_robustcse.attacks.text import Document, Edited

METRICS = ("cosine", "angular")
AGAINST = ("original", "previous")


class Tagger(Protocol):
    """A service: tuples of words -> tuples of universal tags."""

    name: str

    def __call__(self, items: list[tuple[str, ...]]) -> list[tuple[str, ...]]: ...


class Vectors(Protocol):
    """Word vectors that can be compared."""

    name: str

    def cosine(self, first: str, second: str) -> float | None: ...


@dataclass(frozen=True)
class WordSimilarity:
    """The new word's vector has at least a cosine to that of the original word; words without a vector pass.

    Attributes:
        vectors: of lower-case words.
        threshold: cosine, in [-1, 1].
    """

    vectors: Vectors
    threshold: float

    def keep(self, original: Edited, current: Edited, candidates: list[Edited]) -> Steps[list[Edited]]:
        """See `Constraint`."""
        yield from ()
        return [candidate for candidate in candidates if self._near(candidate)]

    def _near(self, candidate: Edited) -> bool:
        at = candidate.position
        cosine = self.vectors.cosine(candidate.document.words[at].lower(), candidate.word(at).lower())
        return cosine is None or cosine >= self.threshold

    def describe(self) -> dict[str, Any]:
        """Its parameters and resources."""
        return {"name": "word-similarity", "vectors": self.vectors.name, "min_cosine": self.threshold}


def context(document: Document, position: int, word: str, before: int, after: int) -> tuple[tuple[str, ...], int]:
    """A word among its neighbours in the original text, as a tagger is asked: the words, and which of them it is."""
    words = document.words
    left = words[max(0, position - before) : position]
    return (*left, word, *words[position + 1 : position + 1 + after]), len(left)


@dataclass(frozen=True)
class PartOfSpeech:
    """The new word has the original one's part of speech, or one is a noun and the other a verb.

    Both are tagged among the same words of the original text.

    Attributes:
        tagger: of words in context.
        before, after: words of the context.
    """

    tagger: Tagger
    before: int = 4
    after: int = 3

    def keep(self, original: Edited, current: Edited, candidates: list[Edited]) -> Steps[list[Edited]]:
        """See `Constraint`."""
        document, at = original.document, candidates[0].position
        words = [document.words[at], *(candidate.word(at) for candidate in candidates)]
        items = [context(document, at, word, self.before, self.after) for word in words]
        answers = yield from ask(self.tagger, [item for item, _ in items])
        wanted, *tags = [answer[number] for answer, (_, number) in zip(answers, items, strict=True)]
        return [
            candidate
            for candidate, tag in zip(candidates, tags, strict=True)
            if tag == wanted or {tag, wanted} == {"NOUN", "VERB"}
        ]

    def describe(self) -> dict[str, Any]:
        """Its parameters and resources."""
        return {
            "name": "part-of-speech",
            "tagger": self.tagger.name,
            "words_before": self.before,
            "words_after": self.after,
            "noun_verb_swap": True,
        }


@dataclass(frozen=True)
class SentenceSimilarity:
    """The text is similar to the original or the previous one, by a sentence encoder; sets `similarity`.

    Attributes:
        encode: a service: texts -> embeddings.
        encoder: its name, for the results.
        threshold: of the similarity.
        metric: cosine, in [-1, 1]; or angular, 1 - arccos(cosine) / pi, in [0, 1].
        window: words around the change that are compared; None for the whole text.
        against: original or previous.
        short_pass: whether texts of fewer words than the window pass, with similarity 1.
    """

    encode: Service
    encoder: str
    threshold: float
    metric: str = "cosine"
    window: int | None = None
    against: str = "original"
    short_pass: bool = False

    def __post_init__(self) -> None:
        if self.metric not in METRICS or self.against not in AGAINST:
            raise ValueError(f"metric is one of {METRICS} and against one of {AGAINST}")

    def keep(self, original: Edited, current: Edited, candidates: list[Edited]) -> Steps[list[Edited]]:
        """See `Constraint`."""
        if self.short_pass and self.window is not None and len(original) < self.window:
            similarities = np.ones(len(candidates))
        else:
            at = candidates[0].position
            reference = (original if self.against == "original" else current).window(at, self.window)
            texts = [candidate.window(at, self.window) for candidate in candidates]
            first, *rows = yield from ask(self.encode, [reference, *texts])
            similarities = self._similarities(np.asarray(first, dtype=np.float64), np.asarray(rows, dtype=np.float64))
        kept = []
        for candidate, similarity in zip(candidates, similarities.tolist(), strict=True):
            candidate.similarity = similarity
            if similarity >= self.threshold:
                kept.append(candidate)
        return kept

    def _similarities(self, first: np.ndarray, rows: np.ndarray) -> np.ndarray:
        """(n,) of one embedding (d,) and n others (n, d)."""
        lengths = np.linalg.norm(rows, axis=1) * np.linalg.norm(first)
        cosines = np.clip(rows @ first / np.maximum(lengths, 1e-12), -1.0, 1.0)
        return cosines if self.metric == "cosine" else 1.0 - np.arccos(cosines) / math.pi

    def describe(self) -> dict[str, Any]:
        """Its parameters and resources."""
        return {
            "name": "sentence-similarity",
            "encoder": self.encoder,
            "metric": self.metric,
            "threshold": self.threshold,
            "window": self.window,
            "against": self.against,
            "shorter_texts_pass": self.short_pass,
        }


@dataclass(frozen=True)
class MaxWordsChanged:
    """At most this share of all words differs from the original text, rounded up.

    Attributes:
        share: in [0, 1].
    """

    share: float

    def keep(self, original: Edited, current: Edited, candidates: list[Edited]) -> Steps[list[Edited]]:
        """See `Constraint`."""
        yield from ()
        most = math.ceil(len(original) * self.share)
        return [candidate for candidate in candidates if len(candidate.changed) <= most]

    def describe(self) -> dict[str, Any]:
        """Its parameters."""
        return {"name": "max-words-changed", "share": self.share}


@dataclass(frozen=True)
class EditDistance:
    """At most this many insertions, deletions and substitutions of characters away from the original text.

    Attributes:
        most: the Levenshtein distance that is allowed.
    """

    most: int

    def keep(self, original: Edited, current: Edited, candidates: list[Edited]) -> Steps[list[Edited]]:
        """See `Constraint`."""
        yield from ()
        return [candidate for candidate in candidates if self._near(original, candidate)]

    def _near(self, original: Edited, candidate: Edited) -> bool:
        # The distances of the words, added up, are an upper bound, and nearly always decide it.
        changed = candidate.changed.items()
        bound = sum(edit_distance(original.document.words[at], word) for at, word in changed)
        return bound <= self.most or edit_distance(original.text, candidate.text) <= self.most

    def describe(self) -> dict[str, Any]:
        """Its parameters."""
        return {"name": "edit-distance", "max": self.most}


@functools.lru_cache(maxsize=4096)
def edit_distance(first: str, second: str) -> int:
    """The Levenshtein distance of two strings, in characters."""
    letters = np.array([ord(letter) for letter in second], dtype=np.int64)
    steps = np.arange(len(second) + 1)
    row = steps
    for number, letter in enumerate(first, 1):
        # Deletion or substitution; insertions run along the row: min over j' <= j of best[j'] + (j - j').
        best = row + 1
        best[1:] = np.minimum(best[1:], row[:-1] + (letters != ord(letter)))
        best[0] = number
        row = np.minimum.accumulate(best - steps) + steps
    return int(row[-1])
