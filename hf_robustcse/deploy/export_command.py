"""The options of `hf-robustcse export`; torch is not loaded before they are right."""

from __future__ import annotations

import argparse
from typing import Any

QUANTIZATIONS = {"arm64": "QInt8", "avx2": "QUInt8", "avx512": "QInt8", "avx512_vnni": "QInt8"}
"""Target -> type of the weights; activations are QUInt8 everywhere. int8 weights saturate on AVX2."""

MIN_COSINE = 0.95
"""Least cosine of an int8 embedding with torch's, unless `--min_cosine` says otherwise."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("--model", required=True, help="checkpoint folder or Hub id, with modules.json")
    parser.add_argument("--output_dir", required=True, metavar="DIR", help="folder to write; one that is there is kept")
    parser.add_argument("--format", choices=["onnx"], default="onnx", help="what to write (default: onnx)")
    parser.add_argument(
        "--quantize", nargs="+", default=[], choices=["int8", *QUANTIZATIONS],
        help="also int8 weights, for these processors; int8 means one that suits this machine",
    )  # fmt: skip
    parser.add_argument(
        "--min_cosine", type=float, default=MIN_COSINE,
        help="least cosine of an int8 embedding with the float one (default: %(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--eval_data_dir", metavar="DIR", help="measure on its STS-B dev (default: the embedded dev set)"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace the folder if it is there")


def run(**options: Any) -> None:
    """See `export.run`."""
    from hf_robustcse.deploy import export

    export.run(**options)
