"""What the scripts here share: what a result says of its machine, ratios over rounds, checks, running a script."""

from __future__ import annotations

import argparse
import os
import platform
import shlex
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from hf_robustcse.errors import UserError


def machine() -> dict[str, object]:
    """What every result says of command and machine."""
    import torch  # here: startup.py times processes that should have the memory which this takes

    from hf_robustcse.evaluation.results import library_versions

    cuda = torch.cuda.is_available()
    return {
        "command": shlex.join(["python", *sys.argv]),
        "device": torch.cuda.get_device_name() if cuda else f"cpu, {torch.get_num_threads()} threads",
        "machine": platform.machine(),
        "library_versions": library_versions(),
    }


def spread(values: Sequence[float]) -> dict[str, float]:
    """Minimum, median and maximum."""
    return {"min": min(values), "median": statistics.median(values), "max": max(values)}


def ratio(above: Sequence[float], below: Sequence[float]) -> dict[str, float]:
    """The spread of the ratios of two systems, round by round."""
    return spread([a / b for a, b in zip(above, below, strict=True)])


def run_logged(words: Sequence[str], log: Path, **variables: str) -> tuple[int, str]:
    """Run a Python script with the package of this checkout, its output in a file.

    Args:
        words: the script and its options.
        log: the file.
        **variables: of the environment, beside those of this process.

    Returns:
        The exit code, and the last line that it said.
    """
    paths = [str(Path(__file__).parents[1]), *filter(None, [os.getenv("PYTHONPATH")])]
    here = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **variables}
    with log.open("w", encoding="utf-8") as output:
        done = subprocess.run([sys.executable, *words], stdout=output, stderr=subprocess.STDOUT, env=here)
    lines = log.read_text(encoding="utf-8", errors="replace").replace("\r", "\n").split("\n")
    return done.returncode, next((line.strip() for line in reversed(lines) if line.strip()), "it said nothing")


def at_least(least: int, args: argparse.Namespace, *names: str) -> None:
    """Refuse a number that is too small; one that was not given is none.

    Raises:
        UserError: naming the option.
    """
    for name in names:
        given = getattr(args, name)
        for value in given if isinstance(given, list) else [given]:
            if value is not None and value < least:
                raise UserError(f"--{name} must be at least {least}, not {value}")


def check_output(args: argparse.Namespace, name: str = "output_json") -> None:
    """Refuse a file that cannot be written, before anything is measured for it.

    Raises:
        UserError: naming the option.
    """
    path: Path | None = getattr(args, name)
    if path is None:
        return
    parent = next(folder for folder in path.absolute().parents if folder.exists())
    if path.is_dir() or not parent.is_dir():
        raise UserError(f"--{name} {path} cannot be written: it is no file in a folder")
