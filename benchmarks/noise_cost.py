"""Seconds and peak memory of the noise negatives, against the broadcasting similarity that the released codes use.

    python benchmarks/noise_cost.py --batch_size 512 --multiple 5 --width 1024 --output_json out.json

Both compute GS-InfoNCE's loss (and with ``--steps`` DCLR's ascent before it) and its gradient for random embeddings of
the same seed, alternately, each in a process of its own for the peak of its resident memory. The released codes call
``torch.nn.CosineSimilarity(dim=-1)`` on ``h.unsqueeze(1)`` and ``noise.unsqueeze(0)``, which holds (N, M, d) numbers.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from measuring import at_least, check_output, machine, ratio
from tqdm import tqdm

from hf_robustcse import functional
from hf_robustcse.errors import Parser, UserError, command
from hf_robustcse.files import write_json


def broadcast_loss(h: torch.Tensor, positives: torch.Tensor, noise: torch.Tensor) -> torch.Tensor:
    """The same loss by broadcasting."""
    similarity = torch.nn.CosineSimilarity(dim=-1)
    logits = [similarity(h.unsqueeze(1), other.unsqueeze(0)) / 0.05 for other in (positives, noise)]
    return torch.nn.functional.cross_entropy(torch.cat(logits, dim=1), torch.arange(len(h), device=h.device))


def broadcast_ascent(noise: torch.Tensor, h: torch.Tensor, steps: int) -> torch.Tensor:
    """DCLR eq. 2-4 by broadcasting."""
    similarity = torch.nn.CosineSimilarity(dim=-1)
    for _ in range(steps):
        noise = noise.detach().requires_grad_(True)
        value = torch.logsumexp(similarity(h.unsqueeze(1), noise.unsqueeze(0)) / 0.05, dim=1).mean()
        (gradient,) = torch.autograd.grad(value, noise)
        noise = noise.detach() + 1e-3 * torch.nn.functional.normalize(gradient, dim=1)
    return noise


def measure(args: argparse.Namespace) -> None:
    """One system in this process; prints JSON."""
    torch.manual_seed(0)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    about = {"device": device, "dtype": getattr(torch, args.dtype)}
    h, positives = (torch.randn(args.batch_size, args.width, requires_grad=True, **about) for _ in range(2))
    noise = torch.randn(round(args.multiple * args.batch_size), args.width, **about)
    seconds = []
    for _ in range(args.repeats + 1):
        started = time.perf_counter()
        if args.system == "matrix":
            moved = functional.ascend_noise(noise, h, positives, steps=args.steps)
            loss = functional.info_nce(h, positives, noise=moved)
        else:
            loss = broadcast_loss(h, positives, broadcast_ascent(noise, h.detach(), args.steps))
        loss.backward()
        if device == "cuda":
            torch.cuda.synchronize()
        seconds.append(time.perf_counter() - started)
    peak = (
        torch.cuda.max_memory_allocated()
        if device == "cuda"
        else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    )
    print(json.dumps({"seconds": seconds[1:], "peak_bytes": peak, "loss": loss.item()}))


def by_round(found: dict[str, list[dict]], value: Callable[[dict], float]) -> dict[str, float]:
    """Minimum, median and maximum over the rounds of broadcasting's value divided by ours."""
    return ratio(*([value(result) for result in found[system]] for system in ("broadcast", "matrix")))


@command
def main() -> None:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch_size", type=int, default=512)
    parser.add_argument("--multiple", type=float, default=5.0)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=0, help="ascent steps: 0 is GS-InfoNCE, 4 DCLR")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--output_json", type=Path)
    parser.add_argument("--system", choices=["matrix", "broadcast"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    at_least(1, args, "batch_size", "width", "repeats", "rounds")
    at_least(0, args, "steps")
    if round(args.multiple * args.batch_size) < 1:
        raise UserError(f"--multiple {args.multiple:g} leaves no noise negatives")
    check_output(args)
    if args.system:
        measure(args)
        return
    found: dict[str, list[dict]] = {"matrix": [], "broadcast": []}
    for _ in tqdm(range(args.rounds), unit="round"):
        for system, results in found.items():
            command = [sys.executable, *sys.argv, "--system", system]
            done = subprocess.run(command, capture_output=True, text=True)
            if done.returncode:
                sys.exit(f"{system} failed with code {done.returncode} (-9: out of memory): {done.stderr[-300:]}")
            results.append(json.loads(done.stdout.splitlines()[-1]))
    a, b = found["matrix"][0]["loss"], found["broadcast"][0]["loss"]
    if abs(a - b) > (1e-3 if args.dtype == "float32" else 3e-2) * abs(b):
        sys.exit(f"the two losses differ: {a} and {b}")
    seconds = {k: statistics.median(s for r in v for s in r["seconds"]) for k, v in found.items()}
    peak = {k: max(r["peak_bytes"] for r in v) for k, v in found.items()}
    record = {
        **machine(),
        "batch_size": args.batch_size, "multiple": args.multiple, "width": args.width, "steps": args.steps,
        "dtype": args.dtype,
        "median_seconds": seconds, "peak_bytes": peak,
        "ratios": {
            "seconds broadcast/matrix": by_round(found, lambda result: statistics.median(result["seconds"])),
            "peak broadcast/matrix": by_round(found, lambda result: result["peak_bytes"]),
        },
    }  # fmt: skip
    print(json.dumps(record["ratios"], indent=2))
    if args.output_json:
        write_json(args.output_json, record)


if __name__ == "__main__":
    main()
