"""Files are encoded as `SentenceTransformer.encode` does, in order, whole or not at all."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sentence_transformers import SentenceTransformer
from tiny import SENTENCES

from hf_robustcse import RobustCSEModel
from hf_robustcse.cli import main
from hf_robustcse.deploy import encode
from hf_robustcse.deploy.encode import encode_file
from hf_robustcse.errors import UserError

TEXTS = [f"{sentence} {'today ' * (n % 7)}".strip() for n, sentence in enumerate(SENTENCES * 3)]
TEXTS[4] = ""


@pytest.fixture(scope="module")
def model(encoders, tmp_path_factory) -> str:
    folder = tmp_path_factory.mktemp("encode") / "model"
    RobustCSEModel.from_encoder(encoders["bert"], pooler="first-last").save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def expected(model) -> np.ndarray:
    return SentenceTransformer(model, device="cpu").encode(TEXTS)


@pytest.fixture
def file(tmp_path) -> Path:
    path = tmp_path / "texts.txt"
    path.write_text("\n".join(TEXTS) + "\n", encoding="utf-8")
    return path


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch) -> None:
    monkeypatch.setattr(encode, "BLOCK_ROWS", 8)


def embeddings(path: Path) -> np.ndarray:
    column = pq.read_table(path)["embedding"].combine_chunks()
    return column.flatten().to_numpy().reshape(len(column), -1)


def test_npy(model, expected, file, tmp_path):
    done = encode_file(model, file, tmp_path / "out.npy")
    assert done == {"rows": 30, "blank": 1, "dimension": 16, "encoded": 30}
    assert np.abs(np.load(tmp_path / "out.npy", mmap_mode="r") - expected).max() < 1e-6


def test_parquet(model, expected, file, tmp_path):
    encode_file(model, file, tmp_path / "out.parquet", normalize=True, dtype="float16")
    table = pq.read_table(tmp_path / "out.parquet")
    assert table["text"].to_pylist() == TEXTS and table["row"].to_pylist() == list(range(30))
    assert str(table.schema.field("embedding").type) == "fixed_size_list<element: halffloat>[16]"
    assert pq.ParquetFile(tmp_path / "out.parquet").num_row_groups == 4
    unit = expected / np.linalg.norm(expected, axis=1, keepdims=True)
    assert np.abs(embeddings(tmp_path / "out.parquet") - unit).max() < 1e-3


def test_two_processes_keep_the_order(model, expected, file, tmp_path):
    encode_file(model, file, tmp_path / "out.npy", num_processes=2, batch_size=1, device="cpu")
    assert np.abs(np.load(tmp_path / "out.npy") - expected).max() < 1e-6


@pytest.mark.parametrize("name", ["t.csv", "t.tsv.gz", "t.jsonl"])
def test_columns_and_formats(name, model, expected, tmp_path):
    rows = list(enumerate(TEXTS))
    if "jsonl" in name:
        text = "".join(json.dumps({"id": n, "body": text}) + "\n" for n, text in rows)
    else:
        mark = "," if "csv" in name else "\t"
        text = "".join(f"{n}{mark}{text}\n" for n, text in [("id", "body"), *rows])
    content = text.encode()
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    encode_file(model, tmp_path / name, tmp_path / "out.npy", text_column="body")
    assert np.abs(np.load(tmp_path / "out.npy") - expected).max() < 1e-6


def test_a_folder_goes_on_after_an_interruption(model, expected, file, tmp_path, monkeypatch):
    out, checked = tmp_path / "shards", []

    def stop_at_third(rows, *_):
        checked.append(len(rows))
        if len(checked) == 3:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(encode, "check_finite", stop_at_third)
        with pytest.raises(KeyboardInterrupt):
            encode_file(model, file, out, shard_rows=10)  # blocks of 8 and 2
    assert sorted(path.name for path in out.iterdir()) == ["encode.json", "part-00000.parquet"]
    assert json.loads((out / "encode.json").read_text())["complete"] is False
    assert encode_file(model, file, out, shard_rows=10)["encoded"] == 20
    assert json.loads((out / "encode.json").read_text())["complete"] is True
    (out / "part-00001.parquet").unlink()
    assert encode_file(model, file, out, shard_rows=10)["encoded"] == 10
    assert encode_file(model, file, out, shard_rows=10)["encoded"] == 0
    tables = [pq.read_table(path) for path in sorted(out.glob("*.parquet"))]
    assert [row for table in tables for row in table["row"].to_pylist()] == list(range(30))
    found = np.concatenate([embeddings(path) for path in sorted(out.glob("*.parquet"))])
    assert np.abs(found - expected).max() < 1e-6


def test_a_folder_of_other_embeddings_is_refused(model, encoders, file, tmp_path):
    out, other = tmp_path / "shards", tmp_path / "other"
    RobustCSEModel.from_encoder(encoders["electra"]).save_pretrained(other)
    encode_file(model, file, out)
    with pytest.raises(UserError, match="another model: add --overwrite"):
        encode_file(str(other), file, out)
    with pytest.raises(UserError, match="another normalize"):
        encode_file(model, file, out, normalize=True)
    with open(file, "a", encoding="utf-8") as more:
        more.write("one more\n")
    with pytest.raises(UserError, match="another rows, texts_sha256"):
        encode_file(model, file, out)
    assert encode_file(model, file, out, overwrite=True)["encoded"] == 31
    with pytest.raises(UserError, match="not written by this command"):
        encode_file(model, file, other)


def refused(capsys, *words: object) -> str:
    with pytest.raises(SystemExit) as end:
        main(["encode", *map(str, words)])
    lines = capsys.readouterr().err.strip().splitlines()
    assert end.value.code == 2 and lines[-1].startswith("error: ")
    return lines[-1]


def test_bad_input_is_one_line(model, file, tmp_path, capsys):
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"text": "a"}\n' * 11 + '{"text": 3}\n')
    table = tmp_path / "two.csv"
    table.write_text("a,b\n1,2\n")
    for words, message in [
        (("--input", bad, "--output", tmp_path / "out.npy"), "bad.jsonl: line 12"),
        (("--input", table, "--output", tmp_path / "out.npy"), "--text_column"),
        (("--input", tmp_path / "no.txt", "--output", tmp_path / "out.npy"), "no such file"),
        (("--input", file, "--output", tmp_path / "out.csv"), "without an extension"),
        (("--input", file, "--output", file.parent / "out.npy", "--batch_size", 0), "--batch_size"),
        (("--input", file, "--output", tmp_path / "out.npy", "--file_name", "x.onnx"), "--backend onnx"),
        (("--input", file, "--output", tmp_path / "out.npy", "--num_processes", 10**8), "each holds a model"),
        (("--input", file, "--output", tmp_path / "out.npy", "--device", "tpu"), "--device tpu is not there"),
        (("--input", file, "--output", bad / "out.npy"), "is a file, not a folder"),
        (("--input", file, "--output", tmp_path), "was not written by this command"),
    ]:
        assert message in refused(capsys, "--model", model, *words)
    (tmp_path / "out.npy").touch()
    assert "--overwrite" in refused(capsys, "--model", model, "--input", file, "--output", tmp_path / "out.npy")
    assert (tmp_path / "out.npy").stat().st_size == 0
    column = tmp_path / "in.parquet"
    pq.write_table(pa.table({"text": ["a"]}), column)
    said = refused(capsys, "--model", model, "--input", column, "--output", column, "--overwrite")
    assert "is the --input" in said and pq.read_table(column).num_rows == 1
    assert not list(tmp_path.glob(".*"))


def test_the_command_says_what_it_did(model, file, tmp_path, capsys):
    main(["encode", "--model", model, "--input", str(file), "--output", str(tmp_path / "out.npy")])
    said = capsys.readouterr().out
    assert "30 rows of 16 float32 numbers" in said and "1 blank rows" in said and "next: " in said


def command(*words: object) -> list[str]:
    return [sys.executable, "-m", "hf_robustcse.cli", "encode", *map(str, words)]


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_stopped_run_leaves_no_process_and_no_half_file(how, model, tmp_path):
    (tmp_path / "texts.txt").write_text("".join(f"the dog sees book {n}\n" for n in range(400_000)))
    words = command("--model", model, "--input", tmp_path / "texts.txt", "--output", tmp_path / "out.npy")
    process = subprocess.Popen([*words, "--num_processes", "2"], start_new_session=True)
    part = tmp_path / ".out.npy.part"
    while not (part.exists() and part.stat().st_size > 1000):
        assert process.poll() is None
        time.sleep(0.2)
    process.send_signal(how)
    assert process.wait(60) == (143 if how is signal.SIGTERM else -signal.SIGKILL)
    left = [part.name] if how is signal.SIGKILL else []  # which the next run replaces
    assert sorted(path.name for path in tmp_path.iterdir()) == [*left, "texts.txt"]
    for _ in range(100):
        try:
            os.killpg(process.pid, 0)
        except ProcessLookupError:
            return
        time.sleep(0.2)
    raise AssertionError("a worker lives on")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["out.npy", "out.parquet", "shards"])
def test_memory_does_not_grow_with_the_file(name, model, tmp_path):
    peaks = []
    for rows in (20_000, 200_000):
        path, out = tmp_path / f"{rows}.txt", tmp_path / f"{rows}-{name}"
        path.write_text("".join(f"the dog sees book {n} in the garden\n" for n in range(rows)))
        words = command("--model", model, "--input", path, "--output", out, "--batch_size", "256")
        # Between us and the command stands a small process: what is started begins with the peak of its starter.
        watch = "import resource as r, subprocess, sys; print(subprocess.run(sys.argv[1:], stdout=2).returncode)\n"
        watch += "print(r.getrusage(r.RUSAGE_CHILDREN).ru_maxrss)"
        done = subprocess.run([sys.executable, "-c", watch, *words], stdout=subprocess.PIPE, text=True, check=True)
        status, peak = map(int, done.stdout.split())
        assert status == 0
        peaks.append(peak)
    # Ten times the rows are 13 MB of text and 12 MB of embeddings more; an allocator's noise is less.
    assert peaks[1] - peaks[0] < 8_000, peaks  # KiB on Linux
