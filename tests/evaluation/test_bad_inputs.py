"""The list of bad inputs to evaluation: each one line that names file and line, exit code 2, nothing written."""

from __future__ import annotations

import dataclasses
import gzip
import json
import re
import runpy
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from hf_robustcse.evaluation import sts, transfer

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "run_eval.py"
STSB, SICKR, CR, MRPC = (
    Path("sts/STSB/test.tsv"), Path("sts/SICKR/test.tsv"), Path("transfer/CR/all.tsv"), Path("transfer/MRPC/test.tsv"),
)  # fmt: skip


@pytest.fixture
def data(tmp_path: Path, sentences: list, pairs: list, write_tsv: Callable, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A good data folder: STSB and SICKR of 30 pairs, CR and MRPC of 40 rows a file, as the tables then say."""
    folder = tmp_path / "data"
    for name in ("STSB", "SICKR"):
        monkeypatch.setitem(sts.TASKS, name, dataclasses.replace(sts.TASKS[name], rows={"test": 30}))
        write_tsv(folder / "sts" / name / "test.tsv", [(a, b, max(score, 1.0)) for a, b, score in pairs[:30]])
    for name, files in {"CR": ("all",), "MRPC": ("train", "test")}.items():
        task = dataclasses.replace(transfer.TASKS[name], rows=dict.fromkeys(files, (40,)))
        monkeypatch.setitem(transfer.TASKS, name, task)
        for file in files:
            texts = sentences[:40], sentences[1:41]
            rows = ["\t".join(task.header)]
            rows += [f"{i % 2}\t" + "\t".join(side[i] for side in texts[: 1 + task.pairs]) for i in range(40)]
            path = folder / "transfer" / name / f"{file}.tsv"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    return folder


def run(monkeypatch: pytest.MonkeyPatch, *words: str | Path) -> None:
    monkeypatch.setattr(sys, "argv", list(map(str, (SCRIPT, *words))))
    runpy.run_path(str(SCRIPT), run_name="__main__")


def refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, output: Path, *words: str | Path) -> str:
    """The line that the command ends with."""
    with pytest.raises(SystemExit) as caught:
        run(monkeypatch, *words, "--output_json", output)
    lines = [line for line in capsys.readouterr().err.splitlines() if line.strip()]
    assert caught.value.code == 2 and not output.exists() and lines[-1].startswith("error: ")
    assert not [line for line in lines if "Traceback" in line]
    return lines[-1]


def replace(old: bytes, new: bytes) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        content = path.read_bytes()
        assert old in content
        path.write_bytes(content.replace(old, new, 1))

    return change


def line(number: int, text: str) -> Callable[[Path], None]:
    """Put `text` in the place of a line, counted from 1."""

    def change(path: Path) -> None:
        lines = path.read_text(encoding="utf-8").split("\n")
        lines[number - 1] = text
        path.write_text("\n".join(lines), encoding="utf-8")

    return change


def columns(order: list[int], header: bool) -> Callable[[Path], None]:
    """Reorder the columns, those of the header too or not."""

    def change(path: Path) -> None:
        rows = [row.split("\t") for row in path.read_text(encoding="utf-8").split("\n")[:-1]]
        moved = [row if place == 0 and not header else [row[i] for i in order] for place, row in enumerate(rows)]
        path.write_text("".join("\t".join(row) + "\n" for row in moved), encoding="utf-8")

    return change


def cut(part: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    return lambda path: path.write_bytes(part(path.read_bytes()))


def cut_gzip(path: Path) -> None:
    packed = gzip.compress(path.read_bytes())
    path.unlink()
    path.with_name(f"{path.name}.gz").write_bytes(packed[: len(packed) // 2])


def folder_instead(path: Path) -> None:
    path.unlink()
    path.mkdir()


def twice(path: Path) -> None:
    path.with_name(f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))


FILES = {
    "cut off within a line": (STSB, cut(lambda text: text[: text.rindex(b"\t") - 3]), "line 31: 2 fields .*cut off"),
    "cut off within the score": (STSB, cut(lambda text: text[: text.rindex(b"\n", 0, -1) + 2]), "line 31: 1 fields"),
    "cut off between lines": (
        STSB,
        cut(lambda text: text[: text.rindex(b"\n", 0, -1) + 1]),
        "has 29 pairs.*expected 30",
    ),
    "cut off and packed": (STSB, cut_gzip, "test.tsv.gz: cannot be read, is it damaged, cut short"),
    "transfer cut off": (CR, cut(lambda text: text[: text.rindex(b"\t")]), "line 41: 1 fields .*cut off"),
    "transfer cut off between lines": (MRPC, cut(lambda text: text[: text.rindex(b"\n", 0, -1) + 1]), "has 39 rows"),
    "transfer cut off and packed": (CR, cut_gzip, "all.tsv.gz: cannot be read, is it damaged, cut short"),
    "a line too many": (STSB, cut(lambda text: text + b"1\ta\tb\n"), "has 31 pairs .*expected 30"),
    "score column moved to the end": (
        STSB,
        columns([1, 2, 0], header=False),
        "line 2: the score '.*are the columns as",
    ),
    "score and sentence2 exchanged": (
        STSB,
        columns([2, 1, 0], header=False),
        "line 2: the score '.*are the columns as",
    ),
    "label column moved": (
        MRPC,
        columns([2, 1, 0], header=False),
        "line 2: the label '.*are the columns as the header",
    ),
    "score too high": (STSB, line(7, "5.5\ta\tb"), "line 7: the score 5.5 is outside 0 to 5"),
    "score negative": (STSB, line(7, "-1\ta\tb"), "line 7: the score -1 is outside 0 to 5"),
    "score too low for SICK": (SICKR, line(7, "0.5\ta\tb"), "line 7: the score 0.5 is outside 1 to 5"),
    "score not a number": (STSB, line(7, "NaN\ta\tb"), "line 7: the score nan is outside 0 to 5"),
    "score with a comma": (STSB, line(7, "1,5\ta\tb"), "line 7: the score '1,5' is not a number"),
    "empty sentence": (STSB, line(7, "1\t \tb"), "line 7: an empty sentence"),
    "nothing but a header": (STSB, cut(lambda text: text[: text.index(b"\n") + 1]), "has 0 pairs .*expected 30"),
    "nothing": (STSB, cut(lambda text: b""), "is empty: the header must be score<TAB>sentence1<TAB>sentence2"),
    "no rows of transfer": (MRPC, cut(lambda text: text[: text.index(b"\n") + 1]), "MRPC test has no rows"),
    "label out of range": (CR, line(7, "2\ta"), "line 7: the label 2 is not one of CR's, 0 to 1"),
    "label of words": (CR, line(7, "positive\ta"), "line 7: the label 'positive' is not an integer"),
    "a class is missing": (CR, cut(lambda text: text.replace(b"\n0\t", b"\n1\t")), "CR all has 0 rows of class 0"),
    "not UTF-8": (
        STSB,
        cut(lambda text: text.replace(b"\n", b" caf\xe9\n", 9).replace(b" caf\xe9", b"", 8)),
        "line 9 is not",
    ),
    "UTF-16": (STSB, cut(lambda text: text.decode().encode("utf-16")), "line 1 holds a NUL byte; .*Save text as UTF-8"),
    "binary": (STSB, cut(lambda text: text[:200] + b"\0" + text[200:]), "line .* holds a NUL byte"),
    "a folder in its place": (STSB, folder_instead, "test.tsv: cannot be read.*Is a directory"),
    "packed and unpacked": (STSB, twice, "are one file twice: remove one"),
    "no header": (
        STSB,
        cut(lambda text: text[text.index(b"\n") + 1 :]),
        "line 1: the header must be score<TAB>sentence1",
    ),
    "a column twice": (STSB, replace(b"sentence2", b"sentence1"), "line 1: the header must be"),
    "header twice": (STSB, line(9, "score\tsentence1\tsentence2"), "line 9: the header is there again"),
    "header of transfer twice": (MRPC, line(9, "label\tsentence1\tsentence2"), "line 9: the header is there again"),
    "another separator": (STSB, cut(lambda text: text.replace(b"\t", b",")), "line 1: the header must be"),
}


@pytest.mark.parametrize("case", FILES)
def test_bad_file(
    case: str, data: Path, tmp_path: Path, bert: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    file, change, words = FILES[case]
    change(data / file)
    message = refused(
        monkeypatch,
        capsys,
        tmp_path / "out.json",
        "--model_name_or_path",
        bert,
        "--tasks",
        file.parts[1],
        "--data_dir",
        data,
    )
    assert str((data / file).parent) in message
    assert re.search(words, message), message


GOOD = {
    "byte-order mark": (STSB, cut(lambda text: b"\xef\xbb\xbf" + text)),
    "CRLF": (STSB, cut(lambda text: text.replace(b"\n", b"\r\n"))),
    "CRLF of transfer": (MRPC, cut(lambda text: text.replace(b"\n", b"\r\n"))),
    "no line end at the end": (STSB, cut(lambda text: text[:-1])),
    "empty lines at the end": (STSB, cut(lambda text: text + b"\n\r\n")),
    "columns in another order": (STSB, columns([2, 0, 1], header=True)),
    "columns of transfer in another order": (MRPC, columns([1, 2, 0], header=True)),
}


@pytest.mark.parametrize("case", GOOD)
def test_harmless_differences_change_no_row(case: str, data: Path) -> None:
    file, change = GOOD[case]
    load = sts.load_sts if file.parts[0] == "sts" else transfer.load_transfer
    before = load(file.parts[1], data)
    change(data / file)
    assert load(file.parts[1], data).sha256 == before.sha256


def test_bad_folder(
    data: Path, tmp_path: Path, bert: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    model = ("--model_name_or_path", bert, "--tasks")
    output = tmp_path / "out.json"
    message = refused(monkeypatch, capsys, output, *model, "STSB", "--data_dir", data / STSB)
    assert "test.tsv does not exist or is not a folder" in message
    message = refused(monkeypatch, capsys, output, *model, "STSB", "--data_dir", tmp_path / "absent")
    assert "absent does not exist or is not a folder" in message
    message = refused(monkeypatch, capsys, output, *model, "STS14", "--data_dir", data)
    assert "sts/STS14/{OnWN,deft-forum" in message
    assert f"hf-robustcse prefetch --tasks sts --to {data}" in message and f"--data_dir {data}" in message
    message = refused(monkeypatch, capsys, output, *model, "TREC", "--data_dir", data)
    assert "transfer/TREC/{train,test}.tsv" in message
    assert f"hf-robustcse prefetch --tasks transfer --to {data}" in message
    (data / "MANIFEST.json").write_text('{"files": {"sts/STSB', encoding="utf-8")
    message = refused(monkeypatch, capsys, output, *model, "STSB", "--data_dir", data)
    assert "MANIFEST.json is damaged: delete it and run hf-robustcse prefetch again" in message


def test_bad_model(
    data: Path, tmp_path: Path, bert: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    broken = shutil.copytree(bert, tmp_path / "broken")
    words = ("--model_name_or_path", broken, "--pooling", "mean", "--data_dir", data, "--device", "cpu", "--tasks")
    output = tmp_path / "out.json"
    weights = load_file(broken / "model.safetensors")
    name = "embeddings.LayerNorm.weight"
    save_file(weights | {name: weights[name] * float("nan")}, broken / "model.safetensors", metadata={"format": "pt"})
    first = {task: (data / file).read_text(encoding="utf-8").split("\n")[1].split("\t")[1]
             for task, file in (("STSB", STSB), ("CR", CR))}  # fmt: skip
    for task in first:
        message = refused(monkeypatch, capsys, output, *words, task)
        assert f"hold a NaN or an infinity, first that of {first[task]!r}: the model {broken} is broken" in message
    content = (bert / "model.safetensors").read_bytes()
    (broken / "model.safetensors").write_bytes(content[: len(content) // 2])
    assert "model.safetensors is cut off" in refused(monkeypatch, capsys, output, *words, "STSB")
    (broken / "model.safetensors").write_bytes(content)
    (broken / "config.json").write_text((bert / "config.json").read_text(encoding="utf-8")[:60], encoding="utf-8")
    assert "config.json is not JSON" in refused(monkeypatch, capsys, output, *words, "STSB")


def test_bad_text_to_probe(
    tmp_path: Path, bert: Path, sentences: list, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    text = tmp_path / "text.jsonl"
    text.write_text("".join(json.dumps({"text": sentence}) + "\n" for sentence in sentences)[:-12], encoding="utf-8")
    (tmp_path / "data").mkdir()
    words = (
        "--model_name_or_path",
        bert,
        "--tasks",
        "geometry",
        "--data_dir",
        tmp_path / "data",
        "--geometry_text",
        text,
    )
    message = refused(monkeypatch, capsys, tmp_path / "out.json", *words)
    assert str(text) in message and "line 60 is not JSON" in message
