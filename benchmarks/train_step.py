"""Seconds of a training step: the methods here, and the MNRL trainer of sentence-transformers, interleaved.

    python benchmarks/train_step.py --model_name_or_path MODEL --train_file sentences.txt.gz --output_json out.json

All train the same encoder ([CLS] pooling) on the same sentences, batch and length, in float32 with the same optimizer.
MNRL is given each sentence as its own positive, which makes it SimCSE's objective. A round trains each for `--steps`
steps after `--warmup` steps; a step lasts from the end of one to the end of the next, so it includes data loading. What
is printed is the median over the rounds and its ratio to MNRL. ``--memory`` measures the peak of the memory instead:
what training adds to a process that has loaded model and data, each system in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import transformers
from datasets import Dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.losses import MultipleNegativesRankingLoss
from sentence_transformers.models import Pooling, Transformer
from tqdm import tqdm
from transformers import TrainerCallback

from hf_robustcse import RobustCSEModel, RobustCSETrainer, RobustCSETrainingArguments
from hf_robustcse.data import ContrastiveCollator, Corpus, load_corpus, tokenize_corpus
from hf_robustcse.evaluation.results import library_versions
from hf_robustcse.files import write_json


class Clock(TrainerCallback):
    """The time at the end of every step."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_step_end(self, *args: object, **kwargs: object) -> None:
        """Note the time."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        self.ends.append(time.perf_counter())


def resident_bytes() -> int:
    """What this process holds now, on the accelerator if there is one."""
    if torch.cuda.is_available():
        return torch.cuda.memory_allocated()
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def peak_bytes() -> int:
    """The most that it has held."""
    if torch.cuda.is_available():
        return torch.cuda.max_memory_allocated()
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measure_memory(args: argparse.Namespace) -> None:
    """Each system in a process of its own, `--rounds` times; the median of the peaks."""
    peaks: dict[str, list[int]] = {name: [] for name in args.systems}
    for _ in tqdm(range(args.rounds), unit="round"):
        for name in args.systems:
            command = [sys.executable, *sys.argv, "--systems", name, "--rounds", "1", "--child"]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                sys.exit(f"{name} failed with code {done.returncode} (-9: out of memory): {done.stderr[-300:]}")
            peaks[name].append(json.loads(done.stdout.splitlines()[-1])["peak_bytes"])
    medians = {name: statistics.median(values) for name, values in peaks.items()}
    result = {
        **about(args),
        "peak_bytes": peaks,
        "median_peak_bytes": medians,
        "ratios": {
            f"{name}/simcse": value / medians["simcse"] for name, value in medians.items() if "simcse" in medians
        },
    }
    for name, value in medians.items():
        print(f"{name:<16} {value / 2**20:.0f} MiB")
    if args.output_json:
        write_json(args.output_json, result)


def machine() -> dict[str, object]:
    """What every result says of command and machine."""
    cuda = torch.cuda.is_available()
    return {
        "command": shlex.join(["python", *sys.argv]),
        "device": torch.cuda.get_device_name() if cuda else f"cpu, {torch.get_num_threads()} threads",
        "machine": platform.machine(),
        "library_versions": library_versions(),
    }


def about(args: argparse.Namespace) -> dict[str, object]:
    """What the results of this file say of themselves."""
    return {**machine(), "batch_size": args.batch_size, "max_seq_length": args.max_seq_length}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model_name_or_path", required=True)
    parser.add_argument("--train_file", required=True)
    parser.add_argument("--output_json", type=Path)
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--max_seq_length", type=int, default=32)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--systems", nargs="+", default=["mnrl", "simcse", "vadv"])
    parser.add_argument("--vadv_dropout", default="shared", choices=["shared", "independent", "off"])
    parser.add_argument("--memory", action="store_true", help="peak memory in place of seconds")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.memory and not args.child:
        measure_memory(args)
        return
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()

    total = args.steps + args.warmup
    corpus = load_corpus(args.train_file, max_rows=total * args.batch_size)
    shared = {
        "per_device_train_batch_size": args.batch_size, "max_steps": total, "learning_rate": 3e-5, "report_to": "none",
        "disable_tqdm": True, "logging_strategy": "no", "save_strategy": "no", "dataloader_drop_last": True,
    }  # fmt: skip

    def ours(method: str, folder: str, clock: Clock) -> RobustCSETrainer:
        options = {"vadv": {"vadv_dropout": args.vadv_dropout}, "dcl": {"dcl_augmentation": "dropout"}}.get(method, {})
        model = RobustCSEModel.from_encoder(args.model_name_or_path, method=method, method_options=options)
        tokens = tokenize_corpus(Corpus(corpus.dataset, 1, None), model.tokenizer, args.max_seq_length)
        return RobustCSETrainer(
            model,
            RobustCSETrainingArguments(output_dir=folder, eval_strategy="no", **shared),
            train_dataset=tokens,
            data_collator=ContrastiveCollator(model.tokenizer),
            callbacks=[clock],
        )

    def mnrl(folder: str, clock: Clock) -> SentenceTransformerTrainer:
        transformer = Transformer(
            args.model_name_or_path, max_seq_length=args.max_seq_length, model_kwargs={"dtype": torch.float32}
        )
        pooling = Pooling(transformer.get_embedding_dimension(), "cls")
        model = SentenceTransformer(modules=[transformer, pooling])
        texts = corpus.dataset["text"]
        return SentenceTransformerTrainer(
            model,
            SentenceTransformerTrainingArguments(output_dir=folder, **shared),
            train_dataset=Dataset.from_dict({"anchor": texts, "positive": texts}),
            loss=MultipleNegativesRankingLoss(model, scale=20.0),
            callbacks=[clock],
        )

    seconds: dict[str, list[float]] = {name: [] for name in args.systems}
    for _ in tqdm(range(args.rounds), unit="round"):
        for name in args.systems:
            with tempfile.TemporaryDirectory() as folder:
                clock = Clock()
                trainer = mnrl(folder, clock) if name == "mnrl" else ours(name, folder, clock)
                if args.child:
                    before = resident_bytes()
                    trainer.train()
                    print(json.dumps({"peak_bytes": peak_bytes() - before}))
                    return
                trainer.train()
            ends = clock.ends[args.warmup - 1 :]
            seconds[name].append((ends[-1] - ends[0]) / (len(ends) - 1))
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    result = {
        **about(args),
        "seconds_per_step": seconds,
        "median_seconds_per_step": medians,
        "ratios": {f"{a}/{b}": medians[a] / medians[b] for a in medians for b in medians if a != b},
    }
    for name, value in medians.items():
        print(f"{name:<8} {value:.3f} s a step, {args.batch_size / value:.0f} sentences a second")
    for pair, ratio in result["ratios"].items():
        if pair == "simcse/mnrl" or pair.endswith("/simcse"):
            print(f"{pair}: {ratio:.3f}")
    if args.output_json:
        write_json(args.output_json, result)


if __name__ == "__main__":
    main()
