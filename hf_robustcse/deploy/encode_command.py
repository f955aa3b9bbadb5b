"""The options of `hf-robustcse encode`; torch is not loaded before they are right."""

from __future__ import annotations

import argparse
from typing import Any

DTYPES = ("float32", "float16")
DEFAULT_FILE = "onnx/model.onnx"
"""The float graph of an export."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("--model", required=True, help="checkpoint folder or Hub id; with --backend onnx an export")
    parser.add_argument(
        "--input", required=True, help=".txt, .csv, .tsv, .jsonl or .parquet, each also .gz, or a folder of them"
    )
    parser.add_argument(
        "--output", required=True,
        help=".npy: the embeddings; .parquet: row, text, embedding; else a folder of such Parquet shards, in which an "
        "interrupted run goes on",
    )  # fmt: skip
    parser.add_argument("--text_column", help="the column of the text (default: the only one, or text, or sentence)")
    parser.add_argument("--batch_size", type=int, default=64, help="texts in one pass (default: %(default)s)")
    parser.add_argument(
        "--num_processes", type=int, default=1,
        help="processes, which share the GPUs, or else the cores (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument("--dtype", choices=DTYPES, default="float32", help="of the output (default: %(default)s)")
    parser.add_argument("--normalize", action="store_true", help="to length 1")
    parser.add_argument("--backend", choices=["torch", "onnx"], default="torch", help="default: %(default)s")
    parser.add_argument("--file_name", help=f"with --backend onnx: which graph (default: {DEFAULT_FILE})")
    parser.add_argument("--device", help="such as cpu or cuda:1 (default: a GPU if there is one)")
    parser.add_argument(
        "--shard_rows", type=int, default=65_536, help="rows of a shard of a folder (default: %(default)s)"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace the output if it is there")


def run(**options: Any) -> None:
    """See `encode.run`."""
    from hf_robustcse.deploy import encode

    encode.run(**options)
