"""Attacks on texts: goal x transformation x constraints x search, many examples at once.

from hf_robustcse.attacks import Example, attack_examples
for number, outcome in attack_examples(examples, recipe, victim): ...
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from hf_robustcse.attacks.engine import run
from hf_robustcse.attacks.goals import Dissimilar, Goal, Untargeted
from hf_robustcse.attacks.recipe import Recipe
from hf_robustcse.attacks.search import Attempt, Outcome, attack
from hf_robustcse.attacks.text import Document
from hf_robustcse.attacks.victims import Asked, Victim

__all__ = ["Dissimilar", "Example", "Outcome", "Recipe", "Untargeted", "attack_examples"]


@dataclass(frozen=True)
class Example:
    """What is attacked.

    Attributes:
        columns: name -> text, such as {"text": ...} or {"premise": ..., "hypothesis": ...}.
        goal: of the attack, with the gold label or score in it.
        frozen: columns that stay as they are.
        context: columns that the victim reads before the others and that are no part of the attacked text: constraints
            do not compare them (a text next to its own copy would always look similar), nor do their words count.
    """

    columns: Mapping[str, str]
    goal: Goal
    frozen: tuple[str, ...] = ()
    context: Mapping[str, str] = field(default_factory=dict)


def attack_examples(
    examples: Iterable[tuple[int, Example]],
    recipe: Recipe,
    victim: Victim,
    *,
    seed: int = 0,
    budget: int | None = None,
    width: int = 64,
) -> Iterator[tuple[int, Outcome]]:
    """Attack examples side by side.

    An example's outcome depends on its texts, the recipe, the victim, the seed and the budget alone: not on what is
    attacked beside it, its number, or the order.

    Args:
        examples: (number, example); read as there is room.
        recipe: the attack.
        victim: answers texts, or tuples of columns: classes if the goals are `Untargeted`, else similarities.
        seed: of random choices.
        budget: queries of an example at most; None for any number.
        width: examples that run side by side.

    Yields:
        (number, outcome), as they end.

    Raises:
        UserError: if the victim's answers have a wrong shape or are not finite.
    """
    services = {kind: Asked(victim, classes=kind) for kind in (True, False)}

    def computations() -> Iterator:
        for number, example in examples:
            context = tuple(example.context.values())
            draw = random.Random(f"{seed} {' '.join((*context, *example.columns.values()))}")
            attempt = Attempt(services[isinstance(example.goal, Untargeted)], example.goal, budget, draw, context)
            document = Document(example.columns, example.frozen)
            yield number, lambda document=document, attempt=attempt: attack(document, recipe, attempt)

    yield from run(computations(), width=width)
