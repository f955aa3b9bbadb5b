"""What became of each example, a line of JSON each: written as it ends, read again after a kill, summed up."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, median
from types import TracebackType
from typing import Any

import numpy as np
from scipy.stats import binomtest

from hf_robustcse.attacks import Example, Outcome
from hf_robustcse.attacks.goals import Untargeted
from hf_robustcse.files import atomic_write_text

DIGITS = 6
LEVEL = 0.95


def record_of(number: int, example: Example, outcome: Outcome) -> dict[str, Any]:
    """An outcome as plain JSON values.

    Args:
        number: of the example in its source.
        example: that was attacked.
        outcome: of the attack.

    Returns:
        `index`; `status` (succeeded, failed, skipped); `gold` (class or similarity); `prediction_before` and `_after`;
        `score_before` and `_after` of the goal; `queries`; `similarity` of the two texts by the recipe's sentence
        encoder, or None; `out_of_budget`; `words` that the example has; `changed`, for each changed word its `column`,
        `position` among the words, `start` in the characters of the original text, `before` and `after`; `original` and
        `perturbed`, name -> text; of similarities also `cosine_before` and `_after`, as the victim gave them.
    """
    goal, document = example.goal, outcome.original
    changed = [
        {
            "column": document.names[document.column_of[at]],
            "position": at,
            "start": document.spans[at][0],
            "before": document.words[at],
            "after": word,
        }
        for at, word in outcome.perturbed.changed.items()
    ]
    context = dict(example.context)
    similarity = outcome.perturbed.similarity
    record = {
        "index": number,
        "status": outcome.status,
        "gold": goal.label if isinstance(goal, Untargeted) else goal.gold,
        "prediction_before": _number(goal.prediction(outcome.before)),
        "prediction_after": _number(goal.prediction(outcome.after)),
        "score_before": _number(outcome.score_before),
        "score_after": _number(outcome.score_after),
        "queries": outcome.queries,
        "similarity": None if similarity is None else _number(similarity),
        "out_of_budget": outcome.out_of_budget,
        "words": len(document.words),
        "changed": changed,
        "original": context | dict(zip(document.names, document.texts, strict=True)),
        "perturbed": context | dict(zip(document.names, outcome.perturbed.texts, strict=True)),
    }
    if not isinstance(goal, Untargeted):  # not rounded, and below 0 too: they are ranked
        record |= {f"cosine_{when}": float(np.ravel(getattr(outcome, when))[0]) for when in ("before", "after")}
    return record


def _number(value: float | int) -> float | int:
    return value if isinstance(value, int) else round(float(value), DIGITS)


class Log:
    """The records of one attack in a folder: a part of each process, and one file when all examples are done.

    Args:
        folder: where they are.
        name: of the files.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.path = folder / f"{name}.jsonl"
        self._folder, self._name = folder, name

    def part(self, process: int) -> Path:
        """The file of one process."""
        return self._folder / f"{self._name}.part-{process}.jsonl"

    def parts(self) -> list[Path]:
        """The files of all processes that there are, of earlier runs too."""
        return sorted(self._folder.glob(f"{self._name}.part-*.jsonl"))

    def collect(self) -> dict[int, dict[str, Any]]:
        """The records of all parts by number, as one part; a torn line is dropped, and its example is to do again."""
        found: dict[int, dict[str, Any]] = {}
        for path in self.parts():
            for record in _read(path):
                found.setdefault(record["index"], record)
        if found:
            atomic_write_text(self.part(0), "".join(map(_line, found.values())))
        for path in self.parts():
            if path != self.part(0) or not found:
                path.unlink()
        return found

    def finish(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Write the final file, sorted by number; the parts stay until `clear`."""
        plain = ({key: value for key, value in record.items() if key != "seconds"} for record in records)
        atomic_write_text(self.path, "".join(map(_line, sorted(plain, key=lambda record: record["index"]))))

    def clear(self) -> None:
        """Remove the parts."""
        for path in self.parts():
            path.unlink()

    def records(self) -> list[dict[str, Any]]:
        """The records of the final file."""
        return list(_read(self.path))


class Writer:
    """Appends records to a part, each at once, with the seconds since the one before.

    Args:
        path: of the part.
    """

    def __init__(self, path: Path) -> None:
        self._file = open(path, "a", encoding="utf-8", newline="\n")
        self._last = time.perf_counter()

    def write(self, record: Mapping[str, Any]) -> None:
        """Write one record; a kill after it returns does not lose it."""
        now = time.perf_counter()
        self._file.write(_line({**record, "seconds": round(now - self._last, 3)}))
        self._file.flush()
        self._last = now

    def __enter__(self) -> Writer:
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._file.close()


def _line(record: Mapping[str, Any]) -> str:
    return json.dumps(record, ensure_ascii=False, allow_nan=False) + "\n"


def _read(path: Path) -> Iterable[dict[str, Any]]:
    with open(path, "rb") as file:
        for raw in file:
            try:
                record = json.loads(raw.decode("utf-8"))
            except ValueError:
                continue
            if raw.endswith(b"\n") and isinstance(record, dict):
                yield record


def summarise(records: Sequence[Mapping[str, Any]], *, classes: bool = True) -> dict[str, Any]:
    """The figures of an attack, shares x 100, with TextAttack's definitions.

    Args:
        records: of all examples.
        classes: whether the victim classifies, so that there is an accuracy.

    Returns:
        `n` examples; `attempted`, those that were not `skipped`; `succeeded`, `failed`, of which `out_of_budget`;
        `success_rate`, succeeded of attempted, with its 95 % interval of Wilson, `success_rate_low` and `_high`;
        `accuracy_before`, attempted of n, and `accuracy_after`, failed of n; `queries_per_example`, mean over the
        attempted, and `queries_median`; `words_changed`, the mean over the succeeded of the share of words that
        changed; `queries_to_success`, the queries of each succeeded example, ascending; `seconds` of all processes
        together.
    """
    done = {status: [r for r in records if r["status"] == status] for status in ("succeeded", "failed", "skipped")}
    succeeded, attempted = done["succeeded"], done["succeeded"] + done["failed"]
    summary: dict[str, Any] = {
        "n": len(records),
        "attempted": len(attempted),
        "skipped": len(done["skipped"]),
        "succeeded": len(succeeded),
        "failed": len(done["failed"]),
        "out_of_budget": sum(record["out_of_budget"] for record in records),
        "success_rate": None,
    }
    if attempted:
        interval = binomtest(len(succeeded), len(attempted)).proportion_ci(LEVEL, method="wilson")
        summary |= {
            "success_rate": 100 * len(succeeded) / len(attempted),
            "success_rate_low": 100 * float(interval.low),
            "success_rate_high": 100 * float(interval.high),
        }
    if classes:
        summary["accuracy_before"] = 100 * len(attempted) / len(records)
        summary["accuracy_after"] = 100 * len(done["failed"]) / len(records)
    queries = [record["queries"] for record in attempted]
    shares = [100 * len(record["changed"]) / record["words"] for record in succeeded if record["words"]]
    return summary | {
        "queries_per_example": fmean(queries) if queries else None,
        "queries_median": median(queries) if queries else None,
        "words_changed": fmean(shares) if shares else None,
        "queries_to_success": sorted(record["queries"] for record in succeeded),
        "seconds": round(sum(record.get("seconds", 0.0) for record in records), 1),
    }
