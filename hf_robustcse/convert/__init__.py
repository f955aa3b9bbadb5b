"""`hf-robustcse import`: its options; torch is not loaded before they are right."""

from __future__ import annotations

import argparse
from typing import Any

SOURCES = {"simcse": "simcse", "dclr": "dclr", "gs_infonce": "gs_infonce", "diffcse": "simcse"}
"""Source -> the method here that training goes on with; DiffCSE itself is none of them."""
_POOLERS = ("cls", "mean", "first-last", "top-two")  # modules.POOLERS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.add_argument("checkpoint", metavar="CHECKPOINT", help="folder or Hub id")
    parser.add_argument("--output_dir", required=True, metavar="OUT", help="folder for the imported model; must be new")
    parser.add_argument(
        "--source", choices=("auto", *SOURCES), default="auto", help="who wrote it (default: by its keys)"
    )
    parser.add_argument(
        "--pooler", choices=_POOLERS, default="cls", help="pooling that it was trained with (default: cls)"
    )
    parser.add_argument(
        "--keep_head", choices=("auto", "yes", "no"), default="auto",
        help="whether the head is part of the embedding (SimCSE: yes for supervised, no for unsupervised models; "
        "default: by `sup` or `unsup` in the name, else no)",
    )  # fmt: skip
    parser.add_argument("--tokenizer", metavar="X", help="folder or Hub id, if the checkpoint has none")
    parser.add_argument("--data_dir", metavar="DIR", help="folder with STS-B, for a score on its dev set")


def run(**options: Any) -> None:
    """See `checkpoint.run`."""
    from hf_robustcse.convert import checkpoint

    checkpoint.run(**options)
