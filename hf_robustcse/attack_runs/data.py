"""What is attacked and what its victims are trained on: rows of a file, of a data folder, or of the Hub."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_robustcse.attacks import Example
from hf_robustcse.attacks.goals import Untargeted
from hf_robustcse.attacks.pairs import load_pair_task
from hf_robustcse.errors import UserError
from hf_robustcse.evaluation.hub import MissingData
from hf_robustcse.evaluation.known_sets import NLI
from hf_robustcse.finetune.tasks import SOURCES, Source, checked_row, load_split, read_records

SUFFIXES = (".tsv", ".csv", ".jsonl", ".json")
_ATTACK_SETS = ("test1k.tsv", "test1k.tsv.gz")
_MANY_CLASSES = 10000
_ENOUGH = 10  # rows of each class that a victim is trained on at least


@dataclass(frozen=True)
class AttackTask:
    """A classification task.

    Attributes:
        name: as in `results.json`.
        source: whose columns and classes its rows have.
        test: (source, split) that is attacked where there is no set made for it; None for rows of the user's own.
        train: what victims are trained on, of which one at least must be there.
        nli: whether the texts are premise and hypothesis, of which only the hypothesis is attacked.
        max_seq_length: tokens of an input of a victim that is fine-tuned here, unless the model or the user says less.
    """

    name: str
    source: Source
    test: tuple[str, str] | None = None
    train: tuple[tuple[str, str], ...] = ()
    nli: bool = False
    max_seq_length: int = 128

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of the texts of an example."""
        return ("premise", "hypothesis") if self.nli else self.source.columns

    def example(self, row: Mapping[str, Any]) -> Example:
        """A row as what is attacked."""
        texts = (row[column] for column in self.source.columns)
        frozen = ("premise",) if self.nli else ()
        return Example(dict(zip(self.columns, texts, strict=True)), Untargeted(row["label"]), frozen)


def _task(name: str, source: str, split: str, *train: str) -> AttackTask:
    trained = tuple((one, "all" if "all" in SOURCES[one].rows else "train") for one in train or (source,))
    nli = SOURCES[source].labels == NLI or source == "RTE"
    return AttackTask(name, SOURCES[source], (source, split), trained, nli, 256 if source in ("IMDB", "Yelp") else 128)


_ANLI = ("SNLI", "MNLI", "FEVER", "ANLI_R1", "ANLI_R2", "ANLI_R3")
TASKS: dict[str, AttackTask] = {
    task.name: task
    for task in (
        _task("MR", "MR", "all"),
        _task("IMDB", "IMDB", "test"),
        _task("Yelp", "Yelp", "test"),
        _task("AGNews", "AGNews", "test"),
        _task("SST2", "SST2", "test"),
        _task("SNLI", "SNLI", "test"),
        _task("MNLI_matched", "MNLI", "dev_matched"),
        _task("MNLI_mismatched", "MNLI", "dev_mismatched"),
        *(_task(f"ANLI_R{number}", f"ANLI_R{number}", "test", *_ANLI) for number in (1, 2, 3)),
        _task("CoLA", "CoLA", "dev"),
        _task("MRPC", "MRPC", "test"),
        _task("QQP", "QQP", "dev"),
        _task("QNLI", "QNLI", "dev"),
        _task("RTE", "RTE", "dev"),
    )
}
OWN = "own"
"""The name of a task that is given by `--data_file` alone."""


@dataclass(frozen=True)
class Attacked:
    """What is attacked.

    Attributes:
        task: its name in `results.json`.
        examples: (number of the row in its source, example), in order.
        split: of the source, or None for a file of the user's own.
        origin: the file, or `hub:<data set>`.
        chosen: which rows of the source they are, in words.
        sha256: of the examples in order.
        rest: the rows of the source that are not attacked, which a victim can be trained on.
        classification: the task whose classes the examples have; None for similarities.
        more: number -> what its row in the attacked set has besides.
    """

    task: str
    examples: list[tuple[int, Example]]
    split: str | None
    origin: str
    chosen: str
    sha256: str
    rest: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    classification: AttackTask | None = None
    more: Mapping[int, dict[str, Any]] = dataclasses.field(default_factory=dict)

    @property
    def classes(self) -> int:
        """The number of classes; 0 for similarities."""
        return len(self.classification.source.labels) if self.classification else 0


@dataclass(frozen=True)
class Choice:
    """Which rows are attacked.

    Attributes:
        data_file: rows of the user's own; before `data_dir`.
        data_dir: folder with `attack/MR/test1k.tsv` and so on; without both the Hub is asked.
        num_examples: at most.
        shuffle: whether they are a random sample in place of the first ones; the rows of a test split always are,
            because some are sorted by class.
        seed: of the sample.
        edit, distance: of scored pairs, as in `attacks.pairs.sts_examples`.
        threshold: of texts against themselves, as in `attacks.pairs.self_examples`.
    """

    data_file: str | None = None
    data_dir: str | None = None
    num_examples: int = 1000
    shuffle: bool = False
    seed: int = 0
    edit: str = "second"
    distance: float = 0.5
    threshold: float = 0.5

    def of(self, n: int, shuffle: bool) -> tuple[list[int], str]:
        """Which of n rows, in order, and in words."""
        count = min(self.num_examples, n)
        if shuffle:
            chosen = f"a random sample of {count} of {n} rows, seed {self.seed}"
            return sorted(random.Random(self.seed).sample(range(n), count)), chosen
        return list(range(count)), f"the first {count} of {n} rows" if count < n else f"all {count} rows"


def _load_pairs(name: str, choice: Choice) -> Attacked:
    """Scored pairs, or texts against themselves."""
    goal = {"edit": choice.edit, "distance": choice.distance, "threshold": choice.threshold}
    task = load_pair_task(name, choice.data_dir, choice.data_file, **goal)
    numbers, chosen = choice.of(len(task.examples), choice.shuffle or choice.data_file is None)
    examples = [(number, task.examples[number]) for number in numbers]
    texts = [
        [{**one.context, **one.columns}, list(one.columns), one.goal.gold, one.goal.distance] for _, one in examples
    ]
    digest = hashlib.sha256(json.dumps(texts, sort_keys=True).encode()).hexdigest()
    split = "test" if choice.data_file is None else None
    more = {number: task.more[number] for number in numbers}
    return Attacked(name, examples, split, task.source, chosen, digest, more=more)


Loader = Callable[[Choice], Attacked]
LOADERS: dict[str, Loader] = {name: functools.partial(_load_pairs, name) for name in ("STSB", "SICKR", "similarity")}
"""Tasks of another kind than classification: name -> what loads them."""


def task_names() -> list[str]:
    """What `--task` may be."""
    return [*TASKS, *LOADERS, OWN]


def find_task(name: str) -> str:
    """The task of a name in any case, such as `mr` or `SST-2`.

    Raises:
        UserError: if there is none.
    """
    plain = {known.lower().replace("_", ""): known for known in task_names()}
    found = plain.get(name.lower().replace("-", "").replace("_", ""))
    if found is None:
        raise UserError(f"--task: unknown task {name!r}; known: {', '.join(task_names())}")
    return found


def load_attacked(name: str, choice: Choice) -> Attacked:
    """Load what is attacked.

    Args:
        name: of `task_names`.
        choice: which rows.

    Raises:
        UserError: if the data are absent or malformed (file and line named).
    """
    if name in LOADERS:
        return LOADERS[name](choice)
    if choice.data_file is not None:
        path = Path(choice.data_file)
        task = own_task(path) if name == OWN else TASKS[name]
        rows, origin, split, shuffle = read_file(task, path), str(path), None, choice.shuffle
        if name == OWN:
            labels = tuple(map(str, range(max((row["label"] for row in rows), default=0) + 1)))
            task = dataclasses.replace(task, source=dataclasses.replace(task.source, labels=labels))
    elif name == OWN:
        raise UserError(f"--task {OWN} is for rows of your own: name them with --data_file")
    else:
        task = TASKS[name]
        rows, origin, split, shuffle = _known_rows(task, choice)
    if not rows:
        raise UserError(f"{origin} has no rows")
    numbers, chosen = choice.of(len(rows), shuffle)
    taken = set(numbers)
    digest = hashlib.sha256(json.dumps([rows[number] for number in numbers], sort_keys=True).encode()).hexdigest()
    return Attacked(
        name,
        [(number, task.example(rows[number])) for number in numbers],
        split,
        origin,
        chosen,
        digest,
        [row for number, row in enumerate(rows) if number not in taken],
        task,
    )


def _known_rows(task: AttackTask, choice: Choice) -> tuple[list[dict[str, Any]], str, str, bool]:
    """The rows that a data folder or the Hub has for a task, where from, their split, and whether to sample them."""
    if choice.data_dir is not None:
        folder = Path(choice.data_dir)
        if not folder.is_dir():
            raise UserError(f"the data folder {folder} does not exist or is not a folder")
        for parent in (folder / "attack" / task.name, folder / task.name):
            for name in _ATTACK_SETS:
                if (path := parent / name).is_file():
                    return read_file(task, path), str(path), "test1k", choice.shuffle
    source, split = task.test or ("", "")
    try:
        part = load_split(SOURCES[source], split, choice.data_dir)
    except MissingData as error:
        own = f"or name a file of your own with --data_file, or put attack/{task.name}/test1k.tsv into --data_dir"
        raise UserError(f"{error}; {own}") from error
    return list(part.rows), part.origin, split, True


def read_file(task: AttackTask, path: Path) -> list[dict[str, Any]]:
    """The rows of a .tsv, .csv or .jsonl file (also .gz): `label` and the columns of the task's source.

    Texts are as in the file, and may be empty.

    Raises:
        UserError: for a file that is absent or malformed; the line is named.
    """
    return [checked_row(task.source, record, where, _as_it_is) for where, record in _records(path)]


def _records(path: Path) -> list[tuple[str, dict[str, Any]]]:
    if not path.is_file():
        raise UserError(f"there is no file {path}")
    if not any(path.name.lower().removesuffix(".gz").endswith(suffix) for suffix in SUFFIXES):
        raise UserError(f"{path}: a .tsv, .csv or .jsonl file with a header (also .gz) is needed; the name says which")
    return list(read_records(path, nul=True))


def _as_it_is(text: str, where: str) -> str:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:  # an escaped half of a surrogate pair, which JSON lets through
        raise UserError(f"{where}: a text that is not valid Unicode") from None
    return text


def own_task(path: Path) -> AttackTask:
    """The task of a file of the user's own: its columns say whether its rows are texts or pairs."""
    records = _records(path)
    names = set(records[0][1]) if records else set()
    pair = names >= {"premise", "hypothesis"} or names >= {"sentence1", "sentence2"}
    columns = ("sentence1", "sentence2") if pair else ("text",)
    source = Source(OWN, "", {}, columns=columns, labels=("",) * _MANY_CLASSES)
    return AttackTask(OWN, source, nli="premise" in names)


@dataclass(frozen=True)
class Training:
    """What a victim is trained on.

    Attributes:
        rows: with the columns of the task's source and `label`.
        origins: of them.
        sha256: of the rows in order.
        removed: how many were taken out because they are attacked.
    """

    rows: list[dict[str, Any]]
    origins: list[str]
    sha256: str
    removed: int

    def describe(self) -> dict[str, Any]:
        """For the results."""
        return {"origin": self.origins, "n": len(self.rows), "removed": self.removed, "sha256": self.sha256}


def load_training(
    attacked: Attacked, *, train_file: str | None = None, data_dir: str | None = None, limit: int | None = None
) -> Training:
    """What victims of a task are trained on, without the examples that are attacked.

    The rows are those of `train_file`, or of the data folder, or what `attacked` left of its file, or from the Hub.
    Those are taken out that have the same letters and digits as an attacked example, whatever their case, spacing and
    punctuation: copies of one data set differ in these.

    Args:
        attacked: what is attacked.
        train_file: as `read_file` reads it.
        data_dir: folder with `transfer/MR/all.tsv`, `nli/SNLI/train.jsonl.gz` and so on.
        limit: rows at most: a random sample, always the same.

    Raises:
        UserError: if there are none, or too few of a class.
    """
    task = attacked.classification
    assert task is not None
    if train_file is not None:
        path = Path(train_file)
        rows, origins = read_file(task, path), [str(path)]
    elif data_dir is None and _enough(attacked.rest, task):
        rows, origins = attacked.rest, [f"{attacked.origin}, the rows that are not attacked"]
    elif not task.train:
        raise UserError(f"name what the victim is trained on with --train_file: {attacked.origin} has no rows to spare")
    else:
        rows, origins = _known_training(task, data_dir)
    keys = {_letters(example.columns.values()) for _, example in attacked.examples}
    kept = [row for row in rows if _letters(row[column] for column in task.source.columns) not in keys]
    removed = len(rows) - len(kept)
    if limit is not None and limit < len(kept):
        kept = random.Random(0).sample(kept, limit)
    if not _enough(kept, task):
        raise UserError(
            f"{', '.join(origins)}: a victim needs {_ENOUGH} rows of each of {len(task.source.labels)} classes at "
            f"least that are not attacked; {len(kept)} rows are left"
        )
    digest = hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()
    return Training(kept, origins, digest, removed)


def _known_training(task: AttackTask, data_dir: str | None) -> tuple[list[dict[str, Any]], list[str]]:
    rows: list[dict[str, Any]] = []
    origins, missing = [], []
    for source, split in task.train:
        try:
            part = load_split(SOURCES[source], split, data_dir)
        except MissingData as error:
            missing.append(str(error))
            continue
        rows += list(part.rows)
        origins.append(part.origin)
    if not origins:
        raise UserError(f"there is nothing to train a victim on: {missing[0]}; or name a file with --train_file")
    return rows, origins


def _enough(rows: Sequence[Mapping[str, Any]], task: AttackTask) -> bool:
    counts = dict.fromkeys(range(len(task.source.labels)), 0)
    for row in rows:
        counts[row["label"]] += 1
    return min(counts.values()) >= _ENOUGH


def _letters(texts: Any) -> str:
    """The letters and digits of texts, which all copies of a data set share."""
    return "\n".join("".join(filter(str.isalnum, text.casefold())) for text in texts)
