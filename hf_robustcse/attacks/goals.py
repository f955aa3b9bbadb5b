"""What an attack wants of a victim: another class, or another similarity."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np


class Goal(Protocol):
    """What is asked of a victim's answer to one text.

    `score` is what a search raises, `reached` whether it may stop. An example whose unchanged text reaches the goal is
    skipped.
    """

    def score(self, answer: np.ndarray) -> float:
        """How far the attack is; higher is further."""

    def reached(self, answer: np.ndarray) -> bool:
        """Whether the attack has succeeded."""

    def prediction(self, answer: np.ndarray) -> float | int:
        """The answer in a word: what is reported."""


@dataclass(frozen=True)
class Untargeted:
    """Any class but the right one: score 1 - p(label), reached when another class is the most probable.

    Attributes:
        label: the gold class, from 0.
    """

    label: int

    def score(self, answer: np.ndarray) -> float:
        """1 - p(label), in [0, 1], of the (classes,) probabilities."""
        return 1.0 - float(answer[self.label])

    def reached(self, answer: np.ndarray) -> bool:
        """Whether the class is another."""
        return int(answer.argmax()) != self.label

    def prediction(self, answer: np.ndarray) -> int:
        """The class."""
        return int(answer.argmax())


@dataclass(frozen=True)
class Dissimilar:
    """A similarity far from the gold one: score ``|predicted - gold|``, reached at a distance.

    On STS the gold score is on [0, 1]; without labels it is 1, the similarity of a text and itself, and the distance
    is 1 - threshold for `cos(x, x') <= threshold`.

    Attributes:
        gold: in [0, 1].
        distance: at which the attack has succeeded; TextAttack's regression goal has 0.5.
    """

    gold: float
    distance: float = 0.5

    def score(self, answer: np.ndarray) -> float:
        """``|predicted - gold|``; the answer is one similarity, negative ones count as 0."""
        return abs(self.prediction(answer) - self.gold)

    def reached(self, answer: np.ndarray) -> bool:
        """Whether the distance is reached."""
        return self.score(answer) >= self.distance

    def prediction(self, answer: np.ndarray) -> float:
        """The similarity, in [0, 1]."""
        return min(1.0, max(0.0, float(np.ravel(answer)[0])))
