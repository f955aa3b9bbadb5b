"""`hf-robustcse encode`: the embeddings of a file of any size, in constant memory.

The text is read twice: once to count the rows and check every line, so that a bad one is named before hours of work,
and once to encode. Row i of the output is row i of the input: a blank line is embedded as the empty text.

With several processes each loads the model itself. Sentence-transformers' own pool pickles it instead, which fails for
a model that has returned hidden states (transformers leaves a local function in it), and takes a list, not a stream.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import multiprocessing
import os
import shutil
import signal
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from sentence_transformers import SentenceTransformer
from tqdm import tqdm
from transformers.utils import logging

from hf_robustcse.data import stream_texts
from hf_robustcse.deploy.encode_command import DEFAULT_FILE, DTYPES
from hf_robustcse.deploy.onnx_model import load_onnx
from hf_robustcse.errors import UserError
from hf_robustcse.evaluation.embedders import load_embedder
from hf_robustcse.evaluation.sts import check_finite
from hf_robustcse.files import write_json

BLOCK_ROWS = 1024
"""Rows that are held in memory at a time, and of a row group of Parquet."""

STATE = "encode.json"
"""In a folder of shards: what they are embeddings of."""


def run(
    model: str,
    input: str,
    output: str,
    text_column: str | None,
    batch_size: int,
    num_processes: int,
    dtype: str,
    normalize: bool,
    backend: str,
    file_name: str | None,
    device: str | None,
    shard_rows: int,
    overwrite: bool,
    argv: Sequence[str] = (),
) -> None:
    """Encode, say how fast, and what to run next.

    Args:
        model: the checkpoint.
        input: file or folder of texts.
        output: where to.
        text_column: see `encode_file`, like the other options.
        batch_size: see there.
        num_processes: see there.
        dtype: see there.
        normalize: see there.
        backend: `torch`, or `onnx` for a folder that `hf-robustcse export` wrote.
        file_name: which of its graphs.
        device: see there.
        shard_rows: see there.
        overwrite: see there.
        argv: the command's words.

    Raises:
        UserError: as `encode_file`.
    """
    if file_name and backend != "onnx":
        raise UserError("--file_name chooses a graph of --backend onnx: add that, or leave it out")
    logging.disable_progress_bar()  # those of loading the weights; encoding has its own
    # A termination unwinds like an exception, so that the pool ends and no part of a file stays.
    before = signal.signal(signal.SIGTERM, _terminate)
    try:
        done = encode_file(
            model, input, output, text_column=text_column, batch_size=batch_size, num_processes=num_processes,
            dtype=dtype, normalize=normalize, onnx_file=(file_name or DEFAULT_FILE) if backend == "onnx" else None,
            device=device, shard_rows=shard_rows, overwrite=overwrite,
        )  # fmt: skip
    finally:
        signal.signal(signal.SIGTERM, before)
    print(f"{done['rows']:,} rows of {done['dimension']} {dtype} numbers in {output}")
    if done["blank"]:
        print(f"{done['blank']:,} blank rows are embedded as the empty text, so that rows stay aligned with {input}")
    if output.endswith(".npy"):
        print(f"next: numpy.load({output!r}, mmap_mode='r')")
    elif output.endswith(".parquet"):
        print(f"next: pyarrow.parquet.ParquetFile({output!r}).iter_batches()")
    else:
        files = str(Path(output) / "*.parquet")
        print(f"next: datasets.load_dataset('parquet', data_files={files!r})")


def _terminate(*_: Any) -> None:
    raise SystemExit(143)


def encode_file(
    model_name_or_path: str,
    source: str | Path,
    output: str | Path,
    *,
    text_column: str | None = None,
    batch_size: int = 64,
    num_processes: int = 1,
    dtype: str = "float32",
    normalize: bool = False,
    onnx_file: str | None = None,
    device: str | None = None,
    shard_rows: int = 65_536,
    overwrite: bool = False,
) -> dict[str, int]:
    """Write the embeddings of every row of a file, equal to `SentenceTransformer.encode` of its texts up to rounding.

    A file appears whole or not at all. In a folder that holds of each shard; when the same call is made again it keeps
    the shards that are there.

    Args:
        model_name_or_path: checkpoint folder or Hub id.
        source: file or folder, read by `data.stream_texts`.
        output: `.npy` gets an (n, d) array; `.parquet` the columns `row` (from 0), `text` and `embedding` (a list of
            fixed size d); any other name is a folder of files `part-00000.parquet` with the same columns.
        text_column: the column of the text.
        batch_size: texts in one pass.
        num_processes: above 1 so many processes share the GPUs, or the cores of the CPU.
        dtype: `float32` or `float16`.
        normalize: scale embeddings to length 1.
        onnx_file: encode by this graph of an exported folder.
        device: such as `cpu` or `cuda:1`; None takes a GPU if there is one.
        shard_rows: rows of each file of a folder.
        overwrite: replace an output that is there.

    Returns:
        `rows`, `blank` (of them without text), `dimension`, `encoded` (rows not found in shards of an earlier call).

    Raises:
        UserError: for bad options, a bad row (naming file and line), an output that exists or belongs to another input
            or model, or embeddings that are not finite.
    """
    target = Path(output).expanduser()
    kind = target.suffix if target.suffix in (".npy", ".parquet") else "folder"
    for option, value in (("batch_size", batch_size), ("num_processes", num_processes), ("shard_rows", shard_rows)):
        if value < 1:
            raise UserError(f"--{option} must be at least 1, not {value}")
    if num_processes > (most := 4 * max(4, os.cpu_count() or 1)):
        raise UserError(f"--num_processes {num_processes}: each holds a model; at most {most} on this machine")
    if dtype not in DTYPES:
        raise UserError(f"--dtype must be one of {', '.join(DTYPES)}, not {dtype!r}")
    if kind == "folder" and target.suffix:
        raise UserError(f"--output {output}: name a .npy file, a .parquet file, or a folder without an extension")
    if kind != "folder" and target.exists() and not overwrite:
        raise UserError(f"--output {output} exists: add --overwrite to replace it, or name another")
    if kind != "folder" and target.exists() and Path(source).exists() and target.samefile(source):
        raise UserError(f"--output {output} is the --input: name another")
    _check_place(target, kind)
    rows, blank, digest = _look_through(source, text_column)
    how = {"batch_size": batch_size, "normalize_embeddings": normalize, "show_progress_bar": False}
    model = _load(model_name_or_path, onnx_file, device)
    width = int(model.encode("dimension", show_progress_bar=False).shape[0])
    shards = [(target, range(rows))]
    if kind == "folder":
        about = {
            "rows": rows, "texts_sha256": digest, "dimension": width, "dtype": dtype, "normalize": normalize,
            "shard_rows": shard_rows,
            # A model is known by an embedding, because its path says nothing of its weights.
            "probe": model.encode("The quick brown fox.", show_progress_bar=False).tolist(),
        }  # fmt: skip
        _claim(target, about, overwrite)
        starts = range(0, rows, shard_rows)
        shards = [
            (target / f"part-{number:05d}.parquet", range(start, min(start + shard_rows, rows)))
            for number, start in enumerate(starts)
        ]
    wanted = [(path, its) for path, its in shards if kind != "folder" or not path.exists()]
    encoded = sum(len(its) for _, its in wanted)
    blocks = _blocks(source, text_column, wanted)
    if num_processes > 1:
        del model  # each process has its own
        mapped = _map_in_processes(blocks, num_processes, (model_name_or_path, onnx_file, device), how)
    else:
        mapped = ((block, model.encode(block, **how)) for block in blocks)
    with (
        closing(mapped),
        tqdm(total=rows, initial=rows - encoded, unit=" rows", desc="encoding", mininterval=0.5, disable=None) as bar,
    ):
        for path, its in wanted:
            with _part_of(path) as part, _writer(part, kind, len(its), width, dtype) as writer:
                for start in range(its.start, its.stop, BLOCK_ROWS):
                    block, embeddings = next(mapped)
                    embeddings = embeddings.astype(dtype)
                    check_finite(embeddings, block, f"the model {model_name_or_path} in {dtype}")
                    writer.write(start, block, embeddings)
                    bar.update(len(block))
    if kind == "folder":
        write_json(target / STATE, {**about, "complete": True})
    return {"rows": rows, "blank": blank, "dimension": width, "encoded": encoded}


def _check_place(target: Path, kind: str) -> None:
    """Refuse a place where nothing can be written, before anything is read or loaded."""
    if kind != "folder" and target.is_dir():
        raise UserError(f"--output {target} is a folder: name a file")
    if kind == "folder" and target.exists() and not (target / STATE).is_file():
        if not target.is_dir() or any(target.iterdir()):
            raise UserError(f"--output {target} is there and was not written by this command: name another")
    parent = next(folder for folder in target.absolute().parents if folder.exists())
    if not parent.is_dir():
        raise UserError(f"--output {target}: {parent} is a file, not a folder")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise UserError(f"--output {target}: no right to write in {parent}")


def _look_through(source: str | Path, text_column: str | None) -> tuple[int, int, str]:
    """How many rows there are, how many of them are blank, and the SHA-256 of all texts."""
    rows = blank = 0
    digest = hashlib.sha256()
    texts = stream_texts(source, text_column)
    for text in tqdm(texts, desc="checking", unit=" rows", delay=2, mininterval=0.5, disable=None):
        rows += 1
        blank += not text
        digest.update(text.encode("utf-8") + b"\n")
    if not rows:
        raise UserError(f"{source} has no rows")
    return rows, blank, digest.hexdigest()


def _claim(folder: Path, about: dict[str, Any], overwrite: bool) -> None:
    """Make the folder of shards, or go on in one of the same texts, options and model."""
    if folder.exists():
        try:
            before = json.loads((folder / STATE).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            before = None
        if before is None and (not folder.is_dir() or any(folder.iterdir())):
            raise UserError(f"--output {folder} was not written by this command: name another")
        if before is not None and not overwrite:
            changed = [key for key in about if key != "probe" and before.get(key) != about[key]]
            if not changed and not np.allclose(before["probe"], about["probe"], atol=1e-4):
                changed = ["model"]
            if changed:
                raise UserError(
                    f"--output {folder} holds embeddings of another {', '.join(changed)}: "
                    "add --overwrite, or name another"
                )
            return
        shutil.rmtree(folder)
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise UserError(f"cannot write {folder}: {error}") from None
    write_json(folder / STATE, {**about, "complete": False})


def _load(model_name_or_path: str, onnx_file: str | None, device: str | None) -> SentenceTransformer:
    if onnx_file:
        return load_onnx(model_name_or_path, onnx_file)
    return load_embedder(model_name_or_path, device=device).model


def _blocks(source: str | Path, text_column: str | None, shards: list[tuple[Path, range]]) -> Iterator[list[str]]:
    """The texts of some ranges of rows, in blocks that do not reach from one range into the next."""
    texts, position = stream_texts(source, text_column), 0
    for _, rows in shards:
        for _ in itertools.islice(texts, rows.start - position):
            pass
        position = rows.stop
        for start in range(rows.start, rows.stop, BLOCK_ROWS):
            count = min(BLOCK_ROWS, rows.stop - start)
            block = list(itertools.islice(texts, count))
            if len(block) < count:
                raise UserError(f"{source} became shorter while it was read: start again")
            yield block


_worker_model: SentenceTransformer | None = None


def _start_worker(devices: Any, model_name_or_path: str, onnx_file: str | None) -> None:
    """Load the model in a worker process, which ends with its parent, however that ends."""
    global _worker_model
    parent = multiprocessing.parent_process()
    threading.Thread(target=lambda: (parent.join(), os._exit(1)), daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    _worker_model = _load(model_name_or_path, onnx_file, devices.get())


def _encode_in_worker(block: list[str], how: dict[str, Any]) -> np.ndarray:
    return _worker_model.encode(block, **how)


def _map_in_processes(
    blocks: Iterator[list[str]], processes: int, load: tuple[str, str | None, str | None], how: dict[str, Any]
) -> Iterator[tuple[list[str], np.ndarray]]:
    """Each block with its embeddings, in order; two blocks for each process are under way at a time."""
    name, onnx_file, device = load
    context = multiprocessing.get_context("spawn")
    devices = context.Queue()
    gpus = 0 if device or onnx_file else torch.cuda.device_count()
    for number in range(processes):
        devices.put(f"cuda:{number % gpus}" if gpus else device)
    # The workers read this when they start; without it each takes all cores.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, cores // processes)))
    others, finished = multiprocessing.active_children(), False
    pool = ProcessPoolExecutor(processes, context, _start_worker, (devices, name, onnx_file))
    try:
        under_way: deque[tuple[list[str], Future[np.ndarray]]] = deque()
        for block in blocks:
            under_way.append((block, pool.submit(_encode_in_worker, block, how)))
            if len(under_way) >= 2 * processes:
                block, future = under_way.popleft()
                yield block, future.result()
        while under_way:
            block, future = under_way.popleft()
            yield block, future.result()
        finished = True
    except BrokenProcessPool:
        raise UserError(
            "a worker process died, perhaps for lack of memory: use fewer --num_processes or a smaller --batch_size"
        ) from None
    finally:
        if not finished:  # nothing that is under way is wanted now, and a block may take minutes
            for worker in multiprocessing.active_children():
                if worker not in others:
                    worker.terminate()
        pool.shutdown(cancel_futures=True)
        if before is None:
            del os.environ["OMP_NUM_THREADS"]


class _Writer(Protocol):
    def write(self, start: int, texts: list[str], embeddings: np.ndarray) -> None:
        """Append n texts, the first of which is row `start` of the input, with their (n, d) embeddings."""


class _Array:
    """A .npy file, written on and on: pages of a memory map would count as memory of this process."""

    def __init__(self, file: BinaryIO, rows: int, width: int, dtype: str) -> None:
        self.file = file
        header = {
            "descr": np.lib.format.dtype_to_descr(np.dtype(dtype)),
            "fortran_order": False,
            "shape": (rows, width),
        }
        np.lib.format.write_array_header_1_0(file, header)

    def write(self, start: int, texts: list[str], embeddings: np.ndarray) -> None:
        embeddings.tofile(self.file)


class _Table:
    """A Parquet file with one row group for each block."""

    def __init__(self, writer: pq.ParquetWriter) -> None:
        self.writer = writer

    def write(self, start: int, texts: list[str], embeddings: np.ndarray) -> None:
        columns = [
            pa.array(np.arange(start, start + len(texts))),
            pa.array(texts, pa.string()),
            pa.FixedSizeListArray.from_arrays(pa.array(embeddings.reshape(-1)), embeddings.shape[1]),
        ]
        self.writer.write_table(pa.table(columns, schema=self.writer.schema), row_group_size=len(texts))


@contextmanager
def _writer(path: Path, kind: str, rows: int, width: int, dtype: str) -> Iterator[_Writer]:
    if kind == ".npy":
        with open(path, "wb") as file:
            yield _Array(file, rows, width, dtype)
        return
    number = pa.float16() if dtype == "float16" else pa.float32()
    schema = pa.schema([("row", pa.int64()), ("text", pa.string()), ("embedding", pa.list_(number, width))])
    # Embeddings hardly shrink; without a dictionary their pages are not held back until the row group ends.
    with pq.ParquetWriter(path, schema, compression="zstd", use_dictionary=False) as writer:
        yield _Table(writer)


@contextmanager
def _part_of(path: Path) -> Iterator[Path]:
    """A hidden file beside `path` that takes its place when the block ends without an error."""
    part = path.with_name(f".{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.touch()
    except OSError as error:
        raise UserError(f"cannot write {path}: {error}") from None
    try:
        yield part
        with open(part, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)
