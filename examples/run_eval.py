#!/usr/bin/env python
"""Evaluate a sentence encoder on STS and transfer tasks; measure and draw the geometry of its embeddings.

python examples/run_eval.py --model_name_or_path X --tasks sts transfer geometry --data_dir DIR --output_json out.json
"""

from __future__ import annotations

import argparse
import sys
from typing import NoReturn

from hf_robustcse.errors import UserError, command


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message} (see --help)")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.add_argument("--model_name_or_path", required=True, help="a model folder or Hub id")
    parser.add_argument(
        "--tasks",
        nargs="+",
        default=["sts"],
        help="sts (STS12 to STS16, STSB, SICKR test), transfer (MR, CR, SUBJ, MPQA, SST2, TREC, MRPC: logistic "
        "regression on frozen embeddings), geometry (of STS-B dev), or single tasks: STS12, stsb_dev, MR, ...",
    )
    parser.add_argument(
        "--data_dir", help="folder with sts/TASK/*.tsv, transfer/TASK/*.tsv; without it the Hub data sets are used"
    )
    parser.add_argument("--output_json", help="write the results here")
    parser.add_argument(
        "--pooling",
        help="of a plain encoder: cls, mean, max, first-last, top-two or pooler; a SentenceTransformer has its own",
    )
    parser.add_argument("--max_seq_length", type=int, help="tokens per sentence (default: the model's)")
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--device", help="for example cpu or cuda:0 (default: an accelerator if there is one)")
    parser.add_argument("--split", default="test", choices=["train", "dev", "test"], help="split of single STS tasks")
    parser.add_argument("--strict", action="store_true", help="fail if a task of a group is missing")
    parser.add_argument("--seed", type=int, default=0, help="of what the geometry draws and of the folds of transfer")
    parser.add_argument(
        "--sst2_train",
        default="auto",
        choices=["auto", "phrases", "sentences"],
        help="SST2 trains on train_phrases.tsv (as in SentEval) or on train.tsv (default: phrases if they are there)",
    )
    parser.add_argument("--geometry_text", help="probe the sentences of this file (txt: one a line), not STS-B dev")
    parser.add_argument("--geometry_k", type=int, default=4, help="most similar negatives to average (default 4)")
    parser.add_argument("--geometry_batch_sizes", type=int, nargs="+", help="for these (default 8 16 ... 512)")
    parser.add_argument("--geometry_noise", type=float, default=0.2, help="part of the words with a typo (default 0.2)")
    parser.add_argument("--pictures", help="folder of the geometry's pictures (default: beside --output_json)")
    return parser


@command
def main() -> None:
    args = _parser().parse_args()
    from hf_robustcse.evaluation.run import run_evaluation  # after the parser: a usage error need not load torch

    run_evaluation(**vars(args), argv=sys.argv)


if __name__ == "__main__":
    main()
