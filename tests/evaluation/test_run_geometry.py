"""The geometry of the evaluation command: probes, their text, their pictures."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from hf_robustcse.errors import UserError
from hf_robustcse.evaluation import pictures, sts
from hf_robustcse.evaluation.run import run_evaluation

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "run_eval.py"
PNG = ("top_negatives", "negatives", "perturbed")


@pytest.fixture
def data(tmp_path: Path, pairs: list, write_tsv: Callable, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder with an STS-B dev of 60 pairs."""
    task = sts.TASKS["STSB"]
    monkeypatch.setitem(sts.TASKS, "STSB", sts.StsTask("STSB", {**task.rows, "dev": 60}, hub=task.hub))
    write_tsv(tmp_path / "data" / "sts" / "STSB" / "dev.tsv", pairs[:60])
    return tmp_path / "data"


def run(bert: Path, data: Path | None, **options: object) -> dict:
    return run_evaluation(str(bert), ["geometry"], data, pooling="mean", device="cpu", **options)


def test_probes_are_printed_recorded_and_drawn(
    bert: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    pytest.importorskip("matplotlib")
    output = tmp_path / "out" / "geometry.json"
    results = run(bert, data, output_json=output, geometry_k=2, geometry_batch_sizes=[4, 20], seed=5)
    assert json.loads(output.read_text(encoding="utf-8")) == results
    record = results["tasks"]["geometry"]
    probes = record["probes"]
    assert record["set"] == "stsb_dev" and record["alignment"] is not None
    assert probes["source"] == record["source"] and probes["n"] == probes["available"] == record["n"]
    assert probes["top_negatives"]["batch_sizes"] == [4, 20] and probes["top_negatives"]["k"] == 2
    assert probes["perturbed"]["uniformity"] == pytest.approx(record["uniformity"])
    printed = capsys.readouterr().out
    assert f"probes of {probes['n']} sentences" in printed and "2 most similar in-batch negatives" in printed
    assert f"found again {probes['perturbed']['accuracy']:.2f}%" in printed
    assert sorted(path.name for path in output.parent.iterdir()) == sorted(
        ["geometry.json", *(f"geometry_{name}.png" for name in PNG)]
    )
    again = run(bert, data, geometry_k=2, geometry_batch_sizes=[4, 20], seed=5, pictures=tmp_path / "pictures")
    assert again["tasks"] == results["tasks"]
    assert sorted(path.name for path in (tmp_path / "pictures").iterdir()) == sorted(
        f"{bert.name}_{name}.png" for name in PNG
    )


def test_text_of_ones_own(bert: Path, data: Path, tmp_path: Path, sentences: list[str], capsys) -> None:
    text = tmp_path / "own.txt.gz"
    text.write_bytes(gzip.compress("\n".join([*sentences[:30], *sentences[:10], ""]).encode()))
    record = run(bert, data, geometry_text=text)["tasks"]["geometry"]
    assert record["probes"]["source"] == str(text) and record["probes"]["n"] == 30 != record["n"]
    (tmp_path / "empty").mkdir()
    alone = run(bert, tmp_path / "empty", geometry_text=text)["tasks"]["geometry"]
    assert list(alone) == ["set", "probes"] and alone["set"] is None
    probes, others = alone["probes"], record["probes"]  # batched with other sentences, so not equal to the last bit
    assert probes["top_negatives"]["mean"] == pytest.approx(others["top_negatives"]["mean"], abs=1e-6)
    assert probes["perturbed"]["cosine"] == pytest.approx(others["perturbed"]["cosine"], abs=1e-6)
    printed = capsys.readouterr()
    assert "MISSING STSB dev is not under" in printed.err and "MISSING alignment" in printed.err
    for options, words in (({"strict": True, "geometry_text": text}, "STSB dev is not under"), ({}, "STSB dev is not")):
        with pytest.raises(UserError, match=words):
            run(bert, tmp_path / "empty", **options)


def test_without_matplotlib_the_numbers_are_written(
    bert: Path, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setattr(pictures, "has_matplotlib", lambda: False)
    output = tmp_path / "out" / "geometry.json"
    run(bert, data, output_json=output)
    assert [path.name for path in output.parent.iterdir()] == ["geometry.json"]
    (line,) = (line for line in capsys.readouterr().out.splitlines() if "picture" in line)
    assert "pip install hf_robustcse[plots]" in line


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"geometry_text": "nowhere.txt"}, "nowhere.txt: no such file"),
        ({"geometry_noise": 0.0}, "--geometry_noise must be above 0"),
        ({"geometry_k": 0}, "--geometry_k must be at least 1"),
        ({"geometry_k": 60}, "need more sentences"),
        ({"geometry_batch_sizes": [8, 5000]}, "--geometry_batch_sizes 5000"),
        ({"pictures": __file__}, "is a file: name a folder"),
    ],
)
def test_refusals_come_before_the_model(data: Path, tmp_path: Path, options: dict, words: str) -> None:
    with pytest.raises(UserError, match=words):
        run(Path("/no/such/model"), data, output_json=tmp_path / "out.json", **options)
    assert not (tmp_path / "out.json").exists()


@pytest.mark.parametrize("option", ["geometry_text", "pictures"])
def test_options_of_the_geometry_need_it(bert: Path, option: str) -> None:
    with pytest.raises(UserError, match=f"--{option} belongs to the geometry"):
        run_evaluation(str(bert), ["embedded_dev"], **{option: "x"})


def test_script(bert: Path, tmp_path: Path, sentences: list[str]) -> None:
    text = tmp_path / "own.txt"
    text.write_text("\n".join(sentences), encoding="utf-8")
    (tmp_path / "data").mkdir()
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    environment["PYTHONPATH"] = os.pathsep.join([str(SCRIPT.parents[1]), environment.get("PYTHONPATH", "")])
    command = [
        sys.executable, SCRIPT, "--model_name_or_path", bert, "--tasks", "geometry", "--pooling", "cls", "--device",
        "cpu", "--data_dir", tmp_path / "data", "--geometry_text", text, "--geometry_batch_sizes", "8", "32",
        "--geometry_k", "3", "--geometry_noise", "0.5", "--output_json", tmp_path / "x.json",
        "--pictures", tmp_path / "p",
    ]  # fmt: skip
    done = subprocess.run(
        list(map(str, command)), capture_output=True, text=True, encoding="utf-8", env=environment, timeout=120
    )
    assert done.returncode == 0, done.stderr
    probes = json.loads((tmp_path / "x.json").read_text(encoding="utf-8"))["tasks"]["geometry"]["probes"]
    assert probes["top_negatives"]["batch_sizes"] == [8, 32] and probes["perturbed"]["noise"] == 0.5
    assert "cosine to the 3 most similar" in done.stdout and "pictures" in done.stdout
