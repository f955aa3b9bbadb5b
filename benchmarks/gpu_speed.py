"""Sentences a second and fraction of the peak of every method and of the peers, on one GPU.

    python benchmarks/gpu_speed.py --train_file sentences.txt.gz --output_json out.json
    python benchmarks/gpu_speed.py --train_file sentences.txt.gz --output_json out.json --precisions fp32 tf32
    python benchmarks/gpu_speed.py --device cpu --layers 1 --width 32 --batch_sizes 8 --steps 2   # to see it run

The encoder has BERT-base's shape and random weights: speed does not depend on them, and nothing is downloaded. Its
tokenizer is the embedded one, the vocabulary 30522. All systems run in one process with the trainers that a user has,
[CLS] pooling, the same sentences, batch, length and optimizer; the peers are sentence-transformers' MNRL trainer and
the released SimCSE step. The first round covers compilation and is not counted; in the others the systems of one
precision, batch and compilation are interleaved. The clock
starts after `--warmup` steps of a round; the device is waited for when it starts and stops, not in between.

The fraction of the peak is the operations that the algorithm needs (``cost_model.py``) for the real tokens, and for
the padded ones, by seconds and by the peak of the device: from its data sheet, from `--peak_tflops`, or, for an unknown
one, that of a large matrix product measured here. Needed is every layer for every token, also where a system leaves
out what [CLS] does not read.

What was measured is written after each round of each system; the same command goes on where it was cut.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import gc
import random
import re
import signal
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import torch
import transformers
from cost_model import Encoder, Load, work
from measuring import at_least, check_output, machine
from scaling import save_encoder
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.losses import MultipleNegativesRankingLoss
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from tqdm import tqdm
from train_step import released_trainer
from transformers import AutoTokenizer, PrinterCallback, Trainer, TrainerCallback

import hf_robustcse
from hf_robustcse import RobustCSEModel, RobustCSETrainer, RobustCSETrainingArguments
from hf_robustcse.data import ContrastiveCollator, Corpus, load_corpus, tokenize_corpus
from hf_robustcse.errors import Parser, UserError, command
from hf_robustcse.files import read_json, write_json

ASSETS = Path(hf_robustcse.__file__).parent / "assets"
SYSTEMS = ("simcse", "mnrl", "released", "vadv", "gs_infonce", "dclr", "dcl", "robustsentembed")
# Dense TFLOP/s of bf16, tf32 and fp32 by NVIDIA's data sheets; the first pattern that fits the device's name counts.
PEAKS = {
    r"H200 NVL": (835.5, 417.5, 60.0),
    r"H200": (989.4, 494.7, 66.9),
    r"H100 NVL": (835.5, 417.5, 60.0),
    r"H100 PCIe": (756.0, 378.0, 51.0),
    r"H100": (989.4, 494.7, 66.9),
    r"A100": (312.0, 156.0, 19.5),
    r"L40S": (362.0, 183.0, 91.6),
    r"L4\b": (121.0, 60.0, 30.3),
    r"A10\b": (125.0, 62.5, 31.2),
    r"RTX 4090": (165.2, 82.6, 82.6),
}
PRECISIONS = ("bf16", "tf32", "fp32")


def known_peak(name: str, precision: str) -> float | None:
    """Dense TFLOP/s of a device by its name, or None."""
    for pattern, peaks in PEAKS.items():
        if re.search(pattern, name):
            return peaks[PRECISIONS.index(precision)]
    return None


def measured_peak(device: str, precision: str, size: int) -> float:
    """TFLOP/s of a square matrix product: the best of ten."""
    torch.backends.cuda.matmul.allow_tf32 = precision == "tf32"
    a = torch.randn(size, size, device=device, dtype=torch.bfloat16 if precision == "bf16" else torch.float32)
    seconds = []
    for _ in range(13):
        wait(device)
        started = time.perf_counter()
        a @ a
        wait(device)
        seconds.append(time.perf_counter() - started)
    return 2 * size**3 / min(seconds[3:]) / 1e12


def wait(device: str) -> None:
    """Until the device has done what it was told."""
    if device == "cuda":
        torch.cuda.synchronize()


class Segment(TrainerCallback):
    """The seconds of the steps after `warmup`, without waiting for the device between them."""

    def __init__(self, device: str, warmup: int, steps: int) -> None:
        self.device, self.warmup, self.steps = device, warmup, steps
        self.done, self.started, self.seconds = 0, 0.0, 0.0

    def on_train_begin(self, *args: object, **kwargs: object) -> None:
        """A new round."""
        self.done = 0

    def on_step_end(self, *args: object, **kwargs: object) -> None:
        """Start or stop the clock."""
        self.done += 1
        if self.done in (self.warmup, self.warmup + self.steps):
            wait(self.device)
            now = time.perf_counter()
            if self.done == self.warmup:
                self.started = now
            else:
                self.seconds = (now - self.started) / self.steps


class OutOfTime(BaseException):
    """No Exception: what catches those, as compilers do, must not keep it."""


@contextlib.contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raise OutOfTime in the block when the time is over."""

    def over(*_: object) -> None:
        raise OutOfTime(f"not done in {seconds:.0f} s")

    before = signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.001), 5)  # again, if a library kept the first
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@dataclasses.dataclass(frozen=True)
class Cell:
    """What is measured on its own."""

    system: str
    precision: str
    compiled: bool
    batch_size: int

    @property
    def key(self) -> str:
        """Its name in the results."""
        return f"{self.system} {self.precision}{' compiled' if self.compiled else ''} {self.batch_size}"


@dataclasses.dataclass
class Bench:
    """What all cells share."""

    args: argparse.Namespace
    encoder: str
    corpus: Corpus
    folder: str

    def trainer(self, cell: Cell, segment: Segment) -> Trainer:
        """The system's own trainer."""
        args = self.args
        steps = args.warmup + args.steps
        shared: dict[str, Any] = {
            "output_dir": self.folder, "per_device_train_batch_size": cell.batch_size, "max_steps": steps,
            "learning_rate": 3e-5, "report_to": "none", "disable_tqdm": True, "logging_strategy": "no",
            "save_strategy": "no", "eval_strategy": "no", "dataloader_drop_last": True,
            "use_cpu": args.device == "cpu", "bf16": cell.precision == "bf16", "dataloader_num_workers": args.workers,
        }  # fmt: skip
        if args.device == "cuda":
            shared["tf32"] = cell.precision == "tf32"
        rows = self.corpus.dataset.select(range(min(len(self.corpus.dataset), steps * cell.batch_size)))
        if len(rows) < cell.batch_size:
            raise UserError(f"{args.train_file} has {len(rows)} sentences, fewer than a batch of {cell.batch_size}")
        if cell.system == "mnrl":
            return self._mnrl(cell, segment, shared, rows["text"])
        if cell.system == "released":
            return self._released(cell, segment, shared, rows)
        options = {"dcl": {"dcl_augmentation": "dropout"}}.get(cell.system, {})
        model = RobustCSEModel.from_encoder(self.encoder, method=cell.system, method_options=options)
        return RobustCSETrainer(
            model,
            RobustCSETrainingArguments(**shared, torch_compile=cell.compiled),
            train_dataset=tokenize_corpus(Corpus(rows, 1, None), model.tokenizer, args.max_seq_length),
            data_collator=ContrastiveCollator(model.tokenizer),
            callbacks=[segment],
        )

    def _mnrl(self, cell: Cell, segment: Segment, shared: dict[str, Any], texts: list[str]) -> Trainer:
        transformer: Any = Transformer(
            self.encoder, max_seq_length=self.args.max_seq_length, model_kwargs={"dtype": torch.float32}
        )
        if cell.compiled:  # as ours: the encoder alone
            transformer.auto_model.compile(dynamic=True)
        pooling = Pooling(transformer.get_embedding_dimension(), "cls")
        model = SentenceTransformer(modules=[transformer, pooling], device=self.args.device)
        return SentenceTransformerTrainer(
            model,
            SentenceTransformerTrainingArguments(**shared),
            train_dataset=datasets.Dataset.from_dict({"anchor": texts, "positive": texts}),
            loss=MultipleNegativesRankingLoss(model, scale=20.0),
            callbacks=[segment],
        )

    def _released(self, cell: Cell, segment: Segment, shared: dict[str, Any], rows: Any) -> Trainer:
        tokenizer = AutoTokenizer.from_pretrained(self.encoder)
        tokens = tokenize_corpus(Corpus(rows, 1, None), tokenizer, self.args.max_seq_length)
        trainer = released_trainer(self.encoder, tokens, tokenizer, callbacks=[segment], **shared)
        if cell.compiled:
            trainer.model.encoder.compile(dynamic=True)
        return trainer

    def loads(self, batch_size: int) -> tuple[Load, Load]:
        """The mean batch of the corpus, without padding and padded to its longest sentence."""
        tokenizer = AutoTokenizer.from_pretrained(self.encoder)
        tokens = tokenize_corpus(self.corpus, tokenizer, self.args.max_seq_length)
        lengths, draw = list(tokens["length"]), random.Random(0)
        batches = [draw.sample(lengths, min(batch_size, len(lengths))) for _ in range(50)]
        real = [Load.of(batch) for batch in batches]
        full = [Load.full(len(batch), max(batch)) for batch in batches]

        def mean(loads: list[Load]) -> Load:
            return Load(
                batch_size, statistics.fmean(one.tokens for one in loads), statistics.fmean(one.pairs for one in loads)
            )

        return mean(real), mean(full)


class Running:
    """A cell whose trainer is built."""

    def __init__(self, bench: Bench, cell: Cell) -> None:
        args = bench.args
        self.device = args.device
        self.segment = Segment(args.device, args.warmup, args.steps)
        before = self._allocated()
        self.trainer = bench.trainer(cell, self.segment)
        self.trainer.remove_callback(PrinterCallback)
        self.round()  # compiles, allocates
        self.resident = self._allocated() - before

    def _allocated(self) -> int:
        return torch.cuda.memory_allocated() if self.device == "cuda" else 0

    def round(self) -> tuple[float, int | None]:
        """Seconds of a step, and the most bytes that the system held, if the device counts them."""
        if self.device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        before = self._allocated()
        self.trainer.train()
        if self.device != "cuda":
            return self.segment.seconds, None
        return self.segment.seconds, torch.cuda.max_memory_allocated() - before + getattr(self, "resident", 0)


def measure(bench: Bench, cells: list[Cell], result: dict[str, Any], stop_at: float) -> bool:
    """Complete the rounds of cells that are interleaved; whether all were done before `stop_at`."""
    args = bench.args
    running: dict[Cell, Running] = {}
    wanted = [cell for cell in cells if not done(result, cell, args.rounds)]
    for number in range(args.rounds + 1):  # the first one builds
        for cell in tqdm(wanted, desc=f"{cells[0].precision} {cells[0].batch_size}, round {number}", unit="cell"):
            entry = result["cells"].setdefault(cell.key, {**dataclasses.asdict(cell), "seconds": []})
            if done(result, cell, args.rounds):
                continue
            left = stop_at - time.monotonic()
            if left < 5:
                return False
            try:
                with at_most(min(left, args.cell_seconds)):
                    if number == 0:
                        started = time.perf_counter()
                        running[cell] = Running(bench, cell)
                        entry["seconds_to_first_round"] = time.perf_counter() - started
                        continue
                    seconds, peak = running[cell].round()
            except OutOfTime as error:
                if left < args.cell_seconds:
                    return False  # the call was short of time, the cell not at fault
                entry["failed"] = str(error)
            except torch.OutOfMemoryError:
                entry["failed"] = "out of memory"
            except Exception as error:  # a compiler or a kernel that is missing must not take the others along
                if time.monotonic() >= stop_at:
                    return False  # the time was over in a compiler, which wraps the TimeoutError
                entry["failed"] = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            else:
                entry["seconds"].append(seconds)
                if peak is not None:
                    entry["peak_bytes"] = max(peak, entry.get("peak_bytes", 0))
            if "failed" in entry:
                running.pop(cell, None)
                free()
            finish(bench, result, cell)
            if args.output_json:
                write_json(args.output_json, result)
    return True


def done(result: dict[str, Any], cell: Cell, rounds: int) -> bool:
    """Whether nothing is left to measure."""
    entry = result["cells"].get(cell.key, {})
    return "failed" in entry or len(entry.get("seconds", ())) >= rounds


def free() -> None:
    """Give back the memory of what is gone."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def finish(bench: Bench, result: dict[str, Any], cell: Cell) -> None:
    """Compute what follows from the seconds."""
    entry, peak = result["cells"][cell.key], result["peaks"][cell.precision]["tflops"]
    if not entry["seconds"]:
        return
    loads = (Load(**load) for load in result["loads"][str(cell.batch_size)].values())
    shape = Encoder(**result["encoder"])
    number = 2 if cell.precision == "bf16" else 4
    real, padded = (sum(work(cell.system, shape, load, number=number).flops.values()) for load in loads)
    seconds = statistics.median(entry["seconds"])
    entry |= {
        "min_seconds": min(entry["seconds"]), "median_seconds": seconds, "max_seconds": max(entry["seconds"]),
        "sentences_per_second": cell.batch_size / seconds, "flops_real": real, "flops_padded": padded,
        "of_peak_real": real / seconds / peak / 1e12, "of_peak_padded": padded / seconds / peak / 1e12,
    }  # fmt: skip


def ratios(result: dict[str, Any]) -> dict[str, float]:
    """Seconds of every system over those of simcse, and of simcse over the peers, in the same setting."""
    found = {}
    for key, entry in result["cells"].items():
        system, setting = key.split(" ", 1)
        base = result["cells"].get(f"simcse {setting}", {})
        if "median_seconds" in entry and "median_seconds" in base and system != "simcse":
            ratio = entry["median_seconds"] / base["median_seconds"]
            if system in ("mnrl", "released"):
                found[f"simcse/{system} {setting}"] = 1 / ratio
            else:
                found[f"{system}/simcse {setting}"] = ratio
    return found


def table(result: dict[str, Any]) -> str:
    """Markdown."""
    rows = ["| system | sentences/s (min – max) | of peak, real tokens | padded | peak memory |", "|" + "---|" * 5]
    for key, entry in result["cells"].items():
        if "median_seconds" not in entry:
            rows.append(f"| {key} | {entry.get('failed', 'not yet')} | | | |")
            continue
        low, high = (entry["batch_size"] / entry[f"{name}_seconds"] for name in ("max", "min"))
        memory = f"{entry['peak_bytes'] / 2**30:.2f} GiB" if "peak_bytes" in entry else ""
        rows.append(
            f"| {key} | {entry['sentences_per_second']:.0f} ({low:.0f} – {high:.0f}) | "
            f"{100 * entry['of_peak_real']:.1f} % | {100 * entry['of_peak_padded']:.1f} % | {memory} |"
        )
    return "\n".join(rows)


def start(args: argparse.Namespace, shape: Encoder) -> dict[str, Any]:
    """The result file as it is, or a new one.

    Raises:
        UserError: if it was measured under other settings.
    """
    about = machine()
    settings = {
        "device": about["device"], "library_versions": about["library_versions"], "encoder": dataclasses.asdict(shape),
        "max_seq_length": args.max_seq_length, "steps": args.steps, "warmup": args.warmup, "workers": args.workers,
        "train_file": Path(args.train_file).name,
    }  # fmt: skip
    if args.output_json and args.output_json.exists():
        result = read_json(args.output_json)
        for name, value in settings.items():
            if result.get(name) != value:
                raise UserError(
                    f"{args.output_json} was measured with {name} {result.get(name)}, not {value}: name another file"
                )
        return result
    return {"command": about["command"], "machine": about["machine"], **settings, "peaks": {}, "loads": {}, "cells": {}}


@command
def main() -> None:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train_file", default=str(ASSETS / "corpus.txt.gz"), help="one sentence a line")
    parser.add_argument("--output_json", type=Path)
    parser.add_argument("--systems", nargs="+", default=list(SYSTEMS), choices=SYSTEMS)
    parser.add_argument("--precisions", nargs="+", default=["bf16"], choices=PRECISIONS)
    parser.add_argument("--torch_compile", default="both", choices=["yes", "no", "both"])
    parser.add_argument("--batch_sizes", nargs="+", type=int, default=[64, 512])
    parser.add_argument("--max_seq_length", type=int, default=32)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768, help="the inner width is four times it")
    parser.add_argument("--vocabulary", type=int, default=30522)
    parser.add_argument("--steps", type=int, default=30, help="of a round, after --warmup")
    parser.add_argument("--warmup", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=0, help="processes of the data loader")
    parser.add_argument("--seconds", type=float, default=540, help="stop then; the same command goes on")
    parser.add_argument("--cell_seconds", type=float, default=150, help="give a system up that takes longer")
    parser.add_argument("--peak_tflops", type=float, help="of the device in this precision, dense")
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    args = parser.parse_args()
    stop_at = time.monotonic() + args.seconds
    at_least(1, args, "rounds", "warmup", "steps", "layers", "width", "vocabulary", "seconds", "cell_seconds")
    at_least(2, args, "batch_sizes")
    at_least(3, args, "max_seq_length")
    at_least(0, args, "workers")
    check_output(args)
    if args.peak_tflops is not None and (len(args.precisions) > 1 or args.peak_tflops <= 0):
        raise UserError("--peak_tflops is a number above 0 of one precision: name one with --precisions")
    if args.device == "cuda" and not torch.cuda.is_available():
        raise UserError("torch finds no CUDA device: use --device cpu, which is for trying the script")
    if args.device == "cpu" and "tf32" in args.precisions:
        raise UserError("a CPU has no tf32: use --precisions bf16 or fp32")
    if args.width % 64 and args.width >= 64:
        raise UserError(f"--width must be a multiple of 64, the width of a head, not {args.width}")
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    datasets.disable_progress_bars()

    shape = Encoder(args.width, args.layers, 4 * args.width, max(1, args.width // 64), args.vocabulary)
    result = start(args, shape)
    name = torch.cuda.get_device_name() if args.device == "cuda" else "cpu"
    for precision in args.precisions:
        size = 8192 if args.device == "cuda" else 512
        measured = measured_peak(args.device, precision, size)
        peak, source = known_peak(name, precision), "data sheet, dense"
        if args.peak_tflops:
            peak, source = args.peak_tflops, "--peak_tflops"
        if peak is None:
            peak, source = measured, f"a matrix product of {size} measured here: no data sheet is known"
        result["peaks"].setdefault(precision, {"tflops": peak, "source": source, "measured_matmul_tflops": measured})
        print(f"peak of {name} in {precision}: {result['peaks'][precision]['tflops']:.4g} TFLOP/s ({source})")
    with tempfile.TemporaryDirectory() as folder:
        rows = max(args.batch_sizes) * (args.steps + args.warmup)
        corpus = load_corpus(args.train_file, max_rows=max(rows, 20_000))
        bench = Bench(args, save_encoder(Path(folder) / "encoder", shape), corpus, folder)
        compiled = {"yes": [True], "no": [False], "both": [False, True]}[args.torch_compile]
        complete = True
        for precision in args.precisions:
            for batch_size in args.batch_sizes:
                loads = (dataclasses.asdict(load) for load in bench.loads(batch_size))
                result["loads"][str(batch_size)] = dict(zip(("real", "padded"), loads, strict=True))
                for one in compiled:  # apart: what takes minutes to compile does not keep the others from being done
                    cells = [Cell(system, precision, one, batch_size) for system in args.systems]
                    complete = complete and measure(bench, cells, result, stop_at)
                    free()
    result["ratios"] = ratios(result)
    if args.output_json:
        write_json(args.output_json, result)
    print(table(result))
    for pair, ratio in result["ratios"].items():
        print(f"{pair}: {ratio:.3f}")
    print("done" if complete else "out of time: the same command measures what is missing")


if __name__ == "__main__":
    main()
