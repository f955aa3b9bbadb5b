"""Sweeps: a declared grid of settings, each trained for several seeds, and what came of it as a table and a picture."""

from __future__ import annotations

import dataclasses
import difflib
import json
import re
import shutil
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from hf_robustcse.arguments import DEV_METRICS, Arguments, parse_arguments, recipe_arguments
from hf_robustcse.distributed import say, world_size
from hf_robustcse.errors import Parser, TrainingStopped, UserError
from hf_robustcse.evaluation.pictures import HOW_TO_GET, has_matplotlib
from hf_robustcse.evaluation.results import command_line, library_versions
from hf_robustcse.files import atomic_write_text, write_json
from hf_robustcse.methods import METHODS, build

AXES = ("linear", "log", "symlog", "category")
# What the sweep itself decides for each of its runs.
OWN = ("output_dir", "seed", "seeds", "resume_from_checkpoint", "overwrite_output_dir", "dry_run")
FAILED = "failed.json"


@dataclasses.dataclass(frozen=True)
class Grid:
    """A declared sweep.

    Attributes:
        name: its name.
        about: what is varied, and where the paper has it.
        cells: label -> {option: value}; in a value ``{folder}`` is the folder of the sweep and ``{seed}`` the seed, so
            that a cell can use the model of an earlier one.
        method: of every cell that names none itself.
        varied: the options whose value is the label; empty where cells differ in several ways.
        axis: of the picture, one of `AXES`.
        plot: metrics of the first dev set in the picture; empty for the Spearman correlation on every set.
        reported: what the paper prints, name of the figure -> label -> value.
    """

    name: str
    about: str
    cells: dict[str, dict[str, Any]]
    method: str | None = None
    varied: tuple[str, ...] = ()
    axis: str = "category"
    plot: tuple[str, ...] = ()
    reported: dict[str, dict[str, float]] = dataclasses.field(default_factory=dict)


def read_grids(path: str | Path) -> dict[str, Grid]:
    """The grids of a YAML file: name -> ``about``, ``method``, ``vary`` or ``cells``, ``axis``, ``plot``, ``reported``.

    ``vary: {option: [values]}`` makes a cell of each value; several options, separated by spaces, share it.

    Raises:
        UserError: if it cannot be read or a grid is malformed.
    """
    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"cannot read the grids {path}: {' '.join(str(error).split())}") from error
    if not isinstance(content, dict) or not all(isinstance(entry, dict) for entry in content.values()):
        raise UserError(f"the file of grids {path} must hold entries of the form name: {{vary: {{option: [values]}}}}")
    return {str(name): _grid(str(name), entry, path) for name, entry in content.items()}


def _grid(name: str, entry: Mapping[str, Any], path: str | Path) -> Grid:
    where = f"grid {name} in {path}"
    if unknown := set(entry) - {"about", "method", "vary", "cells", "axis", "plot", "reported"}:
        raise UserError(f"{where} has an unknown key {sorted(unknown)[0]}")
    if ("vary" in entry) == ("cells" in entry):
        raise UserError(f"{where} needs either vary or cells")
    varied: tuple[str, ...] = ()
    if "vary" in entry:
        if not isinstance(entry["vary"], dict) or len(entry["vary"]) != 1:
            raise UserError(f"{where}: vary must be of the form {{option: [values]}}, with a single entry")
        ((options, values),) = entry["vary"].items()
        if not isinstance(values, list) or not values:
            raise UserError(f"{where}: vary must list the values of {options}")
        varied = tuple(str(options).split())
        cells = {_label(value): dict.fromkeys(varied, value) for value in values}
    else:
        if not isinstance(entry["cells"], dict) or not all(isinstance(cell, dict) for cell in entry["cells"].values()):
            raise UserError(f"{where}: cells must be of the form label: {{option: value}}")
        cells = {_label(label): dict(cell) for label, cell in entry["cells"].items()}
    if not cells:
        raise UserError(f"{where} has no cell")
    axis, plot = entry.get("axis", "category"), tuple(entry.get("plot", ()))
    if axis not in AXES:
        raise UserError(f"{where}: axis must be one of {', '.join(AXES)}, not {axis!r}")
    if axis != "category" and not all(_is_number(label) for label in cells):
        raise UserError(f"{where}: the axis {axis} needs cells that are numbers")
    if wrong := set(plot) - set(DEV_METRICS):
        raise UserError(f"{where}: plot knows {', '.join(DEV_METRICS)}, not {sorted(wrong)[0]}")
    try:
        reported = {
            str(what): {_label(label): float(value) for label, value in values.items()}
            for what, values in entry.get("reported", {}).items()
        }
    except (AttributeError, TypeError, ValueError):
        raise UserError(f"{where}: reported must be of the form {{name: {{cell: number}}}}") from None
    if own := sorted(set().union(*cells.values()) & set(OWN)):
        raise UserError(f"{where}: {own[0]} is not for a grid to set; the sweep chooses it for each run")
    if len({_folder_name(label) for label in cells}) < len(entry.get("cells") or values):
        raise UserError(f"{where} has two cells whose names look the same")
    about = " ".join(str(entry.get("about", "")).split())
    return Grid(name, about, cells, entry.get("method"), varied, axis, plot, reported)


def _label(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f"{value:.15g}" if isinstance(value, (int, float)) else str(value)


def _folder_name(label: str) -> str:
    return re.sub(r"[^\w.+-]+", "-", label)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def make_parser(grids: Path | None = None) -> Parser:
    """The parser of run_ablation.py, without the options that it passes on; `grids` is its file of grids."""
    parser = Parser(
        prog="run_ablation.py",
        usage="run_ablation.py GRID [recipe.yaml] [--seeds S ...] [--cells C ...] [--output_dir DIR] [options of "
        "run_unsup.py]",
        description="Train every cell of a declared grid for several seeds. All options of run_unsup.py are accepted "
        "and hold for every cell; an option of a method goes to the cells whose method has it. A sweep that was "
        "interrupted goes on when the same command is given again.",
        allow_abbrev=False,
    )
    parser.add_argument("--grids", type=Path, default=grids, help="YAML file of grids")
    parser.add_argument("--list", action="store_true", help="print the grids and stop")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2], help="seeds of every cell (default 0 1 2)")
    parser.add_argument("--cells", nargs="+", help="train these cells only")
    parser.add_argument("--output_dir", type=Path, help="where the sweep goes (default runs/GRID)")
    return parser


@dataclasses.dataclass
class Sweep:
    """A grid, the settings that all its cells share, and where it goes."""

    grid: Grid
    seeds: list[int]
    cells: list[str]
    folder: Path
    shared: list[str]
    command: str

    def arguments(self, cell: str, seed: int) -> Arguments:
        """The arguments of one training run.

        Raises:
            UserError: if they are wrong.
        """
        options = self.grid.cells[cell]
        method = self.method(cell)
        argv = ["--method", method, *_of_method(self.shared, method)]
        for name, value in options.items():
            values = value if isinstance(value, list) else [value]
            texts = [str(v).lower() if isinstance(v, bool) else str(v) for v in values]
            argv += [f"--{name}"] + [
                text.replace("{folder}", str(self.folder)).replace("{seed}", str(seed)) for text in texts
            ]
        run_folder = self.run_folder(cell, seed)
        argv += ["--seed", str(seed), "--output_dir", str(run_folder)]
        if (run_folder / FAILED).is_file():
            argv.append("--overwrite_output_dir")  # what broke down is not taken up where it lies
        elif (run_folder / "manifest.json").is_file():
            argv += ["--resume_from_checkpoint", "last"]
        return parse_arguments(argv)

    def method(self, cell: str) -> str:
        """The method of a cell."""
        return str(self.grid.cells[cell].get("method") or _value(self.shared, "method") or self.grid.method or "simcse")

    def run_folder(self, cell: str, seed: int) -> Path:
        """Where one training run goes."""
        return self.folder / _folder_name(cell) / f"seed-{seed}"


def _value(argv: Sequence[str], name: str) -> str | None:
    """The last value of an option in a command line."""
    found = None
    for i, word in enumerate(argv):
        if word == f"--{name}" and i + 1 < len(argv):
            found = argv[i + 1]
        elif word.startswith(f"--{name}="):
            found = word.partition("=")[2]
    return found


def _of_method(argv: Sequence[str], method: str) -> list[str]:
    """The command line without the options of other methods."""
    foreign = _method_options() - build(method).options().keys() if _exists(method) else set()
    kept, skip = [], False
    for word in argv:
        if word.startswith("--"):
            skip = word[2:].partition("=")[0] in foreign
        if not skip:
            kept.append(word)
    return kept


def _exists(method: str) -> bool:
    try:
        build(method)
    except UserError:
        return False
    return True


def parse_sweep(argv: Sequence[str] | None, grids: Path) -> Sweep | None:
    """Parse the command line of a sweep, and of all its runs.

    Args:
        argv: without the program's name; by default that of the process.
        grids: the file of grids when the command line names none.

    Returns:
        The sweep, or None if only the grids were to be listed, which are printed then.

    Raises:
        UserError: for an unknown grid, cell or option, or a bad value in any cell.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    name = argv.pop(0) if argv and not argv[0].startswith("-") else None
    recipe = argv.pop(0) if argv and not argv[0].startswith("-") else None
    words = [*([name] if name else []), *([recipe] if recipe else []), *argv]
    known, shared = make_parser(grids).parse_known_args(argv)
    declared = read_grids(known.grids)
    if known.list:
        for grid in declared.values():
            say(f"{grid.name:<20}{grid.about} [{len(grid.cells)} cells: {', '.join(grid.cells)}]")
        return None
    if name not in declared:
        near = difflib.get_close_matches(name or "", declared, n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        said = "name a grid first" if name is None else f"there is no grid {name!r} in {known.grids}"
        raise UserError(f"{said}: one of {', '.join(declared)}{hint}")
    grid = declared[name]
    if recipe:
        shared = recipe_arguments(Path(recipe), _value(shared, "variant") or "paper") + shared
    cells = known.cells or list(grid.cells)
    if wrong := [cell for cell in cells if cell not in grid.cells]:
        raise UserError(f"the grid {name} has no cell {wrong[0]!r}: choose among {', '.join(grid.cells)}")
    if len(set(known.seeds)) < len(known.seeds):
        raise UserError(f"--seeds {' '.join(map(str, known.seeds))} names a seed twice")
    folder = known.output_dir or Path("runs") / name
    if folder.exists() and not folder.is_dir():
        raise UserError(f"--output_dir {folder} is a file")
    sweep = Sweep(grid, known.seeds, cells, folder, shared, command_line(["run_ablation.py", *words]))
    _check(sweep)
    return sweep


def _check(sweep: Sweep) -> None:
    """Refuse shared options that do nothing, bad values in any cell, and cells that need a model that is not there."""
    grid, shared = sweep.grid, sweep.shared
    of_methods = _method_options()
    parsed = {cell: sweep.arguments(cell, sweep.seeds[0]) for cell in grid.cells}
    if any(arguments.recipe for arguments in parsed.values()):
        raise UserError("a recipe comes right after the name of the grid")
    for option in dict.fromkeys(word[2:].partition("=")[0] for word in shared if word.startswith("--")):
        takers = [cell for cell in grid.cells if option not in of_methods or option in parsed[cell].method_options]
        if not takers:
            raise UserError(f"--{option} belongs to a method that no cell of the grid {grid.name} uses")
        if option == "dry_run":
            raise UserError("--dry_run makes no table: give it to run_unsup.py with the options of one cell")
        if option in OWN or all(option in grid.cells[cell] for cell in takers):
            raise UserError(f"--{option} is set by the sweep {grid.name} for each of its runs: leave it out")
    for cell in sweep.cells:
        for other in re.findall(r"\{folder\}/([^/]+)/", " ".join(map(str, grid.cells[cell].values()))):
            there = all((sweep.run_folder(other, seed) / "results.json").is_file() for seed in sweep.seeds)
            if other not in sweep.cells[: sweep.cells.index(cell)] and not there:
                raise UserError(
                    f"the cell {cell} uses the model of {other}, which is not trained: --cells {other} {cell}"
                )


def _method_options() -> set[str]:
    return {f.name for kind in METHODS.values() for f in dataclasses.fields(kind.Options)}


def run_sweep(sweep: Sweep) -> dict[str, Any]:
    """Train what is not trained yet; write ``results.json``, ``table.md`` and, with matplotlib, ``picture.png``.

    A run that cannot be trained (bad input, collapse, a loss that is not finite, too little memory) is recorded as
    failed; the others are trained nevertheless, and the next call starts it anew. A finished run keeps its model and
    its results, and loses its checkpoints.

    Args:
        sweep: of `parse_sweep`.

    Returns:
        What is written to ``results.json``.

    Raises:
        UserError: if the folder holds something else, if its runs were made of different data, or if no run at all
            could be trained.
    """
    import torch

    from hf_robustcse.runs import run  # all that trains, which takes seconds to import: a mistake is told before

    folder, grid = sweep.folder, sweep.grid
    first = sweep.arguments(sweep.cells[0], sweep.seeds[0]).training
    main = first.process_index == 0
    _claim(sweep, main)
    _same_data(sweep)
    if not has_matplotlib():
        say(f"note: there will be a table but no picture: {HOW_TO_GET}")

    # Seed by seed, so that an interrupted sweep has something of every cell.
    work = [(cell, seed) for seed in sweep.seeds for cell in sweep.cells]
    todo = [(cell, seed) for cell, seed in work if not (sweep.run_folder(cell, seed) / "results.json").is_file()]
    say(f"{grid.name}: {grid.about}", f"{len(work)} runs, {len(work) - len(todo)} of them finished before")
    reasons = []
    started = time.perf_counter()
    for number, (cell, seed) in enumerate(todo):
        each = (time.perf_counter() - started) / max(number, 1)
        left = f", about {_duration(each * (len(todo) - number))} left" if number else ""
        say("", f"[{number + 1} of {len(todo)}{left}] {grid.name}: {cell}, seed {seed}")
        run_folder = sweep.run_folder(cell, seed)
        try:
            result = run(sweep.arguments(cell, seed))
        except (TrainingStopped, UserError, torch.OutOfMemoryError) as error:
            if isinstance(error, torch.OutOfMemoryError) and world_size() > 1:
                raise  # the other processes know nothing of it
            reasons.append(" ".join(str(error).split()))
            say(f"failed: {reasons[-1]}")
            if main:
                write_json(run_folder / FAILED, {"reason": reasons[-1], "command": sweep.command})
            continue
        if result["training"]["status"] != "finished":
            say(f"stopped; the same command goes on: {sweep.command}")
            return {"status": "stopped"}
        if main:
            (run_folder / FAILED).unlink(missing_ok=True)
            for checkpoint in run_folder.glob("checkpoint-*"):
                shutil.rmtree(checkpoint)
    if len(reasons) == len(work) and len(set(reasons)) == 1:
        raise UserError(f"no run could be trained: {reasons[0]}")
    if world_size() > 1:
        torch.distributed.barrier()  # the files of the last run are the main process' to write
    _same_data(sweep)
    record = summarise(sweep)
    if main:
        _write(folder, record)
        files = ", ".join(sorted(path.name for path in folder.iterdir() if path.is_file()))
        print("", table(record), "", f"in {folder}: {files}", sep="\n", flush=True)
    return record


def _claim(sweep: Sweep, main: bool) -> None:
    """Write down whose folder this is, or refuse one that is another's."""
    from hf_robustcse.runs import holds_run

    path = sweep.folder / "sweep.json"
    identity = {
        "grid": sweep.grid.name,
        "cells": sweep.grid.cells,
        "methods": {cell: sweep.method(cell) for cell in sweep.grid.cells},
        "shared": command_line(sweep.shared),  # a recipe is in it option by option, and no token is
        "processes": world_size(),
    }
    if path.is_file():
        before = json.loads(path.read_text(encoding="utf-8"))
        if different := [key for key, value in identity.items() if before.get(key) != value]:
            key = different[0]
            raise UserError(
                f"--output_dir {sweep.folder} holds another sweep, with {key} {before.get(key)} in place of "
                f"{identity[key]}: choose another folder"
            )
    elif holds_run(sweep.folder):
        raise UserError(f"--output_dir {sweep.folder} holds a run that is no sweep: choose another folder")
    elif main:
        write_json(path, identity)


def _finished(sweep: Sweep, cell: str) -> list[Path]:
    """The folders of the finished runs of a cell, of every seed, in their order."""
    found = sweep.run_folder(cell, 0).parent.glob("seed-*/results.json")
    return sorted((path.parent for path in found), key=lambda path: int(path.name.removeprefix("seed-")))


def _same_data(sweep: Sweep) -> None:
    """Refuse to compare runs of different corpora or evaluation sets."""
    seen: dict[str, tuple[Any, Path]] = {}
    for cell in sweep.grid.cells:
        for folder in _finished(sweep, cell):
            manifest, results = (
                json.loads((folder / name).read_text(encoding="utf-8")) for name in ("manifest.json", "results.json")
            )
            corpus = manifest["corpus"]
            about = {"corpora": [file["sha256"] for file in corpus.get("files", [])] or corpus["source"]}
            about["evaluation data"] = {name: record["sha256"] for name, record in results["tasks"].items()}
            for what, value in about.items():
                other, where = seen.setdefault(what, (value, folder))
                if other != value:
                    raise UserError(
                        f"{folder} and {where} were made with different {what}, so they cannot be compared: delete one "
                        "of them, or choose another --output_dir"
                    )


def _duration(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def summarise(sweep: Sweep) -> dict[str, Any]:
    """All runs in a sweep's folder, of every seed: mean, standard deviation and range of every metric.

    Args:
        sweep: of `parse_sweep`.

    Returns:
        The record that `table` and `picture` take.
    """
    grid = sweep.grid
    rows: dict[str, Any] = {}
    about: dict[str, Any] = {}
    for cell in grid.cells:
        parent = sweep.run_folder(cell, 0).parent
        found = [json.loads((p / "results.json").read_text(encoding="utf-8")) for p in _finished(sweep, cell)]
        failed = {
            path.parent.name.removeprefix("seed-"): json.loads(path.read_text(encoding="utf-8"))["reason"]
            for path in sorted(parent.glob(f"seed-*/{FAILED}"))
        }
        row: dict[str, Any] = {
            "options": grid.cells[cell], "method": sweep.method(cell), "seeds": [r["seed"] for r in found],
            "failed": failed, "tasks": {},
        }  # fmt: skip
        if found:
            about = found[0]
            timed = [(r["training"]["seconds"], r["training"]["steps"] - r["training"].get("resumed_at_step", 0))
                     for r in found]  # fmt: skip
            row["steps"] = [r["training"]["steps"] for r in found]
            row["seconds_per_step"] = sum(s for s, _ in timed) / max(1, sum(n for _, n in timed))
            row["selection"] = [r["selection"] for r in found]
            for task, record in found[0]["tasks"].items():
                row["tasks"][task] = {"n": record["n"], "split": record["split"], "sha256": record["sha256"]} | {
                    metric: _spread([r["tasks"][task][metric] for r in found])
                    for metric in DEV_METRICS if metric in record
                }  # fmt: skip
            if found[0]["averages"]["sts"] is not None:
                row["average"] = _spread([r["averages"]["sts"] for r in found])
        rows[cell] = row
    return {
        "grid": grid.name, "about": grid.about, "command": sweep.command, "varied": list(grid.varied),
        "axis": grid.axis, "plot": list(grid.plot), "reported": grid.reported,
        "device": about.get("device"), "protocol": about.get("protocol"), "library_versions": library_versions(),
        "before": about.get("before", {}), "cells": rows,
    }  # fmt: skip


def _spread(values: list[float]) -> dict[str, Any]:
    return {
        "mean": statistics.fmean(values), "std": statistics.stdev(values) if len(values) > 1 else 0.0,
        "min": min(values), "max": max(values), "values": values,
    }  # fmt: skip


def _splits(record: Mapping[str, Any]) -> dict[str, str]:
    """The split of every evaluation set of a record, in order."""
    rows = record["cells"].values()
    return {task: entry["split"] for row in rows for task, entry in row["tasks"].items()}


def table(record: Mapping[str, Any]) -> str:
    """The record of a sweep as a Markdown table; what the paper reports has columns of its own, and says so."""
    from hf_robustcse.evaluation.dev_text import DevText

    rows = record["cells"]
    splits = _splits(record)
    first = next((task for task in splits if task in record["before"]), None)
    geometry = [m for m in record["plot"] or ["alignment", "uniformity"] if m != "spearman"] if first else []
    average = any("average" in row for row in rows.values())
    heads = [" ".join(record["varied"]) or "cell", "seeds", *(f"{task} ({split})" for task, split in splits.items())]
    heads += [*(["STS average"] if average else []), *(f"{metric} ({first})" for metric in geometry)]
    heads += ["s a step", *(f"reported: {what}" for what in record["reported"])]
    lines = [f"{record['grid']}: {record['about']}" if record["about"] else record["grid"], ""]
    lines += ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    for cell, row in rows.items():
        cells = [f"`{cell}`", str(len(row["seeds"])) + (f" ({len(row['failed'])} failed)" if row["failed"] else "")]
        tasks = [row["tasks"].get(task, {}) for task in splits]
        cells += [_shown(task.get("spearman", task.get("score")), 2) for task in tasks]
        cells += [_shown(row.get("average"), 2)] if average else []
        cells += [_shown(row["tasks"].get(first, {}).get(metric), 3) for metric in geometry]
        cells.append(f"{row['seconds_per_step']:.2f}" if "seconds_per_step" in row else "-")
        cells += [f"{values[cell]:g}" if cell in values else "-" for values in record["reported"].values()]
        lines.append("| " + " | ".join(cells) + " |")
    scored = "Spearman x 100" + (f" ({DevText.key}: its score)" if DevText.key in splits else "")
    lines += ["", f"{scored}, mean ± standard deviation over the seeds. {_chosen(rows)}"]
    lines += [
        f"`{cell}` seed {seed} failed: {why}" for cell, row in rows.items() for seed, why in row["failed"].items()
    ]
    return "\n".join([*lines, f"Command: `{record['command']}`"])


def _chosen(rows: Mapping[str, Any]) -> str:
    """How the checkpoints were chosen."""
    found = {(s["metric"], s["on_test_set"]) for row in rows.values() for s in row.get("selection", [])}
    said = [
        f"Checkpoints chosen by {metric}{' ON A TEST SET' if tested else ''}." if metric else "The last checkpoints."
        for metric, tested in sorted(found, key=str)
    ]
    return " ".join(said)


def _shown(spread: Mapping[str, Any] | None, digits: int) -> str:
    if spread is None:
        return "-"
    text = f"{spread['mean']:.{digits}f}"
    return f"{text} ± {spread['std']:.{digits}f}" if len(spread["values"]) > 1 else text


def _write(folder: Path, record: Mapping[str, Any]) -> None:
    write_json(folder / "results.json", record)
    atomic_write_text(folder / "table.md", table(record) + "\n")
    if has_matplotlib():
        picture(record, folder / "picture.png")


def picture(record: Mapping[str, Any], path: str | Path) -> None:
    """Draw the record of a sweep: mean over the seeds, with a bar of one standard deviation.

    Args:
        record: of `summarise`.
        path: of the PNG file.
    """
    from matplotlib.figure import Figure

    rows = {cell: row for cell, row in record["cells"].items() if row["tasks"]}
    splits = _splits(record)
    if record["plot"]:
        first = next(iter(record["before"]), None)
        lines = {f"{metric}, {first}": (first, metric) for metric in record["plot"]}
    else:
        lines = {f"{task} ({split})": (task, "spearman") for task, split in splits.items()}
    category = record["axis"] == "category"
    figure = Figure(figsize=(max(6.4, 0.8 * len(rows)), 4.8), layout="constrained")
    axes = figure.subplots()
    for name, (task, metric) in lines.items():
        points = [
            (number if category else float(cell), row["tasks"][task][metric])
            for number, (cell, row) in enumerate(rows.items())
            if metric in row["tasks"].get(task, {})
        ]
        axes.errorbar(
            [x for x, _ in points], [y["mean"] for _, y in points], [y["std"] for _, y in points], label=name,
            marker="o", capsize=3, linestyle="none" if category else "-",
        )  # fmt: skip
    if category:
        axes.set_xticks(range(len(rows)), list(rows), rotation=30 if len(rows) > 4 else 0, ha="right" if len(rows) > 4
                        else "center")  # fmt: skip
    else:
        positive = [float(cell) for cell in rows if float(cell) > 0]
        axes.set_xscale(
            record["axis"], **({"linthresh": min(positive, default=1.0)} if record["axis"] == "symlog" else {})
        )
    axes.set_xlabel(" = ".join(record["varied"]) or record["grid"])
    if record["plot"] and all(metric.endswith("cosine") for metric in record["plot"]):
        axes.set_ylim(min(0.0, axes.get_ylim()[0]), 1.05)
    axes.set_ylabel(", ".join(record["plot"]) or "Spearman x 100")
    figure.suptitle(record["about"] or record["grid"], fontsize="medium")
    axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=3, fontsize="small")  # inside it would hide points
    figure.savefig(path, dpi=150, metadata={"Software": None})
