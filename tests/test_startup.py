"""What help and mistakes load; how long it takes is measured in benchmarks/startup.py."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from hf_robustcse import ablation, arguments, quick_help
from hf_robustcse.files import read_json
from hf_robustcse.finetune import arguments as finetune

ROOT = Path(__file__).parents[1]
TRAINING = [f"examples/run_{name}.py" for name in ("unsup", "finetune", "ablation")]
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


def test_the_help_of_the_training_commands_loads_no_torch():
    for command, (code, said, modules) in asked(*([path, "--help"] for path in TRAINING)).items():
        assert code == 0 and "--seeds" in said, said
        assert not {"torch", "transformers", "numpy"} & set(modules), command


@pytest.mark.parametrize("columns", ["80", "200"])
def test_stored_help_is_what_the_parsers_say(columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    pinned = re.search(r"^transformers==(\S+)$", (ROOT / "constraints.txt").read_text(), re.M)[1]
    stored = read_json(quick_help.FILE)
    assert stored["transformers"] == pinned
    if version("transformers") != pinned:
        pytest.skip("another version of transformers has other options")
    assert stored == quick_help.all_descriptions(), "run python -m hf_robustcse.quick_help"
    for name, module in (("run_unsup", arguments), ("run_finetune", finetune), ("run_ablation", ablation)):
        assert quick_help.parser_of(stored["commands"][name]).format_help() == module.make_parser().format_help()


def test_under_another_transformers_the_parser_prints_its_own_help(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["run_unsup.py", "--help"])
    monkeypatch.setattr(quick_help, "version", lambda name: "0")
    quick_help.print_help("run_unsup")
    assert not capsys.readouterr().out


def test_help_and_mistakes_of_the_training_commands_load_only_what_the_options_are_made_of():
    """torch and transformers' TrainingArguments, and nothing that reads data, trains or evaluates."""
    unsup, tuning, sweep = TRAINING  # with two words of help, the parsers themselves print it
    found = asked(
        [unsup, "--help", "--help"],
        [unsup, "--lerning_rate", "1"],
        [unsup, "--method", "vdav"],
        [unsup, "--gs_sigma", "0.5"],
        [tuning, "--help", "--help"],
        [tuning, "--tsak", "snli"],
        [tuning, "--task", "snil"],
        [sweep, "--help", "--help"],
        [sweep, "vadv-lamda"],
        [sweep, "vadv-lambda", "--lerning_rate", "1"],
    )
    for command, (code, said, modules) in found.items():
        assert code == (0 if command.endswith("--help") else 2), said
        assert not [name for name in HEAVY if name in modules], command
    of_unsup, of_finetune = (found[f"{script} --help --help"][1] for script in (unsup, tuning))
    assert all(f"--{name}" in of_unsup for name in ("vadv_lambda", "weight_decay", "dev_holdout", "pooler", "seeds"))
    assert all(f"--{name}" in of_finetune for name in ("augment_attack", "weight_decay", "robust_operators"))
    assert "did you mean --learning_rate?" in found[f"{unsup} --lerning_rate 1"][1]
    assert "did you mean vadv?" in found[f"{unsup} --method vdav"][1]
    assert "belongs to a method" in found[f"{unsup} --gs_sigma 0.5"][1]
