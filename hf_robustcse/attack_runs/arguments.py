"""The options of the attack command; imports nothing heavy, so that a usage error is told at once."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hf_robustcse.errors import Parser, UserError

ALL = ("textfooler", "textbugger", "pwws", "bae", "bert-attack")
"""What `--attack all` stands for."""
VICTIMS = ("auto", "classifier", "probe", "finetuned")


@dataclass
class Options:
    """What a run of attacks needs; the names are those of the command line."""

    model_name_or_path: str
    task: str
    output_dir: str
    attack: Sequence[str] = ("all",)
    data_file: str | None = None
    data_dir: str | None = None
    num_examples: int = 1000
    shuffle: bool = False
    victim: str = "auto"
    train_file: str | None = None
    max_train_samples: int | None = None
    pooling: str | None = None
    learning_rate: float = 3e-5
    num_train_epochs: float = 3.0
    train_batch_size: int = 32
    edit: str = "second"
    distance: float = 0.5
    threshold: float = 0.5
    query_budget: int | None = None
    seed: int = 0
    width: int = 64
    max_seq_length: int | None = None
    batch_tokens: int | None = None
    device: str | None = None
    bf16: bool = False
    synonyms: str = "wordnet"
    word_neighbours: str | None = None
    masked_lm: str | None = None
    sentence_encoder: str | None = None
    pos_tagger: str = "nltk"
    parameter: Sequence[str] = ()
    overwrite_output_dir: bool = False
    argv: Sequence[str] = ()

    def __post_init__(self) -> None:
        for name in ("num_examples", "max_train_samples", "query_budget", "width", "batch_tokens", "train_batch_size"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UserError(f"--{name} must be at least 1, not {value}")
        if self.max_seq_length is not None and self.max_seq_length < 3:
            raise UserError(f"--max_seq_length must be at least 3, not {self.max_seq_length}")
        for name in ("learning_rate", "num_train_epochs"):
            if not 0 < getattr(self, name) < float("inf"):
                raise UserError(f"--{name} must be above 0, not {getattr(self, name)}")
        if not 0 <= self.seed < 2**32:
            raise UserError(f"--seed must be at least 0 and below 2^32, not {self.seed}")
        names = [name.lower().replace("_", "-") for name in self.attack]
        self.attack = list(dict.fromkeys(one for name in names for one in (ALL if name == "all" else (name,))))


def make_parser(description: str | None) -> Parser:
    """The parser of the command line."""
    # What is not given is left out: the defaults are those of `Options`.
    parser = Parser(
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--model_name_or_path", help="a fine-tuned classifier or an encoder: a folder, Hub id, or file of word vectors")
    add(
        "--task",
        help="MR, IMDB, Yelp, AGNews, SST2, SNLI, MNLI_matched, MNLI_mismatched, ANLI_R1, CoLA, MRPC, QQP, "
        "QNLI, RTE (of NLI pairs only the hypothesis is attacked), or own: a --data_file with classes of your own; of "
        "an encoder itself: STSB, SICKR (AdvSTS: scored pairs), similarity (texts against themselves: any --data_file)",
    )
    add("--output_dir", help="folder of the results; the same command goes on with what is there")
    add(
        "--attack",
        nargs="+",
        metavar="NAME",
        help=f"{', '.join(ALL)}, deepwordbug, pwws-openattack, random; all (default): the first five",
    )
    add(
        "--data_file",
        help="what is attacked: tsv, csv or jsonl (also .gz) with label and text, or label and premise "
        "and hypothesis (or sentence1 and sentence2)",
    )
    add(
        "--data_dir",
        help="folder with attack/TASK/test1k.tsv, and transfer/, classification/, nli/, glue/ for test "
        "splits and training sets (default: the Hub)",
    )
    add(
        "--num_examples",
        type=int,
        help="examples tried: the first ones of a file, a random sample of a test split (default 1000)",
    )
    add("--shuffle", action="store_true", help="a random sample of a file as well")
    group = parser.add_argument_group("victim")
    add = group.add_argument
    add(
        "--victim",
        choices=VICTIMS,
        help="classifier: the model as it is; probe: logistic regression "
        "on an encoder's frozen embeddings; finetuned: a classifier fine-tuned from it; auto (default): classifier, "
        "or probe if it is none",
    )
    add(
        "--train_file",
        help="what the victim is trained on, like --data_file (default: the task's training set under "
        "--data_dir, or the rows of --data_file that are not attacked, or the Hub); attacked examples are taken out",
    )
    add("--max_train_samples", type=int, help="train on a random sample of so many rows")
    add("--pooling", help="of a plain encoder under a probe: cls, mean, max, first-last, top-two or pooler")
    add("--learning_rate", type=float, help="of finetuned (default 3e-5)")
    add("--num_train_epochs", type=float, help="of finetuned (default 3)")
    add("--train_batch_size", type=int, help="of finetuned, over all processes (default 32)")
    add("--max_seq_length", type=int, help="tokens of an input (default: the model's)")
    add("--batch_tokens", type=int, help="tokens of a forward pass (default: what suits the device)")
    add("--device", help="for example cpu or cuda:0 (default: an accelerator if there is one)")
    add("--bf16", action="store_true", help="compute in bfloat16")
    group = parser.add_argument_group("attack")
    add = group.add_argument
    add(
        "--edit",
        choices=("second", "first", "either"),
        help="of STSB and SICKR: which sentence changes (default: second)",
    )
    add(
        "--distance",
        type=float,
        help="of STSB and SICKR: |predicted - gold similarity|, both in [0, 1], that is a success (default 0.5)",
    )
    add("--threshold", type=float, help="of similarity: the cosine to fall to for a success (default 0.5)")
    add("--query_budget", type=int, help="queries of an example at most (default: any number)")
    add("--seed", type=int, help="of random choices, samples and a trained victim")
    add("--width", type=int, help="examples attacked side by side; changes no result (default 64)")
    add(
        "--parameter",
        nargs="+",
        metavar="NAME=VALUE",
        help="of the recipes: k=8 for all that have it, bert-attack.k=8 for one; results.json lists all of them",
    )
    group = parser.add_argument_group("resources of the attacks")
    add = group.add_argument
    add(
        "--synonyms",
        metavar="wordnet|FILE",
        help="of pwws: WordNet, or a file with tab-separated synonyms on each line",
    )
    add(
        "--word_neighbours",
        metavar="FILE",
        help="of textfooler and textbugger: word vectors as text (word2vec or GloVe "
        "format), such as the counter-fitted ones, or a JSON table of neighbours (each also .gz)",
    )
    add("--masked_lm", metavar="MODEL", help="of bae and bert-attack; the papers have bert-base-uncased")
    add("--sentence_encoder", metavar="MODEL|none", help="judges similarity, not the victim; all but pwws need it")
    add(
        "--pos_tagger",
        metavar="nltk|MODEL|none",
        help="of textfooler and bae: NLTK's, or a token-classification model",
    )
    group = parser.add_argument_group("results")
    add = group.add_argument
    add("--overwrite_output_dir", action="store_true", help="start anew in a folder that holds other attacks")
    add(
        "--figure",
        nargs="+",
        metavar="RESULTS",
        help="no attack: draw these results.json files (or their folders) side by side as OUTPUT_DIR/attacks.png",
    )
    return parser


def parse_arguments(argv: Sequence[str] | None = None, description: str | None = None) -> Options | tuple[str, ...]:
    """Parse a command line.

    Args:
        argv: without the program's name; None takes the process's.
        description: of the program, for its help.

    Returns:
        The options, or with `--figure` the output folder and the files to draw.

    Raises:
        UserError: for an unknown option or a bad value.
    """
    words = list(sys.argv[1:] if argv is None else argv)
    values: dict[str, Any] = vars(make_parser(description).parse_args(words))
    figure = values.pop("figure", None)
    needed = ("output_dir",) if figure else ("model_name_or_path", "task", "output_dir")
    if missing := [f"--{name}" for name in needed if name not in values]:
        raise UserError(f"{' and '.join(missing)} must be given (see --help)")
    if figure:
        return (values["output_dir"], *figure)
    return Options(**values, argv=["run_attack.py", *words])
