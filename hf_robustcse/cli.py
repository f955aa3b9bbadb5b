"""``hf-robustcse train|evaluate``: the examples' scripts under one name."""

from __future__ import annotations

import sys

from hf_robustcse.errors import UserError, command


@command
def main() -> None:
    """Run the named command with the rest of the command line.

    Raises:
        UserError: for another name.
    """
    name, rest = (sys.argv[1] if len(sys.argv) > 1 else ""), sys.argv[2:]
    if name == "train":
        from hf_robustcse.runs import parse_arguments, run

        run(parse_arguments(rest))
    elif name == "evaluate":
        from hf_robustcse.evaluation.run import main as evaluate

        evaluate(rest)
    else:
        raise UserError("usage: hf-robustcse train|evaluate [options]; each lists its options with --help")
