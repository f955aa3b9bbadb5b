"""Peak memory of a training step: every method by batch, in one pass and in chunks, and the released codes' similarity.

    python benchmarks/memory.py --model_name_or_path MODEL --train_file sentences.txt.gz --output_json out.json

A cell is what training adds to a process that has loaded model and corpus: gradients, the state of AdamW and a step of
so many sentences. On CPU that is the peak of the resident memory above what is resident after loading, on CUDA that of
the allocated memory; ``fixed`` is what a step of four sentences leaves behind, the part that every batch has. Each cell
is measured in a process of its own, `--rounds` times; the median counts. The C library gives back at once what is
freed (``MALLOC_MMAP_THRESHOLD_``; `--keep_freed` leaves it as it is: its heap then grows by holes between what is kept,
which CUDA's allocator does not). ``mnrl_cached`` is sentence-transformers'
CachedMultipleNegativesRankingLoss, with chunks of the same size. ``broadcast`` is the loss of GS-InfoNCE with M = 3 N
and its gradient by ``torch.nn.CosineSimilarity`` on (N, M, d) numbers, as the released codes compute it, ``matrix`` the
same by matrix products (see noise_cost.py); both are without an encoder, at its width.

`--large` is the batch at which simcse and ``mnrl_cached`` are measured in chunks alone. A cell that by the one before
would need more than `--limit_gib` or `--limit_minutes` is not run, and the result says so. ``--batches 64 512`` is the
short form.

Every cell is written to `--output_json` as soon as it is measured; the same command goes on where it was cut.

``--seconds`` measures seconds in place of memory: simcse in one pass and in chunks beside ``mnrl_cached`` on the same
texts, tokens and chunk, interleaved, at the largest of `--batches`.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from measuring import at_least, check_output, machine, ratio
from noise_cost import broadcast_loss
from tqdm import tqdm

from hf_robustcse import RobustCSEModel, functional
from hf_robustcse.data import ContrastiveCollator, Corpus, load_corpus, tokenize_corpus
from hf_robustcse.errors import Parser, UserError, command
from hf_robustcse.files import read_json, write_json
from hf_robustcse.methods import METHODS

PEER = "mnrl_cached"
SIMILARITIES = ("broadcast", "matrix")
# On a corpus alone, without WordNet; and on an encoder that is no masked language model.
OPTIONS = {"dcl": {"dcl_augmentation": "dropout"}, "anchor": {"anchor_noise": "pair"}}
WITHOUT_LANGUAGE_MODEL = {"dcl": {"dcl_mlm_weight": 0.0}, "robustsentembed": {"rse_lambda2": 0.0}}
GIVE_BACK = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "65536"}
GIB = 2**30
Step = Callable[[int], None]


class Memory:
    """The peak since `start`, above what was held then; in bytes."""

    def start(self) -> None:
        """Forget the peak so far."""
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()
        else:
            # Not ru_maxrss, which a process inherits from the one that started it, and which cannot be reset.
            Path("/proc/self/clear_refs").write_text("5")
        self._before = self.now()

    def now(self) -> int:
        """What is held."""
        return torch.cuda.memory_allocated() if torch.cuda.is_available() else _status("VmRSS")

    def added(self) -> int:
        """What is held above what was held at the start."""
        return self.now() - self._before

    def peak(self) -> int:
        """The most that was, above what was held at the start."""
        return (torch.cuda.max_memory_allocated() if torch.cuda.is_available() else _status("VmHWM")) - self._before


def _status(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:")) * 1024


def texts_of(args: argparse.Namespace, rows: int) -> Corpus:
    """The first rows of the corpus; one that has fewer is refused."""
    corpus = load_corpus(args.train_file, max_rows=rows)
    if len(corpus.dataset) < rows:
        raise UserError(f"--train_file {args.train_file} has {len(corpus.dataset)} sentences, fewer than {rows}")
    return Corpus(corpus.dataset, 1, None)


def training(model: torch.nn.Module, loss: Callable[[int], torch.Tensor]) -> Step:
    """A step of training with AdamW on so many rows."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=3e-5)

    def step(rows: int) -> None:
        loss(rows).backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step


def our_step(args: argparse.Namespace, method: str, rows: int, chunk: int | None) -> tuple[Step, dict[str, Any]]:
    """A step of one of our methods, and the options that it has."""
    options = OPTIONS.get(method, {})
    try:
        model = RobustCSEModel.from_encoder(args.model_name_or_path, method=method, method_options=options)
    except UserError:
        options = options | WITHOUT_LANGUAGE_MODEL.get(method, {})
        model = RobustCSEModel.from_encoder(args.model_name_or_path, method=method, method_options=options)
    model.to(args.device).train().forward_chunk_size = chunk
    tokens = tokenize_corpus(texts_of(args, rows), model.tokenizer, args.max_seq_length)
    collate = ContrastiveCollator(model.tokenizer)
    batches = {n: collate([tokens[i] for i in range(n)]) for n in (4, rows)}

    def loss(n: int) -> torch.Tensor:
        with torch.autocast(args.device, torch.bfloat16, enabled=args.bf16):
            return model(**{key: value.to(args.device) for key, value in batches[n].items()})["loss"]

    return training(model, loss), options


def peer_step(args: argparse.Namespace, rows: int, chunk: int) -> tuple[Step, dict[str, Any]]:
    """A step of sentence-transformers' loss with gradient caching, each text its own positive: SimCSE's objective."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.losses import CachedMultipleNegativesRankingLoss
    from sentence_transformers.models import Pooling, Transformer

    transformer = Transformer(
        args.model_name_or_path, max_seq_length=args.max_seq_length, model_kwargs={"dtype": torch.float32}
    )
    pooling = Pooling(transformer.get_embedding_dimension(), "cls")
    model = SentenceTransformer(modules=[transformer, pooling], device=args.device).train()
    criterion = CachedMultipleNegativesRankingLoss(model, scale=20.0, mini_batch_size=chunk)
    texts = texts_of(args, rows).dataset["text"]
    batches = {n: model.preprocess(list(texts[:n])) for n in (4, rows)}

    def loss(n: int) -> torch.Tensor:
        features = [
            {k: v.to(args.device) if isinstance(v, torch.Tensor) else v for k, v in batches[n].items()}
            for _ in range(2)
        ]
        with torch.autocast(args.device, torch.bfloat16, enabled=args.bf16):
            return criterion(features, torch.arange(n, device=args.device))

    return training(model, loss), {}


def similarity_step(args: argparse.Namespace, system: str, rows: int) -> tuple[Step, dict[str, Any]]:
    """GS-InfoNCE's loss and its gradient on random vectors."""
    width = transformers.AutoConfig.from_pretrained(args.model_name_or_path).hidden_size

    def step(n: int) -> None:
        torch.manual_seed(0)
        h, positives = (torch.randn(n, width, device=args.device, requires_grad=True) for _ in range(2))
        noise = torch.randn(3 * n, width, device=args.device)
        if system == "broadcast":
            broadcast_loss(h, positives, noise).backward()
        else:
            functional.info_nce(h, positives, noise=noise).backward()

    return step, {"width": width, "noise": 3 * rows}


def make_step(args: argparse.Namespace, system: str, rows: int, chunk: int | None) -> tuple[Step, dict[str, Any]]:
    """A step of one system on so many rows, or four, and its options."""
    torch.manual_seed(0)
    if system in SIMILARITIES:
        return similarity_step(args, system, rows)
    return peer_step(args, rows, chunk) if system == PEER else our_step(args, system, rows, chunk)


def measure_here(args: argparse.Namespace) -> None:
    """One cell in this process; prints JSON."""
    system, rows, chunk = args.cell.split(":")
    step, options = make_step(args, system, int(rows), int(chunk) or None)
    memory = Memory()
    memory.start()
    step(4)
    gc.collect()
    fixed = memory.added()
    started = time.perf_counter()
    step(int(rows))
    found = {"peak_bytes": memory.peak(), "fixed_bytes": fixed, "seconds": time.perf_counter() - started}
    print(json.dumps(found | {"options": options}))


def measure_apart(args: argparse.Namespace, cell: str) -> dict[str, Any]:
    """One cell in a process of its own; ``{"not_run": reason}`` if that is killed."""
    command = [sys.executable, *sys.argv, "--cell", cell]
    env = dict(os.environ) if args.keep_freed else os.environ | GIVE_BACK
    done = subprocess.run(command, capture_output=True, text=True, env=env)
    if done.returncode in (-9, 137) or "OutOfMemoryError" in done.stderr:
        return {"not_run": "out of memory"}
    if done.returncode == 2:  # bad input, which the first cell tells
        raise UserError(done.stderr.strip().split("\n")[-1].removeprefix("error: "))
    if done.returncode:
        sys.exit(f"{cell} failed with code {done.returncode}: {done.stderr[-600:]}")
    return json.loads(done.stdout.splitlines()[-1])


def cells(args: argparse.Namespace) -> list[tuple[str, int, int]]:
    """(system, rows, chunk or 0), each series with rising rows."""
    chunk, found = args.forward_chunk_size, []
    for system in [*args.methods, *SIMILARITIES]:
        found += [(system, rows, 0) for rows in args.batches]
    for system in args.methods:
        found += [(system, rows, chunk) for rows in args.batches]
        found += [(system, args.large, chunk)] if system == "simcse" and args.large else []
    return found + [(PEER, rows, chunk) for rows in [*args.batches, *([args.large] if args.large else [])]]


def too_much(args: argparse.Namespace, system: str, rows: int, chunk: int, before: dict[str, Any] | None) -> str | None:
    """Why a cell is not run, by the one before it in its series (rows, median peak, seconds), or None."""
    if before is None:
        return None
    if "not_run" in before:
        return "more rows than one that is not run"
    times = rows / before["rows"]
    # Without chunks activations grow with the rows, similarities with their square; in chunks neither was seen to grow.
    growth = times**2 if system in SIMILARITIES else 1 if chunk else times
    gib = before["peak_bytes"] * growth / GIB
    minutes = before["seconds"] * (times**2 if system in SIMILARITIES else times) * args.rounds / 60
    if gib > args.limit_gib:
        return f"would need about {gib:.0f} GiB, the limit is {args.limit_gib:g}"
    if minutes > args.limit_minutes:
        return f"would take about {minutes:.0f} minutes, the limit is {args.limit_minutes:g}"
    return None


def name_of(system: str, rows: int, chunk: int) -> str:
    """The key of a cell in the results."""
    return f"{system} {rows}" + (f" in chunks of {chunk}" if chunk else "")


def measured_before(args: argparse.Namespace, about: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The cells that are in `--output_json`.

    Raises:
        UserError: if that file was measured under other settings.
    """
    if args.output_json is None or not args.output_json.exists():
        return {}
    result = read_json(args.output_json)
    for name, value in about.items():
        if name.startswith("limit_"):  # decides what is run, not what it measures
            continue
        if not isinstance(result, dict) or "cells" not in result or result.get(name) != value:
            raise UserError(f"{args.output_json} was measured under another {name}: name another file, or remove it")
    return result["cells"]


def measure_memory(args: argparse.Namespace, about: dict[str, Any]) -> dict[str, Any]:
    """All cells, and their ratios; each is written when it is measured."""
    found = measured_before(args, about)
    before: dict[tuple[str, int], dict[str, Any]] = {}
    for system, rows, chunk in tqdm(cells(args), unit="cell"):
        name = name_of(system, rows, chunk)
        if name in found:
            before[system, chunk] = found[name] | {"rows": rows}
            continue
        reason = too_much(args, system, rows, chunk, before.get((system, chunk)))
        runs = [] if reason else [measure_apart(args, f"{system}:{rows}:{chunk}") for _ in range(args.rounds)]
        reason = reason or next((run["not_run"] for run in runs if "not_run" in run), None)
        if reason:
            cell: dict[str, Any] = {"not_run": reason}
        else:
            cell = {
                "peak_bytes": int(statistics.median(run["peak_bytes"] for run in runs)),
                "fixed_bytes": int(statistics.median(run["fixed_bytes"] for run in runs)),
                "seconds": statistics.median(run["seconds"] for run in runs),
                "peak_bytes_min_max": [pick(run["peak_bytes"] for run in runs) for pick in (min, max)],
                "options": runs[0]["options"],
            }
        before[system, chunk] = cell | {"rows": rows}
        found[name] = cell
        if args.output_json:
            write_json(args.output_json, {**machine(), **about, "cells": found})
        said = cell.get("not_run") or f"{cell['peak_bytes'] / 2**20:.0f} MiB"
        tqdm.write(f"{name:<44} {said}")
    chunk, ratios = args.forward_chunk_size, {}

    def compare(a: str, b: str) -> None:
        if "peak_bytes" in found.get(a, {}) and "peak_bytes" in found.get(b, {}):
            ratios[f"{a} / {b}"] = found[a]["peak_bytes"] / found[b]["peak_bytes"]

    for rows in args.batches:
        for method in args.methods:
            if method != "simcse":
                compare(name_of(method, rows, 0), name_of("simcse", rows, 0))
            compare(name_of(method, rows, chunk), name_of(method, rows, 0))
            compare(name_of(method, rows, chunk), name_of(method, args.batches[0], 0))
        compare(name_of("broadcast", rows, 0), name_of("matrix", rows, 0))
    if args.large:
        compare(name_of("simcse", args.large, chunk), name_of("simcse", args.batches[0], 0))
        compare(name_of("simcse", args.large, chunk), name_of("simcse", args.batches[0], chunk))
        compare(name_of(PEER, args.large, chunk), name_of("simcse", args.large, chunk))
    return {"cells": found, "ratios": ratios}


def measure_seconds(args: argparse.Namespace) -> dict[str, Any]:
    """Seconds of a step, the systems one after the other in every round."""
    rows, chunk = args.batches[-1], args.forward_chunk_size
    steps = {
        name_of(system, rows, size): make_step(args, system, rows, size or None)[0]
        for system, size in (("simcse", 0), ("simcse", chunk), (PEER, chunk))
    }
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for number in tqdm(range(args.rounds + 1), unit="round"):  # the first one warms up
        for name, step in steps.items():
            started = time.perf_counter()
            step(rows)
            if torch.cuda.is_available():
                torch.cuda.synchronize()
            if number:
                seconds[name].append(time.perf_counter() - started)
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    plain, ours, theirs = steps
    ratios = {}
    for a, b in ((ours, plain), (theirs, ours)):
        ratios[f"{a} / {b}"] = ratio(seconds[a], seconds[b])
    return {"seconds": seconds, "median_seconds": medians, "ratios": ratios}


@command
def main() -> None:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model_name_or_path", required=True)
    parser.add_argument("--train_file", required=True)
    parser.add_argument("--output_json", type=Path)
    parser.add_argument("--batches", type=int, nargs="+", default=[64, 512, 2048])
    parser.add_argument("--large", type=int, default=4096, help="0 for none")
    parser.add_argument("--forward_chunk_size", type=int, default=64)
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=list(METHODS))
    parser.add_argument("--max_seq_length", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--limit_gib", type=float, default=12.0)
    parser.add_argument("--limit_minutes", type=float, default=5.0, help="of a cell")
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--keep_freed", action="store_true", help="the C library's own way with freed memory")
    parser.add_argument("--seconds", action="store_true", help="seconds in place of memory")
    parser.add_argument("--cell", help=argparse.SUPPRESS)
    args = parser.parse_args()
    at_least(4, args, "batches")
    at_least(0, args, "large")
    at_least(1, args, "forward_chunk_size", "rounds")
    at_least(3, args, "max_seq_length")
    check_output(args)
    args.batches = sorted(set(args.batches))
    args.device = "cuda" if torch.cuda.is_available() else "cpu"
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    if args.cell:
        measure_here(args)
        return
    about = {"model": Path(args.model_name_or_path).name, "train_file": Path(args.train_file).name}
    names = ("forward_chunk_size", "max_seq_length", "rounds", "limit_gib", "limit_minutes", "bf16", "keep_freed")
    about |= {name: getattr(args, name) for name in names}
    result = measure_seconds(args) if args.seconds else measure_memory(args, about)
    print(json.dumps(result["ratios"], indent=2))
    if args.output_json:
        write_json(args.output_json, {**machine(), **about, **result})


if __name__ == "__main__":
    main()
