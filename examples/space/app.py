"""The demo as a Space: the variables ROBUSTCSE_MODEL and ROBUSTCSE_COMPARE_WITH name two models of the Hub."""

import os

from hf_robustcse.demo.run import main

# Space variable -> option of the demo.
VARIABLES = {
    "ROBUSTCSE_MODEL": "--model",
    "ROBUSTCSE_COMPARE_WITH": "--compare_with",
    "ROBUSTCSE_CORPUS": "--corpus",
    "GRADIO_SERVER_NAME": "--host",
    "GRADIO_SERVER_PORT": "--port",
}

if __name__ == "__main__":
    named = {**{"GRADIO_SERVER_NAME": "0.0.0.0", "GRADIO_SERVER_PORT": "7860"}, **os.environ}
    main([word for variable, option in VARIABLES.items() if named.get(variable) for word in (option, named[variable])])
