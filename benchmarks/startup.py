"""Seconds until the package is imported, a command has printed its help, or a wrong option is answered.

    python benchmarks/startup.py --output_json out.json

Each is a new process, timed from its start to its end; a round runs all of them, one after the other. Most of the
training commands' time is torch's, so the ratios are to `import torch`, round by round; `beyond_torch` is what
`import hf_robustcse` adds to it, in seconds. Nothing is asserted: tests/test_startup.py looks at what is loaded.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

from measuring import at_least, check_output, machine, ratio, spread
from tqdm import tqdm

from hf_robustcse.cli import COMMANDS
from hf_robustcse.errors import Parser, command
from hf_robustcse.files import write_json

ROOT = Path(__file__).parents[1]
TORCH, BOTH = "import torch", "import torch, hf_robustcse"


def commands() -> dict[str, list[str]]:
    """What is timed: its name -> the words behind `python`."""
    words = {code: ["-c", code] for code in (TORCH, BOTH, "import hf_robustcse")}
    for path in sorted((ROOT / "examples").glob("*.py")):
        words[f"{path.name} --help"] = [str(path), "--help"]
    words["hf-robustcse --help"] = ["-m", "hf_robustcse.cli", "--help"]
    for name in COMMANDS:
        words[f"hf-robustcse {name} --help"] = ["-m", "hf_robustcse.cli", name, "--help"]
    for name, *wrong in (
        ("run_unsup.py", "--lerning_rate", "1"),
        ("run_finetune.py", "--task", "snil"),
        ("run_ablation.py", "vadv-lamda"),
    ):
        words[" ".join([name, *wrong])] = [str(ROOT / "examples" / name), *wrong]
    return words


def seconds_of(words: list[str], expected: int) -> float:
    """The seconds of one process.

    Raises:
        SystemExit: if it ends with another exit code than the expected one.
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.getenv("PYTHONPATH")])])}
    started = time.perf_counter()
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, env=environment)
    seconds = time.perf_counter() - started
    if done.returncode != expected:
        sys.exit(f"{' '.join(words)} ended with code {done.returncode}, not {expected}: {done.stderr[-300:]}")
    return seconds


@command
def main() -> None:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", nargs="+", metavar="TEXT", help="time the commands whose name has one of these in it")
    parser.add_argument("--output_json", type=Path)
    args = parser.parse_args()
    at_least(1, args, "rounds")
    check_output(args)
    timed = commands()
    if args.only:
        timed = {
            name: words for name, words in timed.items() if name == TORCH or any(text in name for text in args.only)
        }
    expected = {name: 0 if name.endswith("--help") or words[0] == "-c" else 2 for name, words in timed.items()}
    for name, words in timed.items():  # once unmeasured: the first reads the files from the disk
        seconds_of(words, expected[name])
    seconds: dict[str, list[float]] = {name: [] for name in timed}
    with tqdm(total=args.rounds * len(timed), unit=" processes", disable=None) as bar:
        for _ in range(args.rounds):
            for name, words in timed.items():
                seconds[name].append(seconds_of(words, expected[name]))
                bar.update()
    record = {
        **machine(),
        "seconds": {name: spread(values) for name, values in seconds.items()},
        "beyond_torch": spread([b - a for a, b in zip(seconds[TORCH], seconds.get(BOTH, seconds[TORCH]), strict=True)]),
        "ratios": {
            f"{name}/{TORCH}": ratio(values, seconds[TORCH]) for name, values in seconds.items() if name != TORCH
        },
        "rounds": seconds,
    }
    for name, value in record["seconds"].items():
        print(f"{value['median']:7.2f} s ({value['min']:.2f} to {value['max']:.2f})  {name}")
    print(f"{record['beyond_torch']['median']:7.2f} s are what `import hf_robustcse` adds to `import torch`")
    if args.output_json:
        write_json(args.output_json, record)


if __name__ == "__main__":
    main()
