"""Every snippet of README.md and docs/ runs, offline, in a folder with stand-ins for models, texts and data.

The quick test runs the commands of a page in this process, without their launcher; the slow one gives each to a shell
as it is printed, launcher and all. Both append what makes a command short, from one table.
"""

from __future__ import annotations

import os
import runpy
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from snippets import PAGES, ROOT, Snippet, make_stand_ins, snippets

from hf_robustcse import cli

SHORT = {
    "run_unsup.py": "--max_steps 2 --eval_steps 2 --per_device_train_batch_size 8 --max_seq_length 12 --use_cpu "
    "--max_train_samples 300 --disable_tqdm true",
    "run_ablation.py": "--max_steps 1 --per_device_train_batch_size 4 --max_seq_length 8 --use_cpu --disable_tqdm true "
    "--eval_tasks embedded_dev --model_name_or_path bert-base-uncased",
    "run_finetune.py": "--max_steps 2 --max_eval_samples 8 --per_device_train_batch_size 4 --robust_operators typos "
    "--use_cpu --disable_tqdm true",
    "run_attack.py": "--num_examples 2 --synonyms synonyms.tsv --pos_tagger none --device cpu",
    "--task MR": "--train_file imdb.tsv",
    "run_eval.py": "--device cpu",
    "publish.py": "--dry_run",
    "search_index.py": "",
}
"""Part of a command -> the options appended to it; the last one given counts."""
AS_THEY_ARE = ("--list", "--figure")  # commands that are short already
SLOW = (
    "torchrun ",
    "publish.py",
    "hf-robustcse export",
    "--num_processes",
    "run_ablation.py vadv-lambda",
    "--seeds",
    "my-stack",
    "my-typos",
    "my-large-batch",
    "run_unsup.py --method vadv$",
)
"""Part of a command, $ its end -> run by the slow test only."""
MOST_NOT_RUN = 14


def shortened(command: str) -> str:
    """The command with what makes it short."""
    if any(word in command for word in AS_THEY_ARE):
        return command
    return " ".join([command, *(words for script, words in SHORT.items() if script in command)])


def output_of(words: list[str]) -> Path | None:
    """What the command is to write."""
    for option in ("--output_dir", "--output_json"):
        if option in words:
            return Path(words[words.index(option) + 1])
    return None


def make_room(output: Path | None) -> None:
    """A stand-in makes room for the model that a command trains under its name."""
    if output and output.is_dir():
        shutil.rmtree(output)


def run_here(command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command in this process: the script or `hf-robustcse`, without `python` or `accelerate launch`."""
    words = shlex.split(shortened(command))
    code: object = 0
    try:
        if words[0] == "hf-robustcse":
            cli.main(words[1:])
        else:
            first = next(i for i, word in enumerate(words) if word.endswith(".py"))
            assert words[:first] in (["python"], ["accelerate", "launch"]), command
            monkeypatch.setattr(sys, "argv", words[first:])
            runpy.run_path(str(Path(words[first]).resolve()), run_name="__main__")
    except SystemExit as stop:
        code = stop.code
    assert not code, f"{command}: exit code {code}"


def run_in_a_shell(command: str) -> None:
    """A command as it is printed."""
    paths = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(ROOT)}
    words = ["bash", "-euo", "pipefail", "-c", shortened(command)]
    done = subprocess.run(words, capture_output=True, text=True, env={**os.environ, **paths})
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-3000:]}"


def run_page(page: str, run: object, skip: tuple[str, ...] = ()) -> None:
    """All snippets of a page in order; those in Python share their names."""
    names: dict[str, object] = {"__name__": "snippet"}
    for snippet in snippets(page):
        if snippet.reason:
            continue
        if snippet.language == "python":
            where = "\n" * snippet.line + snippet.code  # so that an error names the line of the page
            exec(compile(where, str(PAGES[page]), "exec"), names)
            continue
        for command in snippet.commands:
            if any(word in f"{command}$" for word in skip):
                continue
            output = output_of(shlex.split(command))
            make_room(output)
            run(command)
            assert output is None or output.exists(), f"{command} wrote no {output}"


@pytest.fixture(scope="module")
def stand_ins(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("stand-ins")
    make_stand_ins(folder)
    return folder


@pytest.fixture
def ground(stand_ins: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "page"
    shutil.copytree(stand_ins, folder)
    (folder / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(folder)
    return folder


def of_all_pages() -> list[Snippet]:
    return [snippet for page in PAGES for snippet in snippets(page)]


WITH_SNIPPETS = sorted({snippet.page for snippet in of_all_pages() if not snippet.reason})


@pytest.mark.parametrize("page", WITH_SNIPPETS)
def test_the_snippets_of_a_page_run(page, ground, monkeypatch):
    run_page(page, lambda command: run_here(command, monkeypatch), skip=SLOW)


@pytest.mark.slow
@pytest.mark.parametrize("page", WITH_SNIPPETS)
def test_the_snippets_of_a_page_run_in_a_shell(page, ground):
    run_page(page, run_in_a_shell)


def test_few_snippets_are_not_run_and_each_says_why():
    left_out = [snippet for snippet in of_all_pages() if snippet.reason]
    assert len(left_out) <= MOST_NOT_RUN, [(snippet.page, snippet.line) for snippet in left_out]
    assert all(len(snippet.reason.split()) >= 2 for snippet in left_out)
    for page, path in PAGES.items():  # a comment that belongs to no snippet is a mistake
        assert path.read_text(encoding="utf-8").count("<!-- not run") == sum(s.page == page for s in left_out), page


def test_every_command_is_one_that_is_known():
    for snippet in of_all_pages():
        if snippet.language != "python" and not snippet.reason:
            for command in snippet.commands:
                assert "hf-robustcse" in command or any(script in command for script in SHORT), (snippet.page, command)


def test_ci_finds_its_two_commands():
    first, second = [snippet for snippet in snippets("README.md") if snippet.language == "bash"][:2]
    assert "pip install" in first.code and "examples/run_unsup.py" in first.code
    assert '".[dev]"' in second.code and "pytest" in second.code
