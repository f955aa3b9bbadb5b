"""A corpus that is read while training: shuffled, spread over processes and workers, and resumed where it stopped.

The order of the batches is a function of the files, the seed, the size of the shuffle buffer and the sentences of a
step on all processes together; neither the number of processes nor that of workers changes it. The rows are cut into
windows of `shuffle_buffer` rows (rounded up to whole steps), each window is shuffled, and its steps are dealt out:
every process takes its rows of every step, every worker of a process every so-manyth step. Each of them reads all rows,
which is cheap, and tokenises its own alone, which is not; so all processes have as many batches, and an epoch ends
after the same step for all. The rows that fill no whole step at the end of an epoch are left out, others each time.

From epoch to epoch the order of the files changes, where the windows begin, and the order in them. A position in the
stream is where its window begins and how many of its steps are done, so going on reads one window again and nothing
before it (a file packed by gzip is unpacked up to there).
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from transformers import PreTrainedTokenizerBase

from hf_robustcse.data import (
    VIEWS,
    ContrastiveCollator,
    Corpus,
    Place,
    check_augmentable,
    read_chunks,
    tokenize_batch,
)
from hf_robustcse.distributed import rank, world_size
from hf_robustcse.errors import UserError

POSITION = "position"
"""The key of a batch that holds the position in the stream after it, a plain JSON object."""

_HUB_ROWS = 1000


class TextStream(IterableDataset):
    """Batches of a streamed corpus, without end: after an epoch comes the next one.

    Args:
        corpus: from ``load_corpus(..., streaming=True)``.
        tokenizer: of the encoder.
        collator: makes a batch of tokenised rows.
        max_length: most tokens of a sentence, special tokens included.
        batch_size: sentences of a batch, on each process.
        shuffle_buffer: rows that are shuffled together, in memory in every worker; 0 keeps the order of the files.
        seed: of the order.
        augmentation: as in `tokenize_corpus`.

    Raises:
        UserError: if the corpus was not loaded for streaming, for a shuffle buffer below 0, or for an augmentation of
            a corpus that brings its own positives.
    """

    def __init__(
        self,
        corpus: Corpus,
        tokenizer: PreTrainedTokenizerBase,
        collator: ContrastiveCollator,
        *,
        max_length: int,
        batch_size: int,
        shuffle_buffer: int = 100_000,
        seed: int = 42,
        augmentation: Callable[[str], str] | None = None,
    ) -> None:
        check_augmentable(corpus, augmentation)
        if corpus.report is not None:
            raise UserError("the corpus is in memory: load_corpus(..., streaming=True) streams it")
        if shuffle_buffer < 0:
            raise UserError(f"--shuffle_buffer must be at least 0, not {shuffle_buffer}")
        self.corpus, self.tokenizer, self.collator = corpus, tokenizer, collator
        self.max_length, self.batch_size, self.augmentation = max_length, batch_size, augmentation
        self.shuffle_buffer, self.seed = shuffle_buffer, seed
        self.processes, self.process = world_size(), rank()  # a worker does not know them
        self._position: dict[str, Any] | None = None

    @property
    def step_rows(self) -> int:
        """Rows of a step on all processes."""
        return self.batch_size * self.processes

    @property
    def window_rows(self) -> int:
        """Rows that are shuffled together, whole steps."""
        return self.step_rows * max(1, -(-self.shuffle_buffer // self.step_rows))

    def load_position(self, position: dict[str, Any]) -> None:
        """Begin after the batch that had this position."""
        self._position = dict(position)

    def loader(
        self, *, num_workers: int = 0, prefetch_factor: int | None = None, pin_memory: bool = False
    ) -> DataLoader:
        """A data loader of the batches of this process.

        Args:
            num_workers: processes that read and tokenise beside the training; 0: none, each step waits for its batch.
            prefetch_factor: batches that each worker prepares ahead (2).
            pin_memory: for copies to an accelerator.
        """
        return _Loader(
            self,
            batch_size=None,
            num_workers=num_workers,
            prefetch_factor=prefetch_factor,
            pin_memory=pin_memory,
            # Of its own: the seed that a loader draws at its start would move the random state of the training.
            generator=torch.Generator(),
        )

    def __iter__(self) -> Iterator[dict[str, Any] | str]:
        """Batches with their position; or, in the end, what is wrong with the corpus, for `_Loader` to raise."""
        worker = get_worker_info()
        mine, workers = (worker.id, worker.num_workers) if worker else (0, 1)
        try:
            steps = itertools.islice(self.steps(), mine, None, workers)
            for rows, position in steps:
                yield self._batch(rows) | {POSITION: position}
        except UserError as error:  # raised in a worker, it would come with the worker's whole traceback
            yield str(error)

    def _batch(self, rows: list[tuple[str, ...]]) -> dict[str, Any]:
        texts = {name: list(column) for name, column in zip(VIEWS, zip(*rows, strict=True), strict=False)}
        columns = texts | tokenize_batch(texts, self.tokenizer, self.max_length, self.augmentation)
        return self.collator([dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)])

    def steps(self) -> Iterator[tuple[list[tuple[str, ...]], dict[str, Any]]]:
        """This process' rows of every step, and the position after it."""
        size, mine = self.step_rows, self.process * self.batch_size
        for rows, order, position, done in self._windows():
            for step in range(done, len(rows) // size):
                chosen = order[step * size + mine :][: self.batch_size]
                yield [rows[i] for i in chosen], position | {"steps": step + 1}

    def _windows(self) -> Iterator[tuple[list[tuple[str, ...]], np.ndarray, dict[str, Any], int]]:
        """The windows from the position on: rows, their order, where they begin, how many steps are done."""
        position = self._position or {"epoch": 0, "row": 0, "place": None}
        expected = position.get("rows_hash")
        while True:
            epoch = position["epoch"]
            seeded = np.random.default_rng([self.seed, epoch])
            reader = self._reader(seeded, position["place"])
            # Another first window each time: rows on both sides of a border come together in another epoch.
            first = self.step_rows * int(seeded.integers(1, self.window_rows // self.step_rows, endpoint=True))
            row = position["row"]
            while True:
                size = first if row == 0 and self.shuffle_buffer else self.window_rows
                limit = size if self.corpus.max_rows is None else min(size, self.corpus.max_rows - row)
                where = {"epoch": epoch, "row": row, "place": reader.place()}
                rows = reader.take(limit)
                where["rows_hash"] = _hash(rows, (self.seed, self.step_rows, self.window_rows))
                if expected is not None and where["rows_hash"] != expected:
                    raise UserError(
                        f"{self.corpus.source} is not what it was when the checkpoint was written: go on with the same "
                        "files, seed, --shuffle_buffer and sentences of a step on all processes, or start anew"
                    )
                order = np.arange(len(rows))
                if self.shuffle_buffer:
                    order = np.random.default_rng([self.seed, epoch, row]).permutation(len(rows))
                yield rows, order, where, 0 if expected is None else position["steps"]
                expected = None
                row += len(rows)
                if len(rows) < size:
                    break
            if row < self.step_rows:
                raise UserError(
                    f"the corpus has {row} sentences, fewer than one batch of {self.step_rows}: lower "
                    "--per_device_train_batch_size or add text"
                )
            position = {"epoch": epoch + 1, "row": 0, "place": None}

    def _reader(self, seeded: np.random.Generator, place: dict[str, Any] | None) -> _Reader:
        if not self.corpus.files:
            return _Hub(self.corpus.dataset, place)
        order = seeded.permutation(len(self.corpus.files))  # drawn in any case: what is drawn next depends on it
        if not self.shuffle_buffer or self.corpus.max_rows is not None:  # the first rows are those of the first files
            order = range(len(order))
        files = [self.corpus.files[i] for i in order]
        return _Files(files, self.corpus.columns, place)


class _Loader(DataLoader):
    def __iter__(self) -> Iterator[dict[str, Any]]:
        for batch in super().__iter__():
            if isinstance(batch, str):
                raise UserError(batch)
            yield batch


class _Reader:
    """The rows of one epoch, in chunks that come with the place after each of their rows."""

    _rows: list[tuple[str, ...]] = []
    _used = 0
    _after: Callable[[int], dict[str, Any]]

    def _next_chunk(self) -> bool:
        """Replace `_rows`, `_used` and `_after`; false at the end."""
        raise NotImplementedError

    def place(self) -> dict[str, Any]:
        """Where the next row begins."""
        return self._after(self._used)

    def take(self, count: int) -> list[tuple[str, ...]]:
        """The next `count` rows without a blank sentence; fewer at the end."""
        out: list[tuple[str, ...]] = []
        while len(out) < count:
            if self._used == len(self._rows):
                if not self._next_chunk():
                    break
                continue
            part = self._rows[self._used : self._used + count - len(out)]
            self._used += len(part)
            out += [row for row in part if "" not in row]
        return out


class _Files(_Reader):
    """The rows of files, one after the other."""

    def __init__(self, files: list[Path], columns: tuple[str, ...], place: dict[str, int] | None) -> None:
        place = place or {"file": 0, "byte": 0, "line": 0}
        self._files, self._columns = files, columns
        self._begin(place["file"], Place(place["byte"], place["line"]))

    def _begin(self, number: int, place: Place) -> None:
        self._number, self._rows, self._used = number, [], 0
        self._after = lambda _: {"file": number, "byte": place.byte, "line": place.line}
        self._chunks = read_chunks(self._files[number], self._columns, place)

    def _next_chunk(self) -> bool:
        chunk = next(self._chunks, None)
        if chunk is None:
            if self._number + 1 == len(self._files):
                return False
            self._begin(self._number + 1, Place())
            return True
        (self._rows, after), self._used, number = chunk, 0, self._number

        def place(used: int) -> dict[str, int]:
            return {"file": number, **dataclasses.asdict(after(used))}

        self._after = place
        return True


class _Hub(_Reader):
    """The rows of a data set on the Hub, which `datasets` streams."""

    def __init__(self, dataset: datasets.IterableDataset, place: dict[str, Any] | None) -> None:
        place = place or {"state": None, "used": 0}
        self._dataset = dataset
        dataset.load_state_dict(place["state"])
        self._batches = dataset.iter(_HUB_ROWS)  # not `iter(dataset)`, of which every worker would get a part
        self._after = lambda _: place
        if place["used"] and self._next_chunk():
            self._used = place["used"]

    def _next_chunk(self) -> bool:
        before = self.place()["state"] if not self._rows else self._dataset.state_dict()
        batch = next(self._batches, None)
        if batch is None:
            return False
        self._rows, self._used = list(zip(*(batch[name] for name in VIEWS if name in batch), strict=True)), 0
        self._after = lambda used: {"state": before, "used": used}
        return True


def _hash(rows: list[tuple[str, ...]], settings: tuple[int, ...]) -> str:
    """Of the rows of a window and of what gives them their order."""
    text = "\0".join([*map(str, settings), *itertools.chain.from_iterable(rows)])
    return hashlib.blake2b(text.encode("utf-8"), digest_size=8).hexdigest()
