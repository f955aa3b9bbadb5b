"""More training rows: some of them rewritten at random, or by attacks on a model that was trained without them.

DCL (Chen et al. 2021) compares itself with a BERT that is fine-tuned on more data of either kind: BERT+DA (synonyms out
of WordNet) and BERT+Adv (PWWS). A rewritten row keeps its label. What is done to a row depends on the row and the seed
alone.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets

from hf_robustcse.attacks import Example, Untargeted, attack_examples
from hf_robustcse.attacks.engine import run
from hf_robustcse.attacks.outcomes import attacked_row
from hf_robustcse.attacks.recipe import Recipe
from hf_robustcse.attacks.recipes import build_recipe
from hf_robustcse.attacks.resources import Resources
from hf_robustcse.attacks.search import substitute
from hf_robustcse.attacks.text import Document
from hf_robustcse.attacks.victims import Victim
from hf_robustcse.distributed import gather_lists, rank, world_size
from hf_robustcse.errors import UserError
from hf_robustcse.evaluation.attacked_sets import PERTURBED
from hf_robustcse.evaluation.known_sets import NLI
from hf_robustcse.files import atomic_write_text
from hf_robustcse.finetune.arguments import RESOURCES
from hf_robustcse.finetune.tasks import Task

WORDS = 0.2
"""The share of the words of a row that `da` replaces."""


@dataclass(frozen=True)
class Augmentation:
    """How training rows are added.

    Attributes:
        kind: da (random substitutions) or adv (attacks).
        recipes: dealt out to the drawn rows in turn.
        columns: of the texts.
        frozen: those that stay as they are.
        samples: how many rows are drawn; None for `share` of all.
        share: of the training rows, in (0, 1].
    """

    kind: str
    recipes: Sequence[Recipe]
    columns: tuple[str, ...]
    frozen: tuple[str, ...]
    samples: int | None
    share: float

    def draw(self, n: int, seed: int) -> list[int]:
        """Which of n rows are rewritten, in order."""
        wanted = self.samples or max(1, round(self.share * n))
        return sorted(random.Random(seed).sample(range(n), min(wanted, n)))

    @property
    def identity(self) -> dict[str, Any]:
        """What must be equal for the added rows to be the same."""
        return json.loads(json.dumps({**self.describe(), "size": self.samples or self.share}))

    def describe(self) -> dict[str, Any]:
        """For the results."""
        words = {"words": WORDS} if self.kind == "da" else {}
        return {"kind": self.kind, "attacks": [recipe.describe() for recipe in self.recipes], **words}


def make_augmentation(
    task: Task,
    kind: str,
    attacks: Sequence[str],
    resources: Mapping[str, str | None],
    *,
    samples: int | None,
    share: float,
) -> Augmentation:
    """The augmentation of a task: of NLI only the hypothesis is rewritten.

    Args:
        task: with classes of a text or a pair.
        kind: da or adv.
        attacks: out of `attacks.recipes.RECIPES`.
        resources: by the names in `RESOURCES`; None for the default.
        samples: as in `Augmentation`, like the next.
        share: see there.

    Raises:
        UserError: if the task has no classes or no plain text, or for an unknown attack or an absent resource.
    """
    source = task.source
    if source.kind != "rows" or not source.labels:
        raise UserError(f"--augment is for tasks with classes of a text or a pair of texts; {task.name} is none")
    entails = source.labels == NLI or source.name == "RTE"
    found = Resources(**{name: value for name, value in resources.items() if value is not None})
    try:
        recipes = [build_recipe(name, found) for name in dict.fromkeys(attacks)]
    except UserError as error:  # it speaks of the attack command's options
        raise UserError(re.sub(rf"--(?={'|'.join(RESOURCES)})", "--augment_", str(error))) from error
    return Augmentation(kind, recipes, source.columns, source.columns[:1] if entails else (), samples, share)


def substituted(plan: Augmentation, rows: datasets.Dataset, numbers: Sequence[int], seed: int) -> list[dict[str, Any]]:
    """Rows with some words replaced at random; those where no word could be are left out.

    Args:
        plan: of kind da.
        rows: the training set.
        numbers: of the rows that are drawn.
        seed: of the choices.

    Returns:
        `row`, texts, perturbed texts, `label` and `recipe` of each, in order.
    """
    made = {}
    drawn = dict(zip(numbers, rows.select(numbers), strict=True))
    recipes = {number: plan.recipes[i % len(plan.recipes)] for i, number in enumerate(numbers)}

    def computations() -> Iterator:
        for number, row in drawn.items():
            document = Document({column: row[column] for column in plan.columns}, plan.frozen)
            draw = random.Random(f"{seed} {' '.join(document.texts)}")
            yield number, lambda n=number, document=document, draw=draw: substitute(document, recipes[n], draw, WORDS)

    for number, edited in run(computations()):
        if edited.changed:
            texts = {f"{PERTURBED}{name}": text for name, text in zip(plan.columns, edited.texts, strict=True)}
            texts = {name: text for name, text in texts.items() if name.removeprefix(PERTURBED) not in plan.frozen}
            original = {column: drawn[number][column] for column in plan.columns}
            made[number] = {"row": number, **original, **texts, "label": drawn[number]["label"]}
    return [{**made[number], "recipe": recipes[number].name} for number in numbers if number in made]


def attacked(
    plan: Augmentation, rows: datasets.Dataset, numbers: Sequence[int], seed: int, victim: Victim, folder: Path
) -> list[dict[str, Any]]:
    """Attack rows, each process its share; a run that was killed goes on after the last row that was finished.

    Args:
        plan: of kind adv.
        rows: the training set.
        numbers: of the rows that are drawn.
        seed: of the attacks' choices.
        victim: a classifier of the task.
        folder: where finished rows are written, a line each, as soon as they are.

    Returns:
        `attacks.outcomes.attacked_row` of every drawn row with `row` and `recipe`, in order, on every process.
    """
    mine = numbers[rank() :: world_size()]
    place = {number: i for i, number in enumerate(numbers)}
    log = folder / f"attacked-{rank()}.jsonl"
    known = _finished(folder)
    done = {number: known[number] for number in mine if number in known}
    atomic_write_text(log, "".join(_line(row) for row in done.values()))  # without a half-written last line
    for i, recipe in enumerate(plan.recipes):
        left = [number for number in mine if place[number] % len(plan.recipes) == i and number not in done]
        examples = {number: _example(plan, row) for number, row in zip(left, rows.select(left), strict=True)}
        with open(log, "a", encoding="utf-8") as file:
            for number, outcome in attack_examples(examples.items(), recipe, victim, seed=seed):
                done[number] = {"row": number, **attacked_row(examples[number], outcome), "recipe": recipe.name}
                file.write(_line(done[number]))
                file.flush()
    return sorted(gather_lists(list(done.values())), key=lambda row: row["row"])


def _example(plan: Augmentation, row: Mapping[str, Any]) -> Example:
    return Example({column: row[column] for column in plan.columns}, Untargeted(row["label"]), plan.frozen)


def _line(row: Mapping[str, Any]) -> str:
    return json.dumps(row, ensure_ascii=False) + "\n"


def _finished(folder: Path) -> dict[int, dict[str, Any]]:
    """The rows that an earlier run finished; what stands behind the last line's end is half a row."""
    rows = {}
    for path in sorted(folder.glob("attacked-*.jsonl")):
        for line in path.read_bytes().split(b"\n")[:-1]:  # a half row may end within a character
            row = json.loads(line)
            rows[row["row"]] = row
    return rows


def as_training_rows(
    plan: Augmentation, added: Sequence[Mapping[str, Any]], like: datasets.Dataset
) -> datasets.Dataset:
    """Rewritten rows with the columns of the training set: perturbed texts and gold labels."""
    texts = [
        {column: row.get(f"{PERTURBED}{column}", row[column]) for column in plan.columns} | {"label": row["label"]}
        for row in added
    ]
    return datasets.Dataset.from_list(texts, features=like.features)


def summary(plan: Augmentation, rows: Sequence[Mapping[str, Any]], drawn: int) -> dict[str, Any]:
    """What became of the drawn rows, for the results."""
    record: dict[str, Any] = {**plan.describe(), "drawn": drawn}
    if plan.kind == "adv":
        statuses = Counter(row["status"] for row in rows)
        record |= {status: statuses[status] for status in ("succeeded", "failed", "skipped")}
        record["queries"] = sum(row["queries"] for row in rows)
    return record
