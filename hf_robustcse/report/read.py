"""Result files -> rows: what each model scored, with what makes a score comparable, and where it comes from.

Three kinds of file are read: the object of `results.base_results` (run_eval, run_unsup, run_finetune, run_attack; one
seed or several), the comparison of `run_eval --compare`, and the record of a sweep (run_ablation).
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
import shlex
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path, PurePath
from typing import Any

from hf_robustcse.errors import UserError
from hf_robustcse.evaluation import sts, transfer

GEOMETRY_METRICS = ("alignment", "uniformity", "positive_cosine", "random_cosine")
"""The metrics of the geometry that a report shows."""
TYPO_METRICS = ("retrieval", "cosine")
"""How often a sentence is found again from its version with typos, x 100, and the cosine of the two."""
JUDGE_METRICS = ("invariance", "accuracy", "retrieval", "cosine")
"""Of CheckList's suites: the first, third and fourth of the groups, the second of the labelled cases."""
ATTACK_METRICS = ("success_rate", "accuracy_before", "accuracy_after", "queries_per_example", "words_changed")
# Numbers of a task that are no score: counts, settings, spreads of another number, and what belongs to another split.
_NO_SCORE = re.compile(
    r"(n|changed|groups|without_label|seeds?|folds|penalty|not_converged|epochs?|steps?|seconds|runtime|loss|k)|(n|num|dev|train)_.*"
    r"|.*_(std|min|max|low|high|n|seconds|per_second|loss)"
)
_NO_NAME = re.compile(r"[^\w.+-]+")  # what a sweep's folders have a hyphen for
_FOLDER_OF_SEED = re.compile(r"seed-(\d+)")


@dataclasses.dataclass(frozen=True)
class Column:
    """One column of scores.

    Attributes:
        group: sts, transfer, geometry, typos, noise, checklist, fine-tuning, robust, invariance or attacks.
        task: canonical name; "average" of a group, or what is averaged.
        split: test, dev, train, all (cross-validation), or "" where it was not recorded.
        metric: name of the number.
    """

    group: str
    task: str
    split: str
    metric: str


@dataclasses.dataclass(frozen=True)
class Value:
    """One score.

    Attributes:
        mean: the score, or the mean over seeds.
        std: sample standard deviation over the seeds; None for one seed, or where it was not recorded.
        seeds: number of seeds behind it.
        data: checksum of the rows scored, None where it was not recorded.
        protocol: how it was scored, None where that was not recorded.
        low: lower end of its 95 % interval over resampled pairs or examples, if there is one.
        high: upper end.
        count: number of pairs or examples scored, if recorded.
        source: where they were read, `hub:NAME@REVISION` or a path, if recorded.
    """

    mean: float
    std: float | None = None
    seeds: int = 1
    data: str | None = None
    protocol: str | None = None
    low: float | None = None
    high: float | None = None
    count: int | None = None
    source: str | None = None


@dataclasses.dataclass
class Row:
    """One model, or one setting over its seeds.

    Attributes:
        model: as recorded.
        note: what sets it apart: whitening, "before training", a cell of a sweep.
        method: training method, None for a model that was not trained here.
        pooling: None where it was not recorded.
        seeds: of the training.
        evaluated: seeds of the evaluation, for a model that the file did not train.
        scores: the numbers.
        sources: indices of the files it comes from.
        missing: task -> why it has no score.
        warnings: what a reader has to know, such as a checkpoint that was chosen on a test set.
        on_test_set: whether its checkpoint was chosen on a test set.
        backbone: base name of the encoder that training began with, if known.
        reported: of a cell of a sweep that declares it, name of a figure -> what the paper prints for that cell; None
            for any other row, beside which stands what the paper prints for its method.
        folder: of a cell of a sweep, the folder that holds the runs of its seeds.
        identity: equal for the same model evaluated in the same way; its scores may be spread over files.
        family: equal for the seeds of one setting; None for a row that is no seed of anything.
    """

    model: str
    note: str = ""
    method: str | None = None
    pooling: str | None = None
    seeds: tuple[int, ...] = ()
    evaluated: tuple[int, ...] = ()
    scores: dict[Column, Value] = dataclasses.field(default_factory=dict)
    sources: list[int] = dataclasses.field(default_factory=list)
    missing: dict[str, str] = dataclasses.field(default_factory=dict)
    warnings: list[str] = dataclasses.field(default_factory=list)
    on_test_set: bool = False
    backbone: str | None = None
    reported: dict[str, float] | None = None
    folder: str | None = None
    identity: tuple[Any, ...] = ()
    family: tuple[Any, ...] | None = None


@dataclasses.dataclass
class Source:
    """Where rows come from.

    Attributes:
        path: of the file, as it was given or found.
        sha256: of its bytes.
        kind: results, comparison or sweep.
        facts: (name, value) of what the file records of its making, in order.
        folder: the folder argument that it was found under; None for a file that was named.
    """

    path: Path
    sha256: str
    kind: str
    facts: list[tuple[str, str]]
    folder: Path | None = None


@dataclasses.dataclass
class Comparison:
    """One line of a paired comparison: task, A, B, difference with its interval, and the verdict."""

    source: int
    a: str
    b: str
    task: str
    values: dict[str, float]
    verdict: str


@dataclasses.dataclass
class Collection:
    """All that was read.

    Attributes:
        rows: one for each model or setting.
        sources: the files.
        comparisons: of `run_eval --compare`.
        foreign: number of JSON files in the folders that are no results.
        parts: number of files that are seeds of a file that was read too.
        broken: (path, reason) of the files in the folders that could not be read.
    """

    rows: list[Row] = dataclasses.field(default_factory=list)
    sources: list[Source] = dataclasses.field(default_factory=list)
    comparisons: list[Comparison] = dataclasses.field(default_factory=list)
    foreign: int = 0
    parts: int = 0
    broken: list[tuple[Path, str]] = dataclasses.field(default_factory=list)


class _Foreign(ValueError):
    """A file that is none of ours."""


class _Broken(ValueError):
    """A file of ours, or what is left of one, that cannot be used."""


def collect(paths: Sequence[str | Path]) -> Collection:
    """Read files, and folders with all that is below them.

    Args:
        paths: files or folders. A file that is named has to be a result; in a folder others are passed over.

    Returns:
        The rows, the files of one model merged and the seeds of one setting averaged.

    Raises:
        UserError: for a path that is not there, a named file that is no result, or when there is no result at all.
    """
    found = Collection()
    loaded: dict[Path, tuple[Path, Path | None, dict[str, Any], str]] = {}
    for argument in map(Path, paths):
        if not argument.exists():
            raise UserError(f"{argument} is not there: name result files, or folders that hold some")
        folder = argument if argument.is_dir() else None
        for path in sorted(argument.rglob("*.json")) if folder else [argument]:
            if path.resolve() in loaded or not path.is_file():
                continue
            try:
                loaded[path.resolve()] = (path, folder, *_load(path))
            except _Foreign as error:
                if folder is None:
                    raise UserError(f"{path} is no result of hf_robustcse: {error}") from None
                found.foreign += 1
            except (OSError, _Broken) as error:
                reason = error.strerror or str(error) if isinstance(error, OSError) else str(error)
                if folder is None:
                    raise UserError(f"{path} cannot be read: {reason}") from None
                found.broken.append((path, reason))
    for place, (path, folder, data, digest) in loaded.items():
        if folder is not None and _is_part(place, {known: entry[2] for known, entry in loaded.items()}):
            found.parts += 1
            continue
        try:
            _add(found, path, folder, data, digest)
        except _Broken as error:
            if folder is None:
                raise UserError(f"{path} cannot be read: {error}") from None
            found.broken.append((path, str(error)))
    if not found.rows and not found.comparisons:
        said = f"there is no result of hf_robustcse in {', '.join(map(str, paths))}"
        if found.broken:
            said += f"; {found.broken[0][0]} cannot be read: {found.broken[0][1]}"
        raise UserError(f"{said}: run examples/run_eval.py with --output_json, or name another folder")
    found.rows = _average_seeds(_merge(found.rows))
    for row in found.rows:
        _add_averages(row)
    return found


def clean(text: Any) -> str:
    """A recorded text on one line, without control or formatting characters, and of a length that can be shown."""
    line = " ".join("".join(c if c.isprintable() else " " for c in str(text)).split())
    return line if len(line) <= 4000 else line[:4000] + "…"


def _load(path: Path) -> tuple[dict[str, Any], str]:
    """The object of a result file, and the file's checksum."""
    raw = path.read_bytes()
    try:
        text = raw.decode("utf-8-sig")
        # A cheap look first: a folder of models holds JSON of many megabytes that is none of ours.
        if not any(f'"{key}"' in text for key in ("tasks", "attacks", "cells")):
            json.loads(text)
            raise _Foreign("it has no tasks")
        data = json.loads(text)
    except UnicodeDecodeError:
        raise _Broken("it is not UTF-8 text") from None
    except json.JSONDecodeError as error:
        raise _Broken(f"it is no JSON, or only a part of it (line {error.lineno}: {error.msg})") from None
    except RecursionError:
        raise _Broken("its JSON is nested too deeply") from None
    if not isinstance(data, dict) or not isinstance(data.get("command"), str):
        raise _Foreign("it does not record the command that made it")
    if _kind(data) is None:
        raise _Foreign("it has no tasks")
    return data, hashlib.sha256(raw).hexdigest()


def _kind(data: Mapping[str, Any]) -> str | None:
    if isinstance(data.get("cells"), dict) and isinstance(data.get("grid"), str):
        return "sweep"
    if isinstance(data.get("a"), list) and isinstance(data.get("b"), list) and isinstance(data.get("tasks"), dict):
        return "comparison"
    scored = isinstance(data.get("tasks"), dict) or isinstance(data.get("attacks"), dict)
    # A benchmark's record may have tasks and a model too, but no seed.
    known = isinstance(data.get("model"), str) and {"library_versions", "seed"} <= {*data}
    return "results" if scored and known else None


def _is_part(place: Path, loaded: Mapping[Path, Mapping[str, Any]]) -> bool:
    """Whether a file is one seed of a summary that was read too: ROOT/[cell/]seed-N/results.json."""
    if not _FOLDER_OF_SEED.fullmatch(place.parent.name):
        return False
    above = [loaded.get(folder / "results.json", {}) for folder in place.parents[1:3]]
    return any("cells" in data or isinstance(data.get("seeds"), list) for data in above)


def _add(found: Collection, path: Path, folder: Path | None, data: dict[str, Any], digest: str) -> None:
    """The rows of one file; nothing is added if any of them is malformed."""
    kind, number = _kind(data), len(found.sources)
    comparisons: list[Comparison] = []
    try:
        if kind == "sweep":
            rows = _sweep_rows(data)
        elif kind == "comparison":
            rows, comparisons = _comparison_rows(data, number)
        else:
            rows = _result_rows(data)
    except (AttributeError, KeyError, TypeError, IndexError) as error:
        raise _Broken(f"it is malformed ({type(error).__name__}: {clean(error)})") from None
    if not any(row.scores for row in rows) and not comparisons:
        raise _Broken("it holds no score")
    for row in rows:
        row.sources.append(number)
    found.rows += [row for row in rows if row.scores or row.missing or row.warnings]
    found.comparisons += comparisons
    found.sources.append(Source(path, digest, str(kind), _facts(data), folder))


def _facts(data: Mapping[str, Any]) -> list[tuple[str, str]]:
    seeds = data.get("seeds") or data.get("seed")
    if isinstance(data.get("cells"), dict):
        seeds = sorted({seed for row in data["cells"].values() for seed in row.get("seeds", [])})
    selection = data.get("selection")
    facts = {
        "command": data["command"],
        "device": data.get("device"),
        "seed": " ".join(map(str, seeds)) if isinstance(seeds, list) else seeds,
        "date": data.get("date"),
        "revision": data.get("revision"),
        "protocol": _flat(data.get("protocol")),
        "checkpoint": _flat(selection) if isinstance(selection, dict) else None,
        "versions": _flat(data.get("library_versions")),
    }
    return [(name, clean(value)) for name, value in facts.items() if value not in (None, "")]


def _flat(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_flat(entry)}" for key, entry in value.items() if entry is not None)
    if isinstance(value, list):
        return " ".join(map(str, value))
    return "" if value is None else str(value)


# ---------------------------------------------------------------------------------------------------------------------
# one file -> rows


def _result_rows(data: Mapping[str, Any]) -> list[Row]:
    """Rows of `results.base_results`: the model, and the encoder before training if the file has it."""
    protocol = data.get("protocol") or {}
    words = words_of(data["command"])
    trained = isinstance(data.get("training"), dict)
    seeds = data.get("seeds") if isinstance(data.get("seeds"), list) else None
    own = _seeds(seeds if seeds is not None else [data.get("seed")])
    row = Row(
        model=clean(data["model"]),
        note=_whitened(protocol.get("whitening"))
        or (f"fine-tuned on {clean(protocol['task'])}" if trained and protocol.get("task") else ""),
        method=None if data.get("method") is None else clean(data["method"]),
        pooling=clean(protocol["pooling"]) if protocol.get("pooling") else option(words, "pooler"),
        seeds=own if trained or seeds else (),
        evaluated=() if trained or seeds else own,
        scores=_scores(data.get("tasks") or {}, protocol, len(seeds) if seeds else 1),
        backbone=_backbone(words) if trained else PurePath(data["model"]).name,
    )
    row.scores |= _attack_scores(data.get("attacks") or {}, len(seeds) if seeds else 1)
    row.scores |= _judge_scores(data)
    averages = data.get("averages") or {}
    for name, value in averages.items():
        mean = _number(value, f"averages.{name}")
        if name in ("transfer", "transfer_6") or name.endswith("_std") or mean is None:
            continue  # those are formed again from the tasks, over all files of a model
        spread = _number(averages.get(f"{name}_std"), f"averages.{name}_std")
        if name == "sts":
            row.scores[_average_column("sts")] = Value(mean, spread, len(row.seeds) or 1)
        else:
            row.scores[Column("fine-tuning", clean(name), "", "average")] = Value(mean, spread, len(row.seeds) or 1)
    for entry in data.get("missing") or []:
        row.missing[clean(entry["task"])] = clean(entry["reason"])
    _note_selection(row, data.get("selection"))
    settings = {name: protocol.get(name) for name in ("max_seq_length", "dtype", "whitening")}
    about = (row.method, data.get("revision"), row.pooling, json.dumps(settings, sort_keys=True))
    row.identity = (row.model, row.note, *about, row.seeds)
    if seeds is None:
        row.family = _family(data, words, trained, about)
        if not trained and (seed := _seed_of(row.model)) is not None:
            row.seeds = (seed,)
    rows = [row]
    if isinstance(data.get("before"), dict) and data["before"]:
        rows.append(_before(data["before"], data.get("tasks") or {}, protocol, words))
    return rows


def _sweep_rows(data: Mapping[str, Any]) -> list[Row]:
    """One row a cell, and the encoder before training."""
    rows, words, protocol = [], words_of(data["command"]), data.get("protocol") or {}
    tasks: dict[str, Any] = {}
    for label, cell in data["cells"].items():
        method = clean(cell["method"])
        row = Row(
            model=clean(f"{data['grid']}: {label}"),
            method=method,
            pooling=option(words, "pooler"),
            seeds=_seeds(cell["seeds"]),
            backbone=_backbone(words),
            folder=f"{option(words, 'output_dir') or PurePath('runs', clean(data['grid']))}/{_NO_NAME.sub('-', label)}",
        )
        count = len(row.seeds)
        for task, record in cell["tasks"].items():
            tasks.setdefault(task, record)
            flat = {key: value for key, value in record.items() if not isinstance(value, dict)}
            for metric, spread in record.items():
                if isinstance(spread, dict):
                    flat[metric], flat[f"{metric}_std"] = spread["mean"], spread["std"] if count > 1 else None
            row.scores |= _scores({task: flat}, protocol, count)
        if isinstance(cell.get("average"), dict):
            mean, std = (_number(cell["average"].get(key), f"{label}.average") for key in ("mean", "std"))
            if mean is not None:
                row.scores[_average_column("sts")] = Value(mean, std if count > 1 else None, count)
        for selection in cell.get("selection") or []:
            _note_selection(row, selection)
        for seed, why in (cell.get("failed") or {}).items():
            row.warnings.append(f"seed {clean(seed)} failed: {clean(why)}")
        if data.get("reported"):
            row.reported = {
                clean(what): number
                for what, values in data["reported"].items()
                if (number := _number(values.get(label), f"reported.{what}")) is not None
            }
        row.identity = (row.model, label, data["command"])
        rows.append(row)
    if data.get("before"):
        rows.append(_before(data["before"], tasks, protocol, words))
    return rows


def _comparison_rows(data: Mapping[str, Any], number: int) -> tuple[list[Row], list[Comparison]]:
    """The two sides as rows, and the lines of the comparison."""
    rows = []
    for side in ("a", "b"):
        models, first = data[side], data[side][0]
        seeds = [seed for model in models if (seed := _seed_of(model["model"])) is not None]
        name = str(PurePath(first["model"]).parent) if len(models) > 1 else first["model"]
        row = Row(
            model=clean(name),
            note=_whitened(first.get("whitening")),
            method=None if first.get("method") is None else clean(first["method"]),
            pooling=clean(first["pooling"]) if first.get("pooling") else None,
            seeds=_seeds(seeds),
            backbone=PurePath(name).name,
        )
        records = {
            task: {"spearman": record[side], "spearman_std": record[f"{side}_std"]}
            | {key: record.get(key) for key in ("split", "sha256")}
            for task, record in data["tasks"].items()
        }
        row.scores = _scores(records, data.get("protocol") or {}, len(models))
        for entry in data.get("missing") or []:
            row.missing[clean(entry["task"])] = clean(entry["reason"])
        settings = {name: first.get(name) for name in ("max_seq_length", "dtype", "whitening")}
        row.identity = (
            row.model, row.method, first.get("revision"), row.pooling, json.dumps(settings, sort_keys=True),
            row.seeds if len(models) > 1 else (),
        )  # fmt: skip
        rows.append(row)
    labels = {side: " ".join(filter(None, (row.model, row.note))) for side, row in zip("ab", rows, strict=True)}
    records: dict[str, Any] = {}
    for scores, said in ((data, ""), (data.get("noise") or {"tasks": {}}, " under noise")):
        records |= scores["tasks"]
        if len(scores["tasks"]) > 1 and isinstance(scores.get("mean"), dict):
            records[f"mean of {len(scores['tasks'])}{said}"] = scores["mean"]
    lines = []
    for task, record in records.items():
        numbers = {
            key: value
            for key in ("a", "a_std", "b", "b_std", "difference", "low", "high")
            if (value := _number(record.get(key), f"{task}.{key}")) is not None
        }
        split = ""
        if record.get("split"):
            task, _, kind = task.partition(" ")  # a set under noise is "STSB typos"
            task, split = _sts_name(task, record["split"])
            split = f"{kind and ' ' + clean(kind)} ({split}, all)"
        lines.append(Comparison(number, **labels, task=clean(task) + split, values=numbers,
                                verdict=clean(record["verdict"])))  # fmt: skip
    return rows, lines


def _before(before: Mapping[str, Any], tasks: Mapping[str, Any], protocol: Mapping[str, Any], words: list[str]) -> Row:
    """The encoder that training began with, scored on the same sets."""
    kept = ("split", "sha256")
    records = {
        task: {**metrics, **{key: tasks[task][key] for key in kept if key in tasks.get(task, {})}}
        for task, metrics in before.items()
    }
    model = option(words, "model_name_or_path") or ("embedded" if not _has_recipe(words) else "encoder")
    row = Row(
        model=model,
        note="before training",
        pooling=option(words, "pooler"),
        scores=_scores(records, protocol, 1),
        backbone=PurePath(model).name,
    )
    row.identity = (row.model, row.note, row.pooling)
    return row


def _scores(tasks: Mapping[str, Any], protocol: Mapping[str, Any], seeds: int) -> dict[Column, Value]:
    """The numbers of a file's tasks."""
    said = ", ".join(clean(f"{key}: {protocol[key]}") for key in ("text", "aggregation", "metric") if protocol.get(key))
    scores: dict[Column, Value] = {}
    for name, record in tasks.items():
        if not isinstance(record, dict):
            raise _Broken(f"the task {clean(name)} is no mapping of metrics")
        split = clean(record.get("split") or "")
        about = {"data": record.get("sha256"), "protocol": said or None, "seeds": seeds}
        about |= {"count": _count(record.get("n")), "source": clean(record["source"]) if record.get("source") else None}

        def add(
            group: str, task: str, split: str, metric: str, name: str = name, record: Any = record, about: Any = about
        ) -> None:
            value = _value(record, metric, f"{clean(name)}.{metric}", about)
            if value is not None:
                scores[Column(group, clean(task), split, clean(metric))] = value

        if name == "geometry":
            task, split = _sts_name(record.get("set") or "", split)
            for metric in GEOMETRY_METRICS:
                add("geometry", task, split, metric)
            probes = record.get("probes") or {}
            typos = {**(probes.get("perturbed") or {}), "retrieval": (probes.get("perturbed") or {}).get("accuracy")}
            of_probes = {"data": None, "seeds": seeds, "count": _count(probes.get("n")), "source": probes.get("source")}
            for metric in TYPO_METRICS:
                add("typos", "probe", "", metric, record=typos, about=of_probes)
        elif {"score", "retrieval"} <= set(record):  # a dev set without labels
            for metric in TYPO_METRICS:
                add("typos", name, split, metric)
        elif "spearman" in record and not {"pearson", "robust", "accuracy"} & set(record):
            task, split = _sts_name(name, split)
            if _number(record["spearman"], f"{name}.spearman") is None:
                raise _Broken(f"the spearman of {clean(name)} is no number")
            add("sts", task, split, "spearman")
            for metric in GEOMETRY_METRICS if split != "test" else ():
                add("geometry", task, split, metric)
        elif transfer.find_task(name) and "folds" in record:  # GLUE has an MRPC of its own
            said_of = json.dumps(protocol.get("transfer"), sort_keys=True) + str(record.get("train", ""))
            about = {**about, "protocol": ", ".join(filter(None, (about["protocol"], clean(said_of))))}
            add("transfer", transfer.find_task(name) or name, split, "accuracy", about=about)
        else:
            for metric in record:
                if not _NO_SCORE.fullmatch(metric) and metric not in ("robust", "invariance"):
                    add("fine-tuning", name, split, metric)
            robust = record.get("robust")
            if isinstance(robust, dict):
                inner = {**about, "data": robust.get("sha256") or about["data"]}
                for metric in robust:
                    if not _NO_SCORE.fullmatch(metric) and metric != "invariance":
                        add("robust", name, split, metric, record=robust, about=inner)
            for holder in (record, robust if isinstance(robust, dict) else {}):
                invariance = holder.get("invariance")
                if isinstance(invariance, dict):
                    for metric in invariance:
                        if not _NO_SCORE.fullmatch(metric):
                            add("invariance", name, split, metric, record=invariance)
                elif invariance is not None:
                    add("invariance", name, split, "invariance", record=holder)
    return scores


def _attack_scores(attacks: Mapping[str, Any], seeds: int) -> dict[Column, Value]:
    """The numbers of `attacks: {task: {recipe: {...}}}`."""
    scores = {}
    for task, recipes in attacks.items():
        for recipe, record in recipes.items():
            examples = [_number(record.get(key), f"{recipe}.{key}") or 0 for key in ("attempted", "skipped")]
            about = {
                "data": record.get("sha256"), "seeds": seeds,
                "protocol": f"{sum(examples):g} examples" if any(examples) else None,
                "count": _count(record.get("n")), "source": clean(record["source"]) if record.get("source") else None,
            }  # fmt: skip
            for metric in ATTACK_METRICS:
                value = _value(record, metric, f"attacks.{clean(task)}.{clean(recipe)}.{metric}", about)
                if value is not None:
                    name = f"{clean(task)}, {clean(recipe)}"
                    scores[Column("attacks", name, clean(record.get("split") or ""), metric)] = value
    return scores


def _judge_scores(data: Mapping[str, Any]) -> dict[Column, Value]:
    """The numbers of `noise: {kind: {set: {...}}}`, one a curve, and of `checklist: {suite: {...}}`."""
    scores = {}

    def add(column: Column, record: Mapping[str, Any], metric: str, about: Mapping[str, Any]) -> None:
        value = _value(record, metric, f"{column.group}.{column.task}.{column.metric}", {"seeds": 1, **about})
        if value is not None:
            scores[column] = value

    for kind, sets in (data.get("noise") or {}).items():
        for name, record in sets.items():
            rates = " ".join(f"{rate:g}" for rate in record["rates"])
            about = {
                "data": record.get("sha256"), "count": _count(record.get("n")), "source": clean(record.get("source")),
                "protocol": clean(f"{kind} at {rates}, perturbed: {record.get('perturbed')}"),
            }  # fmt: skip
            task, split = _sts_name(name, record.get("split"))
            for curve in record["relative"]:
                add(Column("noise", f"{task}, {clean(kind)}", split, f"relative {clean(curve)}"), record["relative"],
                    curve, about)  # fmt: skip
    for name, record in (data.get("checklist") or {}).items():
        classifier = record["classifier"]
        said = clean(f"classifier of {classifier['task']} {classifier.get('train', '')}")
        for metric in JUDGE_METRICS:
            part = record["functionality" if metric == "accuracy" else "invariance"]
            count = _count(part.get("n", part.get("variants")))
            about = {
                "data": part.get("sha256"), "count": count, "source": clean(part.get("source")),
                "protocol": f"{said}, {count} cases",
            }  # fmt: skip
            add(Column("checklist", clean(name), "test", metric), part, metric, about)
    return scores


def _value(record: Mapping[str, Any], metric: str, where: str, about: Mapping[str, Any]) -> Value | None:
    mean = _number(record.get(metric), where)
    if mean is None:
        return None
    about = {**about, "data": None if about["data"] is None else clean(about["data"])}
    others = {end: _number(record.get(f"{metric}_{end}"), f"{where}_{end}") for end in ("std", "low", "high")}
    return Value(mean, **others, **about)


def _number(value: Any, where: str) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise _Broken(f"{where} is {value if isinstance(value, float) else 'too large'}")
    return number


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _seeds(values: Iterable[Any]) -> tuple[int, ...]:
    return tuple(value for value in values if isinstance(value, int) and not isinstance(value, bool))


def _sts_name(name: str, split: str | None) -> tuple[str, str]:
    """Canonical task and split of names such as `stsb_dev`; a set of the user's own keeps its name."""
    try:
        task, named = sts.parse_task(name)
    except UserError:
        return clean(name), clean(split or "")
    return task, clean(split or named)


def _average_column(group: str) -> Column:
    return Column("sts", "average", "test", "spearman") if group == "sts" else Column("transfer", group, "", "accuracy")


def _whitened(whitening: Any) -> str:
    return f"whitened, fitted on {clean(whitening['fitted_on'])}" if isinstance(whitening, dict) else ""


def _note_selection(row: Row, selection: Any) -> None:
    if isinstance(selection, dict) and selection.get("on_test_set"):
        said = f"checkpoint chosen ON A TEST SET by {clean(selection.get('metric'))}: not compared with the others"
        row.on_test_set = True
        if said not in row.warnings:
            row.warnings.append(said)


def words_of(command: str) -> list[str]:
    """The words of a recorded command, and what there is of them if it is no shell line."""
    try:
        return shlex.split(command)
    except ValueError:
        return command.split()


def option(words: Sequence[str], name: str) -> str | None:
    """The last value of an option of a recorded command."""
    found = None
    for i, word in enumerate(words):
        if word == f"--{name}" and i + 1 < len(words):
            found = words[i + 1]
        elif word.startswith(f"--{name}="):
            found = word.partition("=")[2]
    return None if found is None else clean(found)


def _has_recipe(words: Sequence[str]) -> bool:
    return any(word.endswith((".yaml", ".yml")) for word in words)


def _backbone(words: Sequence[str]) -> str | None:
    model = option(words, "model_name_or_path")
    return PurePath(model).name if model else None


def _seed_of(model: str) -> int | None:
    """N of a model in a folder `seed-N`."""
    match = _FOLDER_OF_SEED.fullmatch(PurePath(model).name)
    return int(match[1]) if match else None


def _family(
    data: Mapping[str, Any], words: Sequence[str], trained: bool, about: tuple[Any, ...]
) -> tuple[Any, ...] | None:
    """What the seeds of one setting share: the command but for seed and output, or the folder of `seed-N`."""
    if trained:
        kept, skip = [], False
        for word in words:
            name = word.partition("=")[0]
            if name in ("--seed", "--output_dir", "--output_json"):
                skip = "=" not in word
            elif word.startswith("--") or not skip:
                kept.append(word)
                skip = False
        return (tuple(kept), *about)
    if _seed_of(str(data["model"])) is not None:
        return (str(PurePath(str(data["model"])).parent), *about)
    return None


# ---------------------------------------------------------------------------------------------------------------------
# rows of several files


def _merge(rows: Sequence[Row]) -> list[Row]:
    """Rows of the same model become one where they do not contradict each other."""
    merged: list[Row] = []
    for row in rows:
        for other in merged:
            shared = row.scores.keys() & other.scores.keys()
            if row.identity == other.identity and all(_same(row.scores[c], other.scores[c]) for c in shared):
                other.scores = row.scores | other.scores
                other.missing = {**row.missing, **other.missing}
                other.warnings += [said for said in row.warnings if said not in other.warnings]
                other.evaluated = tuple(sorted({*other.evaluated, *row.evaluated}))
                other.sources += [number for number in row.sources if number not in other.sources]
                other.on_test_set |= row.on_test_set
                break
        else:
            merged.append(row)
    return merged


def _same(a: Value, b: Value) -> bool:
    return math.isclose(a.mean, b.mean, rel_tol=1e-6, abs_tol=1e-6) and a.data == b.data and a.seeds == b.seeds


def _average_seeds(rows: Sequence[Row]) -> list[Row]:
    """Rows that are seeds of one setting become their mean, with the standard deviation."""
    families: dict[Any, list[Row]] = {}
    for number, row in enumerate(rows):
        families.setdefault(number if row.family is None else row.family, []).append(row)
    result = []
    for group in families.values():
        seeds = tuple(seed for row in group for seed in row.seeds)
        if len(group) == 1 or len(set(seeds)) < len(seeds):
            result += group
            continue
        group = sorted(group, key=lambda row: row.seeds)
        first = group[0]
        for row in group:
            _add_averages(row)
        columns = dict.fromkeys(column for row in group for column in row.scores)
        first.scores = {column: _spread([r.scores[column] for r in group if column in r.scores]) for column in columns}
        first.missing = {task: why for row in group for task, why in row.missing.items()}
        first.model = _shared_name([row.model for row in group])
        first.seeds = seeds
        first.warnings = list(dict.fromkeys(said for row in group for said in row.warnings))
        first.sources = [number for row in group for number in row.sources]
        first.on_test_set = any(row.on_test_set for row in group)
        result.append(first)
    return result


def _spread(values: Sequence[Value]) -> Value:
    means = [value.mean for value in values]
    data = {value.data for value in values}
    return Value(
        statistics.fmean(means),
        statistics.stdev(means) if len(means) > 1 else None,
        len(means),
        data.pop() if len(data) == 1 else "several",
        values[0].protocol,
        count=values[0].count,
        source=values[0].source,
    )


def _shared_name(models: Sequence[str]) -> str:
    parents = {str(PurePath(model).parent) for model in models}
    if len(parents) == 1 and all(_seed_of(model) is not None for model in models):
        return parents.pop()
    return ", ".join(dict.fromkeys(models))


def _add_averages(row: Row) -> None:
    """The averages of seven STS tests, seven transfer tasks, and six: each only from all its members."""
    groups = {"sts": ("sts", sts.STS_TEST), **{name: ("transfer", of) for name, of in transfer.AVERAGES.items()}}
    for name, (group, members) in groups.items():
        column = _average_column(name)
        found = {
            c.task: value for c, value in row.scores.items()
            if c.group == group and c.task in members and (group != "sts" or c.split == "test")
        }  # fmt: skip
        recorded = row.scores.pop(column, None)
        if len(found) < len(members):
            if found:
                absent = ", ".join(task for task in members if task not in found)
                row.missing[column.task] = f"not formed without {absent}"
            continue
        counts = {value.seeds for value in found.values()}
        if len(counts) > 1:
            row.missing[column.task] = "not formed: its tasks have different numbers of seeds"
            continue
        mean = statistics.fmean(value.mean for value in found.values())
        data = [found[task].data for task in members]
        row.scores[column] = Value(
            mean,
            recorded.std if recorded and math.isclose(recorded.mean, mean, abs_tol=1e-6) else None,
            counts.pop(),
            None if None in data else hashlib.sha256("".join(map(str, data)).encode()).hexdigest(),
            found[members[0]].protocol,
        )
