"""Outcomes of attacks as plain rows: what is saved as an attacked set."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from hf_robustcse.attacks import Example, Outcome
from hf_robustcse.attacks.goals import Dissimilar
from hf_robustcse.evaluation.attacked_sets import PERTURBED


def attacked_row(example: Example, outcome: Outcome) -> dict[str, Any]:
    """What became of an example, as values that JSON and Parquet can hold.

    Args:
        example: that was attacked.
        outcome: of the attack.

    Returns:
        Its columns of text, `perturbed_` and the name for each that the attack was free to change, and the keys of
        `evaluation.attacked_sets.COLUMNS` that fit the goal.
    """
    perturbed = dict(zip(example.columns, outcome.perturbed.texts, strict=True))
    row: dict[str, Any] = {**example.context, **example.columns}
    row |= {f"{PERTURBED}{name}": text for name, text in perturbed.items() if name not in example.frozen}
    if isinstance(example.goal, Dissimilar):
        row |= {"gold": example.goal.gold, "distance": example.goal.distance}
        before, after = (float(np.ravel(answer)[0]) for answer in (outcome.before, outcome.after))
        row |= {"status": outcome.status, "similarity_before": before, "similarity_after": after}
    else:
        before, after = (example.goal.prediction(answer) for answer in (outcome.before, outcome.after))
        row |= {"label": example.goal.label, "status": outcome.status}
        row |= {"prediction_before": before, "prediction_after": after}
    return row | {
        "score_before": outcome.score_before,
        "score_after": outcome.score_after,
        "queries": outcome.queries,
        "words_changed": len(outcome.perturbed.changed) / max(1, len(outcome.original.words)),
    }


def recorded_row(example: Example, record: Mapping[str, Any]) -> dict[str, Any]:
    """The same of a record that the attack command wrote.

    Args:
        example: that was attacked.
        record: of `attack_runs.records.record_of`.

    Returns:
        As `attacked_row`, with `row`, its number in the source.
    """
    free = [name for name in example.columns if name not in example.frozen]
    pair = isinstance(example.goal, Dissimilar)
    gold = {"gold": example.goal.gold, "distance": example.goal.distance} if pair else {"label": example.goal.label}
    kind, answer = ("similarity", "cosine") if pair else ("prediction", "prediction")
    return {
        "row": record["index"],
        **record["original"],
        **{f"{PERTURBED}{name}": record["perturbed"][name] for name in free},
        **gold,
        "status": record["status"],
        f"{kind}_before": record[f"{answer}_before"],
        f"{kind}_after": record[f"{answer}_after"],
        **{name: record[name] for name in ("score_before", "score_after", "queries")},
        "words_changed": len(record["changed"]) / max(1, record["words"]),
    }
