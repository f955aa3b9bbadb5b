"""A run of `run_attack.py` that is killed, or shared by processes, ends as one that is not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from run_attack_tools import COMMAND, attack, make_classifier, make_synonyms, records, results, rows, same, write_rows
from test_distributed import launch
from tiny import make_encoder

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def ground(tmp_path_factory):
    """The words of a command on 60 examples, and the folder of an uninterrupted run of it."""
    folder = tmp_path_factory.mktemp("attack")
    words = ["--model_name_or_path", make_classifier(folder / "classifier"), "--task", "MR", "--data_file",
             write_rows(folder / "mr.tsv", rows(60, words=24)), "--attack", "pwws", "--synonyms",
             make_synonyms(folder / "synonyms.txt"), "--device", "cpu"]  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        assert attack(patch, *words, "--output_dir", folder / "whole") == 0
    return words, folder / "whole"


def lines_of(folder: Path) -> int:
    return sum(path.read_bytes().count(b"\n") for path in folder.glob("*.part-*.jsonl"))


def kill_at(words: list, folder: Path, lines: int) -> bool:
    """Start the command and kill it when its parts have so many lines (0: when it has taken the folder)."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    with open(os.devnull, "w") as null:
        process = subprocess.Popen([sys.executable, COMMAND, *map(str, words)], env=env, stdout=null, stderr=null)
    deadline = time.monotonic() + 120
    try:
        while process.poll() is None and time.monotonic() < deadline:
            if (folder / "manifest.json").exists() and lines_of(folder) >= lines:
                process.send_signal(signal.SIGKILL)
                break
            time.sleep(0.002)
    finally:
        if process.poll() is None:
            process.kill()
    return process.wait() == -signal.SIGKILL


def test_killed_at_several_moments_it_ends_as_if_it_were_not(ground, tmp_path, monkeypatch):
    words, whole = ground
    out = tmp_path / "out"
    command = [*words, "--width", 2, "--output_dir", out]
    killed = [kill_at(command, out, lines) for lines in (0, 5, 25)]
    assert all(killed) and 25 <= lines_of(out) < 60
    with open(next(out.glob("*.part-*.jsonl")), "ab") as file:  # a line that was being written
        file.write(b'{"index": 59, "status": "succ')
    assert attack(monkeypatch, *command) == 0
    same(records(whole), records(out))
    one, two = (results(folder)["attacks"]["MR"]["pwws"] for folder in (whole, out))
    assert {**one, "seconds": 0} == {**two, "seconds": 0}
    assert not list(out.glob("*.part-*"))


def test_killed_between_the_last_example_and_the_results(ground, tmp_path, monkeypatch):
    words, whole = ground
    out = tmp_path / "out"
    out.mkdir()
    for name in ("manifest.json", "MR-pwws.jsonl"):
        (out / name).write_bytes((whole / name).read_bytes())
    (out / "MR-pwws.part-0.jsonl").write_bytes((whole / "MR-pwws.jsonl").read_bytes())
    (out / "MR-pwws.part-1.jsonl").write_bytes((whole / "MR-pwws.jsonl").read_bytes()[:5000])
    assert attack(monkeypatch, *words, "--output_dir", out) == 0
    assert records(out) == records(whole)
    assert results(out)["attacks"]["MR"]["pwws"]["queries_to_success"]


def test_two_processes_do_what_one_does_and_their_number_may_change(ground, tmp_path, monkeypatch):
    words, whole = ground
    out = tmp_path / "two"
    printed = launch(COMMAND, *words, "--output_dir", out)
    assert printed.count("accuracy before and after") == 1
    same(records(whole), records(out))
    one, two = (results(folder)["attacks"]["MR"]["pwws"] for folder in (whole, out))
    assert one["queries_to_success"] == two["queries_to_success"] and one["skipped"] == two["skipped"]
    # What three processes left is finished by one.
    rest = tmp_path / "rest"
    rest.mkdir()
    (rest / "manifest.json").write_bytes((whole / "manifest.json").read_bytes())
    lines = (whole / "MR-pwws.jsonl").read_bytes().splitlines(keepends=True)
    for process in range(3):
        (rest / f"MR-pwws.part-{process}.jsonl").write_bytes(b"".join(lines[process : 40 + process : 3]))
    assert attack(monkeypatch, *words, "--output_dir", rest) == 0
    same(records(whole), records(rest))


def test_two_processes_train_one_probe(ground, tmp_path, monkeypatch):
    words, _ = ground
    words = [*words, "--train_file", write_rows(tmp_path / "train.tsv", rows(150, seed=1))]
    words[1] = make_encoder(tmp_path / "encoder")
    launch(COMMAND, *words, "--output_dir", tmp_path / "two")
    assert attack(monkeypatch, *words, "--output_dir", tmp_path / "one") == 0
    same(records(tmp_path / "one"), records(tmp_path / "two"))


def test_the_manifest_says_what_was_attacked(ground):
    _, whole = ground
    manifest = json.loads((whole / "manifest.json").read_text())
    assert len(manifest["attack"]["victim"]["fingerprint"]) == 64 and len(manifest["attack"]["examples"]) == 64
    assert manifest["recipes"]["pwws"]["ranking"] == "weighted-saliency"
