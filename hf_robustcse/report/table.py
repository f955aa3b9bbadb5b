"""Rows of scores -> one table: columns in order, cells as text, the best of what can be compared, and the notes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from hf_robustcse.evaluation.sts import STS_TEST
from hf_robustcse.evaluation.sts import TASKS as STS_TASKS
from hf_robustcse.evaluation.transfer import TASKS as TRANSFER_TASKS
from hf_robustcse.methods import METHODS
from hf_robustcse.report.read import ATTACK_METRICS, GEOMETRY_METRICS, Column, Comparison, Row, Value

GROUPS = (
    "sts",
    "transfer",
    "geometry",
    "typos",
    "noise",
    "checklist",
    "fine-tuning",
    "robust",
    "invariance",
    "attacks",
)
SPLITS = ("test", "all", "dev", "train", "")
HIGHER = (
    "spearman", "pearson", "accuracy", "f1", "em", "exact_match", "matthews", "matthews_correlation", "invariance",
    "accuracy_after", "queries_per_example", "retrieval", "relative retrieval",
)  # fmt: skip
LOWER = ("success_rate",)
"""Where less is better: attacks. Alignment and uniformity have no best of their own: a collapsed model aligns best."""
NAMES = {
    "average": "average of 7", "transfer": "average of 7", "transfer_6": "average of 6, without TREC",
    "success_rate": "success rate", "accuracy_before": "accuracy before", "accuracy_after": "accuracy after",
    "queries_per_example": "queries an example", "words_changed": "words changed", "positive_cosine": "positive cosine",
    "random_cosine": "random cosine", "STSB": "STS-B", "SICKR": "SICK-R", "STSB_dev": "STS-B dev",
    "sts_avg": "STS average of 7",
    "transfer_avg": "transfer average of 7", "transfer_6_avg": "transfer average of 6, without TREC",
    "squad_f1": "SQuAD F1", "squad_em": "SQuAD EM", "squad_robust_f1": "SQuAD F1, robust set",
    "squad_robust_em": "SQuAD EM, robust set", "glue_avg": "GLUE average",
    "glue_robust_avg": "GLUE average, robust set",
}  # fmt: skip
BACKBONES = {
    "bert-base-uncased": "BERT-base", "bert-large-uncased": "BERT-large", "roberta-base": "RoBERTa-base",
    "roberta-large": "RoBERTa-large",
}  # fmt: skip
_HEADLINES = ("sts_avg", "transfer_avg", "transfer_6_avg", "glue_avg")
AVERAGES = ("average", "transfer", "transfer_6")
MISSING = "-"


@dataclasses.dataclass(frozen=True)
class Cell:
    """One cell as it is shown.

    Attributes:
        text: "66.24 ± 0.87 (3)", or "-".
        value: the number behind it, if there is one.
        best: whether no comparable value of its column is better.
        mark: letter of the footnote that says what it was measured on, where a column holds several such things.
    """

    text: str
    value: Value | None = None
    best: bool = False
    mark: str = ""


@dataclasses.dataclass(frozen=True)
class Head:
    """A column's heading in two lines and in one, and the column, which reported figures have none of."""

    group: str
    name: str
    full: str
    column: Column | None = None


@dataclasses.dataclass(frozen=True)
class Line:
    """A row as it is shown."""

    labels: tuple[str, str, str, str]
    model: str
    cells: tuple[Cell, ...]
    row: Row


@dataclasses.dataclass(frozen=True)
class Table:
    """The table and what stands below it.

    Attributes:
        heads: of the columns behind the labels.
        lines: the rows.
        notes: footnotes, warnings, and how to read it.
        missing: why cells are empty, one entry for all rows that share the reasons.
        reported: heading of a paper's column -> {figure: (value, table of the paper)}.
        comparisons: of `run_eval --compare`.
    """

    heads: tuple[Head, ...]
    lines: tuple[Line, ...]
    notes: tuple[str, ...]
    missing: tuple[str, ...]
    reported: Mapping[str, Mapping[str, tuple[float, str]]]
    comparisons: tuple[Comparison, ...]


LABELS = ("model", "method", "pooling", "seeds")


def build(rows: Sequence[Row], comparisons: Sequence[Comparison] = ()) -> Table:
    """Arrange rows.

    Args:
        rows: of `read.collect`.
        comparisons: of the same.

    Returns:
        The table.
    """
    columns = sorted({column for row in rows for column in row.scores}, key=order)
    notes: list[str] = []
    cells: dict[Column, list[Cell]] = {}
    marks: dict[str, str] = {}
    for column in columns:
        cells[column] = _cells(column, rows, marks)
    heads = [Head(_group(column), _name(column), _full(column), column) for column in columns]
    reported = _reported_columns(rows)
    heads += [Head("reported by the papers, other settings", what, what) for what in reported]
    names = _short_names([row.model for row in rows])
    lines: list[Line] = []
    missing: dict[str, list[str]] = {}
    flags: dict[str, int] = {}
    for number, row in enumerate(rows):
        name = names[row.model] + (f", {row.note}" if row.note else "")
        for said in row.warnings:
            flag = flags.setdefault(said, len(flags) + 1)
            name += f" [{flag}]"
        labels = (name, row.method or MISSING, row.pooling or MISSING, _seeds(row))
        shown = [cells[column][number] for column in columns]
        shown += [Cell(printed(of[number]) if number in of else MISSING) for of in reported.values()]
        lines.append(Line(labels, row.model, tuple(shown), row))
        if said := _why_missing(row, columns):
            missing.setdefault(said, []).append(", ".join(label for label in labels[:3] if label != MISSING))
    if any("±" in cell.text for line in lines for cell in line.cells):
        notes.append("Mean ± standard deviation over seeds, their number in brackets.")
    if any(cell.value and cell.value.low is not None for line in lines for cell in line.cells):
        notes.append("In square brackets: 95 % interval, over resampled pairs; of attacks, Wilson's over the examples.")
    if any(cell.best for line in lines for cell in line.cells):
        notes.append(
            "Bold: the best of a column among values of the same data, split and protocol; it says nothing of "
            "significance (run_eval.py --compare does). Alignment and uniformity have no best of their own."
        )
    notes += [f"({mark}) {said}" for said, mark in marks.items()]
    if any(value.data is not None and value.protocol is None for row in rows for value in row.scores.values()):
        notes.append(
            "Where a file does not record its protocol, it is taken to be that of the others on the same data."
        )
    notes += [f"[{flag}] {said}" for said, flag in flags.items()]
    if not any(column.group == "sts" and column.task == "average" for column in columns) and any(
        column.group == "sts" and column.split == "test" for column in columns
    ):
        notes.append("No STS average: no row has all seven test sets.")
    absent = tuple(f"{'; '.join(names)} — {said}" for said, names in missing.items())
    papers = _papers(rows)
    if papers or reported:
        notes.append(
            "Reported figures are what the papers print for their own settings (corpus, steps, batch, backbone, text); "
            "they were not measured here and are compared with nothing."
        )
    return Table(tuple(heads), tuple(lines), tuple(notes), absent, papers, tuple(comparisons))


def shown(value: Value, metric: str) -> str:
    """A score as text: two digits, three for the geometry; ± and the number of seeds; its interval."""
    digits = 3 if metric in GEOMETRY_METRICS else 2
    text = f"{value.mean:.{digits}f}"
    if value.std is not None:
        text += f" ± {value.std:.{digits}f}"
    if value.seeds > 1:
        text += f" ({value.seeds})"
    if value.low is not None and value.high is not None:
        text += f" [{value.low:.{digits}f}, {value.high:.{digits}f}]"
    return text


def printed(value: float) -> str:
    """A reported figure: two digits where the paper has one or two, else all of them."""
    return f"{value:.2f}" if round(value, 2) == value else f"{value:g}"


def order(column: Column) -> tuple[Any, ...]:
    known = {"sts": [*STS_TASKS], "transfer": [*TRANSFER_TASKS]}.get(column.group, [])
    if column.group == "sts":
        known = [*STS_TEST, "average", *(task for task in known if task not in STS_TEST)]
    elif column.group == "transfer":
        known = [*known, "transfer", "transfer_6"]
    place = known.index(column.task) if column.task in known else len(known)
    split = SPLITS.index(column.split) if column.split in SPLITS else len(SPLITS)
    metrics = (*GEOMETRY_METRICS, *ATTACK_METRICS)
    metric = metrics.index(column.metric) if column.metric in metrics else len(metrics)
    by_split = column.group in ("sts", "geometry")  # test and dev are groups of their own there
    return (
        GROUPS.index(column.group), split if by_split else 0, place, column.task.casefold(), column.task, split,
        column.split, metric, column.metric,
    )  # fmt: skip


def _group(column: Column) -> str:
    if column.group == "sts":
        return f"STS, {column.split or 'split not recorded'}, Spearman x 100, all"
    if column.group == "geometry":
        return f"geometry, {NAMES.get(column.task, column.task)} {column.split}".rstrip()
    return {
        "transfer": "transfer, accuracy x 100", "typos": "sentences with typos", "robust": "fine-tuning, robust set",
        "invariance": "fine-tuning, invariance", "attacks": "attacks",
        "noise": "noise curves, % of what it is without", "checklist": "CheckList, classifier on frozen embeddings",
        "fine-tuning": "fine-tuning, normal set",
    }[column.group]  # fmt: skip


def _name(column: Column) -> str:
    if column.group == "geometry":
        return NAMES.get(column.metric, column.metric)
    name = NAMES.get(column.task, column.task) if column.group in ("sts", "transfer") else column.task
    split = "cross-validation" if column.split == "all" else column.split
    if column.group == "transfer" and column.task not in TRANSFER_TASKS:
        return name
    if split or column.group != "attacks":
        name += f" ({split or 'split not recorded'})"
    if column.group in ("sts", "transfer"):
        return name
    return f"{name} {NAMES.get(column.metric, column.metric)}"


def _full(column: Column) -> str:
    name = _name(column)
    return {
        "sts": name.removesuffix(")") + ", all)",
        "transfer": f"{name}, transfer accuracy",
        "geometry": f"{name}, {NAMES.get(column.task, column.task)} {column.split}".rstrip(),
        "typos": f"{name}, sentences with typos",
        "noise": f"{name}, noise curve",
        "checklist": f"{name}, CheckList",
        "fine-tuning": name,
        "robust": f"{name}, robust set",
        "invariance": name if column.metric == "invariance" else f"{name}, invariance",
        "attacks": f"attack: {name}",
    }[column.group]


def _cells(column: Column, rows: Sequence[Row], marks: dict[str, str]) -> list[Cell]:
    """One column: the best among what is comparable, and marks where not all of it is."""
    values = [row.scores.get(column) for row in rows]
    protocols: dict[str | None, set[str]] = {}
    for value in values:
        if value is not None and value.protocol is not None:
            protocols.setdefault(value.data, set()).add(value.protocol)
    kinds: list[str | None] = []
    for value in values:
        if value is None:
            kinds.append(None)
            continue
        known = protocols.get(value.data, set())
        # Files of one make differ in how much they record: an unrecorded protocol is that of the only other one.
        protocol = value.protocol or (next(iter(known)) if len(known) == 1 else None)
        data = {None: "no checksum of the data", "several": "data that differ between seeds"}.get(
            value.data, f"data {str(value.data)[:12]}"
        )
        kinds.append(f"{data}, {protocol or 'protocol not recorded'}")
    present = list(dict.fromkeys(kind for kind in kinds if kind is not None))
    best: dict[str, str] = {}
    for kind in present:
        group = [
            value for value, own, row in zip(values, kinds, rows, strict=True)
            if own == kind and value is not None and not row.on_test_set
        ]  # fmt: skip
        if len(group) > 1 and column.metric in HIGHER + LOWER and kind.startswith("data "):
            pick = min if column.metric in LOWER else max
            best[kind] = f"{pick(value.mean for value in group):.2f}"
    if len(present) > 1:
        for kind in present:
            marks.setdefault(kind, _letter(len(marks)))
    return [
        Cell(MISSING)
        if value is None or kind is None
        else Cell(
            shown(value, column.metric),
            value,
            not row.on_test_set and best.get(kind) == f"{value.mean:.2f}",
            marks[kind] if len(present) > 1 else "",
        )
        for value, kind, row in zip(values, kinds, rows, strict=True)
    ]


def _letter(number: int) -> str:
    """a, b, ..., z, aa, ab, ..."""
    text = ""
    number += 1
    while number:
        number, rest = divmod(number - 1, 26)
        text = chr(ord("a") + rest) + text
    return text


def _seeds(row: Row) -> str:
    if len(row.seeds) > 1:
        return f"{' '.join(map(str, row.seeds))} (n = {len(row.seeds)})"
    if row.seeds:
        return str(row.seeds[0])
    return f"evaluation {' '.join(map(str, row.evaluated))}" if row.evaluated else MISSING


def _short_names(models: Sequence[str]) -> dict[str, str]:
    """The end of each path, as long as it takes to tell it from the others; a Hub id stays whole."""
    names = {}
    for model in dict.fromkeys(models):
        parts = PurePath(model).parts
        lengths = range(1, len(parts) + 1)
        if len(parts) == 2 and parts[0] not in ("/", "."):
            lengths = range(2, 3)
        for length in lengths:
            names[model] = "/".join(parts[-length:])
            same = [other for other in set(models) if PurePath(other).parts[-length:] == parts[-length:]]
            if len(same) == 1:
                break
        names.setdefault(model, model)
    return names


def _why_missing(row: Row, columns: Sequence[Column]) -> str:
    """Why cells of a row are empty: what the file says, and else that it was not evaluated."""
    empty = [column for column in columns if column not in row.scores]
    averages = {column.task: _full(column) for column in empty if column.task in AVERAGES}
    reasons = {
        averages.get(task, task): why for task, why in row.missing.items() if task in averages or task not in AVERAGES
    }
    # What a file says of a task is said of its test set.
    absent = [
        column for column in empty
        if column.task not in row.missing or (column.group == "sts" and column.split not in ("test", ""))
    ]  # fmt: skip
    names: list[str] = []
    for group in GROUPS:
        left = [column for column in absent if column.group == group]
        whole = len(left) > 1 and len(left) == sum(column.group == group for column in columns)
        names += [f"{'STS' if group == 'sts' else group} (all columns)"] if whole else map(_full, left)
    said = [f"{name}: {why}" for name, why in reasons.items()]
    if names:
        said.append("not evaluated: " + "; ".join(names))
    return "; ".join(said)


# ---------------------------------------------------------------------------------------------------------------------
# what the papers report


def backbones_of(row: Row) -> list[str]:
    """The papers' backbones to set beside a row: its own, or BERT-base, which all of them have."""
    method = METHODS.get(row.method or "")
    if method is None:
        return []
    reported = method.paper.reported
    return [row.backbone] if row.backbone in reported else [name for name in reported if name == "bert-base-uncased"]


def _reported_columns(rows: Sequence[Row]) -> dict[str, dict[int, float]]:
    """Heading -> row number -> what the paper of its method prints."""
    columns: dict[str, dict[int, float]] = {}
    for metric in _HEADLINES:
        for backbone in BACKBONES:
            for number, row in enumerate(rows):
                if row.reported is not None or backbone not in backbones_of(row):
                    continue
                value = METHODS[str(row.method)].paper.reported[backbone].get(metric)
                if value is not None:
                    columns.setdefault(f"reported: {NAMES[metric]}, {BACKBONES[backbone]}", {})[number] = value
    for number, row in enumerate(rows):
        for what, value in (row.reported or {}).items():
            columns.setdefault(f"reported: {what}", {})[number] = value
    return columns


def _papers(rows: Sequence[Row]) -> dict[str, dict[str, tuple[float, str]]]:
    """A column for each paper and backbone that belongs to a row, with all that it prints."""
    papers = {}
    for name, method in METHODS.items():
        backbones = {backbone for row in rows if row.method == name for backbone in backbones_of(row)}
        for backbone in [known for known in method.paper.reported if known in backbones]:
            papers[f"reported: {name}, {BACKBONES.get(backbone, backbone)}"] = {
                figure_name(metric): (value, method.paper.table_of(metric))
                for metric, value in method.paper.reported[backbone].items()
            }
    return papers


def figure_name(metric: str) -> str:
    """A paper's figure in words."""
    kind, _, recipe = metric.partition("_")
    if kind == "attack":
        return f"attack success rate, {recipe}, average of 7 tasks"
    if kind == "advsts":
        return f"AdvSTS attack success rate, {recipe}, average of STS-B and SICK-R"
    if metric.endswith("_pwws"):
        return f"{kind} under PWWS attack"
    return NAMES.get(metric, metric.replace("_", " "))
