"""Which of the rows of result files belong to a model, and the tables of a card."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePath

from hf_robustcse.cards.checkpoint import EMBEDDED, Checkpoint
from hf_robustcse.cards.text import Raw, public_path, table
from hf_robustcse.methods import METHODS
from hf_robustcse.report.read import Collection, Column, Comparison, Row, Value, collect
from hf_robustcse.report.table import BACKBONES, NAMES, backbones_of, figure_name, order, printed, shown

BASELINE = "simcse"
"""What every other method is set beside."""
_SHAPE = ("alignment", "uniformity")
Scores = Mapping[Column, Value]


@dataclasses.dataclass
class Evidence:
    """What was measured of a model, and what it may be set beside.

    Attributes:
        own: scores of this very checkpoint, or over the seeds of its folder.
        setting: scores of the same settings over several seeds, of which this checkpoint is one.
        untrained: scores of the encoder that training began with.
        baseline: scores of SimCSE in the same files.
        finetuned: rows of this model after fine-tuning.
        comparisons: paired ones that this model is a side of.
        warnings: of the rows, such as a checkpoint that was chosen on a test set.
        missing: task or average -> why it has no score.
        files: (name, sha256) of the further result files.
    """

    own: dict[Column, Value]
    setting: dict[Column, Value]
    untrained: dict[Column, Value]
    baseline: dict[Column, Value]
    finetuned: list[Row]
    comparisons: list[Comparison]
    warnings: list[str]
    missing: dict[str, str]
    files: list[tuple[str, str]]

    @property
    def best_known(self) -> dict[Column, Value]:
        """For each column the value over the most seeds."""
        return self.own | self.setting


def gather(checkpoint: Checkpoint, results: Sequence[str | Path] = ()) -> Evidence:
    """Read the checkpoint's own results and further files, and keep what has to do with it.

    Args:
        checkpoint: the model.
        results: files and folders, as for `hf-robustcse report`.

    Raises:
        UserError: for a path that is not there or holds no result.
    """
    own = Collection()
    if any(checkpoint.results.get(name) for name in ("tasks", "attacks")):
        own = collect([checkpoint.folder / "results.json"])
    further = collect(results) if results else Collection()
    rows = [*own.rows, *further.rows]
    recorded = str(checkpoint.results.get("model") or "")
    names = {name for name in (recorded, checkpoint.repo_id, str(checkpoint.folder.absolute())) if name}
    found: dict[str, list[Row]] = {"own": [], "setting": [], "untrained": [], "baseline": [], "finetuned": []}
    pooler = checkpoint.config["pooler"]
    base = PurePath(checkpoint.base or EMBEDDED).name
    for row in rows:
        about = row.pooling in (None, pooler) and row.note in ("", "before training")
        if about and row.method is None and PurePath(row.model).name == base:
            found["untrained"].append(row)
        elif _is(row, names, checkpoint):
            if row.note.startswith("fine-tuned"):
                found["finetuned"].append(row)
            elif about:
                several = len(row.seeds) > 1 and len(checkpoint.seeds) < 2
                found["setting" if several else "own"].append(row)
        elif about and row.method == BASELINE != checkpoint.method:
            found["baseline"].append(row)
    mine = [*found["own"], *found["setting"]]
    return Evidence(
        **{name: _union(found[name]) for name in ("own", "setting", "untrained", "baseline")},
        finetuned=found["finetuned"],
        comparisons=[line for line in further.comparisons if any(_same(s, n) for s in (line.a, line.b) for n in names)],
        warnings=list(dict.fromkeys(said for row in mine for said in row.warnings)),
        missing={task: why for row in mine for task, why in row.missing.items()},
        files=[(source.path.name, source.sha256) for source in further.sources],
    )


def _is(row: Row, names: Iterable[str], checkpoint: Checkpoint) -> bool:
    """Whether a row is this model, or the setting over seeds that it is one seed of."""
    if row.method not in (None, checkpoint.method):
        return False
    if any(_same(row.model, name) for name in names):
        return True
    several = row.folder or (row.model if len(row.seeds) > 1 else None)
    if several is None or not set(checkpoint.seeds) <= set(row.seeds):
        return False
    ends = {f"seed-{seed}" for seed in checkpoint.seeds}
    return any(PurePath(name).name in ends and _same(several, str(PurePath(name).parent)) for name in names)


def _same(one: str, other: str) -> bool:
    """Whether two recorded paths may be one folder: the shorter is the end of the longer."""
    short, long = sorted((PurePath(one).parts, PurePath(other).parts), key=len)
    short = tuple(part for part in short if part not in (".", ".."))
    # A bare `seed-0` or `model` is the end of too much.
    return bool(short) and long[-len(short) :] == short and (len(short) > 1 or short == long)


def _union(rows: Sequence[Row]) -> dict[Column, Value]:
    scores: dict[Column, Value] = {}
    for row in rows:
        scores = row.scores | scores
    return scores


# ---------------------------------------------------------------------------------------------------------------------
# tables


def columns_of(*scores: Scores) -> list[Column]:
    """The columns of a table of results, in order: STS, transfer, and of the geometry alignment and uniformity."""
    found = {column for some in scores for column in some}
    kept = [c for c in found if c.group in ("sts", "transfer") or (c.group == "geometry" and c.metric in _SHAPE)]
    return sorted(kept, key=order)


def name_of(column: Column, value: Value | None = None) -> str:
    """A column in words, with its split and the number of pairs where it is known."""
    name = NAMES.get(column.task, column.task)
    split = "cross-validation" if column.split == "all" else column.split
    if column.group == "geometry":
        return f"{column.metric}, {name} {split}".strip()
    if column.group == "transfer":
        name = f"transfer, {name}"
    about = [split] if split else []
    if value is not None and value.count:
        about.append(f"n = {value.count}")
    return f"{name} ({', '.join(about)})" if about else name


def comparable(one: Value | None, other: Value | None) -> bool:
    """Whether two values were scored on the same rows."""
    return one is not None and other is not None and one.data is not None and one.data == other.data


def results_table(checkpoint: Checkpoint, evidence: Evidence) -> Raw | None:
    """Tasks as rows; reported by the paper, before training, measured here and SimCSE as columns."""
    columns = columns_of(evidence.own, evidence.setting)
    if not columns:
        return None
    reported, backbone = reported_of(checkpoint)
    sides: list[tuple[str, Scores]] = [("before training", evidence.untrained)]
    sides.append((_measured(evidence.own), evidence.own))
    sides.append((_measured(evidence.setting), evidence.setting))
    sides.append((f"{BASELINE}, {_measured(evidence.baseline)}", evidence.baseline))
    known = evidence.best_known
    sides = [
        (head, {c: v for c, v in scores.items() if c in columns and (v is known[c] or comparable(v, known[c]))})
        if scores is not evidence.own and scores is not evidence.setting
        else (head, scores)
        for head, scores in sides
    ]
    sides = [(head, scores) for head, scores in sides if any(column in scores for column in columns)]
    figures = [reported.get(_key(column)) for column in columns]
    heads = ["task (split)"]
    if any(figure is not None for figure in figures):
        heads.append(f"reported by the paper ({backbone})")
    rows = []
    for column, figure in zip(columns, figures, strict=True):
        cells: list[str | None] = [name_of(column, known[column])]
        if len(heads) > 1:
            cells.append(None if figure is None else printed(figure))
        for _, scores in sides:
            # The heading says how many seeds.
            value = dataclasses.replace(scores[column], seeds=1) if column in scores else None
            cells.append(None if value is None else shown(value, column.metric))
        rows.append(cells)
    return table([*heads, *(head for head, _ in sides)], rows)


def _measured(scores: Scores) -> str:
    seeds = {value.seeds for value in scores.values()}
    if seeds and max(seeds) > 1:
        return f"measured here, mean ± std (n seeds = {max(seeds)})"
    return "measured here, one seed"


def reported_of(checkpoint: Checkpoint) -> tuple[dict[str, float], str]:
    """What the paper of the model's method prints, and for which encoder; nothing for a stack or for labelled data."""
    if len(checkpoint.methods) > 1 or checkpoint.views > 1:
        return {}, ""
    row = Row(model="", method=checkpoint.method, backbone=PurePath(checkpoint.base or "").name)
    for backbone in backbones_of(row):
        return METHODS[checkpoint.method].paper.reported[backbone], BACKBONES.get(backbone, backbone)
    return {}, ""


def _key(column: Column) -> str:
    """A column as `Paper.reported` names it; the geometry of a paper is of data that it does not name."""
    if column.group == "geometry":
        return ""
    if column.task == "average":
        return "sts_avg"
    if column.group == "transfer" and column.task in ("transfer", "transfer_6"):
        return f"{column.task}_avg"
    return f"{column.task}_{column.split}" if column.split == "dev" else column.task


def more_reported(checkpoint: Checkpoint, evidence: Evidence) -> Raw | None:
    """What the paper prints beside what the table has."""
    reported, backbone = reported_of(checkpoint)
    there = {_key(column) for column in columns_of(evidence.own, evidence.setting)}
    left = [
        f"{figure_name(key)} {printed(value)}" + (f" ({where})" if (where := _where(checkpoint, key)) else "")
        for key, value in reported.items()
        if key not in there
    ]
    if not left:
        return None
    return Raw(f"The paper also reports, for {backbone}, and nothing of it was measured here: {'; '.join(left)}.")


def _where(checkpoint: Checkpoint, key: str) -> str:
    return METHODS[checkpoint.method].paper.table_of(key)


def attack_table(sides: Sequence[tuple[str, Scores]]) -> Raw | None:
    """Data sets as rows, attacks as columns: success rates with their intervals.

    Args:
        sides: (model in words, scores).
    """
    found: dict[tuple[str, str, str], dict[str, Value]] = {}
    before: dict[tuple[str, str, str], Value] = {}
    recipes: dict[str, None] = {}
    tasks = dict.fromkeys(c.task.rpartition(", ")[0] for _, scores in sides for c in scores if c.group == "attacks")
    for task in tasks:
        for label, scores in sides:
            for column, value in scores.items():
                name, _, recipe = column.task.rpartition(", ")
                if column.group == "attacks" and name == task:
                    key = (task, column.split, label)
                    if column.metric == "success_rate":
                        recipes[recipe] = None
                        found.setdefault(key, {})[recipe] = value
                    elif column.metric == "accuracy_before":
                        before[key] = value
    if not found:
        return None
    heads = ["data set (split)", *(["model"] if len({label for *_, label in found}) > 1 else []), "examples"]
    heads += ["accuracy before", *recipes]
    rows = []
    for (task, split, label), values in found.items():
        counts = sorted({value.count for value in values.values() if value.count})
        row: list[str | None] = [f"{NAMES.get(task, task)} ({split})" if split else NAMES.get(task, task)]
        row += [label] if "model" in heads else []
        row.append(" / ".join(map(str, counts)) or None)
        row.append(f"{before[task, split, label].mean:.1f}" if (task, split, label) in before else None)
        row += [_rate(values[recipe]) if recipe in values else None for recipe in recipes]
        rows.append(row)
    return table(heads, rows)


def _rate(value: Value) -> str:
    text = f"{value.mean:.1f}" + ("" if value.std is None else f" ± {value.std:.1f} ({value.seeds})")
    return text if value.low is None or value.high is None else f"{text} [{value.low:.1f}, {value.high:.1f}]"


def robust_set_table(rows: Sequence[Row]) -> Raw | None:
    """Fine-tuned models: the normal set, the robust set and the invariance side by side."""
    lines: dict[tuple[str, str, str], dict[str, Value]] = {}
    for row in rows:
        for column, value in row.scores.items():
            if column.group in ("fine-tuning", "robust"):
                lines.setdefault((column.task, column.split, column.metric), {})[column.group] = value
        for column, value in row.scores.items():
            if column.group == "invariance":
                for (task, split, _), values in lines.items():
                    if (task, split) == (column.task, column.split):
                        values["invariance"] = value
    lines = {key: values for key, values in lines.items() if {"robust", "invariance"} & set(values)}
    if not lines:
        return None
    groups = ("fine-tuning", "robust", "invariance")
    rows_ = [
        [f"{task} ({split})" if split else task, metric, *(shown(v[g], metric) if g in v else None for g in groups)]
        for (task, split, metric), v in lines.items()
    ]
    return table(["task (split)", "metric", "normal set", "robust set", "same prediction, %"], rows_)


def typo_table(scores: Scores) -> Raw | None:
    """How often a sentence is found from its version with typos, and their cosine."""
    sets: dict[tuple[str, str], dict[str, Value]] = {}
    for column, value in scores.items():
        if column.group == "typos":
            sets.setdefault((column.task, column.split), {})[column.metric] = value
    rows = []
    for (task, _), values in sets.items():
        any_value = next(iter(values.values()))
        source = public_path(any_value.source) if any_value.source else task
        metrics = [shown(values[m], m) if m in values else None for m in ("retrieval", "cosine")]
        rows.append([source, any_value.count, *metrics])
    return table(["sentences of", "n", "found again, %", "cosine"], rows) if rows else None
