"""The demo as a Space; its README says which variables name the models."""

from __future__ import annotations

import os

from hf_robustcse.demo.run import main

# Variable -> option of the demo, and its default.
VARIABLES = {
    "ROBUSTCSE_MODEL": ("--model", ""),
    "ROBUSTCSE_COMPARE_WITH": ("--compare_with", ""),
    "ROBUSTCSE_CORPUS": ("--corpus", ""),
    "GRADIO_SERVER_NAME": ("--host", "0.0.0.0"),
    "GRADIO_SERVER_PORT": ("--port", "7860"),
}


def options() -> list[str]:
    """The command line that the variables stand for."""
    found = [(option, os.environ.get(name) or default) for name, (option, default) in VARIABLES.items()]
    return [word for option, value in found if value for word in (option, value)]


if __name__ == "__main__":
    main(options())
