"""The evaluation command: groups, missing data, results.json, exit codes."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hf_robustcse.errors import UserError
from hf_robustcse.evaluation import sts
from hf_robustcse.evaluation.results import base_results, command_line
from hf_robustcse.evaluation.run import run_evaluation

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "run_eval.py"
PRESENT = ("STS12", "STS13", "STSB", "SICKR")


@pytest.fixture
def small(
    tmp_path: Path, pairs: list, write_tsv: Callable[[Path, list], None], monkeypatch: pytest.MonkeyPatch
) -> Path:
    """A data folder with four of the seven test sets and the two dev sets, 30 pairs a file."""
    tasks = {}
    for place, (name, task) in enumerate(sts.TASKS.items()):
        chosen = [(first, second, max(score, 1.0)) for first, second, score in pairs[10 * place : 10 * place + 30]]
        rows = dict.fromkeys(task.rows, 30 * len(task.subsets or "1"))
        tasks[name] = sts.StsTask(name, rows, task.subsets, task.hub, task.lowest)
        for file in (task.subsets or ("dev", "test")) if name in PRESENT else ():
            write_tsv(tmp_path / "data" / "sts" / name / f"{file}.tsv", chosen)
    monkeypatch.setattr(sts, "TASKS", tasks)
    return tmp_path / "data"


def run(bert: Path, tasks: list[str], data: Path, **options: object) -> dict:
    return run_evaluation(str(bert), tasks, data, pooling="mean", device="cpu", **options)


def test_group_with_missing_members(bert: Path, small: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    output = tmp_path / "out" / "results.json"
    results = run(bert, ["sts", "geometry", "stsb_dev"], small, output_json=output, argv=["run_eval.py", "--x", "a b"])
    assert json.loads(output.read_text(encoding="utf-8")) == results
    assert list(results["tasks"]) == ["STS12", "STS13", "stsb_dev", "STSB", "SICKR", "geometry"]
    assert results["averages"] == {"sts": None, "transfer": None, "transfer_6": None}
    assert [entry["task"] for entry in results["missing"]] == ["STS14", "STS15", "STS16"]
    record = results["tasks"]["STS12"]
    assert set(record) == {
        "spearman", "spearman_mean", "spearman_wmean", "subsets", "n", "split", "source", "sha256",
    }  # fmt: skip
    assert record["n"] == 150 and len(record["subsets"]) == 5 and record["split"] == "test"
    assert results["tasks"]["stsb_dev"]["split"] == "dev"
    assert results["tasks"]["geometry"]["set"] == "stsb_dev" and "uniformity" in results["tasks"]["geometry"]
    assert results["model"] == str(bert) and results["method"] is None and results["command"] == "run_eval.py --x 'a b'"
    assert results["protocol"] == {
        "text": "raw, cased", "aggregation": "all", "metric": "Spearman of cosine similarity x 100",
        "pooling": "mean", "max_seq_length": 32, "dtype": "float32",
    }  # fmt: skip
    printed = capsys.readouterr()
    for task in ("STS14", "STS15", "STS16"):
        assert f"MISSING {task} test" in printed.err
    assert "Spearman x100, all; split: test" in printed.out and "Spearman x100, all; split: dev" in printed.out
    (line,) = (line for line in printed.out.splitlines() if line.startswith("STS12"))
    assert line.split()[1:] == [
        *(f"{record[key]:.2f}" for key in ("spearman", "spearman_mean", "spearman_wmean")), "150",
    ]  # fmt: skip
    assert "average" in printed.out and "missing: STS14, STS15, STS16" in printed.out


def test_complete_group_has_an_average(bert: Path, small: Path, pairs: list, write_tsv: Callable) -> None:
    for name in ("STS14", "STS15", "STS16"):
        for subset in sts.TASKS[name].subsets:
            write_tsv(small / "sts" / name / f"{subset}.tsv", pairs[:30])
    results = run(bert, ["STS"], small, strict=True)
    scores = [results["tasks"][name]["spearman"] for name in sts.STS_TEST]
    assert results["averages"]["sts"] == pytest.approx(sum(scores) / 7) and results["missing"] == []


@pytest.mark.parametrize(
    ("tasks", "options", "words"),
    [
        (["sts", "STS14"], {}, "STS14 test is not under"),
        (["sts"], {"strict": True}, "missing of the group sts: STS14, STS15, STS16"),
        (["sts"], {"split": "dev"}, "seven test sets"),
        (["sts", "transfer"], {}, "missing of the group transfer: MR, CR, SUBJ, MPQA, SST2, TREC, MRPC"),
        (["transfer"], {"split": "dev"}, "splits of their own"),
        (["stsx"], {}, "unknown task 'stsx'; available: sts, transfer, geometry, noise, checklist, STS12"),
        (["STS12"], {"split": "dev"}, "no split 'dev'"),
    ],
)
def test_refusals_write_nothing(
    bert: Path, small: Path, tmp_path: Path, tasks: list[str], options: dict, words: str
) -> None:
    with pytest.raises(UserError, match=words):
        run(bert, tasks, small, output_json=tmp_path / "out.json", **options)
    assert not (tmp_path / "out.json").exists()


def test_nothing_present_and_no_geometry_set(bert: Path, small: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="missing of the group sts: STS12, .*SICKR"):
        run(bert, ["sts"], tmp_path / "empty")
    with pytest.raises(UserError, match="STSB dev is not under"):
        run(bert, ["geometry"], tmp_path / "empty")
    with pytest.raises(UserError, match="is a folder"):
        run(bert, ["STSB"], small, output_json=tmp_path)


def test_corrupt_member_of_a_group_is_no_missing_one(bert: Path, small: Path, pairs: list, write_tsv: Callable) -> None:
    write_tsv(small / "sts" / "STSB" / "test.tsv", pairs[:29])
    with pytest.raises(UserError, match="has 29 pairs"):
        run(bert, ["sts"], small)


def test_split_applies_to_single_tasks(bert: Path, small: Path) -> None:
    assert list(run(bert, ["STSB", "sickr_test"], small, split="dev")["tasks"]) == ["stsb_dev", "SICKR"]


def test_secrets_are_not_recorded() -> None:
    token = "hf_" + "a1B2" * 8
    words = ["x.py", "--hub_token", "s3cret", "--token=abc", "--name", f"id:{token}", "--push", "--batch_size", "8"]
    line = command_line(words)
    assert "s3cret" not in line and "abc" not in line and token not in line
    assert line.count("***") == 3 and line.endswith("--push --batch_size 8")
    assert command_line(["x", "--hub_token", "--path", "a b/hf_robustcse"]) == "x --hub_token --path 'a b/hf_robustcse'"


def test_base_results_is_json() -> None:
    results = base_results(model="m", method="simcse", seed=3, command="c")
    assert json.loads(json.dumps(results, allow_nan=False)) == results
    assert results["library_versions"]["torch"] and results["revision"] is None and results["tasks"] == {}


def script(*arguments: str | Path) -> subprocess.CompletedProcess:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(SCRIPT.parents[1]), environment.get("PYTHONPATH", "")])
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, encoding="utf-8", env=environment, timeout=120)


def test_script_reports_usage_in_one_line() -> None:
    for arguments in ((), ("--model_name_or_path", "x", "--batch_size", "many"), ("--no_such_option",)):
        done = script(*arguments)
        assert done.returncode == 2 and done.stdout == ""
        assert len(done.stderr.splitlines()) == 1 and done.stderr.startswith("error: ")


def test_script_reports_bad_input_with_exit_code_2(
    bert: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    output = tmp_path / "results.json"
    arguments = ["--model_name_or_path", str(bert), "--tasks", "stsx", "--output_json", str(output)]
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *arguments])
    with pytest.raises(SystemExit) as caught:
        runpy.run_path(str(SCRIPT), run_name="__main__")
    assert caught.value.code == 2 and not output.exists()
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("error: unknown task 'stsx'; available: sts, transfer, geometry")


def test_script_writes_results(bert: Path, tmp_path: Path) -> None:
    output = tmp_path / "results.json"
    common = ("--model_name_or_path", bert, "--output_json", output, "--pooling", "cls", "--device", "cpu")
    done = script(*common, "--tasks", "embedded_dev")
    assert done.returncode == 0, done.stderr
    assert "Spearman x100, all; split: dev" in done.stdout
    results = json.loads(output.read_text(encoding="utf-8"))
    assert list(results["tasks"]) == ["embedded_dev"] and "--pooling cls" in results["command"]
