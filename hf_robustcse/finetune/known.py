"""A fine-tuned model on the robust sets that others published (`evaluation.known_sets`)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset

from hf_robustcse.errors import UserError
from hf_robustcse.evaluation.hub import MissingData
from hf_robustcse.evaluation.known_sets import (
    KNOWN_SETS,
    KnownRobustSet,
    find_known_set,
    group_invariance,
    load_known_robust_set,
)
from hf_robustcse.finetune.kinds import Kind
from hf_robustcse.finetune.tasks import Task

Predict = Callable[[Dataset], list[Any]]


def known_sets(task: Task, data_dir: str | Path | None, asked: Sequence[str] | None) -> list[KnownRobustSet]:
    """The published sets that measure the classifier of a task.

    Args:
        task: the task.
        data_dir: the data folder; on the Hub there are none.
        asked: their names; None for all that are there, ["none"] for none.

    Raises:
        UserError: for an unknown set, one that is for other tasks, or one asked for that is not there.
    """
    if asked == ["none"] or (asked is None and data_dir is None):
        return []
    if asked is not None and data_dir is None:
        raise UserError("--robust_sets are read from a folder: pass --data_dir")
    mine = [name for name, info in KNOWN_SETS.items() if task.name in {other.lower() for other in info.tasks}]
    if asked is not None:
        names = [find_known_set(name) for name in asked]
        if wrong := [name for name in names if name not in mine]:
            raise UserError(
                f"--robust_sets {wrong[0]} is not for {task.name}; those that are: {', '.join(mine) or 'none'}"
            )
        return [load_known_robust_set(name, data_dir) for name in names]
    found = []
    for name in mine:
        try:
            found.append(load_known_robust_set(name, data_dir))
        except MissingData:
            continue
    return found


def score_known(kind: Kind, known: KnownRobustSet, predict: Predict) -> dict[str, Any]:
    """The task's metrics on a published set, or for a set without labels the share of groups that are invariant.

    Args:
        kind: of the task.
        known: the set.
        predict: rows with the columns of the task and `label` -> one prediction each.

    Returns:
        The metrics, x 100, with `n`; `without_label` rows that are left out because the task lacks their class. Where
        there are originals: their scores as `original`, and `consistency`, how often the model is right on a revised
        example and on its original, x 100 (Gardner et al. 2020). Without labels: `invariance`, the share of groups of
        variants with one prediction, x 100, and that of each of CheckList's `tests`.
    """
    record: dict[str, Any] = {"split": known.split, "source": known.source, "sha256": known.sha256}
    if not known.label_names:
        predictions = predict(known.dataset.add_column("label", [0] * len(known.dataset)))
        shares = group_invariance(known.dataset, predictions)
        return record | {"invariance": shares.pop("all"), "tests": shares, "n": len(predictions)}
    rows = _in_classes(kind, known.dataset, known.label_names)
    predictions = predict(rows)
    record |= {**kind.scores(predictions, rows), "n": len(rows)}
    if len(rows) < len(known.dataset):
        record["without_label"] = len(known.dataset) - len(rows)
    if known.original is not None:
        originals = _in_classes(kind, known.original, known.label_names)
        before = predict(originals)
        record["original"] = kind.scores(before, originals)
        right = [
            a == label_a and b == label_b
            for a, label_a, b, label_b in zip(before, originals["label"], predictions, rows["label"], strict=True)
        ]
        record["consistency"] = 100 * sum(right) / len(right)
    return record


def _in_classes(kind: Kind, rows: Dataset, names: Sequence[str]) -> Dataset:
    """The rows whose class the task has, with its number there."""
    ours = {name: number for number, name in enumerate(kind.source.labels)}
    mapped = [ours.get(names[label]) for label in rows["label"]]
    kept = [number for number, label in enumerate(mapped) if label is not None]
    labels = [mapped[number] for number in kept]
    return rows.select(kept).remove_columns("label").add_column("label", labels)
