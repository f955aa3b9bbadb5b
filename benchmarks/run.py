"""Reproduce the ratios of README.md on this machine, and compare them with the committed ones.

    python -m benchmarks.run --suite cpu
    python -m benchmarks.run --suite cpu --model_name_or_path MODEL --train_file a.txt.gz b.txt.gz --data_dir data
    python -m benchmarks.run --list
    python -m benchmarks.run --table        (README's table, out of benchmarks/results/suite_cpu.json)

A row is a run of one of the scripts here, which interleaves the systems that it compares: every ratio comes as minimum,
median and maximum over its rounds. A row whose inputs were not given is left out, and says so; one that fails does not
stop the others. Rows that are done are not done again, so the same command goes on where it was interrupted. Each row
has ROW.json and ROW.log in --output_dir; summary.json holds the ratios of all of them. To commit it, copy it to
benchmarks/results/suite_cpu.json and put what --table prints into README.md.

The exit code is 1 if a row failed and 2 for bad input. A ratio outside of the committed range is printed, and no error:
it may be the machine.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Formatter
from typing import Any

from tqdm import tqdm

from benchmarks.cost_model import METHODS, passes
from benchmarks.measuring import run_logged
from hf_robustcse.errors import Parser, UserError, command
from hf_robustcse.files import read_json, write_json

HERE = Path(__file__).parent
EMBEDDED = {
    "embedded": HERE.parent / "hf_robustcse" / "assets" / "encoder",  # for rows that any encoder can answer
    "model_name_or_path": HERE.parent / "hf_robustcse" / "assets" / "encoder",
    "train_file": HERE.parent / "hf_robustcse" / "assets" / "corpus.txt.gz",
}
COMMITTED = HERE / "results" / "suite_cpu.json"
SUMMARY = "summary.json"
TOLERANCE = 0.15
"""How far beyond the committed minimum and maximum a median may lie before it is told."""


@dataclass(frozen=True)
class Ratio:
    """A line of the table.

    Attributes:
        key: of `ratios` in the script's JSON, there {"min", "median", "max"}.
        what: is compared; of the script's numbers the one that is divided by the other is named in the key.
        against: what it is compared with.
    """

    key: str
    what: str
    against: str


@dataclass(frozen=True)
class Row:
    """A run of a script.

    Attributes:
        name: of the row.
        script: in this folder; it takes `--output_json`.
        options: its words, in which {model_name_or_path}, {train_file}, {data_dir}, {attack_file} and
            {textattack_python} stand for what the user gives.
        ratios: what is read from its JSON.
        seconds: about how long it takes on two quiet cores.
        each_file: run it once for each `--train_file`, in place of the first alone.
    """

    name: str
    script: str
    options: str
    ratios: tuple[Ratio, ...]
    seconds: int
    each_file: bool = False


TIMED = tuple(method for method in METHODS if method not in ("simcse", "anchor"))  # anchor was not timed yet
PASSES = {method: sum(one.products for one in passes(method)) for method in TIMED}
"""What a step needs, in products of a forward pass of one view, of which simcse's has 6: docs/cost.md."""
_SIMCSE = "a step of `simcse`"
SUITES: dict[str, tuple[Row, ...]] = {
    "cpu": (
        Row(
            "step", "train_step.py",
            "--model_name_or_path {model_name_or_path} --train_file {train_file} --systems released mnrl simcse",
            (
                Ratio("released/simcse", "training step of the released SimCSE code", _SIMCSE),
                Ratio("mnrl/simcse", "training step of sentence-transformers' MNRL trainer", _SIMCSE),
            ),
            120, each_file=True,
        ),
        Row(
            "methods", "train_step.py",
            "--model_name_or_path {embedded} --train_file {train_file} --rounds 3 --steps 4 "
            f"--systems simcse {' '.join(TIMED)}",
            tuple(
                Ratio(f"{method}/simcse", f"training step of `{method}`, by its passes {needed / 6:.2f}", _SIMCSE)
                for method, needed in PASSES.items()
            ),
            240,
        ),
        Row(
            "large-batch", "memory.py",
            "--model_name_or_path {embedded} --train_file {train_file} --seconds --batches 256 --rounds 3",
            (
                Ratio("mnrl_cached 256 in chunks of 64 / simcse 256 in chunks of 64",
                      "batch 256 by sentence-transformers' CachedMNRL", "`simcse` with `--forward_chunk_size 64`"),
                Ratio("simcse 256 in chunks of 64 / simcse 256", "batch 256 in chunks of 64", "in one pass"),
            ),
            180,
        ),
        Row(
            "sts", "sts_evaluation.py",
            "--model_name_or_path {embedded} --data_dir {data_dir} --rounds 3",
            (Ratio("senteval/hf_robustcse", "STS evaluation in SentEval's way", "ours"),),
            180,
        ),
        Row(
            "transfer", "transfer_evaluation.py",
            "--model_name_or_path {embedded} --data_dir {data_dir} --quick",
            (
                Ratio("senteval/hf_robustcse, all", "transfer evaluation (MRPC) in SentEval's way", "ours"),
                Ratio("one_by_one/hf_robustcse, fits", "its regressions one after the other", "solved together"),
            ),
            180,
        ),
        Row(
            "attack", "attack_speed.py",
            "--dataset_file {attack_file} --textattack_python {textattack_python} --quick",
            (Ratio("near_free/ours, wall", "PWWS of TextAttack on a victim that costs nothing", "ours"),),
            120,
        ),
        Row(
            "noise", "noise_cost.py",
            "--batch_size 64 --multiple 3 --width 768",
            (
                Ratio("seconds broadcast/matrix", "noise negatives by the released broadcasting: seconds", "ours"),
                Ratio("peak broadcast/matrix", "noise negatives by the released broadcasting: peak memory", "ours"),
            ),
            60,
        ),
        Row(
            "streaming", "streaming.py",
            "--rows 1000000",
            (
                Ratio("memory at a tenth / at the second", "memory of a stream at each tenth", "at the second"),
                Ratio("rate of a tenth / of the second", "sentences a second in each tenth", "in the second"),
                Ratio("seconds to get there / to go on there", "reading a stream to a place", "resuming there"),
            ),
            120,
        ),
        Row(
            "startup", "startup.py",
            "--rounds 5",
            (
                Ratio("import torch, hf_robustcse/import torch", "`import torch, hf_robustcse`", "`import torch`"),
                *(
                    Ratio(f"{name} --help/import torch", f"`{name} --help`", "`import torch`")
                    for name in ("run_unsup.py", "run_finetune.py", "run_ablation.py")
                ),
            ),
            120,
        ),
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Job:
    """A row with its inputs.

    Attributes:
        name: that of the row; behind it the model and the corpus where they are not the embedded ones.
        row: the row.
        words: the words behind `python`.
        missing: options that it needs and that were not given.
    """

    name: str
    row: Row
    words: tuple[str, ...]
    missing: tuple[str, ...] = ()

    @property
    def stem(self) -> str:
        """Of its files."""
        return re.sub(r"[^\w.-]", "_", self.name)


class RowFailed(RuntimeError):
    """A row could not be measured; the message says why and where its log is."""


def make_jobs(rows: Sequence[Row], given: Mapping[str, Any], wanted: Sequence[str] | None = None) -> list[Job]:
    """The rows with their inputs, once for each corpus where a row asks for that.

    Args:
        rows: of a suite.
        given: the user's inputs by the names of their options; `train_file` is a list or None.
        wanted: names of rows, or of rows with their inputs; None for all.

    Raises:
        UserError: for a name that does not exist, or two corpora of one name.
    """
    jobs = []
    for row in rows:
        inputs = [field for _, field, _, _ in Formatter().parse(row.options) if field]
        files = (given.get("train_file") or [None])[: None if row.each_file else 1]
        for file in files if "train_file" in inputs else [None]:
            values = {**given, "train_file": file}
            own = [Path(values[name]).name.split(".txt")[0] for name in EMBEDDED if name in inputs and values.get(name)]
            filled = {name: values.get(name) or EMBEDDED.get(name) for name in inputs}
            words = [_shown(HERE / row.script)]
            for word in row.options.split():
                words.append(word.format(**{name: _shown(path) for name, path in filled.items() if path} | {
                    name: "" for name, path in filled.items() if not path
                }))  # fmt: skip
            missing = tuple(f"--{name}" for name, path in filled.items() if not path)
            jobs.append(Job(":".join([row.name, *own]), row, tuple(words), missing))
    names = [job.name for job in jobs]
    if twice := [name for name in names if names.count(name) > 1]:
        raise UserError(f"--train_file: two corpora have the same name, so both rows would be {twice[0]}: rename one")
    for name in wanted or ():
        if name not in {*names, *(job.row.name for job in jobs)}:
            near = difflib.get_close_matches(name, [row.name for row in rows], n=1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise UserError(f"there is no row {name!r}: one of {', '.join(row.name for row in rows)}{hint}")
    return [job for job in jobs if wanted is None or job.name in wanted or job.row.name in wanted]


def _shown(path: str | Path) -> str:
    """A path as it is given; one of ours as it is seen from here, so that commands say nothing of this machine."""
    return os.path.relpath(path) if isinstance(path, Path) else path


def measure(job: Job, folder: Path) -> dict[str, Any]:
    """Run the script of a job, and write what it measured to `folder`.

    Returns:
        What is written: row, script, command, seconds that it took, ratios, and the script's own JSON.

    Raises:
        RowFailed: if the script fails, or its JSON lacks a ratio.
    """
    log, part = folder / f"{job.stem}.log", folder / f".{job.stem}.part.json"
    for path in (part, folder / f"{job.stem}.json"):  # a row that fails now has no figures of an earlier time
        path.unlink(missing_ok=True)
    started = time.perf_counter()
    code, last = run_logged([*job.words, "--output_json", str(part)], log)
    seconds = time.perf_counter() - started
    try:
        if code:
            raise RowFailed(f"{last[:300]} (exit code {code}; {log})")
        if not part.is_file():
            raise RowFailed(f"{job.row.script} wrote no JSON ({log})")
        result = read_json(part)
        ratios = {ratio.key: _spread(result, ratio.key, job.row.script) for ratio in job.row.ratios}
    finally:
        part.unlink(missing_ok=True)
    record = {"row": job.name, "words": list(job.words), "seconds": round(seconds, 1), "ratios": ratios,
              "result": result}  # fmt: skip
    write_json(folder / f"{job.stem}.json", record)
    return record


def _spread(result: Any, key: str, script: str) -> dict[str, float]:
    try:
        return {name: float(result["ratios"][key][name]) for name in ("min", "median", "max")}
    except (KeyError, TypeError, ValueError):
        raise RowFailed(f"the JSON of {script} has no ratio {key!r} with min, median and max") from None


def finished(job: Job, folder: Path) -> dict[str, Any] | None:
    """What was measured of a job before, or None.

    Raises:
        UserError: if its file is of another command.
    """
    path = folder / f"{job.stem}.json"
    if not path.is_file():
        return None
    record = read_json(path)
    if not isinstance(record, dict) or record.get("words") != list(job.words):
        raise UserError(f"{path} is of another command: add --overwrite, or choose another --output_dir")
    return record


def summarise(suite: str, folder: Path, ran: str) -> dict[str, Any]:
    """All rows in a folder, of this call and earlier ones, and what README's table needs of them.

    Args:
        suite: its name.
        folder: of the rows.
        ran: the command.

    Returns:
        What is written to `summary.json`.
    """
    order = {row.name: (number, row) for number, row in enumerate(SUITES[suite])}
    found = [read_json(path) for path in sorted(folder.glob("*.json")) if path.name != SUMMARY]
    found = [r for r in found if isinstance(r, dict) and str(r.get("row")).split(":")[0] in order]
    found.sort(key=lambda record: order[record["row"].split(":")[0]][0])
    rows, versions = {}, None
    for record in found:
        about, result = {ratio.key: ratio for ratio in order[record["row"].split(":")[0]][1].ratios}, record["result"]
        versions = versions or result.get("library_versions")
        rows[record["row"]] = {
            "command": shlex.join(["python", *record["words"]]),
            "device": result.get("device"),
            "seconds": record["seconds"],
            "ratios": {
                key: {"what": about[key].what, "against": about[key].against, **value}
                for key, value in record["ratios"].items()
                if key in about
            },
        }
    return {"suite": suite, "command": ran, "library_versions": versions, "rows": rows}


def table(summary: Mapping[str, Any]) -> str:
    """The ratios of a summary as README shows them, a Markdown table with one line for each."""
    lines = ["| what | against | ratio (median, min-max) |", "|---|---|---|"]
    for name, row in summary["rows"].items():
        for value in row["ratios"].values():
            lines.append(f"| `{name}` {value['what']} | {value['against']} | {_figures(value)} |")
    return "\n".join(lines)


def _figures(value: Mapping[str, float]) -> str:
    median, least, most = (_number(value[name]) for name in ("median", "min", "max"))
    return f"{median} ({least}-{most})"


def _number(value: float) -> str:
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def verdict(median: float, committed: Mapping[str, float] | None) -> str:
    """inside the committed range, near (at most `TOLERANCE` beyond it), outside, or - without a committed one."""
    if committed is None:
        return "-"
    if committed["min"] <= median <= committed["max"]:
        return "inside"
    return "near" if committed["min"] * (1 - TOLERANCE) <= median <= committed["max"] * (1 + TOLERANCE) else "outside"


def _report(rows: Mapping[str, Any], committed: Mapping[str, Any], not_run: Mapping[str, str]) -> list[str]:
    """Print the ratios beside the committed ones; the lines of those that are outside."""
    shown, outside = [("row", "ratio", "min", "median", "max", "README", "range", "seconds")], []
    for name, row in rows.items():
        for key, value in row["ratios"].items():
            before = committed.get(name, {}).get("ratios", {}).get(key)
            said = verdict(value["median"], before)
            figures = [_number(value[part]) for part in ("min", "median", "max")]
            shown.append((name, key, *figures, _figures(before) if before else "-", said, f"{row['seconds']:.0f}"))
            if said == "outside":
                outside.append(f"{name} {key}: {figures[1]} here, {_figures(before)} in README")
    for name, why in not_run.items():
        shown.append((name, why, *[""] * 6))
    widths = [max(len(line[i]) for line in shown if line[2]) if i else max(len(line[0]) for line in shown)
              for i in range(8)]  # fmt: skip
    for line in shown:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    return outside


def _parser() -> Parser:
    parser = Parser(
        prog="python -m benchmarks.run", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )  # fmt: skip
    parser.add_argument("--suite", choices=sorted(SUITES), default="cpu", help="which rows (default: %(default)s)")
    parser.add_argument("--rows", nargs="+", metavar="NAME", help="these alone")
    parser.add_argument("--list", action="store_true", help="print the rows and stop")
    parser.add_argument(
        "--table", nargs="?", const=str(COMMITTED), metavar="FILE", help="print README's table of a summary and stop"
    )
    parser.add_argument("--model_name_or_path", help="folder or Hub id of an encoder (default: the embedded one)")
    parser.add_argument("--train_file", nargs="+", help="corpora of the training steps (default: the embedded one)")
    parser.add_argument("--data_dir", help="folder with sts/ and transfer/, for the rows of evaluation")
    parser.add_argument("--attack_file", help="examples of TextFooler's kind (one a line: label text) to attack")
    parser.add_argument("--textattack_python", help="interpreter of an environment with TextAttack")
    parser.add_argument(
        "--output_dir", type=Path, help="where results go (default: runs/benchmarks-SUITE, which git ignores)"
    )
    parser.add_argument("--overwrite", action="store_true", help="do the rows again that are done")
    return parser


def _check(options: argparse.Namespace) -> None:
    for name in ("data_dir", "attack_file", "textattack_python"):
        path = getattr(options, name)
        if path is not None and not (Path(path).is_dir() if name == "data_dir" else Path(path).is_file()):
            raise UserError(f"--{name} {path} is not there")
    for path in options.train_file or ():
        if not Path(path).exists():
            raise UserError(f"--train_file {path} is not there")
    if options.output_dir.exists() and not options.output_dir.is_dir():
        raise UserError(f"--output_dir {options.output_dir} is a file")


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"


@command
def main(argv: Sequence[str] | None = None) -> None:
    """Run the suite.

    Args:
        argv: the words behind `python -m benchmarks.run`; None takes the process's.

    Raises:
        SystemExit: with code 1 if a row failed, 2 for bad input.
    """
    words = sys.argv[1:] if argv is None else list(argv)
    options = _parser().parse_args(words)
    if options.table:
        try:
            print(table(read_json(options.table)))
        except (AttributeError, KeyError, TypeError):
            raise UserError(f"--table {options.table} is no {SUMMARY} of this suite") from None
        return
    options.output_dir = options.output_dir or Path("runs") / f"benchmarks-{options.suite}"
    _check(options)
    jobs = make_jobs(SUITES[options.suite], vars(options), options.rows)
    committed = read_json(COMMITTED)["rows"] if COMMITTED.is_file() else {}
    expected = {job.name: committed.get(job.name, {}).get("seconds", job.row.seconds) for job in jobs}
    if options.list:
        for job in jobs:
            needs = f"  needs {' '.join(job.missing)}" if job.missing else ""
            print(f"{job.name:<24}{_minutes(expected[job.name]):>7}  {'; '.join(r.key for r in job.row.ratios)}{needs}")
        return
    folder = options.output_dir
    not_run = {job.name: f"not run: needs {' '.join(job.missing)}" for job in jobs if job.missing}
    jobs = [job for job in jobs if not job.missing]
    done = {} if options.overwrite else {job.name: finished(job, folder) for job in jobs}
    todo = [job for job in jobs if not done.get(job.name)]
    if not jobs:
        raise UserError(f"no row can run: {next(iter(not_run.values())).removeprefix('not run: ')}")
    folder.mkdir(parents=True, exist_ok=True)
    about = _minutes(sum(expected[job.name] for job in todo))
    print(f"{len(todo)} rows to do, about {about} on two quiet cores; {len(jobs) - len(todo)} are done", flush=True)
    ran = shlex.join(["python", "-m", "benchmarks.run", *words])
    failed: dict[str, str] = {}
    try:
        with tqdm(total=sum(expected[job.name] for job in todo), unit=" s of the estimate", disable=None) as bar:
            for job in todo:
                bar.set_description(job.name)
                try:
                    measure(job, folder)
                except RowFailed as error:
                    failed[job.name] = str(error)
                    tqdm.write(f"{job.name} failed: {error}")
                write_json(folder / SUMMARY, summarise(options.suite, folder, ran))
                bar.update(expected[job.name])
    except KeyboardInterrupt:
        print(f"stopped; the same command goes on: {ran}", file=sys.stderr)
        raise SystemExit(130) from None
    summary = summarise(options.suite, folder, ran)
    write_json(folder / SUMMARY, summary)
    measured = {job.name: summary["rows"][job.name] for job in jobs if job.name in summary["rows"]}
    outside = _report(measured, committed, not_run | {name: "failed" for name in failed})
    if not committed:
        print(f"nothing to compare with: there is no {_shown(COMMITTED)}")
    elif outside:
        print(f"outside of the committed range widened by {TOLERANCE:.0%}:", *outside, sep="\n  ")
    else:
        print(f"no ratio is outside of the committed range widened by {TOLERANCE:.0%}")
    print(f"results: {folder / SUMMARY}; README's table of them: python -m benchmarks.run --table {folder / SUMMARY}")
    if failed:
        print(*(f"failed: {name}: {why}" for name, why in failed.items()), sep="\n", file=sys.stderr)
        raise SystemExit(1)


if __name__ == "__main__":
    main()
