"""Robust sets that others published: adversarial examples, counterfactual edits and CheckList's suites, from files.

Each evaluates a classifier that was trained on another set, which the result names. The files are in a data folder:
tab-separated with a header, or JSON lines, each also `.gz`.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_robustcse.errors import UserError
from hf_robustcse.evaluation.sts import MissingData, clean, read_objects, read_rows, task_folders, tsv_files

if TYPE_CHECKING:
    from datasets import Dataset

NLI = ("entailment", "neutral", "contradiction")
ENTAILED = ("entailment", "not_entailment")
SENTIMENT = ("negative", "positive")
DUPLICATES = ("not_duplicate", "duplicate")
_SINGLE, _PAIR = {"text": "text"}, {"sentence1": "sentence1", "sentence2": "sentence2"}
_NLI_PAIR = {"sentence1": "premise", "sentence2": "hypothesis"}
_PUBLISHED = {
    "AdvGLUE": "Wang et al. 2021, Adversarial GLUE: A Multi-Task Benchmark for Robustness Evaluation of Language"
    " Models",
    "CheckList": "Ribeiro et al. 2020, Beyond Accuracy: Behavioral Testing of NLP Models with CheckList",
    "CAD": "Kaushik et al. 2020, Learning the Difference that Makes a Difference with Counterfactually-Augmented Data",
    "FEVER": "Schuster et al. 2019, Towards Debiasing Fact Verification Models",
    "contrast": "Gardner et al. 2020, Evaluating Models' Local Decision Boundaries via Contrast Sets",
}


@dataclass(frozen=True)
class KnownSet:
    """What is known of one published set.

    Attributes:
        name: as in `results.json`.
        group: the folder of a data folder that it may be in, and its own folder in there.
        tasks: the tasks whose classifiers it evaluates.
        citation: authors, year, title.
        texts: our column -> its column.
        label_names: of the labels 0, 1, ...; none where it has no labels.
        rows: split -> file -> the number of its rows. The files are those that are perturbed, and `originals`.
        originals: split -> the file of the unperturbed examples.
        kept: further columns.
        jsonl: whether the files are JSON lines.
    """

    name: str
    group: tuple[str, str]
    tasks: tuple[str, ...]
    citation: str
    texts: Mapping[str, str]
    label_names: tuple[str, ...]
    rows: Mapping[str, Mapping[str, int]]
    originals: Mapping[str, str] | None = None
    kept: tuple[str, ...] = ()
    jsonl: bool = False

    @property
    def header(self) -> list[str]:
        """The columns of its files, in order."""
        return [*self.kept, *(["label"] if self.label_names else []), *self.texts.values()]


def _adversarial(
    task: str, file: str, rows: int, tasks: tuple[str, ...], texts: Mapping[str, str], names: tuple[str, ...]
) -> KnownSet:
    where = ("attack", "AdvGLUE")
    return KnownSet(f"AdvGLUE_{task}", where, tasks, _PUBLISHED["AdvGLUE"], texts, names, {"dev": {file: rows}})


def _checklist(task: str, kind: str, rows: int, tasks: tuple[str, ...], names: tuple[str, ...]) -> KnownSet:
    return KnownSet(
        f"CheckList_{task}_{kind}",
        ("attack", "CheckList"),
        tasks,
        _PUBLISHED["CheckList"],
        _SINGLE if task == "sentiment" else _PAIR,
        names if kind == "MFT" else (),
        {"test": {f"{task.lower()}_{kind.lower()}": rows}},
        kept=("test", "capability") if kind == "MFT" else ("test", "group", "variant"),
    )


def _edited(split: str, count: int, revised: int, edits: Sequence[str]) -> dict[str, int]:
    return {f"{split}_original": count} | {f"{split}_{edit}": revised for edit in edits}


_CAD = {"train": 1707, "dev": 245, "test": 488}
_SNLI_CAD = {"train": 1666, "dev": 200, "test": 400}
_CLASSIFIERS = ("SST2", "MR", "IMDB", "Yelp")
# The counts are those of the releases; CheckList's suites are a sample of up to 200 cases or 300 groups a test.
KNOWN_SETS = {
    known.name: known
    for known in (
        _adversarial("SST2", "sst2", 148, _CLASSIFIERS, _SINGLE, SENTIMENT),
        _adversarial("QQP", "qqp", 78, ("QQP",), _PAIR, DUPLICATES),
        _adversarial("QNLI", "qnli", 148, ("QNLI",), _PAIR, ENTAILED),
        _adversarial("RTE", "rte", 81, ("RTE",), _PAIR, ENTAILED),
        _adversarial("MNLI", "mnli", 121, ("MNLI", "SNLI", "ANLI"), _NLI_PAIR, NLI),
        _adversarial("MNLI-MM", "mnli-mm", 162, ("MNLI", "SNLI", "ANLI"), _NLI_PAIR, NLI),
        _checklist("sentiment", "MFT", 2482, _CLASSIFIERS, ("negative", "neutral", "positive")),
        _checklist("sentiment", "INV", 6950, _CLASSIFIERS, ()),
        _checklist("QQP", "MFT", 6418, ("QQP",), DUPLICATES),
        _checklist("QQP", "INV", 5732, ("QQP",), ()),
        KnownSet(
            "FEVER_SYMMETRIC",
            ("nli", "FEVER_SYMMETRIC"),
            ("FEVER", "ANLI", "MNLI", "SNLI"),
            _PUBLISHED["FEVER"],
            _NLI_PAIR,
            NLI,
            {"dev": {"dev": 708}, "test": {"test": 712}},
            jsonl=True,
        ),
        KnownSet(
            "SNLI_CAD",
            ("nli", "SNLI_CAD"),
            ("SNLI", "MNLI", "ANLI"),
            _PUBLISHED["CAD"],
            _NLI_PAIR,
            NLI,
            {s: _edited(s, n, 2 * n, ("revised_premise", "revised_hypothesis")) for s, n in _SNLI_CAD.items()},
            originals={split: f"{split}_original" for split in _SNLI_CAD},
            jsonl=True,
        ),
        KnownSet(
            "IMDB_CAD",
            ("classification", "IMDB_CAD"),
            ("IMDB", "SST2", "MR", "Yelp"),
            _PUBLISHED["CAD"],
            _SINGLE,
            SENTIMENT,
            {split: _edited(split, n, n, ("revised",)) for split, n in _CAD.items()},
            originals={split: f"{split}_original" for split in _CAD},
            jsonl=True,
        ),
        KnownSet(
            "IMDB_contrast",
            ("classification", "IMDB_contrast"),
            ("IMDB", "SST2", "MR", "Yelp"),
            _PUBLISHED["contrast"],
            _SINGLE,
            SENTIMENT,
            {"test": _edited("test", 488, 488, ("contrast",))},
            originals={"test": "test_original"},
            jsonl=True,
        ),
    )
}


@dataclass(frozen=True)
class KnownRobustSet:
    """The rows of one published set and split.

    Attributes:
        name: a key of `KNOWN_SETS`.
        split: train, dev or test.
        tasks: the tasks whose classifiers it evaluates; the first is the one that it was made for.
        label_names: of the labels; none where it has no labels and measures invariance. CheckList's sentiment cases
            have a third label, neutral, that a classifier of two classes has not.
        dataset: columns `text`, or `sentence1` and `sentence2`; `label` where it has one, counted in `label_names`. For
            invariance `test`, `group` and `variant` (0 the original): within a test and group no prediction may change.
            CheckList's cases have `test` and `capability`, edited pairs `revised` (which file they are from).
        original: the unperturbed examples of the same rows, row by row; None if the set has none. Edited examples have
            another label than their originals: they test whether a model sees the difference.
        citation: authors, year, title.
        source: the folder.
        sha256: of the parsed rows.
    """

    name: str
    split: str
    tasks: tuple[str, ...]
    label_names: tuple[str, ...]
    dataset: Dataset
    original: Dataset | None
    citation: str
    source: str
    sha256: str

    @property
    def n(self) -> int:
        """The number of perturbed rows."""
        return len(self.dataset)

    @property
    def text_columns(self) -> list[str]:
        """`text`, or `sentence1` and `sentence2`."""
        return [name for name in ("text", "sentence1", "sentence2") if name in self.dataset.column_names]


def find_known_set(name: str) -> str:
    """The published set (a key of `KNOWN_SETS`) of a name in any case, such as `advglue-sst2`.

    Raises:
        UserError: for an unknown one.
    """
    plain = {re.sub(r"[-_/\s]", "", known).upper(): known for known in KNOWN_SETS}
    found = plain.get(re.sub(r"[-_/\s]", "", name).upper())
    if found is None:
        raise UserError(f"unknown robust set {name!r}; known: {', '.join(KNOWN_SETS)}")
    return found


def load_known_robust_set(
    name: str, data_dir: str | Path, split: str | None = None, *, check_rows: bool = True
) -> KnownRobustSet:
    """Load one published set from a folder.

    Files: `DIR/attack/AdvGLUE/sst2.tsv`, `DIR/attack/CheckList/sentiment_inv.tsv`,
    `DIR/nli/FEVER_SYMMETRIC/test.jsonl`, `DIR/nli/SNLI_CAD/test_revised_premise.jsonl`,
    `DIR/classification/IMDB_CAD/test_revised.jsonl`, …, each also `.gz`; `KNOWN_SETS` has all. DIR may be the inner
    folder (`attack`, `nli`, `classification`) itself.

    Args:
        name: a name that `find_known_set` reads.
        data_dir: the folder.
        split: train, dev or test; None for test, or the only one there is.
        check_rows: whether a number of rows other than the known one is an error.

    Raises:
        MissingData: if the files are not there; the message says what to put where.
        UserError: for an unknown name or split, a malformed row (file and line named), a label out of range, a wrong
            number of rows, or originals that do not belong to the edited examples.
    """
    info = KNOWN_SETS[find_known_set(name)]
    split = split or ("test" if "test" in info.rows else next(iter(info.rows)))
    if split not in info.rows:
        raise UserError(f"{info.name} has no split {split!r}; it has {', '.join(info.rows)}")
    paths = _find_files(info, split, Path(data_dir))
    read = {file: _read(info, path) for file, path in paths.items()}
    for file, rows in read.items():
        expected = info.rows[split][file]
        if not rows or (check_rows and len(rows) != expected):
            raise UserError(
                f"{info.name} has {len(rows)} rows in {paths[file]}, expected {expected}: it is cut off, or another"
                " version"
            )
    originals = read.pop(info.originals[split]) if info.originals else None
    dataset, original = _join(info, read, originals, split)
    digest = hashlib.sha256()
    for part in (dataset, original):
        for row in part or ():
            digest.update(("\t".join(map(str, row.values())) + "\n").encode("utf-8"))
    source = str(next(iter(paths.values())).parent)
    return KnownRobustSet(
        info.name, split, info.tasks, info.label_names, dataset, original, info.citation, source, digest.hexdigest()
    )


def _find_files(info: KnownSet, split: str, data_dir: Path) -> dict[str, Path]:
    suffix = ".jsonl" if info.jsonl else ".tsv"
    names = list(info.rows[split])
    for folder in task_folders(data_dir, *info.group):
        if found := tsv_files(folder, names, suffix):
            break
    if absent := [name for name in names if name not in found]:
        fields = ", ".join(info.header)
        how = f"JSON lines with {fields}" if info.jsonl else f"header {'<TAB>'.join(info.header)}"
        listed = ", ".join(f"{'/'.join(info.group)}/{file}{suffix}" for file in names)
        raise MissingData(
            f"{info.name} {split} is not under {data_dir} ({', '.join(absent)} missing)",
            f"put {listed} ({how}) into a folder and pass it as --data_dir. It is published by {info.citation}",
        )
    return {name: found[name] for name in names}


def _read(info: KnownSet, path: Path) -> list[dict[str, Any]]:
    """The rows of one file under our names."""
    rows = []
    renamed = {theirs: ours for ours, theirs in info.texts.items()}
    for where, fields in (read_objects if info.jsonl else read_rows)(path, info.header):
        row: dict[str, Any] = {}
        for name, value in zip(info.header, fields, strict=True):
            if name == "label":
                row[name] = _label(info, value, where)
            elif name in ("group", "variant"):
                row[name] = _whole(name, value, where)
            elif not isinstance(value, str):
                raise UserError(f"{where}: {name} is no text")
            else:
                row[renamed.get(name, name)] = clean(value, where)
        rows.append(row)
    if "group" in info.kept:
        _check_groups(rows, path)
    return rows


def _whole(name: str, value: Any, where: str) -> int:
    try:
        if isinstance(value, (bool, float)):
            raise ValueError
        number = int(value)
    except (ValueError, TypeError):
        raise UserError(f"{where}: the {name} {value!r} is not an integer") from None
    if number < 0:
        raise UserError(f"{where}: the {name} {number} is negative")
    return number


def _label(info: KnownSet, value: Any, where: str) -> int:
    label = _whole("label", value, where)
    if label >= len(info.label_names):
        raise UserError(f"{where}: the label {label} is not one of {info.name}'s, 0 to {len(info.label_names) - 1}")
    return label


def _check_groups(rows: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Refuse a group without its original or with no other variant."""
    ordered = sorted(rows, key=_group)
    for (test, group), members in groupby(ordered, _group):
        variants = [row["variant"] for row in members]
        if len(variants) < 2 or variants.count(0) != 1:
            raise UserError(f"{path}: the group {group} of the test {test!r} needs variant 0 once, and others")


def _group(row: Mapping[str, Any]) -> tuple[str, int]:
    return row["test"], row["group"]


def _join(
    info: KnownSet, read: Mapping[str, list[dict[str, Any]]], originals: list[dict[str, Any]] | None, split: str
) -> tuple[Dataset, Dataset | None]:
    """The perturbed rows of all files as one data set, and their originals row by row."""
    rows: list[dict[str, Any]] = []
    paired: list[dict[str, Any]] = []
    for file, revised in read.items():
        rows += [row | {"revised": file.removeprefix(f"{split}_")} if originals else row for row in revised]
        if originals:
            each, rest = divmod(len(revised), len(originals))
            if rest or not each:
                raise UserError(
                    f"{info.name}: {len(revised)} rows of {file} do not belong to {len(originals)} originals"
                )
            partners = [original for original in originals for _ in range(each)]
            for number, (row, partner) in enumerate(zip(revised, partners, strict=True), 1):
                if row["label"] == partner["label"]:
                    raise UserError(
                        f"{info.name}: row {number} of {file} has the label of its original, and an edit changes it:"
                        " the files do not belong together"
                    )
            paired += partners
    return _dataset(info, rows), _dataset(info, paired) if originals else None


def _dataset(info: KnownSet, rows: Sequence[Mapping[str, Any]]) -> Dataset:
    from datasets import ClassLabel, Dataset, Features, Value  # a second to import, and the options name sets alone

    types = {"label": ClassLabel(names=list(info.label_names)), "group": Value("int64"), "variant": Value("int64")}
    features = Features({name: types.get(name, Value("string")) for name in rows[0]})
    return Dataset.from_list([dict(row) for row in rows], features=features)


def group_invariance(dataset: Dataset, predictions: Sequence[Any]) -> dict[str, float]:
    """The share x 100 of groups whose variants all get one prediction, as CheckList counts its invariance tests.

    Args:
        dataset: n rows with the columns `test` and `group`.
        predictions: n.

    Returns:
        `all`: over all groups of all tests, and the share of each test under its name.

    Raises:
        UserError: if the lengths differ, there are no rows, or the data set has no groups.
    """
    if absent := {"test", "group"} - set(dataset.column_names):
        raise UserError(f"no column {' and '.join(sorted(absent))}: an invariance test has both")
    if len(predictions) != len(dataset) or not len(dataset):
        raise UserError(f"{len(predictions)} predictions for {len(dataset)} rows")
    seen: dict[tuple[str, int], set[Any]] = {}
    for test, group, prediction in zip(dataset["test"], dataset["group"], predictions, strict=True):
        seen.setdefault((test, group), set()).add(prediction)
    shares: dict[str, list[bool]] = {"all": []}
    for (test, _), found in seen.items():
        for name in ("all", test):
            shares.setdefault(name, []).append(len(found) == 1)
    return {name: 100 * sum(same) / len(same) for name, same in shares.items()}
