"""`hf-robustcse card`: model cards, rendered from what was recorded, without the Hub.

The names below load on first use: a usage error need not wait for torch.
"""

from __future__ import annotations

import argparse
import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_robustcse.errors import UserError

if TYPE_CHECKING:
    from hf_robustcse.cards.check import validate
    from hf_robustcse.cards.method import method_card
    from hf_robustcse.cards.model import card_text

__all__ = ["card_text", "method_card", "validate"]
_HOMES = {"card_text": "model", "method_card": "method", "validate": "check"}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the command."""
    parser.add_argument("model", nargs="?", metavar="MODEL_DIR", help="a model folder of ours (or --method)")
    parser.add_argument("--method", metavar="NAME", help="the card of a method, as in model_cards/, and of no model")
    parser.add_argument(
        "--results",
        nargs="+",
        default=[],
        metavar="FILE_OR_DIR",
        help="further results: those of run_unsup, run_eval, run_finetune, run_attack and run_ablation",
    )
    parser.add_argument("--repo_id", metavar="ORG/NAME", help="where the model is, or will be, on the Hub")
    parser.add_argument("--license", help="identifier on the Hub, such as apache-2.0 (default: none is stated)")
    parser.add_argument("--language", help="ISO 639 code of the training text, such as en (default: none is stated)")
    parser.add_argument(
        "--base_model", metavar="ORG/NAME", help="Hub id of the encoder that training began with, if it was a folder"
    )
    parser.add_argument(
        "--output", metavar="FILE", help="where the card goes; - prints it (default MODEL_DIR/README.md; a method's: -)"
    )


def run(
    model: str | None,
    method: str | None = None,
    results: Sequence[str] = (),
    repo_id: str | None = None,
    license: str | None = None,
    language: str | None = None,
    base_model: str | None = None,
    output: str | None = None,
    argv: Sequence[str] = (),
) -> None:
    """Render a card, check it and write it.

    Args:
        model: a model folder, or
        method: the name of a method.
        results: further result files or folders.
        repo_id: of the model.
        license: of the model.
        language: of its training text.
        base_model: that training began with.
        output: a file, - for the terminal; None: README.md of the model folder, or the terminal for a method.
        argv: the command's words.

    Raises:
        UserError: for bad input; nothing has been written then.
    """
    if (model is None) == (method is None):
        raise UserError("name a model folder, or --method NAME for the card of a method (see hf-robustcse card --help)")
    about = {"repo_id": repo_id, "license": license, "language": language, "base_model": base_model}
    if method is not None and (given := [name for name, value in about.items() if value is not None]):
        raise UserError(f"--{given[0]} is for the card of a model folder, and --method makes that of a method")
    if model is not None and not Path(model).is_dir():
        raise UserError(f"{model} is not a folder: name one that a training wrote")

    from hf_robustcse.cards.check import validate
    from hf_robustcse.cards.method import method_card
    from hf_robustcse.cards.model import card_text
    from hf_robustcse.files import atomic_write_text

    if method is not None:
        text, default = method_card(method, results), "-"
    else:
        text, default = card_text(str(model), results=results, **about), str(Path(str(model)) / "README.md")
        validate(text)
    target = output or default
    if target == "-":
        print(text, end="")
        return
    try:
        atomic_write_text(target, text)
    except OSError as error:
        raise UserError(f"cannot write {target}: {error.strerror or error}") from error
    print(f"{target}: {len(text.splitlines())} lines, written without the Hub; read it before you publish it")
