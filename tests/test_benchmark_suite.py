"""`python -m benchmarks.run`: rows, resuming, failures, and README's table of ratios."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NOISE = "--batch_size 8 --multiple 2 --width 16 --repeats 1 --rounds 1"
KEY = "seconds broadcast/matrix"


@pytest.fixture
def suite(monkeypatch):
    """The module, run from the repository root with a suite of tiny rows and no committed results."""
    monkeypatch.syspath_prepend(str(ROOT))
    monkeypatch.chdir(ROOT)
    module = importlib.import_module("benchmarks.run")
    ratios = (module.Ratio(KEY, "broadcasting", "ours"),)
    rows = (
        module.Row("small", "noise_cost.py", NOISE, ratios, 5),
        module.Row("broken", "noise_cost.py", f"{NOISE} --dtype float8", ratios, 5),
        module.Row("corpus", "noise_cost.py", "{train_file}", ratios, 5, each_file=True),
        module.Row("data", "noise_cost.py", "{data_dir}", ratios, 5),
    )
    monkeypatch.setitem(module.SUITES, "cpu", rows)
    monkeypatch.setattr(module, "COMMITTED", ROOT / "no-such-file.json")
    return module


def stopped(suite, words, capsys):
    """Exit code, output and errors."""
    code = 0
    try:
        suite.main(list(map(str, words)))
    except SystemExit as error:
        code = error.code
    printed = capsys.readouterr()
    return code, printed.out, printed.err


def test_the_rows_are_listed_with_what_they_need():
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.run", "--suite", "cpu", "--list"], capture_output=True, text=True, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
    lines = {line.split()[0]: line for line in done.stdout.splitlines()}
    assert {"step", "methods", "sts", "attack", "noise", "startup"} <= lines.keys()
    assert "needs --data_dir" in lines["sts"] and "--textattack_python" in lines["attack"]
    assert "needs" not in lines["step"]


def test_the_suite_is_made_for_half_an_hour(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT))
    module = importlib.import_module("benchmarks.run")
    names = [row.name for row in module.SUITES["cpu"]]
    assert len(set(names)) == len(names) and sum(row.seconds for row in module.SUITES["cpu"]) < 30 * 60
    assert all(row.ratios and row.script.endswith(".py") for row in module.SUITES["cpu"])


def test_rows_are_run_once_and_a_failure_stops_no_other(suite, tmp_path, capsys):
    words = ["--rows", "broken", "small", "data", "--output_dir", tmp_path / "out"]
    code, out, err = stopped(suite, words, capsys)
    assert code == 1 and "failed: broken:" in err and "float8" in err and "exit code 2" in err
    assert "not run: needs --data_dir" in out and "nothing to compare with" in out
    summary = json.loads((tmp_path / "out" / "summary.json").read_text(encoding="utf-8"))
    value = summary["rows"]["small"]["ratios"][KEY]
    assert 0 < value["min"] <= value["median"] <= value["max"] and list(summary["rows"]) == ["small"]
    assert not list((tmp_path / "out").glob(".*"))
    record = json.loads((tmp_path / "out" / "small.json").read_text(encoding="utf-8"))
    assert record["result"]["device"] and record["result"]["library_versions"]["torch"] and record["seconds"] > 0

    # Again: nothing is left to do, and README says something else by now.
    median = value["median"]
    committed = {"rows": {"small": {"ratios": {KEY: {"min": 3 * median, "median": 4 * median, "max": 5 * median}}}}}
    (tmp_path / "committed.json").write_text(json.dumps(committed), encoding="utf-8")
    suite.COMMITTED = tmp_path / "committed.json"
    code, out, _ = stopped(suite, ["--rows", "small", "--output_dir", tmp_path / "out"], capsys)
    assert code == 0 and "0 rows to do" in out and "1 are done" in out
    assert json.loads((tmp_path / "out" / "small.json").read_text(encoding="utf-8")) == record
    assert "outside of the committed range widened by 15%" in out and f"small {KEY}" in out

    rows = [suite.Row("small", "noise_cost.py", f"{NOISE} --steps 4", suite.SUITES["cpu"][0].ratios, 5)]
    suite.SUITES["cpu"] = (*rows, *suite.SUITES["cpu"][1:])
    code, _, err = stopped(suite, ["--rows", "small", "--output_dir", tmp_path / "out"], capsys)
    assert code == 2 and "small.json is of another command: add --overwrite" in err


@pytest.mark.slow
def test_training_steps_on_the_embedded_encoder(suite, tmp_path, capsys):
    options = "--model_name_or_path {model_name_or_path} --train_file {train_file} --systems mnrl simcse"
    ratios = (suite.Ratio("mnrl/simcse", "MNRL", "ours"),)
    tiny = suite.Row("step", "train_step.py", f"{options} --batch_size 4 --steps 1 --warmup 1 --rounds 2", ratios, 10)
    suite.SUITES["cpu"] = (tiny,)
    code, out, err = stopped(suite, ["--output_dir", tmp_path], capsys)
    assert code == 0, err
    (row,) = json.loads((tmp_path / "summary.json").read_text(encoding="utf-8"))["rows"].values()
    assert 0.05 < row["ratios"]["mnrl/simcse"]["median"] < 20 and "hf_robustcse/assets/encoder" in row["command"]
    assert suite.table({"rows": {"step": row}}).splitlines()[-1].startswith("| `step` MNRL | ours | ")


def test_a_row_for_each_corpus_that_is_named_by_it(suite):
    jobs = suite.make_jobs(suite.SUITES["cpu"], {"train_file": ["a/wiki.txt.gz", "b.txt"]}, ["corpus"])
    assert [(job.name, job.words[-1]) for job in jobs] == [("corpus:wiki", "a/wiki.txt.gz"), ("corpus:b", "b.txt")]
    (job,) = suite.make_jobs(suite.SUITES["cpu"], {}, ["corpus"])
    assert job.name == "corpus" and job.words == ("benchmarks/noise_cost.py", "hf_robustcse/assets/corpus.txt.gz")


@pytest.mark.parametrize(
    "words, said",
    [
        (["--rows", "smal"], "no row 'smal': one of small, broken, corpus, data; did you mean small?"),
        (["--rows", "data"], "no row can run: needs --data_dir"),
        (["--train_file", "no-such.txt"], "--train_file no-such.txt is not there"),
        (["--rows", "data", "--data_dir", "no-such"], "--data_dir no-such is not there"),
        (["--train_file", "README.md", "README.md"], "two corpora have the same name"),
        (["--output_dir", "README.md"], "--output_dir README.md is a file"),
        (["--table", "pyproject.toml"], "is not JSON"),
        (["--suite", "gpu"], "invalid choice: 'gpu'"),
    ],
)
def test_bad_input_is_one_line(suite, words, said, capsys):
    code, out, err = stopped(suite, words, capsys)
    assert code == 2 and said in err and err.count("\n") == 1 and out == ""


def test_the_range_is_widened_by_fifteen_percent(suite):
    committed = {"min": 1.0, "median": 1.1, "max": 1.2}
    found = {median: suite.verdict(median, committed) for median in (0.84, 0.86, 1.0, 1.2, 1.37, 1.39)}
    assert list(found.values()) == ["outside", "near", "inside", "inside", "near", "outside"]
    assert suite.verdict(1.0, None) == "-"


def test_the_table_of_a_summary(suite):
    value = {"what": "a step of X", "against": "ours", "min": 1.204, "median": 1.31, "max": 12.34}
    summary = {"rows": {"step:wiki": {"ratios": {"released/simcse": value}}}}
    assert suite.table(summary).splitlines() == [
        "| what | against | ratio (median, min-max) |",
        "|---|---|---|",
        "| `step:wiki` a step of X | ours | 1.31 (1.20-12.3) |",
    ]


def test_the_ratios_of_the_readme_are_the_committed_ones(monkeypatch):
    """Between <!-- speed --> and <!-- /speed --> stands what `python -m benchmarks.run --table` prints."""
    monkeypatch.syspath_prepend(str(ROOT))
    module = importlib.import_module("benchmarks.run")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    _, begins, rest = readme.partition("<!-- speed -->")
    assert bool(begins) == module.COMMITTED.is_file(), "README's table and suite_cpu.json come together"
    if begins:
        shown, ends, _ = rest.partition("<!-- /speed -->")
        assert ends and shown.strip() == module.table(json.loads(module.COMMITTED.read_text(encoding="utf-8")))
