"""Transfer to sentence classification as in SentEval: logistic regression on frozen embeddings, accuracy x 100.

MR, CR, SUBJ and MPQA are one set each: 10-fold cross-validation, and within the training part of every fold 10 folds
more that choose the L2 penalty. TREC and MRPC have a train and a test set: 10 folds of train choose the penalty, then
all of train is fitted and test scored. SST2 has a dev set, which chooses it. A single sentence is represented by its
embedding u, a pair of MRPC by ``[|u - v|, u * v]``. Folds are stratified and shuffled with a seed.

Where this departs from SentEval (Conneau & Kiela 2018, its released code):

* The classifier is scikit-learn's logistic regression fitted to convergence, as on SentEval's own scikit-learn path.
  Most published tables use its other path (`usepytorch`): a linear layer stopped early on dev accuracy, by Adam with
  batch 64, tenacity 5 and 10 folds (the "default" configuration), or by RMSprop with batch 128, tenacity 3 and 5 folds
  (the "prototyping" one). The model is the same, the figures are not to the last decimals.
* The penalty grid is `PENALTIES`. SentEval's scikit-learn path has C = 1/penalty in 2^-2 ... 2^3 (2^-1 ... 2^5 for TREC
  and MRPC), its Adam path weight decay in 1e-5 ... 1e-2.
* The fits that choose a penalty are solved together by Newton's method (`regression`), nearer to the optimum than
  scikit-learn's stopping rule asks for; every fit that is scored is scikit-learn's.
* Embeddings are divided by one number per task: the standard deviation of their entries, each about the mean of its
  dimension, over the training set (for the first four tasks: all rows; labels play no part). So a penalty means the
  same for an encoder that normalises its output or puts everything into a narrow cone, and for one that does not.
  SentEval takes them as they are.
* The seed is `seed` (0), where SentEval's is 1111 throughout; nothing is rounded before the end.
* Text is that of the files, not split at white space into tokens first. SST2 trains on phrases, as SentEval does, from
  the Hub and where `SST2/train_phrases.tsv` is there, else on sentences; the result says on which (`train`).
"""

from __future__ import annotations

import functools
import hashlib
import re
import sys
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.model_selection import StratifiedKFold
from threadpoolctl import threadpool_limits
from tqdm import tqdm

from hf_robustcse.errors import UserError
from hf_robustcse.evaluation.hub import HubLines, HubRows, HubSet, MissingData, check_manifest, prefetch_line, read_hub
from hf_robustcse.evaluation.regression import fit_together, one_thread, predict
from hf_robustcse.evaluation.sts import Embeddings, Encode, clean, read_rows, table_text, task_folders, tsv_files

Row = tuple[int, tuple[str, ...]]
Texts = Sequence[tuple[str, ...]]
"""Rows without their labels: one sentence each, or two."""
Classify = Callable[[Embeddings, Texts], np.ndarray]
"""Embeddings that hold the sentences of n rows, and the rows -> (n,) predicted labels."""

FOLDS = 10
# The weight of half the squared norm against the sum (not the mean) of the losses, from strong to weak, for embeddings
# whose entries have standard deviation 1.
PENALTIES = tuple(float(4**power) for power in range(7, -2, -1))
MAX_ITER = 1000
DTYPE = np.float32  # of the features: half the memory and about half the time of float64
SST2_TRAIN = ("auto", "phrases", "sentences")


@dataclass(frozen=True)
class TransferTask:
    """What is known of one transfer task.

    Attributes:
        name: as in `results.json`.
        rows: file -> the numbers of rows that it may have.
        classes: the number of classes; labels count from 0.
        pairs: whether a row is a pair of sentences.
        per_class: the number of rows of each class, where it is the same for all.
        hub: where its files are on the Hub, for each in order of preference.
    """

    name: str
    rows: Mapping[str, tuple[int, ...]]
    classes: int = 2
    pairs: bool = False
    per_class: int | None = None
    hub: tuple[HubSet | HubLines, ...] = ()

    @property
    def header(self) -> list[str]:
        """The first line of its files."""
        return ["label", "sentence1", "sentence2"] if self.pairs else ["label", "text"]

    @property
    def splits(self) -> tuple[str, ...]:
        """The files that it needs (`train_phrases` stands in for one of them)."""
        return tuple(name for name in self.rows if name != "train_phrases")


# CR has 3775 rows in SentEval's copy, 3771 where the four empty ones are dropped. MRPC's train is GLUE's train and
# validation together. SimCSE's archive of SentEval's data is the one whose SUBJ was corrupt for a while; it is the only
# place known to have MPQA in the form that everyone reports on.
TASKS = {
    task.name: task
    for task in (
        TransferTask(
            "MR",
            {"all": (10662,)},
            per_class=5331,
            hub=(
                HubSet(
                    "cornell-movie-review-data/rotten_tomatoes",
                    {"all": ("train", "validation", "test")},
                    "aa13bc287fa6fcab6daf52f0dfb9994269ffea28",
                ),
            ),
        ),
        TransferTask(
            "CR",
            {"all": (3771, 3775)},
            # The files that its jsonl files were made from; by their size they hold every sentence.
            hub=(HubLines("SetFit/SentEval-CR", {"all": ("custrev.neg", "custrev.pos")}),),
        ),
        TransferTask(
            "SUBJ",
            {"all": (10000,)},
            per_class=5000,
            hub=(HubSet("SetFit/subj", {"all": ("train", "test")}, "f3c1162e678417f664d76b21864fdb87b0615fcf"),),
        ),
        TransferTask(
            "MPQA",
            {"all": (10606,)},
            hub=(
                HubLines(
                    "princeton-nlp/datasets-for-simcse",
                    {"all": ("MPQA/mpqa.neg", "MPQA/mpqa.pos")},
                    "e145e8bb659b2aa2669f32ef79cb4cdef6c58fef",
                    archive="senteval.tar",
                ),
                HubSet("rahulsikder223/SentEval-MPQA", {"all": ("train", "test")}, columns={"text": "sentence"}),
            ),
        ),
        TransferTask(
            "SST2",
            {"train": (6920,), "dev": (872,), "test": (1821,), "train_phrases": (67349,)},
            hub=(
                HubSet(
                    "SetFit/sst2",
                    {"train": ("train",), "dev": ("validation",), "test": ("test",)},
                    "00ea8ccb7a54b4e3780a3e51aa3f80361ff849c0",
                ),
                HubSet(
                    "stanfordnlp/sst2",
                    {"train_phrases": ("train",)},
                    "8d51e7e4887a4caaa95b3fbebbf53c0490b58bbb",
                    {"text": "sentence"},
                ),
            ),
        ),
        TransferTask(
            "TREC",
            {"train": (5452,), "test": (500,)},
            classes=6,
            hub=(
                HubSet("SetFit/TREC-QC", {"train": ("train",), "test": ("test",)}, columns={"label": "label_coarse"}),
            ),
        ),
        TransferTask(
            "MRPC",
            {"train": (4076,), "test": (1725,)},
            pairs=True,
            hub=(
                HubSet(
                    "SetFit/mrpc",
                    {"train": ("train", "validation"), "test": ("test",)},
                    "2e2058c90792fb6dc86125943e4d2f96a5155a6b",
                    {"sentence1": "text1", "sentence2": "text2"},
                ),
            ),
        ),
    )
}
# Averages of seven (V-advCSE and most others) and of six (RobustSentEmbed, which leaves TREC out).
AVERAGES = {"transfer": tuple(TASKS), "transfer_6": tuple(name for name in TASKS if name != "TREC")}
_KNOWN_WRONG = {
    ("SUBJ", "all", 5020): "SimCSE's copy of SentEval's data once held 20 sentences of one class, on which any encoder "
    "scores above 99: get the data set again",
    ("SST2", "train", 67349): "those are the phrases: name the file train_phrases.tsv",
    ("MRPC", "train", 3668): "that is GLUE's train set: append its validation set (408 pairs)",
}


def find_task(name: str) -> str | None:
    """The transfer task (a key of `TASKS`) of a name in any case, such as `mr` or `SST-2`; None if it is none."""
    name = re.sub(r"[-_\s]", "", name).upper()
    return name if name in TASKS else None


@dataclass(frozen=True)
class TransferData:
    """The rows of one task.

    Attributes:
        task: a key of `TASKS`.
        splits: `all`, or `train`, (`dev`,) `test` -> [(label, (sentence,) or (sentence1, sentence2)), ...].
        source: the folder, or `hub:<data set>@<revision>`, more than one for SST2 with phrases.
        sha256: of the parsed rows whatever their order within a split, so that two copies of one set agree.
        train: `phrases` or `sentences`, what SST2 trains on; None for another task.
    """

    task: str
    splits: Mapping[str, list[Row]]
    source: str
    sha256: str
    train: str | None = None

    @property
    def key(self) -> str:
        """The name in `results.json`."""
        return self.task

    @property
    def split(self) -> str:
        """What is scored: `test`, or `all` by cross-validation."""
        return "all" if "all" in self.splits else "test"

    @property
    def n(self) -> int:
        """The number of rows that are scored."""
        return len(self.splits[self.split])

    @cached_property
    def sentences(self) -> list[str]:
        """The distinct sentences of all splits, in order of first appearance."""
        return list(dict.fromkeys(text for rows in self.splits.values() for _, texts in rows for text in texts))

    def files(self) -> dict[str, str]:
        """The files that `load_transfer` reads back as these rows: path within a data folder -> text."""
        task = TASKS[self.task]
        return {
            f"transfer/{self.task}/{_file_of(split, self.train)}.tsv": table_text(
                task.header, ([str(label), *texts] for label, texts in rows)
            )
            for split, rows in self.splits.items()
        }


def load_transfer(
    task: str, data_dir: str | Path | None, *, sst2_train: str = "auto", check_rows: bool = True
) -> TransferData:
    """Load one task from `data_dir`, or from the Hub when that is None.

    Files: `DIR/transfer/TASK/all.tsv`, for SST2, TREC and MRPC `train.tsv`, (`dev.tsv`,) `test.tsv` (DIR may be the
    `transfer` folder itself; each file may be `.tsv.gz`). The first line is the header `label text` (MRPC: `label
    sentence1 sentence2`; in any order), one tab between fields, no quoting.

    Args:
        task: a name that `find_task` reads.
        data_dir: the folder, or None for the Hub.
        sst2_train: what SST2 trains on: `sentences` (`train.tsv`), `phrases` (`train_phrases.tsv`, all labelled phrases
            and sentences, as SentEval and GLUE do), or `auto`: the phrases if that file is there, or from the Hub.
        check_rows: whether a number of rows, or of rows of a class, other than the known one is an error.

    Returns:
        The rows.

    Raises:
        MissingData: if the data are not there; the message says what to put where.
        UserError: for an unknown task, a malformed row (file and line named), a wrong number of rows, or too few rows
            of a class to fit anything.
    """
    name = find_task(task)
    if name is None:
        raise UserError(f"unknown transfer task {task!r}; known: {', '.join(TASKS)}")
    if sst2_train not in SST2_TRAIN:
        raise UserError(f"sst2_train must be one of {', '.join(SST2_TRAIN)}, not {sst2_train!r}")
    info = TASKS[name]
    if data_dir is None:
        phrases = "train_phrases" in info.rows and sst2_train != "sentences"
        files = {split: _file_of(split, "phrases" if phrases else None) for split in info.splits}
        splits, origins = {}, []
        for split, file in files.items():

            def parse(_: HubSet | HubLines, origin: str, found: HubRows, file: str = file) -> tuple[str, list[Row]]:
                rows = [_checked(info, label, texts, where) for where, (label, *texts) in found]
                _check_rows(info, file, rows, origin, check_rows)
                return origin, rows

            origin, splits[split] = read_hub(f"{name} {file}", info.hub, file, info.header, parse, how_to_get(info))
            origins.append(origin)
        source = ", ".join(dict.fromkeys(origins))
    else:
        files, paths = _find_files(info, Path(data_dir), sst2_train)
        splits = {split: list(_read_file(info, path)) for split, path in paths.items()}
        source = str(next(iter(paths.values())).parent)
        for split, rows in splits.items():
            _check_rows(info, files[split], rows, paths[split], check_rows)
        check_manifest(data_dir, paths.values())
    _check_classes(info, splits, source)
    lines = (f"{split}\t{label}\t" + "\t".join(texts) for split, rows in splits.items() for label, texts in rows)
    digest = hashlib.sha256("\n".join(sorted(lines)).encode("utf-8")).hexdigest()
    train = None
    if "train_phrases" in info.rows:
        train = "phrases" if files["train"] == "train_phrases" else "sentences"
    return TransferData(name, splits, source, digest, train)


def prefetch_sets() -> dict[str, Callable[[Path | None], TransferData]]:
    """What `hf-robustcse prefetch --tasks transfer` fetches: name -> a function that loads it from a folder or the Hub.

    SST2 is there twice, with the sentences and with the phrases to train on, so that `sst2_train` can choose.
    """
    sets: dict[str, Callable[[Path | None], TransferData]] = {
        name: functools.partial(load_transfer, name, sst2_train="sentences") for name in TASKS
    }
    return sets | {"SST2_phrases": functools.partial(load_transfer, "SST2", sst2_train="phrases")}


def how_to_get(task: TransferTask, data_dir: str | Path | None = None) -> str:
    """The command that fetches a task, and where its files are expected."""
    names = f"{{{','.join(task.splits)}}}" if len(task.splits) > 1 else task.splits[0]
    counts = ", ".join(" or ".join(map(str, task.rows[split])) for split in task.splits)
    phrases = ", or train_phrases.tsv instead of train.tsv" if "train_phrases" in task.rows else ""
    return (
        f"{prefetch_line('transfer', data_dir)}; or put transfer/{task.name}/{names}.tsv there yourself (header "
        f"{'<TAB>'.join(task.header)}, {counts} rows, labels 0 to {task.classes - 1}{phrases})"
    )


def _file_of(split: str, train: str | None) -> str:
    """The name of a split's file, without suffix."""
    return "train_phrases" if split == "train" and train == "phrases" else split


def _find_files(task: TransferTask, data_dir: Path, sst2_train: str) -> tuple[dict[str, str], dict[str, Path]]:
    """Split -> the name of its file, and split -> its file."""
    found: dict[str, Path] = {}
    for folder in task_folders(data_dir, "transfer", task.name):
        if found := tsv_files(folder, task.rows):
            break
    phrases = "train_phrases" in task.rows and (
        sst2_train == "phrases" or (sst2_train == "auto" and "train_phrases" in found)
    )
    names = {split: _file_of(split, "phrases" if phrases else None) for split in task.splits}
    if absent := [name for name in names.values() if name not in found]:
        raise MissingData(f"{task.name} {', '.join(absent)} is not under {data_dir}", how_to_get(task, data_dir))
    return names, {split: found[name] for split, name in names.items()}


def _read_file(task: TransferTask, path: Path) -> Iterator[Row]:
    for where, (label, *texts) in read_rows(path, task.header):
        yield _checked(task, label, texts, where)


def _checked(task: TransferTask, label: str | int, texts: Sequence[str | None], where: str) -> Row:
    try:
        value = int(label)
    except (ValueError, TypeError):
        shown = repr(label if len(str(label)) <= 40 else f"{label[:40]}...")
        raise UserError(f"{where}: the label {shown} is not an integer; are the columns as the header says?") from None
    if not 0 <= value < task.classes:
        raise UserError(f"{where}: the label {value} is not one of {task.name}'s, 0 to {task.classes - 1}")
    return value, tuple(clean(text, where) for text in texts)


def _check_rows(task: TransferTask, name: str, rows: Sequence[Row], source: str | Path, check_rows: bool) -> None:
    """Refuse a file without rows, another number of rows than the known one, and classes of the wrong size."""
    if not rows:
        raise UserError(f"{task.name} {name} has no rows in {source}")
    if not check_rows:
        return
    expected = task.rows[name]
    if len(rows) not in expected:
        why = _KNOWN_WRONG.get((task.name, name, len(rows)), "it is cut off, or another version")
        wanted = " or ".join(map(str, expected))
        raise UserError(f"{task.name} {name} has {len(rows)} rows in {source}, expected {wanted}: {why}")
    sizes = Counter(label for label, _ in rows)
    if task.per_class is not None and any(sizes[label] != task.per_class for label in range(task.classes)):
        listed = ", ".join(f"{sizes[label]} of class {label}" for label in range(task.classes))
        raise UserError(
            f"{task.name} has {listed} in {source}, expected {task.per_class} of each: the file is corrupt (with few"
            " sentences in a class every accuracy looks excellent), get the data set again"
        )


def _check_classes(task: TransferTask, splits: Mapping[str, list[Row]], source: str) -> None:
    """Refuse a training set that has too few rows of a class for its folds."""
    split = "all" if "all" in splits else "train"
    needed = 1 if "dev" in splits else 2 * FOLDS  # within a fold's training part each of the folds still needs one
    sizes = Counter(label for label, _ in splits[split])
    for label in range(task.classes):
        if sizes[label] < needed:
            raise UserError(
                f"{task.name} {split} has {sizes[label]} rows of class {label} in {source}, and {needed} are needed at "
                "the least"
            )


@dataclass(frozen=True)
class _Part:
    """One fit that is scored: indices of its training and its test rows, and of the fits that choose its penalty."""

    train: np.ndarray
    test: np.ndarray
    choose: list[tuple[np.ndarray, np.ndarray]]


def _folds(labels: np.ndarray, seed: int) -> list[tuple[np.ndarray, np.ndarray]]:
    return list(StratifiedKFold(FOLDS, shuffle=True, random_state=seed).split(labels, labels))


def _parts(labels: Mapping[str, np.ndarray], seed: int) -> list[_Part]:
    """The fits of a task, as indices into the rows of all its splits one after the other."""
    if "all" in labels:
        return [
            _Part(train, test, [(train[fit], train[dev]) for fit, dev in _folds(labels["all"][train], seed)])
            for train, test in _folds(labels["all"], seed)
        ]
    ends = np.cumsum([len(values) for values in labels.values()])
    rows = dict(zip(labels, np.split(np.arange(ends[-1]), ends[:-1]), strict=True))
    if "dev" in rows:
        choose = [(rows["train"], rows["dev"])]
    else:
        choose = _folds(labels["train"], seed)  # train comes first, so these indices are those of all rows
    return [_Part(rows["train"], rows["test"], choose)]


class _Features:
    """Rows -> their features, (n, d) or (n, 2d) for pairs, with the scale and the means of a training set.

    Args:
        embeddings: that hold the training set.
        train: its rows.
    """

    def __init__(self, embeddings: Embeddings, train: Texts) -> None:
        sides = self._sides(embeddings, train)
        both = np.concatenate(sides)
        size = np.sqrt(np.mean(np.square(both), dtype=np.float64))
        spread = np.sqrt(np.mean(both.var(axis=0, dtype=np.float64)))
        # Below that it is rounding: all embeddings are equal.
        self.scale = DTYPE(spread if spread > 1e-6 * size else size or 1)
        # With an intercept that is not penalised this changes no optimum, and lbfgs arrives in far fewer steps.
        self.means = self._scaled(sides).mean(axis=0, dtype=np.float64).astype(DTYPE)

    def __call__(self, embeddings: Embeddings, rows: Texts) -> np.ndarray:
        x = self._scaled(self._sides(embeddings, rows))
        x -= self.means
        return x

    def _sides(self, embeddings: Embeddings, rows: Texts) -> list[np.ndarray]:
        indices = [embeddings.rows_of(side) for side in zip(*rows, strict=True)]
        return [(embeddings.unit[index] * embeddings.norms[index]).astype(DTYPE) for index in indices]

    def _scaled(self, sides: Sequence[np.ndarray]) -> np.ndarray:
        first, *second = (side / self.scale for side in sides)
        return np.hstack([np.abs(first - second[0]), first * second[0]]) if second else first


def evaluate_transfer(
    encode: Encode, data: TransferData, *, seed: int = 0, advance: Callable[[int], Any] = lambda work: None
) -> dict[str, Any]:
    """Score one task; see the module for the protocol.

    Folds run side by side on as many threads as torch would use, each on one core, so their number changes no result.

    Args:
        encode: n strings -> (n, d) array or tensor, normalised or not; called once with the distinct sentences. An
            `Embeddings` that holds them is used as it is.
        data: the rows.
        seed: of the folds.
        advance: called with the work done since its last call, in the units of `work`.

    Returns:
        `accuracy` x 100; for cross-validation the mean over `folds`, the accuracies x 100 of the folds (else one); `f1`
        x 100 of class 1 for pairs; `dev_accuracy` x 100, that of the chosen penalties where they were chosen;
        `penalty`, the one chosen for each of `folds`; `n` scored rows, `n_train` rows of the training set; `seed`;
        `not_converged`, the number of fits stopped before they converged; for SST2 `train`.

    Raises:
        UserError: if embeddings are not finite.
    """
    return _evaluate(Embeddings.of(encode, data.sentences), data, seed, advance)[0]


def train_classifier(encode: Encode, data: TransferData, *, seed: int = 0) -> tuple[Classify, dict[str, Any]]:
    """The classifier that `evaluate_transfer` scores, to classify other rows with.

    Args:
        encode: see there.
        data: the rows of a task with a train and a test set: SST2, TREC or MRPC.
        seed: see there.

    Returns:
        The classifier, and what `evaluate_transfer` returns.

    Raises:
        ValueError: for a task that is cross-validated, which has a classifier for each fold.
        UserError: if embeddings are not finite.
    """
    if "all" in data.splits:
        raise ValueError(f"{data.task} has no train set, and so no one classifier")
    record, features, (classifier,) = _evaluate(Embeddings.of(encode, data.sentences), data, seed, lambda work: None)
    return lambda embeddings, rows: classifier.predict(features(embeddings, rows)), record


def _evaluate(
    embeddings: Embeddings, data: TransferData, seed: int, advance: Callable[[int], Any]
) -> tuple[dict[str, Any], _Features, list[LogisticRegression]]:
    """What `evaluate_transfer` returns, the features, and the classifiers of the fits that are scored."""
    texts = {split: [texts for _, texts in rows] for split, rows in data.splits.items()}
    features = _Features(embeddings, texts["all" if "all" in texts else "train"])
    x = features(embeddings, [row for rows in texts.values() for row in rows])
    labels = {split: np.array([label for label, _ in rows]) for split, rows in data.splits.items()}
    y = np.concatenate(list(labels.values()))
    parts = _parts(labels, seed)

    def choose(part: _Part) -> tuple[np.ndarray, int]:
        """The accuracies (fits, penalties) of the fits that choose the part's penalty; how many did not converge."""
        rows = np.unique(np.concatenate([fit for fit, _ in part.choose]))
        fits = [np.searchsorted(rows, fit) for fit, _ in part.choose]
        weights, failed = fit_together(
            x[rows], y[rows], fits, PENALTIES, classes=TASKS[data.task].classes, max_iter=MAX_ITER
        )
        scores = [
            np.mean(predict(x[dev], w) == y[dev], axis=1) for (_, dev), w in zip(part.choose, weights, strict=True)
        ]
        advance(work(data) // len(parts))
        return np.stack(scores), failed

    def fit(part: _Part, penalty: float) -> tuple[LogisticRegression, np.ndarray]:
        classifier = LogisticRegression(C=1 / penalty, max_iter=MAX_ITER).fit(x[part.train], y[part.train])
        return classifier, classifier.predict(x[part.test])

    threads = torch.get_num_threads()
    with (
        warnings.catch_warnings(record=True) as caught,
        threadpool_limits(1),
        one_thread(),
        ThreadPoolExecutor(threads) as pool,
    ):
        warnings.simplefilter("always", ConvergenceWarning)
        chosen = list(pool.map(choose, parts))
        # The mean over the folds of a part; the first of equals, which is the strongest penalty.
        means = np.array([scores.mean(axis=0) for scores, _ in chosen]).round(12)
        penalties = [PENALTIES[best] for best in means.argmax(axis=1)]
        classifiers, predictions = zip(*pool.map(fit, parts, penalties), strict=True)
    failed = sum(unfinished for _, unfinished in chosen)
    for warning in caught:
        if issubclass(warning.category, ConvergenceWarning):
            failed += 1
        else:
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    if failed:
        fits = sum(len(part.choose) for part in parts) * len(PENALTIES) + len(parts)
        print(f"{data.task}: {failed} of {fits} regressions did not converge in {MAX_ITER} steps", file=sys.stderr)
    folds = [100 * float(np.mean(found == y[part.test])) for found, part in zip(predictions, parts, strict=True)]
    result = {"accuracy": float(np.mean(folds))}
    if TASKS[data.task].pairs:
        result["f1"] = 100 * float(f1_score(y[parts[0].test], predictions[0], zero_division=0))
    result |= {
        "folds": folds,
        "dev_accuracy": 100 * float(means.max(axis=1).mean()),
        "penalty": penalties,
        "n": data.n,
        "n_train": len(labels["all" if "all" in labels else "train"]),
        "seed": seed,
        "not_converged": failed,
        **({} if data.train is None else {"train": data.train}),
    }
    return result, features, list(classifiers)


def work(data: TransferData) -> int:
    """The relative time of a task's regressions, for a progress bar: rows times fits times features."""
    rows = len(data.splits["all" if "all" in data.splits else "train"])
    fits = {"all": FOLDS * FOLDS, "dev": 1}.get(
        next((name for name in ("all", "dev") if name in data.splits), ""), FOLDS
    )
    return rows * fits * (1 + TASKS[data.task].pairs)


def evaluate_tasks(encode: Encode, tasks: Sequence[TransferData], *, seed: int = 0) -> dict[str, Any]:
    """Score several tasks, encoding each distinct sentence once over all of them; shows a progress bar on a terminal.

    Args:
        encode: as in `evaluate_transfer`.
        tasks: the loaded tasks.
        seed: of the folds.

    Returns:
        `tasks`: task -> the result of `evaluate_transfer`; `averages`: {`transfer`: the plain mean of the seven
        accuracies, `transfer_6`: that without TREC}, each None if any member is not among `tasks`; `missing`: which of
        the seven are not.
    """
    encode = Embeddings.of(encode, (sentence for data in tasks for sentence in data.sentences))
    scores = {}
    with tqdm(
        total=sum(map(work, tasks)),
        bar_format="{desc}{percentage:3.0f}%|{bar}| {elapsed}, {remaining} to go",
        disable=None,
    ) as bar:
        for data in tasks:
            bar.set_description(f"regression on {data.task}")
            scores[data.key] = evaluate_transfer(encode, data, seed=seed, advance=bar.update)
    averages = {
        name: float(np.mean([scores[task]["accuracy"] for task in members])) if scores.keys() >= set(members) else None
        for name, members in AVERAGES.items()
    }
    return {"tasks": scores, "averages": averages, "missing": [name for name in TASKS if name not in scores]}
