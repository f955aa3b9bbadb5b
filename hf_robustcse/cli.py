"""`hf-robustcse COMMAND ...`: the commands that need no launcher, each a module with `add_arguments` and `run`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence

from hf_robustcse.errors import Parser, command

COMMANDS: dict[str, tuple[str, str]] = {
    "import": ("hf_robustcse.convert", "a released SimCSE, DCLR, GS-InfoNCE or DiffCSE checkpoint into our layout"),
    "report": ("hf_robustcse.report", "results.json files into one table: Markdown, CSV and a page"),
    "card": ("hf_robustcse.cards", "the model card of a model folder, or of a method, without the Hub"),
    "encode": (
        "hf_robustcse.deploy.encode_command",
        "embeddings of a large file, in constant memory and several processes",
    ),
    "export": ("hf_robustcse.deploy.export_command", "a checkpoint as ONNX, float and int8, compared with torch"),
    "prefetch": ("hf_robustcse.prefetch", "fetch evaluation data and models into a folder, to work without a network"),
}
"""Command -> the module that holds it, and its line of help."""


@command
def main(argv: Sequence[str] | None = None) -> None:
    """Run one command.

    Args:
        argv: the words behind `hf-robustcse`; None takes the process's.

    Raises:
        SystemExit: with code 2 for bad input, 0 for `--help`.
    """
    words = sys.argv[1:] if argv is None else list(argv)
    parser = Parser(prog="hf-robustcse", description=__doc__, allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    parsers = {
        name: commands.add_parser(name, help=text, description=text, allow_abbrev=False)
        for name, (_, text) in COMMANDS.items()
    }
    # Only the module of the command that was asked for is imported: help and usage errors need not load torch.
    module = None
    if words and words[0] in COMMANDS:
        module = importlib.import_module(COMMANDS[words[0]][0])
        module.add_arguments(parsers[words[0]])
    options = vars(parser.parse_args(words))
    del options["command"]
    module.run(**options, argv=[parser.prog, *words])


if __name__ == "__main__":
    main()
