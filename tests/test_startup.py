"""What help and mistakes load; how long it takes is measured in benchmarks/startup.py."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
HEAVY = (
    "datasets", "matplotlib", "pandas", "pyarrow", "scipy", "sentence_transformers", "sklearn", "sympy",
    "transformers.modeling_utils", "transformers.trainer",
)  # fmt: skip
ASK = """
import contextlib, io, json, runpy, sys
record = {}
for words in json.loads(sys.argv[1]):
    sys.argv, said = words, io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            if words[0] == "import":
                __import__(words[1])
                raise SystemExit(0)
            runpy.run_path(words[0], run_name="__main__")
    except SystemExit as stopped:
        record[" ".join(words)] = [stopped.code, said.getvalue(), sorted(sys.modules)]
print(json.dumps(record))
"""


def asked(*commands: list[str]) -> dict[str, tuple[int, str, list[str]]]:
    """Each command, one after the other in one new process: exit code, what it said, the modules loaded by then."""
    done = subprocess.run(
        [sys.executable, "-c", ASK, json.dumps(commands)], capture_output=True, text=True, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_the_package_alone_loads_neither_torch_nor_transformers():
    (_, _, modules), *_ = asked(["import", "hf_robustcse"]).values()
    assert "hf_robustcse" in modules and not {"torch", "transformers", "numpy"} & set(modules)


def test_help_and_mistakes_of_the_training_commands_load_only_what_the_options_are_made_of():
    """torch and transformers' TrainingArguments, and nothing that reads data, trains or evaluates."""
    unsup, finetune, ablation = (f"examples/run_{name}.py" for name in ("unsup", "finetune", "ablation"))
    found = asked(
        [unsup, "--help"],
        [unsup, "--lerning_rate", "1"],
        [unsup, "--method", "vdav"],
        [unsup, "--gs_sigma", "0.5"],
        [finetune, "--help"],
        [finetune, "--tsak", "snli"],
        [finetune, "--task", "snil"],
        [ablation, "--help"],
        [ablation, "vadv-lamda"],
        [ablation, "vadv-lambda", "--lerning_rate", "1"],
    )
    for command, (code, said, modules) in found.items():
        assert code == (0 if command.endswith("--help") else 2), said
        assert not [name for name in HEAVY if name in modules], command
    of_unsup, of_finetune = (found[f"{script} --help"][1] for script in (unsup, finetune))
    assert all(f"--{name}" in of_unsup for name in ("vadv_lambda", "weight_decay", "dev_holdout", "pooler", "seeds"))
    assert all(f"--{name}" in of_finetune for name in ("augment_attack", "weight_decay", "robust_operators"))
    assert "did you mean --learning_rate?" in found[f"{unsup} --lerning_rate 1"][1]
    assert "did you mean vadv?" in found[f"{unsup} --method vdav"][1]
    assert "belongs to a method" in found[f"{unsup} --gs_sigma 0.5"][1]
