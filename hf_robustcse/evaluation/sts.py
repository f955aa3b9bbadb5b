"""Semantic textual similarity: the setting "all" of SBERT and SimCSE, and the two means that other papers report.

Cosine similarity of frozen embeddings against the gold score, Spearman correlation x 100, no regressor and no training
set. "all" pools the pairs of every subset of a year before the one correlation; "mean" and "wmean" are the plain and
the size-weighted mean of the correlations per subset (SentEval prints these two).
"""

from __future__ import annotations

import functools
import hashlib
import re
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from hf_robustcse.errors import UserError
from hf_robustcse.evaluation.hub import HubLines, HubRows, HubSet, MissingData, check_manifest, prefetch_line, read_hub

Encode = Callable[[list[str]], Any]
Pair = tuple[str, str, float]

HEADER = ["score", "sentence1", "sentence2"]
OWN = "dev_file"  # the task of a set that the user brings
EMBEDDED_DATA = Path(__file__).resolve().parent.parent / "assets" / "data"


class UnknownTask(UserError):
    """A name that is no STS task."""


@dataclass(frozen=True)
class StsTask:
    """What is known of one STS task.

    Attributes:
        name: as in `results.json`.
        rows: the number of pairs with a gold score in each split that exists; None where it is not fixed.
        subsets: the files of a year's test set, without suffix; empty for a task with one file a split.
        hub: where it is on the Hub, in order of preference.
        lowest: the lowest gold score (the highest is 5).
        sha256: the checksum of a split's pairs in the release, where a source on the Hub needs it (`HubSet.verify`).
    """

    name: str
    rows: Mapping[str, int | None]
    subsets: tuple[str, ...] = ()
    hub: tuple[HubSet, ...] = ()
    lowest: float = 0.0
    sha256: Mapping[str, str] = field(default_factory=dict)


def _mteb(name: str, revision: str, **splits: str) -> HubSet:
    """A copy of MTEB's, at the revision that MTEB pins; columns score, sentence1, sentence2."""
    return HubSet(f"mteb/{name}", {ours: (theirs,) for ours, theirs in splits.items()}, revision)


# The counts are those of the releases with the pairs without a gold score left out; STS13 is without SMT, whose licence
# keeps it out of the common copies (and of every figure published since SentEval). On the Hub the pairs of a year do
# not name their subset, and by MTEB's statistics of them those of 2012 to 2016 are tokenised, unlike the releases.
TASKS = {
    task.name: task
    for task in (
        StsTask(
            "STS12",
            {"test": 3108},
            ("MSRpar", "MSRvid", "OnWN", "SMTeuroparl", "SMTnews"),
            (_mteb("sts12-sts", "a0d554a64d88156834ff5ae9920b964011b16384", test="test"),),
        ),
        StsTask(
            "STS13",
            {"test": 1500},
            ("FNWN", "OnWN", "headlines"),
            (_mteb("sts13-sts", "7e90230a92c190f1bf69ae9002b8cea547a64cca", test="test"),),
        ),
        StsTask(
            "STS14",
            {"test": 3750},
            ("OnWN", "deft-forum", "deft-news", "headlines", "images", "tweet-news"),
            (_mteb("sts14-sts", "6031580fec1f6af667f0bd2da0a551cf4f0b2375", test="test"),),
        ),
        StsTask(
            "STS15",
            {"test": 3000},
            ("answers-forums", "answers-students", "belief", "headlines", "images"),
            (_mteb("sts15-sts", "ae752c7c21bf194d8b67fd573edf7ae58183cbe3", test="test"),),
        ),
        StsTask(
            "STS16",
            {"test": 1186},
            ("answer-answer", "headlines", "plagiarism", "postediting", "question-question"),
            (_mteb("sts16-sts", "4d8694f8f0e0100860b497b999b3dbed754a0513", test="test"),),
        ),
        StsTask(
            "STSB",
            {"train": 5749, "dev": 1500, "test": 1379},
            hub=(
                _mteb(
                    "stsbenchmark-sts",
                    "b0fddb56ed78048fa8b90373c8a3cfc37b684831",
                    train="train",
                    dev="validation",
                    test="test",
                ),
            ),
        ),
        StsTask(
            "SICKR",
            {"train": 4500, "dev": 500, "test": 4927},
            hub=(
                # The first commit has the three splits. All later ones have 9927 pairs as "test", the splits one after
                # the other, which is what MTEB scores; the checksum says whether cutting gives the splits back.
                _mteb(
                    "sickr-sts",
                    "b589c9fc99a24743f4f6cc6c7c9633cd0fe40b9d",
                    train="train",
                    dev="validation",
                    test="test",
                ),
                HubSet(
                    "mteb/sickr-sts",
                    {"train": ("test[:4500]",), "dev": ("test[4500:5000]",), "test": ("test[5000:]",)},
                    "20a6d6f312dd54037fe07a32d58e5e168867909d",
                    verify=True,
                ),
            ),
            lowest=1.0,
            sha256={
                "train": "bab50da335a04bef0d4448846d5c9ffdc933cdacdff63618637c1c64dd91ff79",
                "dev": "bbec9d9177afa9f87b482ab5d474abc895314a2d057ca6f5de0683e18f384095",
                "test": "09384847e7825696f94cbef229ed339b00e57fc60b37a14d6e563c6004456f06",
            },
        ),
        StsTask("EMBEDDED", {"dev": None}),
    )
}
STS_TEST = ("STS12", "STS13", "STS14", "STS15", "STS16", "STSB", "SICKR")  # the seven of the average, in table order
_KNOWN_WRONG = {
    ("STS13", 2250): "the SMT subset (750 pairs) is in it; by common practice SMT is excluded: remove that file",
    ("SICKR", 9927): "that is train, trial and test pooled, as MTEB scores it: keep the 4927 pairs of test only",
}


def parse_task(name: str, split: str = "test") -> tuple[str, str]:
    """Read a task name: `STS12`, `sts-b`, or with its split `stsb_dev`, `SICKR_test`, `embedded_dev`.

    Args:
        name: the name, in any case; a hyphen inside a task's name is ignored.
        split: the split of a name that gives none (`embedded` has only dev).

    Returns:
        Task (a key of `TASKS`) and split.

    Raises:
        UnknownTask: for an unknown task.
        UserError: for a split that the task does not have.
    """
    match = re.fullmatch(r"(.+?)(?:[_-](train|dev|test))?", name.strip(), flags=re.IGNORECASE)
    task = TASKS.get(re.sub(r"[-_\s]", "", match[1]).upper()) if match else None
    if task is None:
        raise UnknownTask(f"unknown STS task {name!r}; known: {', '.join(TASKS)}, each also with _dev, _test or _train")
    if match[2]:
        split = match[2].lower()
    elif task.name == "EMBEDDED":
        split = "dev"
    if split not in task.rows:
        raise UserError(f"{task.name} has no split {split!r}; it has {', '.join(task.rows)}")
    return task.name, split


@dataclass(frozen=True)
class StsData:
    """The pairs of one task and split.

    Attributes:
        task: a key of `TASKS`, or `OWN`.
        split: train, dev or test.
        subsets: name -> [(sentence1, sentence2, gold score), ...]; one subset for a task that has none of its own.
        source: the folder or file, or `hub:<data set>@<revision>`.
        sha256: of the parsed pairs whatever their order and subset, so that two copies of one set agree.
        subsets_known: False for a year from the Hub, whose pairs are not labelled with their subset, also once it was
            fetched into a file `all.tsv`.
    """

    task: str
    split: str
    subsets: Mapping[str, list[Pair]]
    source: str
    sha256: str
    subsets_known: bool = True

    @property
    def key(self) -> str:
        """The name in `results.json`: the task (`STSB`, `dev_file`), with its split unless it is test (`stsb_dev`)."""
        return self.task if self.is_test or self.task == OWN else f"{self.task}_{self.split}".lower()

    @property
    def is_test(self) -> bool:
        """Whether this is a test set, on which no checkpoint may be chosen."""
        return self.split == "test"

    @property
    def n(self) -> int:
        """The number of pairs."""
        return sum(map(len, self.subsets.values()))

    @cached_property
    def pairs(self) -> list[Pair]:
        """The pairs of all subsets, in order."""
        return [pair for pairs in self.subsets.values() for pair in pairs]

    @cached_property
    def gold(self) -> np.ndarray:
        """The gold scores (n,) of `pairs`."""
        return np.array([score for *_, score in self.pairs])

    @cached_property
    def sentences(self) -> list[str]:
        """The distinct sentences, in order of first appearance."""
        return _distinct(self.pairs)

    def files(self) -> dict[str, str]:
        """The files that `load_sts` reads back as these pairs: path within a data folder -> text."""
        return {
            f"sts/{self.task}/{name}.tsv": table_text(HEADER, ([repr(score), a, b] for a, b, score in pairs))
            for name, pairs in self.subsets.items()
        }


def load_sts(task: str, data_dir: str | Path | None, split: str = "test", *, check_rows: bool = True) -> StsData:
    """Load one task from `data_dir`, or from the Hub when that is None.

    Files: `DIR/sts/TASK/*.tsv` (DIR may be the `sts` folder itself; each file may be `.tsv.gz`), one file per subset
    for a year (or `all.tsv`), `train.tsv`, `dev.tsv`, `test.tsv` for STSB and SICKR. The first line is the header
    `score sentence1 sentence2` (in any order), one tab between fields, no quoting. Pairs without a gold score are
    dropped. `embedded_dev` is the small set inside this package, whatever `data_dir` is.

    Args:
        task: a name that `parse_task` reads; a split in the name wins over `split`.
        data_dir: the folder, or None for the Hub.
        split: train, dev or test.
        check_rows: whether a number of pairs other than the known one is an error.

    Returns:
        The pairs.

    Raises:
        MissingData: if the data are not there; the message says what to fetch and where to put it.
        UserError: for an unknown task, a malformed row (file and line named), or a wrong number of pairs.
    """
    name, split = parse_task(task, split)
    info = TASKS[name]
    if name == "EMBEDDED":
        data_dir = EMBEDDED_DATA
    if data_dir is None:
        columns, how = HEADER, how_to_get(info, split)

        def parse(source: HubSet | HubLines, origin: str, rows: HubRows) -> StsData:
            pairs = [pair for where, row in rows if (pair := _checked(*row, lowest=info.lowest, where=where))]
            # A year's pairs have no subsets there; a split by itself is called as its file is.
            data = _checked_data(info, split, {"all" if info.subsets else split: pairs}, origin, check_rows)
            if source.verify and data.sha256 != info.sha256[split]:
                raise UserError(f"{origin}: the pairs are not those of the release (another checksum)")
            return data

        return read_hub(f"{name} {split}", info.hub, split, columns, parse, how)
    files = _find_files(info, split, Path(data_dir))
    subsets = {subset: list(_read_file(path, info.lowest)) for subset, path in files.items()}
    source = str(next(iter(files.values())).parent if info.subsets else next(iter(files.values())))
    data = _checked_data(info, split, subsets, source, check_rows)
    check_manifest(data_dir, files.values())
    return data


def load_sts_file(task: str, path: str | Path, split: str = "test") -> StsData:
    """Load pairs on the scale of a task from one file, of any number.

    Args:
        task: a name that `parse_task` reads.
        path: a file with the header `score sentence1 sentence2`, as for `load_sts`.
        split: what its pairs are.

    Raises:
        UserError: for an unknown task, a malformed row (file and line named), or fewer than two pairs.
    """
    name, split = parse_task(task, split)
    pairs = list(_read_file(Path(path), TASKS[name].lowest))
    return _checked_data(TASKS[name], split, {Path(path).name: pairs}, str(path), check_rows=False)


def _checked_data(
    task: StsTask, split: str, subsets: Mapping[str, list[Pair]], source: str, check_rows: bool
) -> StsData:
    """The data, if there are as many pairs as there should be."""
    count, expected = sum(map(len, subsets.values())), task.rows[split]
    if check_rows and expected is not None and count != expected:
        listed = ", ".join(f"{subset} {len(pairs)}" for subset, pairs in subsets.items())
        why = _KNOWN_WRONG.get((task.name, count), f"read {listed}; a file is cut off, or another version")
        raise UserError(
            f"{task.name} {split} has {count} pairs with a gold score in {source}, expected {expected}: {why}"
        )
    if count < 2:
        raise UserError(f"{task.name} {split} has {count} pairs with a gold score in {source}; a correlation needs two")
    lines = sorted(f"{score:.6g}\t{a}\t{b}" for pairs in subsets.values() for a, b, score in pairs)
    digest = hashlib.sha256("\n".join(lines).encode("utf-8")).hexdigest()
    known = not task.subsets or list(subsets) != ["all"]
    return StsData(task.name, split, subsets, source, digest, subsets_known=known)


def prefetch_sets() -> dict[str, Callable[[Path | None], StsData]]:
    """What `hf-robustcse prefetch --tasks sts` fetches: name -> a function that loads it from a folder or the Hub."""
    return {
        task.name if split == "test" else f"{task.name}_{split}".lower(): functools.partial(
            load_sts, task.name, split=split
        )
        for task in TASKS.values()
        if task.hub
        for split in task.rows
    }


def how_to_get(task: StsTask, split: str, data_dir: str | Path | None = None) -> str:
    """The command that fetches a task, and where its files are expected."""
    if not task.hub:
        return "it is part of this package: reinstall it"
    names = task.subsets or (split,)
    files = f"sts/{task.name}/" + (f"{{{','.join(names)}}}.tsv" if len(names) > 1 else f"{names[0]}.tsv")
    return (
        f"{prefetch_line('sts', data_dir)}; or put {files} there yourself (header score<TAB>sentence1<TAB>sentence2, "
        f"{task.rows[split]} pairs)"
    )


def _find_files(task: StsTask, split: str, data_dir: Path) -> dict[str, Path]:
    """The files of a split by subset name."""
    for folder in task_folders(data_dir, "sts", task.name):
        if found := tsv_files(folder, None if task.subsets else (split,)):
            return found
    raise MissingData(f"{task.name} {split} is not under {data_dir}", how_to_get(task, split, data_dir))


def task_folders(data_dir: Path, group: str, task: str) -> tuple[Path, Path]:
    """Where the files of a task may be: DIR/GROUP/TASK or DIR/TASK; a UserError if DIR is no folder."""
    if not data_dir.is_dir():
        raise UserError(f"the data folder {data_dir} does not exist or is not a folder")
    return data_dir / group / task, data_dir / task


def tsv_files(folder: Path, names: Collection[str] | None, suffix: str = ".tsv") -> dict[str, Path]:
    """The files NAME.tsv and NAME.tsv.gz of a folder, by name in alphabetical order.

    Args:
        folder: the folder; one that does not exist holds none.
        names: the names to look for, or None for every name that does not begin with a dot.
        suffix: another one, for other files.

    Raises:
        UserError: if a file is there twice, packed and unpacked.
    """
    found: dict[str, Path] = {}
    for path in sorted(folder.glob(f"*{suffix}")) + sorted(folder.glob(f"*{suffix}.gz")):
        name = path.name.removesuffix(".gz").removesuffix(suffix)
        if name.startswith(".") or not (names is None or name in names):
            continue
        if name in found:
            raise UserError(f"{found[name]} and {path} are one file twice: remove one")
        found[name] = path
    return found


def read_rows(path: Path, header: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """The rows of one file: UTF-8, plain or `.gz`, one tab between fields, no quoting; empty lines are skipped.

    Args:
        path: the file.
        header: the names that its first line must have, in any order.

    Yields:
        Where the row is (`FILE, line 7`), and its `len(header)` fields as they are, in the order of `header`.

    Raises:
        UserError: for a file that cannot be read, another header, or a row with another number of fields.
    """
    from hf_robustcse.data import table_records  # it loads datasets, and the options name tasks alone

    expected = "<TAB>".join(header)
    order: list[int] = []
    for number, fields in table_records(path):
        where = f"{path}, line {number}"
        if number == 1:
            if sorted(fields) != sorted(header):
                raise UserError(f"{where}: the header must be {expected}, not {'<TAB>'.join(fields)[:100]!r}")
            order, names = [fields.index(name) for name in header], fields
        elif fields == names:
            raise UserError(f"{where}: the header is there again; were files joined? Remove that line")
        elif fields != [""]:  # an empty line, as at the end of many hand-edited files
            if len(fields) != len(header):
                raise UserError(
                    f"{where}: {len(fields)} fields between tabs, expected {len(header)}; is the file cut off?"
                )
            yield where, [fields[index] for index in order]
    if not order:
        raise UserError(f"{path} is empty: the header must be {expected}")


def read_objects(path: Path, keys: Sequence[str]) -> Iterator[tuple[str, list[Any]]]:
    """The objects of a file of JSON lines, plain or `.gz`; empty lines are skipped.

    Args:
        path: the file.
        keys: what each object must have.

    Yields:
        Where the object is (`FILE, line 7`), and the values of its `len(keys)` keys.

    Raises:
        UserError: for a file that cannot be read, a line that is no JSON object, or an object without one of the keys.
    """
    from hf_robustcse.data import json_records  # as above

    for number, record in json_records(path):
        if record is None:
            continue
        if absent := [key for key in keys if key not in record]:
            raise UserError(f"{path}, line {number}: no {', '.join(absent)}; expected an object with {', '.join(keys)}")
        yield f"{path}, line {number}", [record[key] for key in keys]


def table_text(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """The text of a file that `read_rows` reads; no field may hold a tab or a line's end."""
    return "".join("\t".join(row) + "\n" for row in (header, *rows))


def _read_file(path: Path, lowest: float) -> Iterator[Pair]:
    """The pairs with a gold score of one file."""
    for where, fields in read_rows(path, HEADER):
        pair = _checked(*fields, lowest=lowest, where=where)
        if pair is not None:
            yield pair


def clean(text: str | None, where: str) -> str:
    """A sentence with every run of white space as one space, so that all copies of a set agree; never empty."""
    text = " ".join((text or "").split())
    if not text:
        raise UserError(f"{where}: an empty sentence")
    return text


def _checked(score: str | float | None, first: str, second: str, *, lowest: float, where: str) -> Pair | None:
    """One pair, or None without a gold score."""
    if score is None or (isinstance(score, str) and not score.strip()):
        return None
    try:
        value = float(score)
    except ValueError:
        shown = repr(score if len(str(score)) <= 40 else f"{score[:40]}...")
        raise UserError(f"{where}: the score {shown} is not a number; are the columns as the header says?") from None
    if not lowest <= value <= 5:
        raise UserError(f"{where}: the score {value:g} is outside {lowest:g} to 5")
    return clean(first, where), clean(second, where), value


def _distinct(pairs: Iterable[Pair]) -> list[str]:
    return list(dict.fromkeys(sentence for pair in pairs for sentence in pair[:2]))


def encode_rows(encode: Encode, sentences: Sequence[str]) -> np.ndarray:
    """The embeddings of sentences as a checked array.

    Args:
        encode: called once with the sentences as they are.
        sentences: n strings.

    Returns:
        (n, d) float64.

    Raises:
        UserError: if an embedding is not finite.
        ValueError: if `encode` returns another shape than (n, d).
    """
    rows = encode(list(sentences))
    if hasattr(rows, "detach"):
        rows = rows.detach().to("cpu").double()  # numpy knows no bfloat16
    rows = np.asarray(rows, dtype=np.float64)
    if rows.ndim != 2 or rows.shape[0] != len(sentences):
        raise ValueError(f"encode returned shape {rows.shape} for {len(sentences)} sentences, expected (n, d)")
    check_finite(rows, sentences)
    return rows


def check_finite(rows: np.ndarray, sentences: Sequence[str], model: str = "the model") -> None:
    """Refuse embeddings (n, d) that hold a NaN or an infinity, naming the model and the first sentence."""
    broken = np.flatnonzero(~np.isfinite(rows).all(axis=1))
    if len(broken):
        raise UserError(
            f"{len(broken)} of {len(rows)} embeddings hold a NaN or an infinity, first that of "
            f"{sentences[broken[0]][:80]!r}: {model} is broken"
        )


class Embeddings:
    """The unit embeddings of a set of sentences, each distinct one encoded exactly once; itself an `encode` callable.

    Args:
        encode: called once, with the distinct sentences in order of first appearance. Sorting by length and batching
            are its own affair (`embedders.load_embedder` does both).
        sentences: the sentences, with or without repetitions.

    Attributes:
        unit: (distinct sentences, d) float64, rows of L2 norm 1; a zero embedding stays zero.
        norms: (distinct sentences, 1) the norms before that, so that `unit * norms` is what `encode` gave.

    Raises:
        UserError: if an embedding is not finite.
        ValueError: if `encode` returns another shape than (n, d).
    """

    def __init__(self, encode: Encode, sentences: Iterable[str]) -> None:
        self.index = {sentence: row for row, sentence in enumerate(dict.fromkeys(sentences))}
        rows = encode_rows(encode, list(self.index))
        self.norms = np.linalg.norm(rows, axis=1, keepdims=True)
        self.unit = np.divide(rows, self.norms, out=np.zeros_like(rows), where=self.norms > 0)

    @classmethod
    def of(cls, encode: Encode, sentences: Iterable[str]) -> Embeddings:
        """The embeddings of sentences: `encode` itself if it is such an object, which must hold them all."""
        return encode if isinstance(encode, cls) else cls(encode, sentences)

    def __call__(self, sentences: Sequence[str]) -> np.ndarray:
        """The unit embeddings (n, d) of sentences that were encoded."""
        return self.unit[self.rows_of(sentences)]

    def rows_of(self, sentences: Sequence[str]) -> list[int]:
        """The row of each of n sentences that were encoded."""
        return [self.index[sentence] for sentence in sentences]

    def cosines(self, pairs: Sequence[Pair]) -> np.ndarray:
        """The cosine similarities (n,) of pairs whose sentences were encoded; a zero embedding has 0 with all."""
        left, right = (self([pair[side] for pair in pairs]) for side in (0, 1))
        # Rounded, so that equal similarities are ties: the unit vectors of a pair of identical sentences (STS12 has 61
        # such pairs) have a product of 1 give or take 1e-16, and ranking that noise moves a subset's figure by 0.1.
        return np.einsum("nd,nd->n", left, right).round(12)


def spearman(x: Sequence[float] | np.ndarray, y: Sequence[float] | np.ndarray, *, name: str) -> float:
    """Spearman's rank correlation between -1 and 1 (scipy's; ties get their average rank), never NaN.

    Args:
        x: n similarities, n at least 2.
        y: n gold scores.
        name: what is correlated, for messages.

    Returns:
        The correlation; 0 with a warning where one side is constant, which leaves it undefined.

    Raises:
        UserError: for fewer than two pairs.
    """
    if len(x) < 2:
        raise UserError(f"{name}: {len(x)} pairs, a correlation needs two")
    for values, side in ((x, "similarities"), (y, "gold scores")):
        if np.ptp(values) == 0:
            warnings.warn(f"{name}: all {side} are equal; the correlation is undefined, 0 is reported", stacklevel=2)
            return 0.0
    from scipy.stats import spearmanr  # half a second to import, and the options name tasks alone

    return float(spearmanr(x, y)[0])


def evaluate_pairs(encode: Encode, subsets: Mapping[str, Sequence[Pair]]) -> dict[str, Any]:
    """Cosine Spearman of one task: "all" (the pairs pooled), and the means over its subsets.

    Each distinct sentence is encoded exactly once, in one call of `encode` over all subsets; cosines are taken in
    float64, and a zero embedding has cosine 0 with everything. The result is that of sentence-transformers'
    EmbeddingSimilarityEvaluator, up to its rounding noise in float32 where pairs have equal similarities.

    Args:
        encode: n strings -> (n, d) array or tensor, normalised or not; an `Embeddings` is used as it is.
        subsets: name -> [(sentence1, sentence2, gold score), ...].

    Returns:
        `spearman` ("all"), `spearman_mean` and `spearman_wmean` (plain and size-weighted mean over the subsets), each
        x 100; `subsets`: name -> {`spearman` x 100, `n`}; `n`.

    Raises:
        UserError: for a subset of fewer than two pairs, or embeddings that are not finite.
    """
    embeddings = Embeddings.of(encode, _distinct(pair for pairs in subsets.values() for pair in pairs))
    cosines, golds, scores = [], [], {}
    for name, pairs in subsets.items():
        cosines.append(embeddings.cosines(pairs))
        golds.append([pair[2] for pair in pairs])
        scores[name] = {"spearman": 100 * spearman(cosines[-1], golds[-1], name=name), "n": len(pairs)}
    each, sizes = [score["spearman"] for score in scores.values()], [score["n"] for score in scores.values()]
    return {
        "spearman": 100 * spearman(np.concatenate(cosines), np.concatenate(golds), name="all pairs"),
        "spearman_mean": float(np.mean(each)),
        "spearman_wmean": float(np.average(each, weights=sizes)),
        "subsets": scores,
        "n": sum(sizes),
    }


def evaluate_tasks(encode: Encode | Mapping[str, Encode], tasks: Sequence[StsData]) -> dict[str, Any]:
    """Score several tasks, encoding each distinct sentence once over all of them.

    Args:
        encode: n strings -> (n, d) array or tensor; or `StsData.key` -> such a callable, where each task has embeddings
            of its own (`baselines.whiten_tasks`).
        tasks: the loaded tasks, of any splits.

    Returns:
        `tasks`: `StsData.key` -> the result of `evaluate_pairs` (the two means None where the subsets are not known);
        `averages`: {`sts`: the plain mean of "all" over the seven test sets, or None if any is not among `tasks`};
        `missing`: which of the seven are not.
    """
    if not isinstance(encode, Mapping):
        embeddings = Embeddings.of(encode, (sentence for data in tasks for sentence in data.sentences))
        encode = dict.fromkeys((data.key for data in tasks), embeddings)
    scores = {}
    for data in tasks:
        scores[data.key] = evaluate_pairs(encode[data.key], data.subsets)
        if not data.subsets_known:
            scores[data.key].update(spearman_mean=None, spearman_wmean=None)
    missing = [name for name in STS_TEST if name not in scores]
    average = None if missing else float(np.mean([scores[name]["spearman"] for name in STS_TEST]))
    return {"tasks": scores, "averages": {"sts": average}, "missing": missing}
