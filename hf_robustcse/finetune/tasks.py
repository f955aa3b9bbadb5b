"""The tasks of fine-tuning, and where their data are: a folder with `nli/SNLI/train.jsonl.gz` and so on, or the Hub.

A file may be `.jsonl` or `.tsv` (header first, no quoting; `.csv` with quotes), each also with `.gz`. Sentence pairs
are read from the columns `sentence1` and `sentence2` or `premise` and `hypothesis`, single texts from `text` or
`sentence`, the class from `label`, an integer from 0. SQuAD and DialogRE are JSON as their authors (or
`datasets`) write them. GLUE hides the labels of its test sets, so its dev sets are scored, as in every paper.
"""

from __future__ import annotations

import functools
import gzip
import hashlib
import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_robustcse.errors import UserError
from hf_robustcse.evaluation.hub import HubRows, HubSet, MissingData, prefetch_line, read_hub
from hf_robustcse.evaluation.known_sets import DUPLICATES, ENTAILED, NLI, SENTIMENT
from hf_robustcse.evaluation.sts import clean

if TYPE_CHECKING:
    import datasets

EXTENSIONS = (".jsonl", ".tsv", ".csv", ".json")
_ALIASES = {"sentence1": ("premise", "question1", "question"), "sentence2": ("hypothesis", "question2"),
            "text": ("sentence",), "label": ("score",)}  # fmt: skip


@dataclass(frozen=True)
class Source:
    """One data set.

    Attributes:
        name: as in `results.json`.
        folder: below the data folder.
        rows: split -> its number of rows; a training set may be a part of it, and so may what `parts` names.
        columns: of the text: ("text",) or ("sentence1", "sentence2"), or those of a kind of its own.
        labels: the names of the classes; empty for scores.
        kind: how its files are read: rows, squad or dialogre.
        parts: names of files that hold a part of a split.
        score: the range of the scores, if it has no classes.
        hub: where it is on the Hub, if anywhere.
    """

    name: str
    folder: str
    rows: Mapping[str, int]
    columns: tuple[str, ...] = ("sentence1", "sentence2")
    labels: tuple[str, ...] = NLI
    kind: str = "rows"
    parts: tuple[str, ...] = ("train", "train_subset", "eval_subset")
    score: tuple[float, float] = (0.0, 0.0)
    hub: HubSet | None = None

    def stems(self, split: str) -> tuple[str, ...]:
        """The names that the file of a split may have, without suffix, in order of preference."""
        subset = ("train_subset",) if split == "train" else ("eval_subset",) if self.kind == "squad" else ()
        return (split, *subset)


def _hub(
    name: str, splits: Mapping[str, str], columns: Mapping[str, str] | None = None, config: str | None = None
) -> HubSet:
    """A data set whose splits are one of ours each."""
    return HubSet(name, {ours: (theirs,) for ours, theirs in splits.items()}, columns=columns or {}, config=config)


def _glue(name: str, rows: Mapping[str, int], **others: Any) -> Source:
    config = name.lower().replace("-", "")
    columns = others.pop("hub_columns", {})
    splits = {"train": "train", "dev": "validation"}  # the labels of its test sets are not given away
    return Source(name, f"glue/{name}", rows, hub=_hub("nyu-mll/glue", splits, columns, config), **others)


_PAIR = {"sentence1": "premise", "sentence2": "hypothesis"}
_ANLI_ROWS = {1: (16946, 1000, 1000), 2: (45460, 1000, 1000), 3: (100459, 1200, 1200)}
_SPLITS = ("train", "dev", "test")
SOURCES: dict[str, Source] = {
    source.name: source
    for source in (
        *(
            Source(
                f"ANLI_R{number}",
                f"nli/ANLI_R{number}",
                dict(zip(_SPLITS, rows, strict=True)),
                hub=_hub("facebook/anli", {split: f"{split}_r{number}" for split in _SPLITS}, _PAIR),
            )
            for number, rows in _ANLI_ROWS.items()
        ),
        Source(
            "SNLI",
            "nli/SNLI",
            {"train": 549367, "dev": 9842, "test": 9824},
            hub=_hub("stanfordnlp/snli", {"train": "train", "dev": "validation", "test": "test"}, _PAIR),
        ),
        Source(
            "MNLI",
            "nli/MNLI",
            {"train": 392702, "dev_matched": 9815, "dev_mismatched": 9832},
            hub=_hub(
                "nyu-mll/glue",
                {"train": "train", "dev_matched": "validation_matched", "dev_mismatched": "validation_mismatched"},
                _PAIR,
                "mnli",
            ),
        ),
        # On the Hub the claim is called premise and the evidence hypothesis; here, as in ANLI, it is the other way.
        Source(
            "FEVER",
            "nli/FEVER",
            {"train": 208346},
            hub=_hub("pietrolesci/nli_fever", {"train": "train"},
                {"sentence1": "hypothesis", "sentence2": "premise"},
            ),
        ),
        _glue("CoLA", {"train": 8551, "dev": 1043}, columns=("text",), labels=("unacceptable", "acceptable"),
              hub_columns={"text": "sentence"}),
        Source(
            "SST2",
            "transfer/SST2",
            {"train": 6920, "dev": 872, "test": 1821},
            columns=("text",),
            labels=SENTIMENT,
            hub=_hub("SetFit/sst2", {"train": "train", "dev": "validation", "test": "test"}),
        ),
        Source(
            "MRPC",
            "transfer/MRPC",
            {"train": 4076, "test": 1725},
            labels=("different", "paraphrase"),
            hub=HubSet(
                "SetFit/mrpc",
                {"train": ("train", "validation"), "test": ("test",)},
                columns={"sentence1": "text1", "sentence2": "text2"},
            ),
        ),
        _glue("QQP", {"train": 363846, "dev": 40430}, labels=DUPLICATES,
              hub_columns={"sentence1": "question1", "sentence2": "question2"}),
        Source(
            "STSB",
            "sts/STSB",
            {"train": 5749, "dev": 1500, "test": 1379},
            labels=(),
            score=(0.0, 5.0),
            hub=_hub("mteb/stsbenchmark-sts", {"train": "train", "dev": "validation", "test": "test"},
                    {"label": "score"}),
        ),
        _glue("QNLI", {"train": 104743, "dev": 5463}, labels=ENTAILED,
              hub_columns={"sentence1": "question", "sentence2": "sentence"}),
        _glue("RTE", {"train": 2490, "dev": 277}, labels=ENTAILED),
        Source(
            "SQuAD",
            "squad",
            {"train": 87599, "dev": 10570},
            columns=("question", "context"),
            labels=(),
            kind="squad",
            hub=_hub("rajpurkar/squad", {"train": "train", "dev": "validation"}),
        ),
        Source("DialogRE", "dialogre", {"train": 5963, "dev": 1928, "test": 1858}, columns=("dialogue",), labels=(),
               kind="dialogre",),
        Source(
            "MR",
            "transfer/MR",
            {"all": 10662},  # there is no split
            columns=("text",),
            labels=SENTIMENT,
            hub=HubSet("cornell-movie-review-data/rotten_tomatoes", {"all": ("train", "validation", "test")}),
        ),
        Source(
            "IMDB",
            "classification/IMDB",
            {"train": 25000, "test": 25000},
            columns=("text",),
            labels=SENTIMENT,
            parts=("train", "test"),
            hub=_hub("stanfordnlp/imdb", {"train": "train", "test": "test"}),
        ),
        Source(
            "Yelp",
            "classification/Yelp",
            {"train": 560000, "test": 38000},
            columns=("text",),
            labels=SENTIMENT,
            parts=("train", "test"),
            hub=_hub("fancyzhx/yelp_polarity", {"train": "train", "test": "test"}),
        ),
        Source(
            "AGNews",
            "classification/AGNews",
            {"train": 120000, "test": 7600},
            columns=("text",),
            labels=("World", "Sports", "Business", "Sci/Tech"),
            hub=_hub("fancyzhx/ag_news", {"train": "train", "test": "test"}),
        ),
    )
}  # fmt: skip


@dataclass(frozen=True)
class Task:
    """What `--task NAME` trains on and is scored on.

    Attributes:
        name: the name, in lower case.
        train: (source, split), of which those that are not there are reported; at least one must be.
        scored: (source, split, name in `results.json`).
        metrics: the names of its metrics; the first is the one that counts.
        max_seq_length: tokens of an example unless the model or the user says less.
        neutral_in: the text behind which a neutral sentence changes no label; None if there is none.
        unsafe: perturbations that change its labels: a typo may make a sentence unacceptable.
    """

    name: str
    train: tuple[tuple[str, str], ...]
    scored: tuple[tuple[str, str, str], ...]
    metrics: tuple[str, ...] = ("accuracy",)
    max_seq_length: int = 128
    neutral_in: int | None = 0
    unsafe: tuple[str, ...] = ()

    @property
    def source(self) -> Source:
        """The data set whose columns and classes all others of the task share."""
        return SOURCES[self.train[0][0]]


def _plain(source: str, *splits: str, **others: Any) -> Task:
    scored = tuple((source, split, source if split == splits[-1] else f"{source}_{split}") for split in splits)
    return Task(source.lower(), ((source, "train"),), scored, **others)


TASKS = {
    task.name: task
    for task in (
        Task(
            "anli",
            (("SNLI", "train"), ("MNLI", "train"), ("FEVER", "train"), *((f"ANLI_R{n}", "train") for n in (1, 2, 3))),
            (
                *((f"ANLI_R{n}", "dev", f"ANLI_R{n}_dev") for n in (1, 2, 3)),
                *((f"ANLI_R{n}", "test", f"ANLI_R{n}") for n in (1, 2, 3)),
            ),
        ),
        _plain("SNLI", "dev", "test"),
        Task(
            "mnli",
            (("MNLI", "train"),),
            (("MNLI", "dev_matched", "MNLI"), ("MNLI", "dev_mismatched", "MNLI_mm")),
        ),
        _plain("CoLA", "dev", metrics=("matthews", "accuracy"), neutral_in=None, unsafe=("typos",)),
        _plain("SST2", "dev", "test"),
        _plain("MRPC", "test", metrics=("accuracy", "f1"), neutral_in=None),
        _plain("QQP", "dev", metrics=("accuracy", "f1"), neutral_in=None),
        _plain("STSB", "dev", "test", metrics=("spearman", "pearson"), neutral_in=None),
        _plain("QNLI", "dev", neutral_in=1),
        _plain("RTE", "dev"),
        _plain("SQuAD", "dev", metrics=("f1", "exact_match"), max_seq_length=384, neutral_in=None),
        _plain("DialogRE", "dev", "test", metrics=("f1", "precision", "recall"), max_seq_length=512),
        _plain("IMDB", "test", max_seq_length=256),
        _plain("Yelp", "test", max_seq_length=256),
        _plain("AGNews", "test"),
    )
}
POOLED = {
    "anli": {"ANLI": ("ANLI_R1", "ANLI_R2", "ANLI_R3"), "ANLI_dev": ("ANLI_R1_dev", "ANLI_R2_dev", "ANLI_R3_dev")}
}
"""Task -> {name in `results.json`: the sets whose rows it pools, if all of them are there}."""


@dataclass(frozen=True)
class Split:
    """The rows of one split of one source.

    Attributes:
        source: a key of `SOURCES`.
        split: its split.
        rows: columns of the texts and `label` (an integer, a float, a list of integers, or SQuAD's answers).
        origin: the file, or `hub:<data set>`.
        sha256: of the rows whatever their order.
        complete: whether it is known to be the whole split.
    """

    source: str
    split: str
    rows: datasets.Dataset
    origin: str
    sha256: str
    complete: bool

    @property
    def n(self) -> int:
        """The number of rows."""
        return len(self.rows)


def find_task(name: str) -> Task:
    """The task of a name in any case, such as `CoLA`, `SST-2` or `anli`.

    Raises:
        UserError: if there is none.
    """
    task = TASKS.get(name.lower().replace("-", "").replace("_", ""))
    if task is None:
        raise UserError(f"unknown task {name!r}; known: {', '.join(TASKS)}")
    return task


def load_split(source: Source, split: str, data_dir: str | Path | None) -> Split:
    """Load one split from `data_dir`, or from the Hub when that is None.

    Args:
        source: of `SOURCES`.
        split: one of its splits.
        data_dir: the folder that holds `source.folder`.

    Raises:
        MissingData: if it is not there; the message says what to put where.
        UserError: for a malformed file (file and line named), a label that does not exist, or a wrong number of rows.
    """
    if data_dir is None:
        (origin, rows), may_be_part = _read_hub(source, split), False
    else:
        path = _find_file(source, split, Path(data_dir))
        rows, origin = list(_READERS[source.kind](source, path)), str(path)
        may_be_part = path.name.split(".")[0] in source.parts
    if not rows:
        raise UserError(f"{source.name} {split} has no rows in {origin}")
    complete = len(rows) == source.rows[split]
    if not complete and not may_be_part:
        raise UserError(
            f"{source.name} {split} has {len(rows)} rows in {origin}, not {source.rows[split]}: is the file cut off, "
            "or another data set?"
        )
    digest = hashlib.sha256("\n".join(sorted(json.dumps(row, sort_keys=True) for row in rows)).encode()).hexdigest()
    import datasets  # here, as what reads files: the names of the tasks need none of it

    return Split(source.name, split, datasets.Dataset.from_list(rows), origin, digest, complete)


def how_to_get(source: Source, split: str, data_dir: str | Path | None = None) -> str:
    """Where the file of a split is expected, and how the same rows are had from the Hub."""
    suffixes = ", ".join(EXTENSIONS[:3] if source.kind == "rows" else EXTENSIONS[-1:])
    text = (
        f"put {source.folder}/{' or '.join(source.stems(split))} ({suffixes}, each also .gz; {source.rows[split]} rows "
        "when complete) into a folder and pass it as --data_dir"
    )
    if source.hub is not None and split in source.hub.splits:
        group = source.folder.split("/")[0]
        text += f"; or {prefetch_line(group if group in ('sts', 'transfer') else 'finetune', data_dir)}"
    return text


def prefetch_sets() -> dict[str, Callable[[Path | None], Fetched]]:
    """What `prefetch --tasks finetune` fetches: name -> `load(data_dir, or None for the Hub)`.

    SST-2, MRPC and STS-B are not among them: the groups `transfer` and `sts` have them.
    """
    own = [source for source in SOURCES.values() if source.folder.split("/")[0] not in ("sts", "transfer")]
    return {
        f"{source.name}_{split}": functools.partial(_fetched, source, split)
        for source in own
        if source.hub is not None
        for split in source.rows
        if split in source.hub.splits
    }


@dataclass(frozen=True)
class Fetched:
    """A split as `prefetch` writes it.

    Attributes:
        source: where it is from.
        sha256: of the rows whatever their order.
        part: the split.
    """

    source: str
    sha256: str
    part: Split

    def files(self) -> dict[str, str]:
        """Path within the data folder -> text."""
        source = SOURCES[self.part.source]
        path = f"{source.folder}/{self.part.split}"
        if source.kind == "squad":
            rows = [{"answers" if key == "label" else key: row[key] for key in row} for row in self.part.rows]
            return {f"{path}.json": json.dumps(rows, ensure_ascii=False) + "\n"}
        return {f"{path}.jsonl": "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in self.part.rows)}


def _fetched(source: Source, split: str, data_dir: Path | None) -> Fetched:
    part = load_split(source, split, data_dir)
    return Fetched(part.origin, part.sha256, part)


def _find_file(source: Source, split: str, data_dir: Path) -> Path:
    if not data_dir.is_dir():
        raise UserError(f"the data folder {data_dir} does not exist or is not a folder")
    for stem in source.stems(split):
        for folder in (data_dir / source.folder, data_dir / source.name):
            for suffix in (end + packed for end in EXTENSIONS for packed in ("", ".gz")):
                if (path := folder / f"{stem}{suffix}").is_file():
                    return path
    raise MissingData(f"{source.name} {split} is not under {data_dir}", how_to_get(source, split, data_dir))


def _read_rows(source: Source, path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a .jsonl, .tsv or .csv file."""
    for where, record in read_records(path):
        yield checked_row(source, record, where)


def read_records(path: Path, *, nul: bool = False) -> Iterator[tuple[str, dict[str, Any]]]:
    """The rows of a .jsonl, .tsv or .csv file as they are, each with where it is (file and line).

    Args:
        path: the file.
        nul: as in `data.table_records`.

    Raises:
        UserError: for a malformed file.
    """
    from hf_robustcse.data import json_records  # as above

    if ".json" in path.suffixes or ".jsonl" in path.suffixes:
        records = ((number, record) for number, record in json_records(path) if record is not None)
    else:
        records = _table(path, nul)
    for number, record in records:
        yield f"{path}, line {number}", record


def _table(path: Path, nul: bool) -> Iterator[tuple[int, dict[str, str]]]:
    from hf_robustcse.data import table_records

    lines = table_records(path, nul=nul)
    _, header = next(lines, (0, []))
    if len(set(header)) < len(header):
        raise UserError(f"{path}, line 1: a column is named twice")
    for number, fields in lines:
        if fields not in ([""], []):
            if len(fields) != len(header):
                raise UserError(f"{path}, line {number}: {len(fields)} fields, the header has {len(header)}")
            yield number, dict(zip(header, fields, strict=True))


def _read_hub(source: Source, split: str) -> tuple[str, list[dict[str, Any]]]:
    """The name of the source, and the rows."""
    columns = (*source.columns, "answers" if source.kind == "squad" else "label")

    def parse(_: Any, origin: str, found: HubRows) -> tuple[str, list[dict[str, Any]]]:
        records = ((where, dict(zip(columns, values, strict=True))) for where, values in found)
        if source.kind == "squad":
            return origin, [_question(record, where) for where, record in records]
        # -1: the annotators of SNLI did not agree
        return origin, [checked_row(source, record, where) for where, record in records if record["label"] != -1]

    sources = [] if source.hub is None else [source.hub]
    return read_hub(f"{source.name} {split}", sources, split, columns, parse, how_to_get(source, split))


def checked_row(
    source: Source, record: Mapping[str, Any], where: str, tidy: Callable[[str, str], str] = clean
) -> dict[str, Any]:
    """A row with its columns under our names.

    Args:
        source: whose columns and labels it must have.
        record: the row, under those names or the usual others.
        where: it is, for messages.
        tidy: what is done to each text, given also `where`.

    Raises:
        UserError: for a column that is missing, or a label that does not exist.
    """
    row: dict[str, Any] = {}
    for column in (*source.columns, "label"):
        name = next((name for name in (column, *_ALIASES[column]) if name in record), None)
        if name is None:
            raise UserError(f"{where}: there is no column {column} (found: {', '.join(record)})")
        row[column] = record[name]
    for column in source.columns:
        if not isinstance(row[column], str):
            raise UserError(f"{where}: the {column} is not a text")
        row[column] = tidy(row[column], where)
    label = row["label"]
    try:
        row["label"] = int(label) if source.labels else float(label)
    except (TypeError, ValueError, OverflowError):
        raise UserError(f"{where}: the label {label!r} is not a number") from None
    if source.labels and isinstance(label, float) and row["label"] != label:
        raise UserError(f"{where}: the label {label!r} is not a whole number")
    low, high = (0, len(source.labels) - 1) if source.labels else source.score
    if not low <= row["label"] <= high:
        raise UserError(f"{where}: the label {label} is not one of {source.name}'s, {low:g} to {high:g}")
    return row


def _read_json(path: Path) -> Any:
    try:
        with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8-sig") as file:
            return json.load(file)
    except (OSError, EOFError, zlib.error, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read, is it cut off? {' '.join(str(error).split())}") from None


def _read_squad(source: Source, path: Path) -> Iterator[dict[str, Any]]:
    """SQuAD 1.1: the file of its authors ({"data": [{"paragraphs": ...}]}), or a list of questions as on the Hub."""
    content = _read_json(path)
    if isinstance(content, dict):
        try:
            content = [
                {
                    "question": question["question"],
                    "context": paragraph["context"],
                    "answers": {
                        key: [answer[key] for answer in question["answers"]] for key in ("text", "answer_start")
                    },
                }
                for article in content["data"]
                for paragraph in article["paragraphs"]
                for question in paragraph["qas"]
            ]
        except (KeyError, TypeError) as error:
            raise UserError(f"{path} is not SQuAD 1.1 as its authors write it ({error!r})") from None
    for number, record in enumerate(content, 1):
        yield _question(record, f"{path}, question {number}")


def _question(record: Any, where: str) -> dict[str, Any]:
    try:
        answers = record["answers"]
        row = {"question": record["question"], "context": record["context"],
               "label": {"text": list(answers["text"]), "answer_start": list(answers["answer_start"])}}  # fmt: skip
    except (KeyError, TypeError) as error:
        raise UserError(
            f"{where}: it needs question, context, answers.text and answers.answer_start ({error!r})"
        ) from None
    if not row["label"]["text"]:
        raise UserError(f"{where}: a question without an answer; SQuAD 2.0 is not supported")
    for text, start in zip(row["label"]["text"], row["label"]["answer_start"], strict=True):
        if row["context"][start : start + len(text)] != text:
            raise UserError(f"{where}: the answer {text!r} is not at character {start} of the context")
    return row


RELATIONS = 36
"""DialogRE's relations; number 37 of its files says that there is none."""


def _read_dialogre(source: Source, path: Path) -> Iterator[dict[str, Any]]:
    """DialogRE: a list of [utterances, [{"x", "y", "rid", "t"}, ...]]; one row for each pair of arguments x and y."""
    for number, record in enumerate(_read_json(path), 1):
        where = f"{path}, dialogue {number}"
        try:
            utterances, pairs = record
            for pair in pairs:
                row = {
                    "dialogue": "\n".join(utterances),
                    "x": pair["x"],
                    "y": pair["y"],
                    "triggers": [trigger for trigger in pair["t"] if trigger],
                    "label": [relation - 1 for relation in pair["rid"] if relation <= RELATIONS],
                }
                if not all(1 <= relation <= RELATIONS + 1 for relation in pair["rid"]):
                    raise UserError(f"{where}: rid {pair['rid']} is not within 1 and {RELATIONS + 1}")
                yield row
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, UserError):
                raise
            raise UserError(f"{where}: it must be [utterances, [{{x, y, rid, t}}, ...]] ({error!r})") from None


_READERS: dict[str, Callable[[Source, Path], Iterator[dict[str, Any]]]] = {
    "rows": _read_rows,
    "squad": _read_squad,
    "dialogre": _read_dialogre,
}
