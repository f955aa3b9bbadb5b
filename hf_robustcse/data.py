"""Corpora: one loader for every source, what it found, tokenisation, and the collator.

Without `streaming` the cleaned rows live in one in-memory Arrow table, a little more than the bytes of the text itself
(ten million sentences of 100 bytes: about 1 GB, and while loading 1 GB more for the duplicate filter), and so do their
tokens. A cache on disk could go stale when a file changes under an unchanged name, the processes of a distributed run
would race for it, and a killed run would leave it behind. A corpus that does not fit is read with `streaming=True`.
"""

from __future__ import annotations

import csv
import dataclasses
import difflib
import gzip
import hashlib
import importlib.util
import itertools
import json
import re
import shutil
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from tqdm import tqdm

from hf_robustcse.errors import UserError
from hf_robustcse.files import sha256_file

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

VIEWS = ("text", "positive", "negative")
"""The columns of a corpus, in this order: one (unsupervised), two (pairs) or three (triplets)."""

EXTENSIONS = (".txt", ".csv", ".tsv", ".jsonl", ".json", ".parquet")
"""What a corpus file may be called, each also with `.gz` behind it; `.json` holds JSON lines too."""

_SUPERVISED = (
    ("sent0", "sent1", "hard_neg"),
    ("anchor", "positive", "negative"),
    ("query", "positive", "negative"),
    ("text", "positive", "negative"),
)
_HUB_ID = re.compile(r"[\w-][\w.-]*(/[\w-][\w.-]*)?(:[^\s/\\:]+)?", re.ASCII)
_CHUNK_ROWS = 10_000
_CHUNK_BYTES = 1 << 20


@dataclass(frozen=True)
class CorpusReport:
    """What `load_corpus` found and did.

    Attributes:
        source: the file, folder or Hub id asked for.
        files: one `{"path", "sha256", "bytes"}` for each file, in reading order; empty for a Hub data set.
        columns: the chosen columns, as the source names them.
        rows: rows read (with `max_rows`: until enough were kept).
        blank: rows dropped because a chosen column was blank.
        duplicates: rows whose chosen columns all equal an earlier row's; dropped only with `dedup`.
        kept: rows of the corpus.
        words_p50: whitespace-separated words of the first column, over the kept rows: the smallest number that at
            least 50 % of them do not exceed.
        words_p90: the same for 90 %.
        words_p99: the same for 99 %.
        words_max: the most words of any kept row.
        sha256: SHA-256 over the files' digests, or for a Hub data set over the kept rows.
    """

    source: str
    files: list[dict[str, Any]]
    columns: list[str]
    rows: int
    blank: int
    duplicates: int
    kept: int
    words_p50: int
    words_p90: int
    words_p99: int
    words_max: int
    sha256: str

    def lines(self) -> list[str]:
        """The report as a few lines to print."""
        where = "Hub data set"
        if self.files:
            size = sum(file["bytes"] for file in self.files)
            where = f"{len(self.files)} file{'s' * (len(self.files) > 1)}, {size:,} bytes"
        duplicates = "dropped" if self.rows - self.blank - self.kept else "kept"
        return [
            f"corpus: {self.source} ({where}, sha256 {self.sha256[:12]})",
            f"columns: {', '.join(self.columns)} ({('sentences', 'pairs', 'triplets')[len(self.columns) - 1]})",
            f"rows: {self.rows:,} read, {self.blank:,} blank dropped, "
            f"{self.duplicates:,} duplicate {duplicates}, {self.kept:,} in the corpus",
            f"words: median {self.words_p50}, 90 % up to {self.words_p90}, 99 % up to {self.words_p99}, "
            f"longest {self.words_max}",
        ]

    def to_dict(self) -> dict[str, Any]:
        """The report as plain JSON values."""
        return dataclasses.asdict(self)


@dataclass(frozen=True)
class Corpus:
    """Cleaned rows to train on.

    Attributes:
        dataset: its columns are the first `views` of `text`, `positive`, `negative`, all non-blank strings.
        views: 1 (sentences), 2 (pairs) or 3 (triplets with a hard negative).
        report: what was read and dropped; None when streaming.
        source: the file, folder or Hub id asked for.
        files: in reading order; empty for a Hub data set.
        columns: the chosen columns, as the source names them.
        max_rows: rows of an epoch at most, when streaming.
    """

    dataset: datasets.Dataset | datasets.IterableDataset
    views: int
    report: CorpusReport | None
    source: str = ""
    files: tuple[Path, ...] = ()
    columns: tuple[str, ...] = ()
    max_rows: int | None = None


@dataclass
class Place:
    """How far a file has been read, and so where to read on.

    Attributes:
        byte: of the unpacked file, after the last row that was read; unused for Parquet.
        line: lines read; for Parquet, rows.
    """

    byte: int = 0
    line: int = 0


def load_corpus(
    source: str | Path,
    *,
    text_columns: list[str] | None = None,
    split: str = "train",
    dedup: bool = True,
    streaming: bool = False,
    max_rows: int | None = None,
) -> Corpus:
    r"""Read, clean and count a corpus.

    Sentences are stripped of white space at both ends; rows with a blank sentence are dropped. A `.txt` file holds one
    sentence a line and lines end at `\n` only; `.csv` and `.tsv` files start with a header; a `.tsv` file knows no
    quoting. In a folder every file with a known extension is read, recursively and in sorted order, hidden ones not.

    Without `text_columns` a file's only column is taken; of several columns a known pair or triplet (`sent0`, `sent1`
    [, `hard_neg`]; `anchor`, `query` or `text` with `positive` [, `negative`]), or else `text` or `sentence`. Other
    columns are ignored.

    Args:
        source: a `.txt`, `.csv`, `.tsv`, `.jsonl`, `.json` (JSON lines) or `.parquet` file, each optionally with
            `.gz`; a folder of such files; or a Hub data set id, optionally followed by `:config`.
        text_columns: the names of the columns of the sentence, its positive and its hard negative.
        split: the split of a Hub data set; a file or folder has none.
        dedup: drop rows that equal an earlier row in all chosen columns. Not done when streaming, which remembers
            nothing; identical sentences within a batch are masked in the loss either way.
        streaming: read lazily, file by file (each file is one shard), and give no report. A bad row is met, and its
            error raised, when the iteration gets there.
        max_rows: stop after keeping this many rows.

    Returns:
        The corpus, with at least one row.

    Raises:
        UserError: if the source does not exist or cannot be read, a row is malformed (the message names file and
            line), the columns are unclear or missing, or no row is left.
    """
    source = str(source)
    if text_columns and len(text_columns) > len(VIEWS):
        raise UserError(
            f"{len(text_columns)} text columns given ({', '.join(text_columns)}); name 1 (sentence), 2 (and its "
            "positive) or 3 (and a hard negative) with --text_column"
        )
    if text_columns and len(set(text_columns)) < len(text_columns):
        raise UserError(f"a text column is named twice ({', '.join(text_columns)}); name different ones")
    if max_rows is not None and max_rows < 1:
        raise UserError(f"max_rows is {max_rows}; it must be at least 1")
    files = _find_files(source)
    if streaming:
        if files is None:
            dataset, columns = _stream_hub(source, text_columns, split)
        else:
            dataset, columns = _stream_files(source, files, text_columns)
        if max_rows is not None:
            dataset = dataset.take(max_rows)
        return Corpus(dataset, len(columns), None, source, tuple(files or ()), tuple(columns), max_rows)

    if files is None:
        dataset = _open_hub(source, split, streaming=False)
        columns = _choose_columns(dataset.column_names, text_columns, source)
        batches = dataset.select_columns(list(columns)).with_format("arrow").iter(_CHUNK_ROWS)
        rows = _arrow_rows(batches, columns, source)
    else:
        columns = _agreed_columns(source, files, text_columns)
        rows = itertools.chain.from_iterable(read_rows(file, columns) for file in files)
    table, counts, words, digest = _clean(rows, len(columns), dedup, max_rows)
    if not counts["kept"]:
        raise _empty(source, counts["rows"])
    described = [{"path": str(file), "sha256": sha256_file(file), "bytes": file.stat().st_size} for file in files or []]
    digests = [file["sha256"] for file in described]
    report = CorpusReport(
        source=source,
        files=described,
        columns=list(columns),
        **counts,
        words_p50=_percentile(words, 50),
        words_p90=_percentile(words, 90),
        words_p99=_percentile(words, 99),
        words_max=max(words),
        sha256=digest if files is None else hashlib.sha256("".join(digests).encode()).hexdigest(),
    )
    # A fingerprint of the content: left to itself, `datasets` would pickle the whole table to compute one.
    dataset = datasets.Dataset(table, fingerprint=digest[:32])
    return Corpus(dataset, len(columns), report, source, tuple(files or ()), tuple(columns))


def stream_texts(source: str | Path, text_column: str | None = None) -> Iterator[str]:
    """The text of every row of a file or folder, one at a time and in order: blank rows and duplicates stay.

    Args:
        source: as in `load_corpus`, but no Hub data set.
        text_column: the column that holds the text; None takes the only one, or `text` or `sentence`.

    Yields:
        Texts without white space at their ends; an empty string for a blank row.

    Raises:
        UserError: at once if the source does not exist or the column is unclear; a malformed row when the iteration
            gets there (the message names file and line).
    """
    files = _find_files(str(source))
    if files is None:
        raise UserError(f"{source}: no such file or folder; check the path")
    columns = _agreed_columns(str(source), files, [text_column] if text_column else None)
    if len(columns) > 1:
        raise UserError(f"{source}: the columns are {', '.join(map(repr, columns))}; name one with --text_column")
    return (text.strip() for file in files for (text,) in read_rows(file, columns))


def text_hash(text: str) -> int:
    """A hash of a sentence that is the same in every process and on every machine.

    Returns:
        A signed 64-bit integer (BLAKE2b, 8 bytes, big-endian, of the UTF-8 text).
    """
    return int.from_bytes(_digest(text), "big", signed=True)


def tokenize_corpus(
    corpus: Corpus,
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    num_proc: int | None = None,
    keep_text: bool = False,
    augmentation: Callable[[str], str] | None = None,
) -> datasets.Dataset | datasets.IterableDataset:
    """Tokenise every sentence once, with special tokens, cut at `max_length`.

    Nothing is read from or left in the Hugging Face cache, so nothing in it can be stale: a corpus in memory is
    tokenised into memory, a streamed one on the fly.

    Args:
        corpus: from `load_corpus`.
        tokenizer: any tokenizer with a padding token; it decides which end is cut.
        max_length: most tokens of a sentence, special tokens included.
        num_proc: processes to use; ignored when streaming. Fast tokenizers use all cores without.
        keep_text: keep the sentences themselves, for methods that read them.
        augmentation: makes the positive of each sentence, see `TextAugmentation`; None: there is none.

    Returns:
        A data set with the columns `input_ids` (V lists of ids), `text_hash` (V integers, see `text_hash`) and
        `length` (tokens of the longest view), V being `corpus.views`, or 2 with an `augmentation`; with `keep_text`
        also the texts of the corpus.

    Raises:
        UserError: if the tokenizer has no padding token, `max_length` leaves no room for a word, a sentence gives no
            token at all, or there are positives both in the corpus and made.
    """
    check_augmentable(corpus, augmentation)
    _pad_token_id(tokenizer)
    special = tokenizer.num_special_tokens_to_add()
    if max_length <= special:
        raise UserError(f"max_length is {max_length}; with {special} special tokens it must be at least {special + 1}")
    kept = {name: datasets.Value("string") for name in VIEWS[: corpus.views]} if keep_text else {}
    options: dict[str, Any] = {
        "batched": True,
        "remove_columns": [] if keep_text else list(VIEWS[: corpus.views]),
        "fn_kwargs": {"tokenizer": tokenizer, "max_length": max_length, "augmentation": augmentation},
        "features": datasets.Features(
            kept
            | {
                "input_ids": datasets.List(datasets.List(datasets.Value("int32"))),
                "text_hash": datasets.List(datasets.Value("int64")),
                "length": datasets.Value("int32"),
            }
        ),
    }
    if isinstance(corpus.dataset, datasets.Dataset):
        # The result of a data set that has no file stays in memory; it takes about 150 bytes a sentence.
        options |= {"num_proc": num_proc, "load_from_cache_file": False, "desc": "tokenising"}
    return corpus.dataset.map(tokenize_batch, **options)


def check_augmentable(corpus: Corpus, augmentation: Callable[[str], str] | None) -> None:
    """Refuse to make positives for a corpus that brings its own.

    Raises:
        UserError: if both are there.
    """
    if augmentation is not None and corpus.views > 1:
        raise UserError(
            f"{corpus.source} brings its own positives: leave the augmentation out, or name one column of text"
        )


class ContrastiveCollator:
    """Pads tokenised rows to one batch.

    Padding is on the right whatever the tokenizer prefers: the position of the first token is then 0 in every row, as
    absolute positions and [CLS] pooling expect.

    Args:
        tokenizer: the tokenizer of the rows, for its padding token.
        extras: makes more tensors of the B anchors' texts, see `Stack.collate`; needs rows with ``keep_text``.

    Raises:
        UserError: if the tokenizer has no padding token.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        extras: Callable[[list[str]], dict[str, torch.Tensor]] | None = None,
    ) -> None:
        self.pad_token_id = _pad_token_id(tokenizer)
        self.extras = extras

    def __call__(self, rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        """Collate B rows of `tokenize_corpus`, each with V views, the longest of L tokens.

        Args:
            rows: mappings with `input_ids` and `text_hash`; other keys are ignored.

        Returns:
            `input_ids` and `attention_mask`, both int64 of shape (B, V, L), `text_hash`, int64 (B, V), and the extras.
        """
        views = [view for row in rows for view in row["input_ids"]]
        lengths = torch.tensor([len(view) for view in views])
        mask = torch.arange(int(lengths.max())) < lengths[:, None]
        input_ids = torch.full(mask.shape, self.pad_token_id)
        input_ids[mask] = torch.tensor(list(itertools.chain.from_iterable(views)))
        shape = (len(rows), len(rows[0]["input_ids"]), mask.shape[1])
        return {
            "input_ids": input_ids.view(shape),
            "attention_mask": mask.long().view(shape),
            "text_hash": torch.tensor([row["text_hash"] for row in rows]),
            **(self.extras([row[VIEWS[0]] for row in rows]) if self.extras else {}),
        }


# Cleaning and counting


def _digest(text: str) -> bytes:
    return hashlib.blake2b(text.encode("utf-8"), digest_size=8).digest()


def _clean(
    rows: Iterable[tuple[str, ...]], views: int, dedup: bool, max_rows: int | None
) -> tuple[pa.Table, dict[str, int], Counter[int], str]:
    """The kept rows as a table, the report's counts, words -> rows, and the SHA-256 of the kept rows' digests."""
    schema = pa.schema([(name, pa.string()) for name in VIEWS[:views]])
    counts = {"rows": 0, "blank": 0, "duplicates": 0, "kept": 0}
    words: Counter[int] = Counter()
    content = hashlib.sha256()
    seen: set[bytes] = set()
    batches: list[pa.RecordBatch] = []
    chunk: list[tuple[str, ...]] = []

    def flush() -> None:
        columns = zip(*chunk, strict=True)
        batches.append(pa.record_batch([pa.array(column, pa.string()) for column in columns], schema=schema))
        chunk.clear()

    # `delay`: no bar for what takes a moment; `disable=None`: none where the output is not a terminal.
    with tqdm(rows, desc="reading corpus", unit=" rows", delay=2, mininterval=0.5, disable=None) as progress:
        for raw in progress:
            counts["rows"] += 1
            row = tuple(text.strip() for text in raw)
            if not all(row):
                counts["blank"] += 1
                continue
            key = b"".join(map(_digest, row))
            if key in seen:
                counts["duplicates"] += 1
                if dedup:
                    continue
            else:
                seen.add(key)
            counts["kept"] += 1
            content.update(key)
            words[len(row[0].split())] += 1
            chunk.append(row)
            if len(chunk) == _CHUNK_ROWS:
                flush()
            if counts["kept"] == max_rows:
                break
    if chunk:
        flush()
    return pa.Table.from_batches(batches, schema=schema), counts, words, content.hexdigest()


def _percentile(words: Counter[int], percent: int) -> int:
    """The smallest number of words that at least `percent` % of the rows do not exceed (nearest rank)."""
    rank = -(-percent * words.total() // 100)
    below = itertools.accumulate(words[number] for number in sorted(words))
    return next(number for number, rows in zip(sorted(words), below, strict=True) if rows >= rank)


def _empty(source: str, rows: int | None = None) -> UserError:
    found = "no row with text" if rows is None else f"none of its {rows} rows has text" if rows else "it has no rows"
    return UserError(f"{source}: the corpus is empty: {found}; give a file with at least one sentence")


# Columns


def _choose_columns(available: list[str], text_columns: list[str] | None, where: str | Path) -> tuple[str, ...]:
    """The one, two or three columns to read, see `load_corpus`."""
    listed = ", ".join(map(repr, available))
    if text_columns:
        for name in text_columns:
            if name not in available:
                close = difflib.get_close_matches(name, available, n=1)
                hint = f"; did you mean {close[0]!r}?" if close else "; choose with --text_column"
                raise UserError(f"{where}: no column {name!r}, the columns are {listed}{hint}")
        chosen = tuple(text_columns)
    elif len(available) == 1:
        chosen = (available[0],)
    else:
        pairs = [names for names in _SUPERVISED if set(names[:2]) <= set(available)]
        single = [name for name in ("text", "sentence") if name in available]
        if len(pairs) == 1:
            chosen = tuple(name for name in pairs[0] if name in available)
        elif not pairs and len(single) == 1:
            chosen = (single[0],)
        else:
            raise UserError(
                f"{where}: cannot tell which column holds the sentences, the columns are {listed}; "
                "name one (or the columns of a pair or triplet) with --text_column"
            )
    for name in chosen:
        if available.count(name) > 1:
            raise UserError(f"{where}: {available.count(name)} columns are called {name!r}; rename all but one")
    return chosen


def _agreed_columns(source: str, files: list[Path], text_columns: list[str] | None) -> tuple[str, ...]:
    """The columns that all files share; a file without a single row, not even a header, has no say."""
    chosen: dict[Path, tuple[str, ...]] = {}
    for file in files:
        available = _read_columns(file)
        if available is not None:
            chosen[file] = _choose_columns(available, text_columns, file)
    if not chosen:
        raise _empty(source, 0)
    (first, columns), *others = chosen.items()
    for file, other in others:
        if other != columns:
            raise UserError(
                f"{source}: its files disagree: {first} gives {', '.join(columns)} and {file} gives "
                f"{', '.join(other)}; rename the columns, name them with --text_column, or train on one file"
            )
    return columns


# Where the rows come from


def _find_files(source: str) -> list[Path] | None:
    """The corpus files of a path, or None for what can only be a Hub id."""
    if not source.strip():
        raise UserError("no corpus given; give a file, a folder or a Hub data set id")
    path = Path(source).expanduser()
    known = f"{', '.join(EXTENSIONS)}, each also with .gz"
    if path.is_dir():
        found = {file.relative_to(path): file for file in path.rglob("*") if _extension(file) and file.is_file()}
        visible = [name for name in found if not any(part.startswith(".") for part in name.parts)]
        if not visible:
            raise UserError(f"{source}: the folder holds no corpus file; known extensions: {known}")
        return [found[name] for name in sorted(visible, key=lambda name: name.as_posix())]
    if path.exists():
        if not _extension(path):
            raise UserError(f"{source}: unknown extension {''.join(path.suffixes[-2:])!r}; known: {known}")
        return [path]
    # `load_dataset("text")` would not look on the Hub but read whatever text files are in the working directory.
    name = source.partition(":")[0]
    loader = name.isidentifier() and importlib.util.find_spec(f"datasets.packaged_modules.{name}")
    if _extension(path) or loader or not _HUB_ID.fullmatch(source):
        raise UserError(f"{source}: no such file or folder; check the path (or give a Hub data set id, org/name)")
    return None


def _extension(path: Path) -> str | None:
    extension = Path(path.name.lower().removesuffix(".gz")).suffix
    return extension if extension in EXTENSIONS else None


def _open_hub(source: str, split: str, streaming: bool) -> datasets.Dataset | datasets.IterableDataset:
    name, _, config = source.partition(":")
    try:
        return datasets.load_dataset(name, config or None, split=split, streaming=streaming)
    except Exception as error:  # what `datasets` raises for a missing, gated, offline or script data set has no base
        raise _hub_error(source, split, error) from error


def _hub_error(source: str, split: str, error: Exception) -> UserError:
    reason = " ".join(str(error).split()) or "no reason given"
    return UserError(
        f"{source}: neither a file or folder here nor a Hub data set (split {split!r}) that can be loaded; check the "
        f"name, the network and, for a private one, `hf auth login` ({type(error).__name__}: {reason[:300]})"
    )


def _stream_files(
    source: str, files: list[Path], text_columns: list[str] | None
) -> tuple[datasets.IterableDataset, tuple[str, ...]]:
    columns = _agreed_columns(source, files, text_columns)
    paths = [str(file) for file in files]
    if next(_generate(paths, columns), None) is None:
        raise _empty(source)
    dataset = datasets.IterableDataset.from_generator(
        _generate,
        features=_text_features(len(columns)),
        # `datasets` shards along the one list among these, so the columns have to be a tuple.
        gen_kwargs={"paths": paths, "columns": columns},
    )
    return dataset, columns


def _generate(paths: list[str], columns: tuple[str, ...]) -> Iterator[dict[str, str]]:
    names = VIEWS[: len(columns)]
    for path in paths:
        for raw in read_rows(Path(path), columns):
            row = [text.strip() for text in raw]
            if all(row):
                yield dict(zip(names, row, strict=True))


def _stream_hub(
    source: str, text_columns: list[str] | None, split: str
) -> tuple[datasets.IterableDataset, tuple[str, ...]]:
    dataset = _open_hub(source, split, streaming=True)
    try:
        first = next(iter(dataset), None)
    except Exception as error:  # the first look at the data, with the same errors as opening it
        raise _hub_error(source, split, error) from error
    if first is None:
        raise _empty(source, 0)
    columns = _choose_columns(list(first), text_columns, source)
    dataset = dataset.map(
        _clean_batch,
        batched=True,
        remove_columns=list(first),
        features=_text_features(len(columns)),
        fn_kwargs={"columns": columns, "source": source},
    )
    if next(iter(dataset), None) is None:
        raise _empty(source)
    return dataset, columns


def _clean_batch(batch: dict[str, list[Any]], columns: tuple[str, ...], source: str) -> dict[str, list[str]]:
    rows = []
    for raw in zip(*(batch[name] for name in columns), strict=True):
        for name, value in zip(columns, raw, strict=True):
            if value is not None and not isinstance(value, str):
                raise UserError(f"{source}: column {name!r} holds {type(value).__name__}, not text")
        row = [(text or "").strip() for text in raw]
        if all(row):
            rows.append(row)
    return {name: [row[view] for row in rows] for view, name in enumerate(VIEWS[: len(columns)])}


def _text_features(views: int) -> datasets.Features:
    return datasets.Features({name: datasets.Value("string") for name in VIEWS[:views]})


# Files


def _read_columns(path: Path) -> list[str] | None:
    """The names of a file's columns; None if the file has no rows to tell."""
    extension = _extension(path)
    if extension == ".txt":
        return ["text"]
    if extension == ".parquet":
        with _open_parquet(path) as file:
            return list(file.schema_arrow.names)
    if extension in (".csv", ".tsv"):
        return _table_header(path, table_records(path))
    return next((list(record) for _, record in json_records(path) if record is not None), None)


def read_rows(path: Path, columns: tuple[str, ...], place: Place | None = None) -> Iterator[tuple[str, ...]]:
    """The chosen columns of each row as they stand; a line without anything gives empty strings.

    Args:
        path: a corpus file.
        columns: of `Corpus.columns`.
        place: where to begin; moved on with every row, so that a copy of it is where the next row begins. A packed
            file is unpacked up to there, a plain one is not read.

    Raises:
        UserError: naming file and line, when the iteration gets to what cannot be read.
    """
    extension = _extension(path)
    place = Place() if place is None else place
    if extension == ".txt":
        for line in _lines(path, place=place):
            yield (line,)
    elif extension == ".parquet":
        yield from _parquet_rows(path, columns, place)
    elif extension in (".csv", ".tsv"):
        yield from _table_rows(path, columns, place)
    else:
        yield from _json_rows(path, columns, place)


def read_chunks(
    path: Path, columns: tuple[str, ...], place: Place
) -> Iterator[tuple[list[tuple[str, ...]], Callable[[int], Place]]]:
    """The rows of a file many at a time, which is faster, and stripped of white space at both ends.

    Args:
        path: a corpus file.
        columns: of `Corpus.columns`.
        place: where to begin; not changed.

    Yields:
        Rows, and a function that gives the place after so many of them.

    Raises:
        UserError: as `read_rows`.
    """
    place = dataclasses.replace(place)
    if _extension(path) == ".txt":
        yield from _text_chunks(path, place)
        return
    rows = read_rows(path, columns, place)
    while True:
        start = dataclasses.replace(place)
        chunk = [(row, place.byte, place.line) for row in itertools.islice(rows, _CHUNK_ROWS)]
        if not chunk:
            return

        def after(used: int, chunk: list[Any] = chunk, start: Place = start) -> Place:
            return Place(*chunk[used - 1][1:]) if used else start

        yield [tuple(map(str.strip, row)) for row, *_ in chunk], after


def _text_chunks(path: Path, place: Place) -> Iterator[tuple[list[tuple[str, ...]], Callable[[int], Place]]]:
    try:
        with _open(path) as file:
            file.seek(place.byte)
            while lines := file.readlines(_CHUNK_BYTES):
                raw = b"".join(lines)
                try:
                    text = raw.decode("utf-8")
                except UnicodeDecodeError:
                    text = "\0"
                if "\0" in text:
                    list(_lines(path, place=place))  # tells which line it is
                if not place.byte:
                    text = text.removeprefix("\ufeff")
                start = dataclasses.replace(place)

                def after(used: int, lines: list[bytes] = lines, start: Place = start) -> Place:
                    return Place(start.byte + sum(map(len, lines[:used])), start.line + used)

                yield list(zip(map(str.strip, text.removesuffix("\n").split("\n")), strict=True)), after
                place.byte, place.line = place.byte + len(raw), place.line + len(lines)
    except (OSError, EOFError, zlib.error) as error:
        raise _unreadable(path, error) from None


def _bad_line(path: Path, number: int, what: str) -> UserError:
    return UserError(f"{path}: line {number} {what}")


def _unreadable(path: Path, error: Exception) -> UserError:
    reason = getattr(error, "strerror", None) or " ".join(str(error).split())
    return UserError(f"{path}: cannot be read, is it damaged, cut short or misnamed? ({reason})")


def _open(path: Path) -> BinaryIO:
    return gzip.open(path) if path.name.lower().endswith(".gz") else open(path, "rb")


def _lines(path: Path, nul: bool = False, place: Place | None = None) -> Iterator[str]:
    r"""The lines of a UTF-8 file with their ends; only `\n` ends a line (`str.splitlines` knows ten others)."""
    place = Place() if place is None else place
    try:
        with _open(path) as file:
            file.seek(place.byte)
            for raw in file:
                place.line += 1
                place.byte += len(raw)
                number = place.line
                if b"\0" in raw and not nul:
                    raise _bad_line(path, number, "holds a NUL byte; is this a binary file? Save text as UTF-8")
                try:
                    line = raw.decode("utf-8")
                except UnicodeDecodeError:
                    raise _bad_line(path, number, "is not UTF-8; is this a binary file? Save text as UTF-8") from None
                yield line.removeprefix("\ufeff") if number == 1 else line
    except (OSError, EOFError, zlib.error) as error:
        raise _unreadable(path, error) from None


def table_records(path: Path, *, nul: bool = False, place: Place | None = None) -> Iterator[tuple[int, list[str]]]:
    """(line number, fields) of each record of a .csv or .tsv file, the header first.

    Args:
        path: the file, in UTF-8; `.gz` is unpacked.
        nul: whether a NUL is a character as any other; else it is taken for the mark of a binary file.
        place: as in `read_rows`; the header is the first record of a whole file alone.

    Raises:
        UserError: naming file and line, if it cannot be read.
    """
    place = Place() if place is None else place
    if _extension(path) == ".tsv":
        for line in _lines(path, nul, place):
            yield place.line, line.rstrip("\r\n").split("\t")
        return
    # `strict`: a quote that is never closed is an error instead of a field that swallows the rest of the file.
    reader = csv.reader(_lines(path, nul, place), strict=True)
    while True:
        number = place.line + 1
        try:
            fields = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise _bad_line(
                path, number, f'is not CSV ({error}); quote fields with " and double a " inside, or use .txt or .tsv'
            ) from None
        yield number, fields


def _table_header(path: Path, records: Iterator[tuple[int, list[str]]]) -> list[str] | None:
    """The column names, or None of a file without a line."""
    header = next(records, None)
    if header is None:
        return None
    names = [name.strip() for name in header[1]]
    if not any(names):
        raise _bad_line(path, 1, "is blank; the first line has to name the columns")
    if len(names) == 1 and re.search(r"[,;\t]", names[0]):
        raise _bad_line(path, 1, f"names one column, {names[0]!r}; separate columns by commas in .csv, by tabs in .tsv")
    return names


def _table_rows(path: Path, columns: tuple[str, ...], place: Place) -> Iterator[tuple[str, ...]]:
    records = table_records(path, place=place)
    names = _table_header(path, table_records(path) if place.line else records)
    if names is None:
        return
    chosen = [names.index(name) for name in columns]
    for number, fields in records:
        if len(fields) == len(names):
            yield tuple(fields[index] for index in chosen)
        elif not "".join(fields).strip() and len(fields) < 2:
            yield ("",) * len(columns)
        else:
            remedy = "no field may hold a tab" if _extension(path) == ".tsv" else 'quote with " what holds a comma'
            raise _bad_line(path, number, f"has {len(fields)} fields, the header has {len(names)}; {remedy}")


def json_records(path: Path, place: Place | None = None) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """(line number, object) of each line of a file of JSON lines, None for a blank one.

    Args:
        path: the file, in UTF-8; `.gz` is unpacked.
        place: as in `read_rows`.

    Raises:
        UserError: naming file and line, if it cannot be read.
    """
    place = Place() if place is None else place
    for line in _lines(path, place=place):
        number = place.line
        if not line.strip():
            yield number, None
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            reason = getattr(error, "msg", str(error))
            raise _bad_line(path, number, f"is not JSON ({reason}); write one object a line") from None
        if not isinstance(record, dict):
            raise _bad_line(path, number, f"is a JSON {type(record).__name__}; write one object a line")
        yield number, record


def _json_rows(path: Path, columns: tuple[str, ...], place: Place) -> Iterator[tuple[str, ...]]:
    for number, record in json_records(path, place):
        if record is None:
            yield ("",) * len(columns)
            continue
        for name in columns:
            if name not in record:
                listed = ", ".join(map(repr, record)) or "none"
                raise _bad_line(path, number, f"has no key {name!r}, its keys: {listed}")
            if not isinstance(record[name], str):
                raise _bad_line(path, number, f"has a {name!r} that is {json.dumps(record[name])[:40]}, not a string")
            try:
                record[name].encode("utf-8")
            except UnicodeEncodeError:  # an escaped half of a surrogate pair, which JSON lets through
                raise _bad_line(path, number, f"has a {name!r} that is not valid Unicode") from None
        yield tuple(record[name] for name in columns)


@contextmanager
def _open_parquet(path: Path) -> Iterator[pq.ParquetFile]:
    try:
        with _open(path) as file, tempfile.TemporaryFile() as unpacked:
            if isinstance(file, gzip.GzipFile):  # Parquet is read from its end, where gzip cannot jump to
                shutil.copyfileobj(file, unpacked)
                unpacked.seek(0)
                file = unpacked
            yield pq.ParquetFile(file)
    except (pa.ArrowException, OSError, EOFError, zlib.error) as error:
        raise _unreadable(path, error) from None


def _parquet_rows(path: Path, columns: tuple[str, ...], place: Place) -> Iterator[tuple[str, ...]]:
    with _open_parquet(path) as file:
        groups, skip = list(range(file.num_row_groups)), place.line
        while groups and skip >= (rows := file.metadata.row_group(groups[0]).num_rows):
            skip -= rows
            groups.pop(0)
        batches = file.iter_batches(_CHUNK_ROWS, row_groups=groups, columns=list(columns))
        for row in itertools.islice(_arrow_rows(batches, columns, path), skip, None):
            place.line += 1
            yield row


def _arrow_rows(
    batches: Iterable[pa.RecordBatch | pa.Table], columns: tuple[str, ...], where: str | Path
) -> Iterator[tuple[str, ...]]:
    """The rows of Arrow batches; a null counts as blank."""
    for batch in batches:
        values = []
        for name in columns:
            column = batch.column(name)
            kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
            if kind not in (pa.string(), pa.large_string(), pa.string_view(), pa.null()):
                raise UserError(f"{where}: column {name!r} holds {kind}, not text; choose with --text_column")
            try:
                values.append(column.to_pylist())
            except UnicodeDecodeError:
                raise UserError(f"{where}: column {name!r} holds bytes that are not UTF-8") from None
        for row in zip(*values, strict=True):
            yield tuple(text or "" for text in row)


# Tokens


def _pad_token_id(tokenizer: PreTrainedTokenizerBase) -> int:
    if tokenizer.pad_token_id is None:
        raise UserError("the tokenizer has no padding token; set one, e.g. tokenizer.pad_token = tokenizer.eos_token")
    return tokenizer.pad_token_id


def tokenize_batch(
    batch: dict[str, list[str]],
    tokenizer: PreTrainedTokenizerBase,
    max_length: int,
    augmentation: Callable[[str], str] | None = None,
) -> dict[str, list[Any]]:
    """The columns that `tokenize_corpus` adds, for the columns of texts in `batch`."""
    columns = [batch[name] for name in VIEWS if name in batch]
    if augmentation is not None:
        columns.append([augmentation(text) for text in columns[0]])
    texts = [text for row in zip(*columns, strict=True) for text in row]
    ids = tokenizer(
        texts, truncation=True, max_length=max_length, return_attention_mask=False, return_token_type_ids=False
    )["input_ids"]
    for text, tokens in zip(texts, ids, strict=True):
        if not tokens:
            raise UserError(f"the tokenizer turns {text[:40]!r} into no token; remove that sentence from the corpus")
    views = len(columns)
    rows = [ids[start : start + views] for start in range(0, len(ids), views)]
    hashes = [text_hash(text) for text in texts]
    return {
        "input_ids": rows,
        "text_hash": [hashes[start : start + views] for start in range(0, len(ids), views)],
        "length": [max(map(len, row)) for row in rows],
    }
