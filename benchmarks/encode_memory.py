"""Peak memory of `hf-robustcse encode` on a file and on one ten times as long.

python benchmarks/encode_memory.py --model MODEL --output benchmarks/results/encode_memory_cpu.json
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from hf_robustcse.errors import Parser, command
from hf_robustcse.files import version_of, write_json


def measure(model: str, rows: int, name: str, folder: Path) -> dict[str, float]:
    """Peak resident memory of the process in MiB, and its seconds."""
    source = folder / f"{rows}.txt"
    source.write_text("".join(f"the dog sees book {n} in the garden\n" for n in range(rows)), encoding="utf-8")
    words = [
        "encode",
        "--model",
        model,
        "--input",
        source,
        "--output",
        folder / f"{rows}-{name}",
        "--batch_size",
        "256",
    ]
    started = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "hf_robustcse.cli", *map(str, words)], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = status
    if status:
        raise SystemExit(f"encoding to {name} failed")
    return {"peak_mib": round(usage.ru_maxrss / 1024, 1), "seconds": round(time.perf_counter() - started, 1)}


@command
def main() -> None:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--rows", type=int, nargs=2, default=[10_000, 100_000])
    parser.add_argument("--outputs", nargs="+", default=["out.npy", "out.parquet", "shards"])
    parser.add_argument("--output", required=True)
    args = parser.parse_args()
    results: dict[str, dict[str, dict[str, float]]] = {}
    for name in args.outputs:
        with tempfile.TemporaryDirectory() as folder:
            results[name] = {str(rows): measure(args.model, rows, name, Path(folder)) for rows in args.rows}
            print(name, results[name], flush=True)
    write_json(
        args.output,
        {
            "command": f"encode_memory.py --rows {args.rows[0]} {args.rows[1]}",
            "model": Path(args.model).name,
            "results": results,
            "device": platform.processor() or platform.machine(),
            "versions": {name: version_of(name) for name in ("torch", "sentence-transformers", "pyarrow", "numpy")},
        },
    )


if __name__ == "__main__":
    main()
