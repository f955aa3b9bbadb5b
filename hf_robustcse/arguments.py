"""The options of a training run: dataclasses, the parser that they make, recipes.

Everything here is loaded for `--help` and for a mistake in an option, so it imports only what the options are made of:
the methods and transformers' ``TrainingArguments``, which take torch.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import sys
from collections.abc import Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

import torch
import yaml
from transformers import HfArgumentParser, TrainingArguments

from hf_robustcse.errors import Parser, UserError
from hf_robustcse.evaluation.results import command_line
from hf_robustcse.methods import METHODS, build

ASSETS = Path(__file__).parent / "assets"
EMBEDDED_ENCODER = ASSETS / "encoder"
EMBEDDED_CORPUS = ASSETS / "corpus.txt.gz"
EMBEDDED_RECIPE = ASSETS / "recipe.yaml"
VARIANTS = ("paper", "reference")
PAIR_METRICS = (
    "spearman", "alignment", "uniformity", "mean_cosine", "positive_cosine", "random_cosine", "embedding_std",
    "effective_rank",
)  # fmt: skip
TEXT_METRICS = ("score", "retrieval", "cosine", "uniformity", "mean_cosine", "embedding_std", "effective_rank")
DEV_METRICS = tuple(dict.fromkeys(PAIR_METRICS + TEXT_METRICS))
"""What a dev set reports; one of its metrics chooses the checkpoint."""


@dataclasses.dataclass
class ModelArguments:
    """What is trained, and by which method."""

    model_name_or_path: str | None = field(
        default=None, metadata={"help": "Folder or Hub id of an encoder (default: the embedded tiny one)."}
    )
    method: str = field(default="simcse", metadata={"help": f"One of {', '.join(METHODS)}, or several joined by +."})
    pooler: str = field(default="cls", metadata={"help": "cls, mean, first-last or top-two."})
    head: str = field(
        default="auto", metadata={"help": "Projection head of training: tanh, mlp (batch norm), none, or the method's."}
    )
    keep_head: bool = field(
        default=False, metadata={"help": "Export the head as part of the embedding (SimCSE does when supervised)."}
    )
    temperature: float = field(default=0.05, metadata={"help": "Temperature of the similarities."})
    augmentation: str = field(
        default="dropout",
        metadata={
            "help": "What makes the positive of a sentence: dropout, shuffle, feature-cutoff, token-cutoff or "
            "span-cutoff, or, in the text, typos or synonyms (dropout applies in any case)."
        },
    )
    augmentation_rate: float = field(
        default=0.15,
        metadata={"help": "The part that a cutoff takes away, or of the words that typos or synonyms change."},
    )
    augmentation_drop: float = field(
        default=0.0,
        metadata={
            "help": "With --augmentation typos: how often a word of fewer than 4 letters, a number or a sign, which "
            "typos leave alone, is left out of the positive."
        },
    )
    augmentation_wordlist: str | None = field(
        default=None,
        metadata={
            "help": "With --augmentation synonyms: file with tab-separated synonyms on each line (default: WordNet)."
        },
    )
    dropout: float | None = field(
        default=None, metadata={"help": "Set every dropout of the encoder (default: as its configuration says)."}
    )
    dropout_fix: bool = field(
        default=True,
        metadata={"help": "Give an encoder without dropout 0.1, because dropout makes the positive pairs."},
    )
    model_revision: str | None = field(default=None, metadata={"help": "Branch, tag or commit."})
    attn_implementation: str | None = field(
        default=None, metadata={"help": "Attention implementation, such as sdpa, eager or flash_attention_2."}
    )


@dataclasses.dataclass
class DataArguments:
    """What it is trained and evaluated on."""

    train_file: str | None = field(
        default=None,
        metadata={
            "help": "txt, csv, tsv, jsonl or parquet (also .gz), a folder of them, or a Hub data set id "
            "(default: the embedded corpus)."
        },
    )
    text_column: list[str] | None = field(
        default=None, metadata={"help": "Column of the text; two or three: sentence, positive, hard negative."}
    )
    max_seq_length: int = field(default=32, metadata={"help": "Tokens of a training sentence at most."})
    dedup: bool = field(default=True, metadata={"help": "Drop exact duplicates."})
    streaming: bool = field(default=False, metadata={"help": "Read the corpus while training; needs --max_steps."})
    shuffle_buffer: int = field(
        default=100_000,
        metadata={"help": "With --streaming: rows that are shuffled together; 0 keeps the order of the files."},
    )
    max_train_samples: float | None = field(
        default=None, metadata={"help": "Use the first so many rows; at most 1: that part of them."}
    )
    preprocessing_num_workers: int | None = field(default=None, metadata={"help": "Tokenising processes."})
    eval_data_dir: str | None = field(
        default=None, metadata={"help": "Folder with the evaluation data, sts/STSB/dev.tsv and so on (default: Hub)."}
    )
    eval_tasks: list[str] | None = field(
        default=None,
        metadata={
            "help": "Sets of every evaluation, such as stsb_dev sickr_dev (default stsb_dev, or a dev set of your own "
            "alone); none for none."
        },
    )
    dev_file: str | None = field(
        default=None,
        metadata={
            "help": "A dev set of your own, in any language: tsv or csv (also .gz) with the header score, sentence1, "
            "sentence2. It chooses the checkpoint unless --metric_for_best_model says otherwise."
        },
    )
    dev_text: str | None = field(
        default=None,
        metadata={
            "help": "A dev set without labels, in any language: plain sentences in a format of --train_file, 2000 at "
            "most. How well each is found again from a version with typos, and uniformity, choose the checkpoint."
        },
    )
    dev_holdout: int | None = field(
        default=None,
        metadata={"help": "Take so many random sentences out of the training corpus, and use them as --dev_text."},
    )
    dev_noise: float = field(
        default=0.2, metadata={"help": "Part of the words of --dev_text or --dev_holdout that get a typo."}
    )
    test_tasks: list[str] | None = field(
        default=None,
        metadata={
            "help": "Sets that the exported model is scored on in the end: sts for the seven test sets, STS12, ..."
        },
    )


@dataclasses.dataclass
class RobustCSETrainingArguments(TrainingArguments):
    """The standard training arguments with the defaults of SimCSE's setting, and some of our own.

    Raises:
        UserError: for a `forward_chunk_size` below 1.
    """

    output_dir: str | None = field(
        default=None, metadata={"help": "Where the run goes; by default a new folder under runs/."}
    )
    per_device_train_batch_size: int = field(default=64, metadata={"help": "Sentences per process and step."})
    per_device_eval_batch_size: int = field(default=128, metadata={"help": "Sentences per process in evaluation."})
    learning_rate: float = field(default=3e-5, metadata={"help": "Initial learning rate."})
    num_train_epochs: float = field(default=1.0, metadata={"help": "Passes over the corpus."})
    eval_strategy: str = field(default="steps", metadata={"help": "When to evaluate: no, steps or epoch."})
    eval_steps: float | None = field(default=125, metadata={"help": "Steps between evaluations."})
    save_steps: float | None = field(default=None, metadata={"help": "Steps between checkpoints (eval_steps)."})
    save_total_limit: int | None = field(default=2, metadata={"help": "Checkpoints kept, the best one among them."})
    load_best_model_at_end: bool = field(default=True, metadata={"help": "Export the best checkpoint, not the last."})
    metric_for_best_model: str | None = field(
        default=None,
        metadata={"help": "Dev metric that chooses the checkpoint (the first dev set's spearman or score)."},
    )
    dataloader_drop_last: bool = field(default=True, metadata={"help": "Drop the last, ragged batch of an epoch."})
    remove_unused_columns: bool = field(default=False, metadata={"help": "Leave as it is."})
    logging_steps: float = field(default=25, metadata={"help": "Steps between logs of the loss terms."})
    allow_test_selection: bool = field(
        default=False, metadata={"help": "Allow a test set to choose the checkpoint; the result then says so."}
    )
    forward_chunk_size: int | None = field(
        default=None,
        metadata={
            "help": "Rows per encoder pass: a batch is computed in chunks of so many, one at a time in memory, for "
            "about a third more computation (default: the whole batch in one pass). The gradient is the same."
        },
    )
    collapse_threshold: float = field(
        default=0.02,
        metadata={
            "help": "Stop when the spread of the embeddings (1 = uniform, 0 = one point) falls below; 0 = never."
        },
    )

    def __post_init__(self) -> None:
        if self.forward_chunk_size is not None and self.forward_chunk_size < 1:
            raise UserError(f"--forward_chunk_size must be at least 1, not {self.forward_chunk_size}")
        if self.eval_strategy == "no":
            self.load_best_model_at_end = False
        if self.save_steps is None:
            self.save_steps = 500 if self.eval_strategy == "no" else self.eval_steps
        if not torch.accelerator.is_available():
            self.dataloader_pin_memory = False  # pinning is for copies to an accelerator
        metric, better = self.metric_for_best_model, self.greater_is_better
        super().__post_init__()
        # The stock default is the evaluation loss; here it is a dev set's, which the trainer knows.
        self.metric_for_best_model, self.greater_is_better = metric, better

    @property
    def n_gpu(self) -> int:
        """At most 1: without a launcher the stock trainer would wrap the model in DataParallel, which splits the
        batch, and with it the negatives, and breaks on a ragged last batch."""
        return min(super().n_gpu, 1)


@dataclasses.dataclass
class RunArguments:
    """How the run is organised."""

    seeds: list[int] | None = field(
        default=None, metadata={"help": "Train once for each seed, report mean and standard deviation."}
    )
    variant: str = field(
        default="paper",
        metadata={"help": "paper or reference: whose values of a recipe count where text and released code differ."},
    )
    overwrite_output_dir: bool = field(
        default=False, metadata={"help": "Start anew in a folder that holds another run."}
    )
    dry_run: bool = field(
        default=False,
        metadata={"help": "Check everything, train a few steps that are thrown away, print the plan, write nothing."},
    )


@dataclasses.dataclass
class Arguments:
    """All arguments of a run."""

    model: ModelArguments
    data: DataArguments
    training: RobustCSETrainingArguments
    run: RunArguments
    method_options: dict[str, Any]
    embedded: bool
    command: str
    recipe: str | None = None


class OptionParser(Parser, HfArgumentParser):
    """The parser of a training command: dataclasses, and a recipe in front that the command line overrides."""

    def __init__(self, types: Sequence[type]) -> None:
        super().__init__(list(types), allow_abbrev=False)
        self.add_argument("recipe", nargs="?", help="YAML file of option: value pairs; the command line overrides it")

    def read(self, words: Sequence[str]) -> argparse.Namespace:
        """Parse the words of a command line.

        Raises:
            UserError: for an unknown option, naming the nearest known one, or a bad value.
        """
        namespace, unknown = self.parse_known_args(list(words))
        if unknown:
            known = [option for action in self._actions for option in action.option_strings]
            near = difflib.get_close_matches(unknown[0].split("=")[0], known, n=1)
            hint = f"; did you mean {near[0]}?" if near else "; --help lists all options"
            raise UserError(f"unknown argument {unknown[0]}{hint}")
        return namespace

    def make(self, namespace: argparse.Namespace) -> list[Any]:
        """One object of each dataclass.

        Raises:
            UserError: if one refuses its values.
        """
        values = vars(namespace)
        try:
            made = [
                kind(**{f.name: values[f.name] for f in dataclasses.fields(kind) if f.init and f.name in values})
                for kind in self.dataclass_types
            ]
        except ValueError as error:  # the training arguments check themselves
            raise UserError(str(error)) from error
        for training in (one for one in made if isinstance(one, TrainingArguments)):
            training.output_dir = values["output_dir"]  # the stock default is one folder for all runs
        return made


def _option_types() -> list[type]:
    return [kind.Options for kind in METHODS.values() if dataclasses.fields(kind.Options)]


def make_parser() -> OptionParser:
    """The parser of run_unsup.py."""
    return OptionParser([ModelArguments, DataArguments, RobustCSETrainingArguments, RunArguments, *_option_types()])


def parse_arguments(argv: Sequence[str] | None = None) -> Arguments:
    """Parse a command line: an optional YAML recipe, then options that override it.

    Args:
        argv: without the program's name; by default that of the process.

    Raises:
        UserError: for an unknown option, a bad value or a bad recipe.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    parser = make_parser()
    given = parser.read(argv)
    if given.variant not in VARIANTS:
        raise UserError(f"--variant must be one of {', '.join(VARIANTS)}, not {given.variant!r}")
    recipe = recipe_arguments(Path(given.recipe), given.variant) if given.recipe else []
    own = options_of(argv, given.recipe)
    values = parser.read(recipe + own)
    embedded = values.model_name_or_path is None
    if embedded and EMBEDDED_RECIPE.is_file():
        recipe = recipe_arguments(EMBEDDED_RECIPE, given.variant) + recipe
        values = parser.read(recipe + own)
    # The method first: the training arguments load more of transformers when they are made.
    used = build(values.method).options()
    for name, default in (item for kind in _option_types() for item in dataclasses.asdict(kind()).items()):
        if name in used:
            used[name] = getattr(values, name)
        elif getattr(values, name) != default:
            raise UserError(f"--{name} belongs to a method that --method {values.method} does not use")
    build(values.method, used)
    model, data, training, run = parser.make(values)[:4]
    return Arguments(model, data, training, run, used, embedded, command_line(["run_unsup.py", *argv]), given.recipe)


def options_of(argv: Sequence[str], recipe: str | None) -> list[str]:
    """The command line without the name of its recipe, which a list at the end of the recipe would take for a value."""
    words = list(argv)
    if recipe:
        words.remove(recipe)
    return words


def recipe_arguments(path: Path, variant: str) -> list[str]:
    """A recipe as command-line arguments, so that both are checked by the same parser.

    A value ``{paper: x, reference: y}`` is that of `variant`; without an entry for it the option keeps its default.

    Raises:
        UserError: if it cannot be read.
    """
    try:
        recipe = yaml.safe_load(path.read_text(encoding="utf-8-sig"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"cannot read the recipe {path}: {' '.join(str(error).split())}") from error
    if not isinstance(recipe, dict):
        raise UserError(f"the recipe {path} must hold lines of the form option: value")
    arguments = []
    for key, value in recipe.items():
        if isinstance(value, dict):
            if not set(value) <= set(VARIANTS):
                raise UserError(f"the recipe {path}: {key} may have values for {' and '.join(VARIANTS)} only")
            value = value.get(variant)
        if value is None:
            continue
        arguments.append(f"--{key}")
        arguments += [str(v) for v in value] if isinstance(value, list) else [str(value)]
    return arguments
