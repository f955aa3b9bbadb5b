"""Words that stand near a word: synonyms of WordNet or of a list, neighbours in a space of word vectors."""

from __future__ import annotations

import functools
import gzip
import json
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from hf_robustcse.attacks.text import is_one_word
from hf_robustcse.errors import UserError
from hf_robustcse.synonyms import read_word_list, read_wordnet

Lookup = Callable[[str], Sequence[str]]
"""A word -> words."""

WORDNET = "wordnet"
_BLOCK = 64


@functools.cache
def _wordnet() -> Any:
    return read_wordnet(otherwise="name a word list: --synonyms FILE")


def wordnet_lemmas() -> Lookup:
    """WordNet's lemmas: word -> all single-word lemmas of all synsets of it (and of its base forms), sorted.

    Raises:
        UserError: if there is no WordNet, or no nltk to read it.
    """
    wordnet = _wordnet()

    @functools.cache
    def lemmas(word: str) -> list[str]:
        return sorted(name for name in set(wordnet.names(word)) if name != word and "_" not in name)

    return lemmas


def wordnet_by_tag() -> Callable[[str, str], list[str]]:
    """WordNet's lemmas as OpenAttack's PWWS has them: (word, universal tag) -> synonyms of this part of speech.

    They are lower-case; of a phrase the first word counts; forms of "be" have none.

    Raises:
        UserError: if there is no WordNet, or no nltk to read it.
    """
    wordnet = _wordnet()
    parts = {"NOUN": "n", "VERB": "v", "ADJ": "a", "ADV": "r"}

    @functools.cache
    def lemmas(word: str, tag: str) -> list[str]:
        if tag not in parts or word in ("be", "is", "are", "am"):
            return []
        firsts = dict.fromkeys(name.split("_")[0].lower() for name in wordnet.names(word, parts[tag]))
        return [first for first in firsts if first != word and is_one_word(first)]

    return lemmas


def listed_synonyms(path: str) -> Lookup:
    """Synonyms of a file with tab-separated synonyms on each line, such as PPDB's pairs.

    Args:
        path: the file, which may be gzipped.

    Raises:
        UserError: if it cannot be read or has no two synonyms.
    """
    synonyms = read_word_list(path)
    return lambda word: synonyms(word.lower())


class WordVectors:
    """Word vectors of a text file in the format of word2vec or GloVe, which may be gzipped.

    Args:
        words: n lower-case words.
        vectors: (n, d).
        name: of the file, for the results.
    """

    longest: int | None = None
    """How many neighbours of a word are known at most; None for any number."""

    def __init__(self, words: Sequence[str], vectors: np.ndarray, name: str) -> None:
        self.name = name
        self.words = list(words)
        self.index = {word: i for i, word in enumerate(self.words)}
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        self.units = (vectors / np.maximum(lengths, 1e-12)).astype(np.float32)
        self._nearest: dict[tuple[str, int], list[str]] = {}

    @classmethod
    def load(cls, path: str) -> WordVectors:
        """Read a file.

        Raises:
            UserError: if it cannot be read or a line is malformed.
        """
        from hf_robustcse.evaluation.baselines import read_word_vectors  # it loads sentence-transformers

        return cls(*read_word_vectors(path), name=path)

    def neighbours(self, words: Sequence[str], k: int) -> list[list[str]]:
        """The nearest words by cosine, nearest first, without the word itself.

        Args:
            words: n words.
            k: neighbours of each.

        Returns:
            n lists of at most k words; empty for a word that has no vector.
        """
        new = [word for word in dict.fromkeys(words) if (word, k) not in self._nearest and word in self.index]
        for start in range(0, len(new), _BLOCK):
            block = new[start : start + _BLOCK]
            numbers = [self.index[word] for word in block]
            cosines = self.units[numbers] @ self.units.T
            cosines[range(len(block)), numbers] = -np.inf
            count = min(k, len(self.words) - 1)
            top = np.argpartition(-cosines, max(count - 1, 0), axis=1)[:, :count]
            for word, row, found in zip(block, cosines, top, strict=True):
                order = found[np.lexsort((found, -row[found]))]
                self._nearest[word, k] = [self.words[i] for i in order]
        return [self._nearest.get((word, k), []) for word in words]

    def cosine(self, first: str, second: str) -> float | None:
        """The cosine of the vectors of two words, in [-1, 1]; None if one has none."""
        if first not in self.index or second not in self.index:
            return None
        return float(self.units[self.index[first]] @ self.units[self.index[second]])


class NeighbourTable:
    """A table of neighbours without their vectors: it knows no cosines.

    Args:
        table: lower-case word -> its neighbours, nearest first.
        name: of the file, for the results.

    Attributes:
        longest: how many neighbours of a word it has at most.
    """

    def __init__(self, table: dict[str, list[str]], name: str) -> None:
        self.name = name
        self.table = table
        self.longest = max(map(len, table.values()), default=0)

    @classmethod
    def load(cls, path: str) -> NeighbourTable:
        """Read a JSON file, which may be gzipped: {"word": ["neighbour", ...], ...}.

        Raises:
            UserError: if it cannot be read or is no such table.
        """
        opener = gzip.open if path.lower().endswith(".gz") else open
        try:
            with opener(path, "rt", encoding="utf-8") as file:
                table = json.load(file)
        except (OSError, EOFError, zlib.error, ValueError, RecursionError) as error:
            raise UserError(f"--word_neighbours {path} cannot be read: {' '.join(str(error).split())}") from None
        if not isinstance(table, dict) or not table:
            raise UserError(f"--word_neighbours {path} is no table of neighbours: {{'word': ['neighbour', ...], ...}}")
        for word, found in table.items():
            if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
                raise UserError(f"--word_neighbours {path}: the neighbours of {word!r} are not a list of words")
        return cls(table, path)

    def neighbours(self, words: Sequence[str], k: int) -> list[list[str]]:
        """The nearest words of each of n words, k at most; see `WordVectors.neighbours`."""
        return [self.table.get(word, [])[:k] for word in words]


def load_neighbours(path: str) -> WordVectors | NeighbourTable:
    """Word neighbours of a file: a table if it is JSON, else vectors.

    Raises:
        UserError: if it cannot be read.
    """
    if not Path(path).is_file():
        raise UserError(f"--word_neighbours {path}: there is no such file")
    table = path.lower().removesuffix(".gz").endswith(".json")
    return NeighbourTable.load(path) if table else WordVectors.load(path)
