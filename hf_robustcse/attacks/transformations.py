"""Candidates for a word: synonyms, neighbours, misspellings, the words of a masked language model."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hf_robustcse.attacks.engine import Steps
from hf_robustcse.attacks.text import Edited, is_one_word


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
