#!/usr/bin/env python
"""Evaluate a sentence encoder on STS and measure the geometry of its embeddings, or compare two on STS.

python examples/run_eval.py --model_name_or_path X --tasks sts geometry --data_dir DIR --output_json results.json
python examples/run_eval.py --compare A B --tasks sts --data_dir DIR
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
    model = parser.add_mutually_exclusive_group(required=True)
    model.add_argument(
        "--model_name_or_path", help="a model folder or Hub id, or a text file of word vectors (.txt, .vec, each .gz)"
    )
    model.add_argument(
        "--compare",
        nargs=2,
        metavar=("A", "B"),
        help="two models on the same pairs, each a folder or id as above, or the folder of a run of several seeds",
    )
    parser.add_argument(
        "--tasks",
        nargs="+",
        default=["sts"],
        help="sts (STS12 to STS16, STSB, SICKR test), geometry (of STS-B dev), or single tasks: STS12, stsb_dev, ...",
    )
    parser.add_argument("--data_dir", help="folder with sts/TASK/*.tsv; without it the Hub data sets are used")
    parser.add_argument("--output_json", help="write the results here")
    parser.add_argument(
        "--pooling",
        help="of a plain encoder: cls, mean, max, first-last, top-two or pooler; a SentenceTransformer has its own; "
        "glove averages the word vectors of a text file of any name",
    )
    parser.add_argument("--max_seq_length", type=int, help="tokens per sentence (default: the model's)")
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--device", help="for example cpu or cuda:0 (default: an accelerator if there is one)")
    parser.add_argument("--split", default="test", choices=["train", "dev", "test"], help="split of single tasks")
    parser.add_argument("--strict", action="store_true", help="fail if a task of the group sts is missing")
    parser.add_argument("--seed", type=int, default=0, help="seed of the geometry's random pairs and of --bootstrap")
    parser.add_argument(
        "--bootstrap",
        type=int,
        metavar="N",
        help="resamples of the pairs for 95 %% intervals (default: 1000 with --compare, else 0 for none)",
    )
    parser.add_argument(
        "--whitening", action="store_true", help="whiten the embeddings, fitted on the scored sentences of each task"
    )
    parser.add_argument("--whitening_text", metavar="FILE", help="whiten, fitted on this corpus instead")
    parser.add_argument("--whitening_dim", type=int, metavar="K", help="whiten, and keep the K widest dimensions")
    return parser


@command
def main() -> None:
    options = vars(_parser().parse_args())
    models = options.pop("compare")
    # Imports after the parser: a usage error need not load torch.
    if models is None:
        from hf_robustcse.evaluation.run import run_evaluation

        run_evaluation(**options, argv=sys.argv)
    else:
        from hf_robustcse.evaluation.compare import run_comparison

        del options["model_name_or_path"]
        run_comparison(*models, **options, argv=sys.argv)


if __name__ == "__main__":
    main()
