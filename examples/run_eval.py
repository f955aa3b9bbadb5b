#!/usr/bin/env python
"""Evaluate a sentence encoder on STS and transfer tasks, measure and draw its geometry, or compare two encoders on STS.

python examples/run_eval.py --model_name_or_path X --tasks sts transfer geometry --data_dir DIR --output_json out.json
python examples/run_eval.py --compare A B --tasks sts --data_dir DIR
torchrun --nproc_per_node 4 examples/run_eval.py ...   (the processes share the encoding)
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from typing import Any

from hf_robustcse.errors import Parser, UserError, command


def _parser() -> Parser:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
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
        help="sts (the default: STS12 to STS16, STSB, SICKR test), transfer (MR, CR, SUBJ, MPQA, SST2, TREC, MRPC: "
        "logistic regression on frozen embeddings), geometry (of STS-B dev), noise (scores against the rate of "
        "perturbed words), checklist (CheckList's invariance and functionality tests under a logistic regression), or "
        "single tasks: STS12, stsb_dev, MR, ...",
    )
    parser.add_argument(
        "--attacked_sets",
        nargs="+",
        default=[],
        metavar="DIR",
        help="sentence pairs that another model was attacked with, as saved by an attack: how this one does on them",
    )
    parser.add_argument(
        "--data_dir",
        help="folder with sts/TASK/*.tsv, transfer/TASK/*.tsv, attack/CheckList/*.tsv; without it the Hub "
        "data sets are used",
    )
    parser.add_argument("--output_json", help="write the results here")
    parser.add_argument(
        "--pooling",
        help="of a plain encoder: cls, mean, max, first-last, top-two or pooler; a SentenceTransformer has its own; "
        "glove averages the word vectors of a text file of any name",
    )
    parser.add_argument("--max_seq_length", type=int, help="tokens per sentence (default: the model's)")
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--device", help="for example cpu or cuda:0 (default: an accelerator if there is one)")
    parser.add_argument(
        "--embedding_cache",
        metavar="DIR",
        help="keep the embeddings here and take from here those that this very model has made before",
    )
    parser.add_argument("--split", default="test", choices=["train", "dev", "test"], help="split of single STS tasks")
    parser.add_argument(
        "--strict", action="store_true", help="fail if a task of a group, or WordNet for noise, is missing"
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        help="of the geometry, the folds of transfer, --bootstrap; the noise has its own",
    )
    parser.add_argument(
        "--sst2_train",
        default="auto",
        choices=["auto", "phrases", "sentences"],
        help="SST2, also for checklist, trains on train_phrases.tsv (as in SentEval) or on train.tsv (default: phrases "
        "if they are there)",
    )
    parser.add_argument("--geometry_text", help="probe the sentences of this file (txt: one a line), not STS-B dev")
    parser.add_argument("--geometry_k", type=int, default=4, help="most similar negatives to average (default 4)")
    parser.add_argument("--geometry_batch_sizes", type=int, nargs="+", help="for these (default 8 16 ... 512)")
    parser.add_argument("--geometry_noise", type=float, default=0.2, help="part of the words with a typo (default 0.2)")
    parser.add_argument("--noise_tasks", nargs="+", help="STS sets of the noise curves (default: STSB, its test set)")
    parser.add_argument("--noise_rates", type=float, nargs="+", help="of words (default 0 0.1 0.2 0.4 0.6 0.8 1)")
    parser.add_argument(
        "--noise_perturbed", default="both", choices=["both", "second"], help="sentences of a pair that get the noise"
    )
    parser.add_argument(
        "--noise_word_list", metavar="FILE", help="tab-separated synonyms on each line, in place of WordNet's"
    )
    parser.add_argument(
        "--checklist_cases",
        type=int,
        metavar="N",
        help="at most N groups or cases of each test, drawn at random (default: all)",
    )
    parser.add_argument(
        "--pictures", help="folder of the pictures of geometry and noise (default: beside --output_json)"
    )
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
    parser = _parser()
    options = vars(parser.parse_args())
    # Imports after the parser: a usage error need not load torch.
    from hf_robustcse.distributed import join_group, leave_group, rank

    join_group()
    try:
        with contextlib.ExitStack() as stack:
            if rank():
                stack.enter_context(contextlib.redirect_stdout(stack.enter_context(open(os.devnull, "w"))))
            _evaluate(parser, options)
    except UserError:  # raised by every process; after another error the rest may still wait
        leave_group()
        raise
    leave_group()


def _evaluate(parser: argparse.ArgumentParser, options: dict[str, Any]) -> None:
    models = options.pop("compare")
    options["tasks"] = options["tasks"] or ([] if options["attacked_sets"] else ["sts"])
    if models is None:
        from hf_robustcse.evaluation.run import run_evaluation

        run_evaluation(**options, argv=sys.argv)
    else:
        from hf_robustcse.evaluation.compare import run_comparison

        del options["model_name_or_path"]
        others = ("geometry_", "checklist_", "sst2_", "pictures", "attacked_sets")
        for name in [name for name in options if name.startswith(others)]:
            if options.pop(name) != parser.get_default(name):
                raise UserError(f"--compare knows STS tasks and noise only: leave --{name} out")
        run_comparison(*models, **options, argv=sys.argv)


if __name__ == "__main__":
    main()
