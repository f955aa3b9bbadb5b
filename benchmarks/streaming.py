"""Memory and speed of a streamed corpus, from its first row to its last, and the time to go on from its middle.

    python benchmarks/streaming.py --rows 10000000 --output_json out.json
    python benchmarks/streaming.py --rows 100000000 --stage read --output_json out.json

Makes a corpus of so many different sentences (12 words of a vocabulary of 20,000; the same at every run), reads it
once and prints at ten points the sentences per second since the point before and the memory that this process and its
workers hold. `--stage read` reads, strips, shuffles and deals out; `tokenize` (the default) also makes the batches that
training gets; with `--train_every K` every Kth of them trains the embedded encoder. In the end a second stream goes on
from each of the points: the time to its first batch, beside the time that it took to get there, which is what a trainer
pays that skips batches by fetching them.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import resource
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from measuring import at_least, check_output, machine, spread
from tqdm import tqdm

from hf_robustcse.arguments import EMBEDDED_ENCODER
from hf_robustcse.data import ContrastiveCollator, load_corpus
from hf_robustcse.errors import Parser, UserError, command
from hf_robustcse.files import write_json
from hf_robustcse.model import RobustCSEModel
from hf_robustcse.stream import POSITION, TextStream

BLOCK = 50_000


def make_corpus(folder: Path, rows: int, files: int, packed: bool) -> list[Path]:
    """Write `rows` different sentences, about 80 bytes each, a block at a time."""
    rng = np.random.default_rng(0)
    letters = np.array(list("etaoinshrdlucmfwypvbgk"))
    words = ["".join(rng.choice(letters, size)) for size in rng.integers(2, 10, 20_000)]
    block = [" ".join(words[i] for i in line) for line in rng.integers(0, len(words), (BLOCK, 12))]
    paths, share = [], -(-rows // files)
    with tqdm(total=rows, desc="writing", unit=" rows", unit_scale=True, disable=None) as progress:
        for number in range(files):
            paths.append(folder / f"part-{number:03}.txt{'.gz' if packed else ''}")
            begin, end = number * share, min(rows, (number + 1) * share)
            with gzip.open(paths[-1], "wb", compresslevel=1) if packed else open(paths[-1], "wb") as file:
                for start in range(begin, end, BLOCK):
                    lines = block[: min(BLOCK, end - start)]
                    # A number makes the sentences of one block differ from those of every other.
                    file.write((f"\n{start} ".join(["", *lines])[1:] + "\n").encode())
                    progress.update(len(lines))
    return paths


def memory(loader_workers: list[int]) -> int:
    """Bytes that this process and its workers hold, what they share counted once."""
    total = 0
    for process in ["self", *loader_workers]:
        try:
            lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024
    return total or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def children() -> list[int]:
    """Processes that this one has started."""
    return [int(pid) for path in Path("/proc/self/task").glob("*/children") for pid in path.read_text().split()]


def batches_of(stream: TextStream, args: argparse.Namespace) -> Any:
    """(position, batch or None) of every step."""
    if args.stage == "read":
        return ((position, None) for _, position in stream.steps())
    loader = stream.loader(num_workers=args.num_workers)
    return ((batch.pop(POSITION), batch) for batch in loader)


@command
def main() -> None:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--files", type=int, default=4)
    parser.add_argument("--gz", action="store_true", help="packed files")
    parser.add_argument("--stage", choices=["read", "tokenize"], default="tokenize")
    parser.add_argument("--batch_size", type=int, default=256)
    parser.add_argument("--max_seq_length", type=int, default=32)
    parser.add_argument("--shuffle_buffer", type=int, default=100_000)
    parser.add_argument("--num_workers", type=int, default=1, help="of --stage tokenize")
    parser.add_argument("--train_every", type=int, default=0, help="train on every Kth batch; 0: none")
    parser.add_argument("--folder", type=Path, help="where the corpus is written for the time of the run")
    parser.add_argument("--output_json", type=Path)
    args = parser.parse_args()
    at_least(1, args, "rows", "files", "batch_size")
    at_least(0, args, "shuffle_buffer", "num_workers", "train_every")
    check_output(args)
    if args.rows < 10 * args.batch_size:
        raise UserError(f"--rows must be at least ten batches, {10 * args.batch_size}, not {args.rows}")
    if args.train_every and args.stage == "read":
        raise UserError("--train_every trains on tokens: leave it out, or --stage read")
    if args.folder is not None and not args.folder.is_dir():
        raise UserError(f"--folder {args.folder} is no folder")

    model = RobustCSEModel.from_encoder(EMBEDDED_ENCODER, method="simcse").train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-5)
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        paths = make_corpus(Path(folder), args.rows, args.files, args.gz)
        size = sum(path.stat().st_size for path in paths)

        def stream() -> TextStream:
            return TextStream(
                load_corpus(folder, streaming=True), model.tokenizer, ContrastiveCollator(model.tokenizer),
                max_length=args.max_seq_length, batch_size=args.batch_size, shuffle_buffer=args.shuffle_buffer,
            )  # fmt: skip

        steps = args.rows // args.batch_size
        marks = [steps * i // 10 for i in range(1, 11)]
        points: list[dict[str, Any]] = []
        places = {}
        started = last = time.perf_counter()
        done = 0
        print(f"{'sentences':>12} {'per second':>12} {'memory, MB':>12}")
        for step, (position, batch) in enumerate(itertools.islice(batches_of(stream(), args), steps), 1):
            if args.train_every and step % args.train_every == 0:
                model(**batch)["loss"].backward()
                optimizer.step()
                optimizer.zero_grad()
            if step in marks:
                now = time.perf_counter()
                point = {
                    "sentences": step * args.batch_size,
                    "per_second": (step - done) * args.batch_size / (now - last),
                    "bytes": memory(children()),
                    "seconds": now - started,
                }
                points.append(point)
                places[step] = position
                print(f"{point['sentences']:>12,} {point['per_second']:>12,.0f} {point['bytes'] / 1e6:>12.1f}")
                done, last = step, time.perf_counter()
        for point, (step, position) in zip(points[:-1], list(places.items())[:-1], strict=True):
            again = stream()
            again.load_position(position)
            begin = time.perf_counter()
            next(iter(batches_of(again, args)))
            point["resume_seconds"] = time.perf_counter() - begin
            print(
                f"after {step:,} steps: {point['resume_seconds']:.2f} s to go on, {point['seconds']:.1f} s to get there"
            )
    rates = [point["per_second"] for point in points]
    held = [point["bytes"] for point in points]
    summary = {
        "per_second": spread(rates),
        # The first point is left out of the growth: buffers and caches fill up to there.
        "bytes": {**spread(held), "growth": held[-1] - held[1]},
    }
    whole = {
        "memory at a tenth / at the second": [b / held[1] for b in held[1:]],
        "rate of a tenth / of the second": [rate / rates[1] for rate in rates[1:]],
        "seconds to get there / to go on there": [p["seconds"] / p["resume_seconds"] for p in points[:-1]],
    }
    summary["ratios"] = {name: spread(values) for name, values in whole.items()}
    growth = summary["bytes"]["growth"] / 1e6
    print(f"{summary['per_second']['median']:,.0f} sentences per second; memory grew by {growth:.1f} MB")
    if args.output_json:
        settings = {k: v for k, v in vars(args).items() if k not in ("output_json", "folder")}
        write_json(args.output_json, {**machine(), **settings, "corpus_bytes": size, "points": points, **summary})


if __name__ == "__main__":
    main()
