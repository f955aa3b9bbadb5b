"""The `hf-robustcse` command: help, mistakes, exit codes, and that it is installed as such."""

from __future__ import annotations

import argparse
import configparser
import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hf_robustcse import cli

ROOT = Path(__file__).parents[1]


def test_the_entry_point_is_declared():
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    assert setup["options.entry_points"]["console_scripts"].split() == ["hf-robustcse", "=", "hf_robustcse.cli:main"]
    assert callable(cli.main)


def test_every_command_has_its_module():
    for name, (module, text) in cli.COMMANDS.items():
        parser = argparse.ArgumentParser()
        importlib.import_module(module).add_arguments(parser)
        assert callable(importlib.import_module(module).run) and text, name


def test_help_lists_the_commands(capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["--help"])
    assert stopped.value.code == 0
    printed = capsys.readouterr().out
    assert all(name in printed and text in " ".join(printed.split()) for name, (_, text) in cli.COMMANDS.items())


def test_help_of_a_command_lists_its_options(capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(["report", "--help"])
    assert stopped.value.code == 0
    printed = capsys.readouterr().out
    assert "--output_dir" in printed and "--title" in printed and "usage: hf-robustcse report" in printed


@pytest.mark.parametrize(
    "words, said",
    [
        ([], "required: COMMAND"),
        (["repot"], "invalid choice: 'repot'"),
        (["--verbose"], "required: COMMAND"),
        (["report"], "required: DIR"),
        (["report", "x", "--outptu_dir", "y"], "unrecognized arguments: --outptu_dir"),
        (["report", "x", "--output", "y"], "unrecognized arguments: --output"),
        (["report", "no-such-folder"], "no-such-folder is not there"),
    ],
)
def test_a_mistake_is_one_line_and_exit_code_2(words, said, capsys):
    with pytest.raises(SystemExit) as stopped:
        cli.main(words)
    printed = capsys.readouterr()
    assert stopped.value.code == 2 and printed.out == ""
    assert said in printed.err and printed.err.startswith("error: ") and printed.err.count("\n") == 1


def test_the_command_as_a_process_without_torch():
    """Help and usage errors load no torch."""
    code = (
        "import runpy, sys; from hf_robustcse import cli\n"
        "for words in (['--help'], *([name, '--help'] for name in cli.COMMANDS), ['report'], ['encode']):\n"
        "    try: cli.main(words)\n"
        "    except SystemExit as stopped: print('code', stopped.code)\n"
        "for example in ('demo', 'publish', 'search_index', 'run_eval', 'run_attack'):\n"
        "    sys.argv = [example, '--help']\n"
        "    try: runpy.run_path(f'examples/{example}.py', run_name='__main__')\n"
        "    except SystemExit as stopped: print('code', stopped.code)\n"
        "print('torch' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    lines = done.stdout.splitlines()
    assert lines[-1] == "False", done.stderr
    assert [line for line in lines if line.startswith("code")] == [
        "code 0", *["code 0"] * len(cli.COMMANDS), "code 2", "code 2", *["code 0"] * 5
    ]  # fmt: skip
