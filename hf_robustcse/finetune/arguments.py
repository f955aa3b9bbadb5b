"""The options of fine-tuning; imports only what they are made of, so that help and a mistake are answered soon."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from pathlib import Path

from transformers import TrainingArguments

from hf_robustcse.arguments import OptionParser, options_of, recipe_arguments
from hf_robustcse.attacks.recipes import RECIPES
from hf_robustcse.errors import UserError
from hf_robustcse.evaluation.operators import OPERATORS
from hf_robustcse.evaluation.results import command_line
from hf_robustcse.finetune.tasks import TASKS, find_task

KINDS = ("none", "da", "adv")
RESOURCES = ("synonyms", "word_neighbours", "masked_lm", "sentence_encoder", "pos_tagger")
"""What attacks may need: fields of `attacks.resources.Resources`, and options behind `--augment_`."""


@dataclasses.dataclass
class TaskArguments:
    """What is fine-tuned, on what, and how its robustness is measured."""

    task: str | None = dataclasses.field(default=None, metadata={"help": f"One of {', '.join(TASKS)}."})
    model_name_or_path: str | None = dataclasses.field(
        default=None, metadata={"help": "Folder or Hub id of an encoder (default: the embedded tiny one)."}
    )
    model_revision: str | None = dataclasses.field(default=None, metadata={"help": "Branch, tag or commit."})
    data_dir: str | None = dataclasses.field(
        default=None, metadata={"help": "Folder with nli/SNLI/train.jsonl.gz and so on (default: the Hub)."}
    )
    max_seq_length: int | None = dataclasses.field(
        default=None, metadata={"help": "Tokens of an example at most (default: the task's, or the model's if less)."}
    )
    max_train_samples: int | None = dataclasses.field(
        default=None, metadata={"help": "Train on a random sample of so many rows."}
    )
    max_eval_samples: int | None = dataclasses.field(
        default=None, metadata={"help": "Score a random sample of so many rows of each set, the same for every seed."}
    )
    robust_operators: list[str] | None = dataclasses.field(
        default=None,
        metadata={
            "help": f"Perturbations of the robust set: {', '.join(OPERATORS)} (default: all that keep the labels "
            "of the task; synonyms where WordNet is found); none for no robust set."
        },
    )
    robust_sets: list[str] | None = dataclasses.field(
        default=None,
        metadata={
            "help": "Published robust sets to score, such as SNLI_CAD (default: those for the task that lie in "
            "the data folder); none for none."
        },
    )
    robust_word_list: str | None = dataclasses.field(
        default=None, metadata={"help": "File with tab-separated synonyms on each line, in place of WordNet."}
    )
    robust_seed: int = dataclasses.field(default=0, metadata={"help": "Seed of the robust set."})
    augment: str = dataclasses.field(
        default="none",
        metadata={
            "help": "Add rewritten training rows: da (random substitutions), adv (attacks on a model that is trained "
            "without them first; it stays in OUTPUT_DIR/first-stage) or none."
        },
    )
    augment_attack: list[str] | None = dataclasses.field(
        default=None,
        metadata={
            "help": f"Attacks that rewrite the rows, in turn: {', '.join(RECIPES)} (default: pwws); da takes their "
            "substitutions."
        },
    )
    augment_share: float = dataclasses.field(
        default=0.2, metadata={"help": "Part of the training rows that is drawn to be rewritten."}
    )
    augment_samples: int | None = dataclasses.field(
        default=None, metadata={"help": "Draw so many rows, in place of a part of them."}
    )
    augment_synonyms: str | None = dataclasses.field(
        default=None, metadata={"help": "File with tab-separated synonyms on each line, in place of WordNet."}
    )
    augment_word_neighbours: str | None = dataclasses.field(
        default=None, metadata={"help": "Word vectors or a table of neighbours, for attacks that need them."}
    )
    augment_masked_lm: str | None = dataclasses.field(
        default=None, metadata={"help": "Masked language model, for attacks that need one."}
    )
    augment_sentence_encoder: str | None = dataclasses.field(
        default=None, metadata={"help": "Sentence encoder that judges similarity, for attacks that need one; or none."}
    )
    augment_pos_tagger: str | None = dataclasses.field(
        default=None, metadata={"help": "nltk (default), a token-classification model, or none."}
    )
    evaluate_only: bool = dataclasses.field(
        default=False, metadata={"help": "Score a model that was fine-tuned on this task before, without training."}
    )
    seeds: list[int] | None = dataclasses.field(
        default=None, metadata={"help": "Fine-tune once for each seed, report mean and standard deviation."}
    )
    overwrite_output_dir: bool = dataclasses.field(
        default=False, metadata={"help": "Start anew in a folder that holds another run."}
    )


@dataclasses.dataclass
class FinetuningArguments(TrainingArguments):
    """The standard training arguments with the defaults that are usual for GLUE (Devlin et al. 2019)."""

    output_dir: str | None = dataclasses.field(
        default=None, metadata={"help": "Where the run goes; by default a new folder under runs/."}
    )
    learning_rate: float = dataclasses.field(default=3e-5, metadata={"help": "Initial learning rate."})
    per_device_train_batch_size: int = dataclasses.field(default=32, metadata={"help": "Rows per process and step."})
    per_device_eval_batch_size: int = dataclasses.field(default=128, metadata={"help": "Rows per process in scoring."})
    warmup_steps: float = dataclasses.field(default=0.1, metadata={"help": "Steps of warm-up; below 1: that part."})
    save_strategy: str = dataclasses.field(default="epoch", metadata={"help": "When to write a checkpoint."})
    save_total_limit: int | None = dataclasses.field(default=1, metadata={"help": "Checkpoints kept."})
    logging_steps: float = dataclasses.field(default=50, metadata={"help": "Steps between logs of the loss."})


@dataclasses.dataclass
class Arguments:
    """All arguments of a run."""

    task: TaskArguments
    training: FinetuningArguments
    command: str


def make_parser() -> OptionParser:
    """The parser of run_finetune.py."""
    return OptionParser([TaskArguments, FinetuningArguments])


def parse_arguments(argv: Sequence[str] | None = None) -> Arguments:
    """Parse a command line: an optional YAML file, then options that override it.

    Args:
        argv: without the program's name; by default that of the process.

    Raises:
        UserError: for an unknown option or task, or a bad value.
    """
    argv = list(sys.argv[1:] if argv is None else argv)
    parser = make_parser()
    recipe = parser.read(argv).recipe
    words = [*(recipe_arguments(Path(recipe), "paper") if recipe else []), *options_of(argv, recipe)]
    values = parser.read(words)
    if values.task is None:
        raise UserError(f"--task is missing: one of {', '.join(TASKS)}")
    find_task(values.task)
    task, training = parser.make(values)  # the training arguments load more of transformers when they are made
    for name in ("max_train_samples", "max_eval_samples"):
        if getattr(task, name) is not None and getattr(task, name) < 1:
            raise UserError(f"--{name} must be at least 1, not {getattr(task, name)}")
    _check_augmentation(task)
    if task.evaluate_only and task.seeds:
        raise UserError("--evaluate_only scores one model: leave --seeds out")
    return Arguments(task, training, command_line(["run_finetune.py", *argv]))


def _check_augmentation(options: TaskArguments) -> None:
    if options.augment not in KINDS:
        raise UserError(f"--augment must be one of {', '.join(KINDS)}, not {options.augment!r}")
    for name in ("attack", "samples", *RESOURCES):
        if options.augment == "none" and getattr(options, f"augment_{name}") is not None:
            raise UserError(f"--augment_{name} needs --augment da or adv")
    if options.augment != "none" and options.evaluate_only:
        raise UserError("--evaluate_only does not train: leave --augment out")
    if not 0 < options.augment_share <= 1:
        raise UserError(f"--augment_share must be above 0 and at most 1, not {options.augment_share:g}")
    if options.augment_samples is not None and options.augment_samples < 1:
        raise UserError(f"--augment_samples must be at least 1, not {options.augment_samples}")
