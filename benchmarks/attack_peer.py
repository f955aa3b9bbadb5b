"""TextAttack in a process of its own, and outcomes of ours in the form in which it gives its own."""

from __future__ import annotations

import gzip
import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hf_robustcse.attacks import Example, Outcome, Recipe, Untargeted
from hf_robustcse.attacks.recipes import build_recipe
from hf_robustcse.attacks.resources import Resources


class TextAttack:
    """textattack_worker.py, started with another interpreter.

    Args:
        python: interpreter of an environment with TextAttack.
        options: of the worker.

    Attributes:
        about: what the worker says of itself.
    """

    def __init__(self, python: str, *options: str) -> None:
        worker = str(Path(__file__).with_name("textattack_worker.py"))
        self._process = subprocess.Popen(
            [python, worker, *options], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
        )
        self.about = self._read()

    def __enter__(self) -> TextAttack:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.stdin.close()
        self._process.wait()

    def _read(self) -> dict[str, Any]:
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("the process with TextAttack has ended: see what it wrote above")
        return json.loads(line)

    def attack(self, wrapper: str, examples: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """{"outcomes": [...], "wall": seconds, "cpu": seconds} of examples {"columns": ..., "label": ...}."""
        request = {"wrapper": wrapper, "examples": list(examples)}
        self._process.stdin.write(json.dumps(request, ensure_ascii=False) + "\n")
        self._process.stdin.flush()
        return self._read()


def pwws(stopwords: Sequence[str]) -> Recipe:
    """Our PWWS with the WordNet that nltk finds, which must have the same stop-words."""
    recipe = build_recipe("pwws", Resources())
    if recipe.stopwords != set(stopwords):
        raise SystemExit(f"other stop-words than here: {' '.join(sorted(recipe.stopwords ^ set(stopwords)))}")
    return recipe


def as_example(example: Mapping[str, Any]) -> Example:
    """An example as `attack_examples` takes it; TextAttack's PWWS freezes no column."""
    return Example(example["columns"], Untargeted(example["label"]))


def as_record(outcome: Outcome) -> dict[str, Any]:
    """An outcome of ours in the worker's form."""
    return {
        "status": outcome.status,
        "columns": dict(zip(outcome.original.names, outcome.perturbed.texts, strict=True)),
        "queries": outcome.queries,
        "score_before": outcome.score_before,
        "score_after": outcome.score_after,
        "prediction_before": int(outcome.before.argmax()),
        "prediction_after": int(outcome.after.argmax()),
    }


def read_examples(path: str, number: int) -> list[dict[str, Any]]:
    """The first examples of a tab-separated file with a header: label and one or more columns of text."""
    with (gzip.open if path.endswith(".gz") else open)(path, "rt", encoding="utf-8") as file:
        header, *rows = (line.rstrip("\n").split("\t") for line in file)
    at = header.index("label")
    names = [name for name in header if name != "label"]
    return [
        {"columns": dict(zip(names, row[:at] + row[at + 1 :], strict=True)), "label": int(row[at])}
        for row in rows[:number]
    ]
