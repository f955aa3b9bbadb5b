"""The parts of an attack, and what a recipe is made of."""

from __future__ import annotations

import random
from collections.abc import Sequence, Set
from dataclasses import dataclass
from typing import Any, Protocol

from hf_robustcse.attacks.engine import Steps
from hf_robustcse.attacks.text import Edited


class Transformation(Protocol):
    """Makes candidates for one word."""

    def candidates(self, current: Edited, position: int, draw: random.Random) -> Steps[Sequence[str]]:
        """What may stand in place of the word at a position of the current text.

        Args:
            current: the text.
            position: of the word.
            draw: of random choices; one per example.

        Returns:
            Words; repeated ones and the word itself are dropped by the caller.
        """

    def describe(self) -> dict[str, Any]:
        """Its parameters and resources, for the results."""


class Constraint(Protocol):
    """Refuses candidates."""

    def keep(self, original: Edited, current: Edited, candidates: list[Edited]) -> Steps[list[Edited]]:
        """The candidates that keep the constraint, in order.

        Args:
            original: the example as it was.
            current: what the candidates were made from.
            candidates: each differs from `current` at its `position`.
        """

    def describe(self) -> dict[str, Any]:
        """Its parameters and resources, for the results."""


@dataclass(frozen=True)
class Recipe:
    """One attack: it only chooses parts.

    Attributes:
        name: as on the command line.
        source: paper.
        transformation: makes the candidates.
        constraints: applied in order.
        ranking: of the positions: delete, unk, weighted-saliency or random.
        search: greedy (`search.attack`), or in-order, which has a ranking of its own.
        stopwords: words that are never touched; the case counts.
        departures: from the paper, a sentence each.
    """

    name: str
    source: str
    transformation: Transformation
    constraints: tuple[Constraint, ...] = ()
    ranking: str = "delete"
    search: str = "greedy"
    stopwords: Set[str] = frozenset()
    departures: tuple[str, ...] = ()

    def describe(self) -> dict[str, Any]:
        """All of it with every parameter, for the results."""
        return {
            "recipe": self.name,
            "source": self.source,
            "search": self.search,
            "ranking": self.ranking,
            "transformation": self.transformation.describe(),
            "constraints": [constraint.describe() for constraint in self.constraints],
            "stopwords": len(self.stopwords),
            "departures": list(self.departures),
        }
