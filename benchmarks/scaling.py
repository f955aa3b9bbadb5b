"""Cost of a training step against batch, length, width, layers, K, noise and processes: counted, measured, fitted.

    python benchmarks/scaling.py --output_json benchmarks/results/scaling_cpu.json \\
        --picture benchmarks/results/scaling_cpu.png --docs docs/cost.md
    python benchmarks/scaling.py --from_json benchmarks/results/scaling_cpu.json --docs docs/cost.md   # fit again

Steps of small encoders with random weights are measured in float32 on one thread of the CPU: one factor of a base
setting changes at a time, rounds are interleaved, and the median counts. Five constants of the machine (operations a
second, bytes a second, seconds for a layer's call and for a step, bytes a second between processes) are fitted to the
counts of ``cost_model.py`` by non-negative least squares on relative errors. The same counts with assumed constants of
GPU nodes give the last table: what limits a step of BERT-base on 1, 8 and 64 GPUs, on paper.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from cost_model import Encoder, Load, Options, Work, passes, work
from measuring import at_least, check_output, machine
from scipy.optimize import nnls
from tqdm import tqdm
from transformers import AutoTokenizer, BertConfig, BertForMaskedLM

import hf_robustcse
from hf_robustcse import RobustCSEModel
from hf_robustcse.errors import Parser, UserError, command
from hf_robustcse.evaluation.pictures import HOW_TO_GET, has_matplotlib
from hf_robustcse.files import atomic_write_text, read_json, write_json

ASSETS = Path(hf_robustcse.__file__).parent / "assets" / "encoder"
VOCABULARY = 10_000


@dataclasses.dataclass(frozen=True)
class Cell:
    """One setting; the defaults are the base."""

    factor: str
    method: str = "simcse"
    rows: int = 32
    length: int = 32
    width: int = 192
    layers: int = 3
    steps: int | None = None
    multiple: float | None = None
    processes: int = 1

    @property
    def encoder(self) -> Encoder:
        """Its encoder."""
        return Encoder(self.width, self.layers, 4 * self.width, self.width // 32, VOCABULARY, 128)

    @property
    def folder(self) -> str:
        """A name for its encoder."""
        return f"encoder-{self.width}-{self.layers}"

    @property
    def options(self) -> Options:
        """Of its method."""
        return Options(steps=self.steps, multiple=self.multiple)

    @property
    def work(self) -> Work:
        """What it costs."""
        load = Load.full(self.rows, self.length, self.processes)
        return work(self.method, self.encoder, load, self.options)

    @property
    def label(self) -> str:
        """The factor's value."""
        values = {
            "batch": self.rows, "length": self.length, "width": self.width, "layers": self.layers,
            "method": self.method, "K": f"{self.method}, K = {self.steps}",
            "noise": f"{self.method}, N = {self.rows}" + (f", k = {self.multiple:g}" if self.multiple else ""),
            "processes": f"{self.method}, P = {self.processes}, N = {self.rows}, width {self.width}",
        }  # fmt: skip
        return str(values[self.factor])


def grid(toy: bool = False) -> list[Cell]:
    """One factor at a time; where noise is the factor the encoder is small, or it would not be seen."""
    small = {"layers": 1, "width": 128, "length": 8}
    cells = [
        *(Cell("batch", rows=n) for n in (8, 16, 32, 64, 128)),
        *(Cell("length", length=n) for n in (8, 16, 64, 128)),
        *(Cell("width", width=n) for n in (96, 128, 256, 384)),
        *(Cell("layers", layers=n) for n in (1, 2, 6)),
        *(Cell("method", name) for name in ("gs_infonce", "dclr", "vadv", "dcl", "robustsentembed")),
        *(Cell("K", "vadv", steps=k) for k in (2, 4)),
        *(Cell("K", "robustsentembed", steps=k) for k in (1, 2)),
        *(Cell("noise", "simcse", rows=n, **small) for n in (256, 512)),
        *(Cell("noise", "gs_infonce", rows=512, multiple=k, **small) for k in (3, 10)),
        *(Cell("noise", "dclr", rows=n, multiple=k, **small) for n, k in ((256, 1), (256, 5), (512, 1), (512, 3))),
        *(Cell("processes", width=d, processes=2) for d in (192, 384)),
        Cell("processes", "dclr", rows=256, processes=2, **small),
    ]
    if not toy:
        return cells
    return [
        dataclasses.replace(cell, rows=min(cell.rows, 8), length=8, layers=1, width=min(cell.width, 64))
        for cell in cells
        if cell.label in ("8", "vadv", "dcl", "dclr, N = 256, k = 1", "simcse, P = 2, N = 32, width 192")
    ]


def save_encoder(folder: Path, shape: Encoder) -> str:
    """A BERT of this shape with random weights, its head for masked words, and the embedded tokenizer."""
    if not folder.exists():
        torch.manual_seed(0)
        config = BertConfig(
            vocab_size=shape.vocabulary, hidden_size=shape.width, num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads, intermediate_size=shape.inner, max_position_embeddings=shape.positions,
        )  # fmt: skip
        BertForMaskedLM(config).save_pretrained(folder)
        AutoTokenizer.from_pretrained(ASSETS).save_pretrained(folder)
    return str(folder)


def build(cell: Cell, root: Path) -> Callable[[], float]:
    """A setting's model and optimizer; what is returned runs a step and tells its seconds."""
    options: dict[str, Any] = {
        "vadv": {"vadv_steps": cell.steps},
        "dclr": {"dclr_steps": cell.steps, "dclr_k": cell.multiple},
        "gs_infonce": {"gs_multiple": cell.multiple},
        "dcl": {"dcl_augmentation": "dropout"},
        "robustsentembed": {"rse_pgd_steps": cell.steps, "rse_fgsm_steps": cell.steps},
    }.get(cell.method, {})
    options = {key: value for key, value in options.items() if value is not None}
    encoder = save_encoder(root / cell.folder, cell.encoder)
    bare = RobustCSEModel.from_encoder(encoder, method=cell.method, method_options=options).train()
    model: Any = bare
    if cell.processes > 1:
        model = torch.nn.parallel.DistributedDataParallel(bare)
    trained = [p for p in bare.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-5)
    ids = torch.randint(10, VOCABULARY, (cell.rows, cell.length))  # words, and no padding
    mask = torch.ones_like(ids)

    def step() -> float:
        started = time.perf_counter()
        model(ids, mask)["loss"].backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        optimizer.zero_grad()
        bare.after_update(0.5)
        return time.perf_counter() - started

    return step


def measure(cells: list[Cell], rounds: int, root: Path) -> list[list[float]]:
    """Seconds of a step of each setting, one of every setting in a round, after one that does not count.

    Args:
        cells: settings of this number of processes.
        rounds: how many.
        root: where encoders are made, or have been.

    Returns:
        The seconds of each setting.
    """
    steps = [build(cell, root) for cell in tqdm(cells, desc="models", unit="cell")]
    for step in steps:
        step()
    seconds: list[list[float]] = [[] for _ in cells]
    for _ in tqdm(range(rounds), unit="round"):
        for found, step in zip(seconds, steps, strict=True):
            found.append(step())
    return seconds


def measure_together(cells: list[Cell], rounds: int, root: Path) -> list[list[float]]:
    """The same on as many processes as the settings say, on this machine."""
    output = root / "together.json"
    for cell in cells:  # here: of several processes only the first would save
        save_encoder(root / cell.folder, cell.encoder)
    child = json.dumps({"root": str(root), "cells": [dataclasses.asdict(cell) for cell in cells]})
    subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", str(cells[0].processes), "--standalone"]
        + [__file__, "--child", child, "--rounds", str(rounds), "--output_json", str(output)],
        check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, stdout=subprocess.DEVNULL,
    )  # fmt: skip
    return read_json(output)


def features(counted: Work) -> list[float]:
    """What the constants are multiplied with."""
    return [
        sum(counted.flops.values()), sum(counted.moved.values()), counted.layer_calls, 1.0,
        sum(counted.sent.values()),
    ]  # fmt: skip


def fit(cells: list[dict[str, Any]]) -> dict[str, float | None]:
    """The constants, by non-negative least squares on relative errors.

    Args:
        cells: with ``features`` and ``median_seconds``.

    Returns:
        Operations and bytes a second, seconds a layer's call and a step, bytes a second between processes; None where
        the fit gives a count no cost.
    """
    seconds = np.array([cell["median_seconds"] for cell in cells])
    matrix = np.array([cell["features"] for cell in cells]) / seconds[:, None]
    scale = matrix.max(axis=0)
    scale[scale == 0] = 1.0
    costs = nnls(matrix / scale, np.ones(len(cells)))[0] / scale
    flops, moved, call, step, sent = costs.tolist()
    return {
        "flops_per_second": 1 / flops if flops else None,
        "bytes_per_second": 1 / moved if moved else None,
        "seconds_per_layer_call": call,
        "seconds_per_step": step,
        "sent_bytes_per_second": 1 / sent if sent else None,
    }


def fitted_seconds(counted: list[float], constants: dict[str, float | None]) -> float:
    """What the fit says of a setting."""
    flops, moved, calls, step, sent = counted

    def over(amount: float, rate: float | None) -> float:
        return amount / rate if rate else 0.0

    return (
        over(flops, constants["flops_per_second"]) + over(moved, constants["bytes_per_second"])
        + calls * constants["seconds_per_layer_call"] + step * constants["seconds_per_step"]
        + over(sent, constants["sent_bytes_per_second"])
    )  # fmt: skip


@dataclasses.dataclass(frozen=True)
class Node:
    """Assumptions about a GPU and what joins it to others; none was measured here."""

    peak: float = 989e12
    """bfloat16 operations a second, dense: NVIDIA's data sheet of the H100 SXM; the H200 has the same."""
    utilisation: float = 0.4
    """The part of the peak that the encoder's passes reach, their memory-bound operations included."""
    peak_float32: float = 67e12
    """Similarities are computed in float32, without TF32 unless the user turns it on."""
    utilisation_float32: float = 0.5
    memory: float = 4.8e12
    """Bytes a second: H200 (H100: 3.35e12)."""
    memory_share: float = 0.7
    layer_call: float = 150e-6
    """Host seconds to launch a layer forward, or half of its backward: about 15 kernels of 10 microseconds."""
    nvlink: float = 450e9
    """Bytes a second in one direction, for each GPU of a node of eight."""
    port: float = 50e9
    """Bytes a second of a 400 Gb/s port."""
    link_share: float = 0.8
    collective: float = 30e-6
    """Seconds before a collective moves anything."""
    hidden: float = 0.5
    """The part of the encoder's time behind which gradients are reduced."""


def on_paper(
    method: str, rows: int, processes: int, ports: int = 8, node: Node | None = None, length: int = 32
) -> dict[str, Any]:
    """Seconds of a step of BERT-base in bfloat16 on a node, from counts and assumptions alone.

    Args:
        method: of the counts.
        rows: N of each GPU.
        processes: GPUs, eight a node.
        ports: of 400 Gb/s that a node has.
        node: the assumptions.
        length: tokens of every sentence.

    Returns:
        ``parts`` in seconds by name, ``seconds`` together, and ``limit``, the largest part.
    """
    node = node or Node()
    counted = work(method, Encoder(), Load.full(rows, length, processes), number=2)
    flops, moved, sent = counted.flops, counted.moved, counted.sent
    link = node.link_share * (node.nvlink if processes <= 8 else min(node.nvlink, ports * node.port))
    memory = node.memory * node.memory_share
    float32 = node.peak_float32 * node.utilisation_float32
    products = sum(flops[k] for k in ("encoder products", "encoder attention", "heads", "vocabulary"))
    encoder = products / (node.peak * node.utilisation)
    launches = counted.layer_calls * node.layer_call
    busy = max(encoder, launches)
    waits = node.collective if processes > 1 else 0.0
    parts = {
        "encoder" if encoder >= launches else "launches": busy,
        "similarities": max(flops["similarities"] / float32, moved["similarities"] / memory),
        "noise ascent": max(flops["noise ascent"] / float32, moved["noise ascent"] / memory),
        "noise": moved["noise"] / memory,
        "optimizer": moved["optimizer"] / memory,
        "gathers": waits + (sent["embeddings"] + sent["perturbations"]) / link,
        "gradients": max(0.0, waits + sent["gradients"] / link - node.hidden * busy),
    }
    return {"parts": parts, "seconds": sum(parts.values()), "limit": max(parts, key=parts.__getitem__)}


PAPER_METHODS = ("simcse", "vadv", "gs_infonce", "dclr", "dcl", "robustsentembed")
PAPER_ROWS = (64, 128, 256, 512, 1024)
PAPER_NODES = ((1, 8), (8, 8), (64, 8), (64, 1))  # GPUs, ports of a node


def paper() -> list[dict[str, Any]]:
    """The table on paper: method, batch of a GPU, GPUs and ports."""
    found = []
    for method in PAPER_METHODS:
        for rows in PAPER_ROWS:
            alone = on_paper(method, rows, 1)["seconds"]
            for processes, ports in PAPER_NODES:
                one = on_paper(method, rows, processes, ports)
                found.append(
                    {"method": method, "rows": rows, "processes": processes, "ports": ports, **one}
                    | {"efficiency": alone / one["seconds"]}
                )
    return found


def measured_blocks(result: dict[str, Any]) -> dict[str, str]:
    """The tables of docs/cost.md that hold what was measured and fitted, by name."""
    rows = ["| | measured s (min – max) | fitted s | error |", "|---|---|---|---|"]
    for cell in result["cells"]:
        low, middle, high = (cell[f"{name}_seconds"] for name in ("min", "median", "max"))
        rows.append(
            f"| {cell['factor']} {cell['label']} | {middle:.3f} ({low:.3f} – {high:.3f}) | "
            f"{cell['fitted_seconds']:.3f} | {100 * cell['error']:+.0f} % |"
        )
    constants = result["constants"]
    errors = [abs(cell["error"]) for cell in result["cells"]]

    def rate(name: str, unit: str) -> str:
        return f"{constants[name] / 1e9:.3g} {unit}" if constants[name] else "no cost in the fit"

    fitted = [
        "| constant | fitted |", "|---|---|",
        f"| operations a second | {rate('flops_per_second', 'GFLOP/s')} |",
        f"| bytes moved a second | {rate('bytes_per_second', 'GB/s')} |",
        f"| a layer's call | {1e3 * constants['seconds_per_layer_call']:.2f} ms |",
        f"| a step | {1e3 * constants['seconds_per_step']:.2f} ms |",
        f"| bytes a second between processes | {rate('sent_bytes_per_second', 'GB/s')} |",
        f"| error over {len(errors)} settings | median {100 * statistics.median(errors):.0f} %, "
        f"largest {100 * max(errors):.0f} % |",
    ]  # fmt: skip
    return {"measured": "\n".join(rows), "fitted": "\n".join(fitted)}


def paper_blocks() -> dict[str, str]:
    """The tables of docs/cost.md that hold counts and assumptions alone, by name."""
    table = [
        "| method | N | 1 GPU | 8 GPUs | 64 GPUs, 8 ports a node | 64 GPUs, 1 port a node |",
        "|---|---|---|---|---|---|",
    ]
    found = paper()
    for start in range(0, len(found), len(PAPER_NODES)):
        group = found[start : start + len(PAPER_NODES)]
        if group[0]["rows"] not in (64, 256, 1024):
            continue
        cells = [f"{1e3 * one['seconds']:.1f} ms, {one['limit']}" for one in group[:1]]
        cells += [
            f"{1e3 * one['seconds']:.1f} ms, {one['limit']}, {100 * one['efficiency']:.0f} %" for one in group[1:]
        ]
        table.append(f"| `{group[0]['method']}` | {group[0]['rows']} | {' | '.join(cells)} |")
    counted = ["| method | passes of a batch of N | products of a forward pass | times simcse |", "|---|---|---|---|"]
    base = sum(work("simcse", Encoder(), Load.full(64, 32)).flops.values())
    for method in PAPER_METHODS:
        own = passes(method)
        whats = "; ".join(f"{one.views} {one.kind}: {one.what}" for one in own)
        total = sum(work(method, Encoder(), Load.full(64, 32)).flops.values())
        counted.append(f"| `{method}` | {whats} | {sum(one.products for one in own)} | {total / base:.2f} |")
    return {"passes": "\n".join(counted), "paper": "\n".join(table)}


def write_docs(path: Path, blocks: dict[str, str]) -> None:
    """Put each block between its comments in a Markdown file.

    Raises:
        UserError: if the file lacks one.
    """
    text = path.read_text(encoding="utf-8")
    for name, block in blocks.items():
        begin, end = f"<!-- {name}: made by benchmarks/scaling.py -->", f"<!-- end of {name} -->"
        if begin not in text or end not in text:
            raise UserError(f"{path} has no place for the table {name!r}: write the lines {begin!r} and {end!r}")
        before, after = text.split(begin)[0], text.split(end)[1]
        text = f"{before}{begin}\n{block}\n{end}{after}"
    atomic_write_text(path, text)


def draw(result: dict[str, Any], path: Path) -> None:
    """Measured and fitted seconds against each factor, and the table on paper."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 3, figsize=(13, 7.5))
    for axis, factor in zip(axes.flat, ("batch", "length", "width", "layers"), strict=False):
        names = {"batch": "rows"}
        cells = sorted((c for c in result["cells"] if c["factor"] in (factor, "batch") and _only(c, factor)),
                       key=lambda c: c[names.get(factor, factor)])  # fmt: skip
        if not cells:  # of a toy
            continue
        x = [cell[names.get(factor, factor)] for cell in cells]
        axis.errorbar(
            x, [c["median_seconds"] for c in cells],
            yerr=[[c["median_seconds"] - c["min_seconds"] for c in cells],
                  [c["max_seconds"] - c["median_seconds"] for c in cells]],
            fmt="o", label="measured",
        )  # fmt: skip
        axis.plot(x, [c["fitted_seconds"] for c in cells], "-", label="fitted")
        axis.set(xlabel=factor, ylabel="seconds a step", xscale="log", yscale="log", title=f"simcse against {factor}")
        axis.set_xticks(x, [str(value) for value in x])
        axis.minorticks_off()
    axes.flat[0].legend()
    axis = axes.flat[4]
    measured = [cell["median_seconds"] for cell in result["cells"]]
    axis.loglog(measured, [cell["fitted_seconds"] for cell in result["cells"]], ".")
    axis.plot([min(measured), max(measured)], [min(measured), max(measured)], "k:", linewidth=1)
    axis.set(xlabel="measured seconds", ylabel="fitted seconds", title="all settings")
    axis = axes.flat[5]
    for method in PAPER_METHODS:
        own = [p for p in result["paper"] if p["method"] == method and (p["processes"], p["ports"]) == (64, 8)]
        axis.plot([p["rows"] for p in own], [100 * p["efficiency"] for p in own], ".-", label=method)
    axis.set(
        xlabel="sentences a GPU", ylabel="% of one GPU's speed, each", xscale="log", ylim=(0, 105),
        title="64 GPUs on paper (assumed constants)",
    )  # fmt: skip
    axis.set_xticks(PAPER_ROWS, [str(rows) for rows in PAPER_ROWS])
    axis.minorticks_off()
    axis.legend(fontsize=8)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _only(cell: dict[str, Any], factor: str) -> bool:
    """Whether all but one factor of a setting are those of the base."""
    base = dataclasses.asdict(Cell("batch"))
    names = {"batch": "rows"}
    return all(cell[k] == v for k, v in base.items() if k not in ("factor", names.get(factor, factor)))


def run_child(child: dict[str, Any], rounds: int, output: Path) -> None:
    """One of several processes."""
    torch.distributed.init_process_group("gloo")
    seconds = measure([Cell(**cell) for cell in child["cells"]], rounds, Path(child["root"]))
    if torch.distributed.get_rank() == 0:
        write_json(output, seconds)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


@command
def main() -> None:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output_json", type=Path)
    parser.add_argument("--from_json", type=Path, help="measure nothing: fit, draw and write what is in this file")
    parser.add_argument(
        "--only_paper", action="store_true", help="measure nothing: the tables that need no measurement"
    )
    parser.add_argument("--picture", type=Path, help="a PNG (needs matplotlib)")
    parser.add_argument("--docs", type=Path, help="the page whose tables are replaced")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--toy", action="store_true", help="a few settings of next to no size")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    at_least(1, args, "rounds")
    if args.only_paper and (args.from_json or args.output_json or args.picture):
        raise UserError("--only_paper prints tables, and writes them with --docs: leave the other options out")
    if args.docs and not args.docs.is_file():
        raise UserError(f"--docs {args.docs} is not there")
    if args.picture and not has_matplotlib():
        raise UserError(f"--picture needs matplotlib: {HOW_TO_GET}")
    if args.toy and args.docs:
        raise UserError("--toy measures nothing that belongs on a page: leave out --docs")
    check_output(args)
    torch.set_num_threads(1)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    if args.child:
        run_child(json.loads(args.child), args.rounds, args.output_json)
        return
    if args.only_paper:
        blocks = paper_blocks()
        print("\n\n".join(blocks.values()))
        if args.docs:
            write_docs(args.docs, blocks)
        return
    if args.from_json:
        result = read_json(args.from_json)
        if not isinstance(result, dict) or not isinstance(result.get("cells"), list):
            raise UserError(f"--from_json {args.from_json} was not written by this script")
    else:
        cells = sorted(grid(args.toy), key=lambda cell: cell.processes)
        alone = [cell for cell in cells if cell.processes == 1]
        with tempfile.TemporaryDirectory() as folder:
            seconds = measure(alone, args.rounds, Path(folder))
            seconds += measure_together(cells[len(alone) :], args.rounds, Path(folder))
        result = {**machine(), "vocabulary": VOCABULARY, "rounds": args.rounds, "cells": []}
        for cell, found in zip(cells, seconds, strict=True):
            result["cells"].append(
                {
                    **dataclasses.asdict(cell), "label": cell.label, "seconds": found, "min_seconds": min(found),
                    "median_seconds": statistics.median(found), "max_seconds": max(found),
                }
            )  # fmt: skip
    for cell in result["cells"]:  # counted anew, also where the seconds are those of a file
        names = {field.name for field in dataclasses.fields(Cell)}
        cell["features"] = features(Cell(**{key: value for key, value in cell.items() if key in names}).work)
    result["constants"] = fit(result["cells"])
    for cell in result["cells"]:
        cell["fitted_seconds"] = fitted_seconds(cell["features"], result["constants"])
        cell["error"] = cell["fitted_seconds"] / cell["median_seconds"] - 1
    result["assumed"] = dataclasses.asdict(Node())
    result["paper"] = paper()
    blocks = paper_blocks() | measured_blocks(result)
    print("\n\n".join(blocks.values()))
    if args.output_json or args.from_json:
        write_json(args.output_json or args.from_json, result)
    if args.picture:
        draw(result, args.picture)
    if args.docs:
        write_docs(args.docs, blocks)


if __name__ == "__main__":
    main()
