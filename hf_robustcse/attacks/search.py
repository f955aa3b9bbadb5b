"""How an attack goes through a text: greedily by word importance, which nearly all recipes share, or in one order."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from typing import Any

import numpy as np

from hf_robustcse.attacks.engine import Service, Steps, ask, together
from hf_robustcse.attacks.goals import Goal
from hf_robustcse.attacks.recipe import Recipe
from hf_robustcse.attacks.text import Document, Edited, as_key

UNKNOWN = "[UNK]"
_OPENATTACK_UNKNOWN = "<UNK>"
# A model gives texts of the same tokens ("j" and "J") scores that differ in the last bits if they come in batches of
# other make-up; that is no rise. float32 logits of usual size are exact to about 5e-6, and so, relatively, is p.
_ROUNDING = 1e-5
_BLOCK_CHARACTERS = 1 << 22


@dataclass
class Outcome:
    """What became of one example.

    Attributes:
        status: succeeded, failed or skipped (the goal was reached before anything was changed).
        original: the document.
        perturbed: the best text found; the original one if nothing helped.
        before, after: the victim's answers to the two.
        score_before, score_after: of the goal.
        queries: texts that the victim was asked, the first and repeated ones included, as TextAttack counts them.
        out_of_budget: whether the search ended because of the budget.
    """

    status: str
    original: Document
    perturbed: Edited
    before: np.ndarray
    after: np.ndarray
    score_before: float
    score_after: float
    queries: int
    out_of_budget: bool = False


@dataclass
class Attempt:
    """One attack on one example: who is asked, what counts, and how much was asked.

    Attributes:
        victim: answers texts (or tuples of columns) with an array each.
        goal: what is wanted.
        budget: queries at most, None for any number.
        draw: of whatever the recipe draws at random.
        context: columns that the victim reads before those of the document.
    """

    victim: Service
    goal: Goal
    budget: int | None = None
    draw: random.Random = field(default_factory=random.Random)
    context: tuple[str, ...] = ()
    queries: int = 0

    @property
    def over(self) -> bool:
        """Whether the budget is used up."""
        return self.budget is not None and self.queries >= self.budget

    def answers(self, texts: Sequence[tuple[str, ...]]) -> Steps[list[np.ndarray]]:
        """The victim's answers to texts; to the first ones only, if the budget does not reach further."""
        if self.budget is not None:
            texts = texts[: self.budget - self.queries]
        self.queries += len(texts)
        return (yield from ask(self.victim, [as_key((*self.context, *columns)) for columns in texts]))


def attack(document: Document, recipe: Recipe, attempt: Attempt) -> Steps[Outcome]:
    """Attack one example.

    Args:
        document: the example.
        recipe: the parts of the attack.
        attempt: victim, goal, budget; new for each example.

    Returns:
        What became of it.
    """
    goal, original = attempt.goal, Edited(document)
    (before,) = yield from attempt.answers([original.texts])
    if goal.reached(before):
        status, state, after, over = "skipped", original, before, False
    else:
        state, after, over = yield from SEARCHES[recipe.search](original, before, recipe, attempt)
        status = "succeeded" if goal.reached(after) else "failed"
        over = over and status == "failed"
    return Outcome(status, document, state, before, after, goal.score(before), goal.score(after), attempt.queries, over)


Found = tuple[Edited, np.ndarray, bool]
"""The best text, the victim's answer to it, and whether the budget was used up."""


def _greedy(original: Edited, before: np.ndarray, recipe: Recipe, attempt: Attempt) -> Steps[Found]:
    """Greedy search with word importance ranking (TextAttack's GreedyWordSwapWIR).

    Positions are ranked once, on the original text, and visited once each, the most important first. At each the best
    candidate replaces the current text if its score is higher by more than rounding; when candidates reach the goal,
    the most similar one by the recipe's sentence encoder, or else the one of the highest score, ends the search.
    """
    goal = attempt.goal
    positions = _open_positions(original.document, recipe)
    order = yield from RANKINGS[recipe.ranking](original, positions, recipe, attempt)
    current, answer, best = original, before, goal.score(before)
    for position in order:
        if attempt.over:
            return current, answer, True
        candidates = yield from _candidates(current, original, position, recipe, attempt.draw)
        if not candidates:
            continue
        answers = yield from attempt.answers([candidate.texts for candidate in candidates])
        scored = sorted(zip(candidates, answers, map(goal.score, answers), strict=False), key=lambda triple: -triple[2])
        if not scored or scored[0][2] <= best * (1 + _ROUNDING):
            continue
        current, answer, best = scored[0]
        if goal.reached(answer):
            successes = takewhile(lambda triple: goal.reached(triple[1]), scored)
            if current.similarity is not None:
                current, answer, best = max(successes, key=lambda triple: triple[0].similarity)
            return current, answer, False
    return current, answer, attempt.over


def _in_order(original: Edited, before: np.ndarray, recipe: Recipe, attempt: Attempt) -> Steps[Found]:
    """The search of OpenAttack's PWWS.

    On the lower-cased text the best candidate of each word is chosen once, and the words are ranked by
    softmax(saliency) x gain, both as rises of the score. Then they are replaced in this order, a query each, whether
    that helps or not, until the goal is reached.
    """
    goal, document = attempt.goal, original.document
    columns = zip(document.names, document.texts, strict=True)
    lowered = {name: text if name in document.frozen else _lower(text) for name, text in columns}
    current = start = Edited(Document(lowered, document.frozen))
    answers = yield from attempt.answers([start.texts])
    if not answers:
        return original, before, True
    answer, base = answers[0], goal.score(answers[0])
    positions = _open_positions(start.document, recipe)
    found = yield from together(_candidates(start, start, at, recipe, attempt.draw) for at in positions)
    choices = {at: candidates for at, candidates in zip(positions, found, strict=True) if candidates}
    unknown = yield from _by_score(start, list(choices), lambda at: start.with_word(at, _OPENATTACK_UNKNOWN), attempt)
    saliency = np.array(unknown) - base
    flat = [candidate.texts for candidates in choices.values() for candidate in candidates]
    scores = map(goal.score, (yield from attempt.answers(flat)))
    best, gains = {}, []
    for at, candidates in choices.items():
        scored = [(score, candidate.word(at)) for candidate, score in zip(candidates, scores, strict=False)]
        score, best[at] = max(scored, key=lambda pair: pair[0], default=(base, start.word(at)))
        gains.append(score - base)
    for at in _descending(list(choices), np.exp(saliency) * gains):  # softmax up to a factor: the order is the same
        if attempt.over:
            return current, answer, True
        current = current.replace(at, best[at])
        (answer,) = yield from attempt.answers([current.texts])
        if goal.reached(answer):
            break
    return current, answer, attempt.over


def _lower(text: str) -> str:
    """A text in lower case, its characters where they were: İ alone would become two, and cut its word in two."""
    return text.replace("İ", "i").lower()


SEARCHES: dict[str, Callable[[Edited, np.ndarray, Recipe, Attempt], Steps[Found]]] = {
    "greedy": _greedy,
    "in-order": _in_order,
}
"""Name -> search from the original text and the victim's answer to it."""


def _open_positions(document: Document, recipe: Recipe) -> list[int]:
    return [at for at in document.free if document.words[at] not in recipe.stopwords]


def _candidates(
    current: Edited, original: Edited, position: int, recipe: Recipe, draw: random.Random
) -> Steps[list[Edited]]:
    """What may stand at a position in place of the word, as whole texts that keep the constraints, sorted by text."""
    words = yield from recipe.transformation.candidates(current, position, draw)
    now = current.word(position)
    candidates = [current.replace(position, word) for word in dict.fromkeys(words) if word != now]
    for constraint in recipe.constraints:
        if candidates:
            candidates = yield from constraint.keep(original, current, candidates)
    return sorted(candidates, key=lambda candidate: candidate.text)


def substitute(document: Document, recipe: Recipe, draw: random.Random, share: float) -> Steps[Edited]:
    """Replace some words at random by candidates of a recipe, whatever a victim would say: plain data augmentation.

    Args:
        document: the example.
        recipe: its transformation, constraints and stop-words count, its ranking does not.
        draw: of all choices.
        share: of the free words that are no stop-words, in (0, 1]; at least one is replaced, if any can be.

    Returns:
        The text, which is the original where no word has a candidate.
    """
    current = original = Edited(document)
    positions = [at for at in document.free if document.words[at] not in recipe.stopwords]
    left = max(1, round(share * len(positions)))
    for position in draw.sample(positions, len(positions)):
        candidates = yield from _candidates(current, original, position, recipe, draw)
        if candidates:
            current, left = draw.choice(candidates), left - 1
        if not left:
            break
    return current


Ranking = Callable[[Edited, list[int], Recipe, Attempt], Steps[Sequence[int]]]


def _blocks(original: Edited, positions: list[int]) -> Iterator[list[int]]:
    """Positions in blocks, so that the texts of a long document are not all in memory at once."""
    size = max(1, _BLOCK_CHARACTERS // max(1, len(original.text)))
    return (positions[start : start + size] for start in range(0, len(positions), size))


def _by_score(
    original: Edited, positions: list[int], text_at: Callable[[int], tuple[str, ...]], attempt: Attempt
) -> Steps[list[float]]:
    scores: list[float] = []
    for block in _blocks(original, positions):
        answers = yield from attempt.answers([text_at(at) for at in block])
        scores += map(attempt.goal.score, answers)
    return scores + [0.0] * (len(positions) - len(scores))


def _descending(positions: list[int], scores: Any) -> list[int]:
    return [positions[i] for i in np.argsort(-np.asarray(scores, dtype=float), kind="stable")]


def _delete(original: Edited, positions: list[int], recipe: Recipe, attempt: Attempt) -> Steps[Sequence[int]]:
    """By the score of the text without the word."""
    return _descending(positions, (yield from _by_score(original, positions, original.without, attempt)))


def _unknown(original: Edited, positions: list[int], recipe: Recipe, attempt: Attempt) -> Steps[Sequence[int]]:
    """By the score of the text with `[UNK]` for the word."""
    scores = yield from _by_score(original, positions, lambda at: original.with_word(at, UNKNOWN), attempt)
    return _descending(positions, scores)


def _weighted(original: Edited, positions: list[int], recipe: Recipe, attempt: Attempt) -> Steps[Sequence[int]]:
    """By softmax(score with `[UNK]` for the word) x best score among the word's candidates (Ren et al. 2019, eq. 7-9).

    As in TextAttack the factors are scores, not differences of scores, and 0 for a word without candidates.
    """
    found = yield from _by_score(original, positions, lambda at: original.with_word(at, UNKNOWN), attempt)
    scores = np.asarray(found, dtype=float)
    if not positions:
        return []
    saliency = np.exp(scores - scores.max())
    best = []
    for block in _blocks(original, positions):
        found = yield from together(_candidates(original, original, at, recipe, attempt.draw) for at in block)
        flat = [candidate.texts for candidates in found for candidate in candidates]
        answers = iter((yield from attempt.answers(flat)))
        for candidates in found:
            # The candidates stand first: zip would else take an answer of the next position before it ends.
            values = [attempt.goal.score(answer) for _, answer in zip(candidates, answers, strict=False)]
            best.append(max(values, default=0.0))
    return _descending(positions, saliency / saliency.sum() * best)


def _random(original: Edited, positions: list[int], recipe: Recipe, attempt: Attempt) -> Steps[Sequence[int]]:
    """In any order."""
    yield from ()
    return attempt.draw.sample(positions, len(positions))


RANKINGS: dict[str, Ranking] = {
    "delete": _delete,
    "unk": _unknown,
    "weighted-saliency": _weighted,
    "random": _random,
}
"""Name -> positions in the order in which they are visited."""
