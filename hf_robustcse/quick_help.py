"""The help of the training commands without loading torch, which takes longer than all the rest.

Their options come from transformers' ``TrainingArguments``, so the parsers cannot be made without torch. What help
needs of them lies in ``assets/options.json``, for one version of transformers; under any other the parsers are made.

    python -m hf_robustcse.quick_help    writes that file anew, after an option has changed
"""

from __future__ import annotations

import argparse
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from hf_robustcse.files import read_json, write_json

FILE = Path(__file__).parent / "assets" / "options.json"
_SHOWN = ("dest", "nargs", "metavar", "help")


def print_help(command: str) -> None:
    """Print the help of a command and exit, if that is all that was asked for; else do nothing.

    Args:
        command: "run_unsup", "run_finetune" or "run_ablation".

    Raises:
        SystemExit: with code 0, once the help is printed.
    """
    if sys.argv[1:] not in (["-h"], ["--help"]):
        return
    stored = read_json(FILE)
    if stored["transformers"] == version("transformers"):
        parser_of(stored["commands"][command]).print_help()
        sys.exit(0)


def parser_of(stored: dict[str, Any]) -> argparse.ArgumentParser:
    """A parser with the help of the one that `description_of` read."""
    formatter = argparse.ArgumentDefaultsHelpFormatter if stored["defaults"] else argparse.HelpFormatter
    parser = argparse.ArgumentParser(
        usage=stored["usage"], description=stored["description"], formatter_class=formatter
    )
    for option in stored["options"]:
        parser.add_argument(*option["flags"], **{name: value for name, value in option.items() if name != "flags"})
    return parser


def description_of(parser: argparse.ArgumentParser) -> dict[str, Any]:
    """What a parser's help is made of, without its types; a default is the text that help shows."""
    options = []
    for action in parser._actions:
        if isinstance(action, argparse._HelpAction):
            continue
        option = {name: getattr(action, name) for name in _SHOWN if getattr(action, name) is not None}
        if action.option_strings:
            option["flags"] = list(action.option_strings)
        else:
            option["flags"] = [option.pop("dest")]
        if action.nargs == 0:
            option["action"] = "store_true"
            del option["nargs"]
        if action.choices is not None:
            option["choices"] = list(map(str, action.choices))
        option["default"] = str(action.default)
        options.append(option)
    return {
        "usage": parser.usage,
        "description": parser.description,
        "defaults": parser.formatter_class is argparse.ArgumentDefaultsHelpFormatter,
        "options": options,
    }


def all_descriptions() -> dict[str, Any]:
    """What `FILE` holds, from the commands' own parsers."""
    from hf_robustcse import ablation, arguments
    from hf_robustcse.finetune import arguments as finetune

    parsers = {
        "run_unsup": arguments.make_parser(),
        "run_finetune": finetune.make_parser(),
        "run_ablation": ablation.make_parser(),
    }
    commands = {name: description_of(parser) for name, parser in parsers.items()}
    return {"transformers": version("transformers"), "commands": commands}


if __name__ == "__main__":
    write_json(FILE, all_descriptions())
    print(f"wrote {FILE}")
