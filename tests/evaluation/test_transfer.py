"""Transfer tasks: the reader, the guards, and the scores against plain scikit-learn."""

from __future__ import annotations

import dataclasses
import gzip
import json
import runpy
import sys
from collections.abc import Iterable
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch
import transfer_reference

from hf_robustcse.errors import UserError
from hf_robustcse.evaluation import transfer
from hf_robustcse.evaluation.run import format_tables, load_tasks, run_evaluation
from hf_robustcse.evaluation.sts import MissingData
from hf_robustcse.evaluation.transfer import (
    TransferData,
    evaluate_tasks,
    evaluate_transfer,
    find_task,
    load_transfer,
)

SCRIPT = Path(__file__).resolve().parents[2] / "examples" / "run_eval.py"
HEADER = "label\ttext\n"
PAIR_HEADER = "label\tsentence1\tsentence2\n"


def rows(n: int, start: int = 0, classes: int = 2, pairs: bool = False) -> list[tuple[int, tuple[str, ...]]]:
    """n rows, the classes in turn, no sentence twice."""
    sides = ("a", "b") if pairs else ("a",)
    return [(i % classes, tuple(f"{side} sentence {start + i}" for side in sides)) for i in range(n)]


def write(path: Path, rows: Iterable[tuple[int, tuple[str, ...]]]) -> Path:
    rows = list(rows)
    path.parent.mkdir(parents=True, exist_ok=True)
    header = PAIR_HEADER if len(rows[0][1]) == 2 else HEADER
    path.write_text(header + "".join(f"{label}\t" + "\t".join(texts) + "\n" for label, texts in rows), encoding="utf-8")
    return path


class Noisy:
    """An `encode` of 4 dimensions, of which one holds a hint of the label; counts its calls."""

    def __init__(self, data: Iterable[TransferData], scale: float = 1.0) -> None:
        rng = np.random.default_rng(0)
        self.vectors = {}
        for task in data:
            for part in task.splits.values():
                for label, texts in part:
                    for text in texts:
                        self.vectors[text] = scale * (rng.normal(size=4) + [label, 0, 0, 0])
        self.seen: list[str] = []

    def __call__(self, sentences: list[str]) -> np.ndarray:
        self.seen += sentences
        return np.array([self.vectors[sentence] for sentence in sentences])


def make(task: str, **sizes: int) -> TransferData:
    info = transfer.TASKS[task]
    splits = {
        split: rows(n, 1000 * place, info.classes, info.pairs) for place, (split, n) in enumerate(sizes.items(), 1)
    }
    return TransferData(task, splits, "memory", "0", "sentences" if task == "SST2" else None)


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few folds and penalties."""
    monkeypatch.setattr(transfer, "FOLDS", 3)
    monkeypatch.setattr(transfer, "PENALTIES", (64.0, 4.0, 0.25))


@pytest.fixture
def small(tmp_path: Path, quick: None, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder with all tasks but MPQA and TREC, 24 rows a file."""
    tasks = {}
    for place, (name, task) in enumerate(transfer.TASKS.items()):
        per_class = None if task.per_class is None else 12
        tasks[name] = dataclasses.replace(task, rows=dict.fromkeys(task.rows, (24,)), per_class=per_class)
        for number, file in enumerate(task.splits if name not in ("MPQA", "TREC") else ()):
            part = rows(24, 100 * place + 30 * number, task.classes, task.pairs)
            write(tmp_path / "data" / "transfer" / name / f"{file}.tsv", part)
    monkeypatch.setattr(transfer, "TASKS", tasks)
    return tmp_path / "data"


# --- reading ---------------------------------------------------------------------------------------------------------


def test_find_task() -> None:
    names = ["mr", "SST-2", "sst2", "Mrpc", "subj", "STS12", "sts", "", "transfer"]
    assert [find_task(name) for name in names] == ["MR", "SST2", "SST2", "MRPC", "SUBJ", None, None, None, None]
    with pytest.raises(UserError, match="unknown transfer task 'SNLI'; known: MR, CR"):
        load_transfer("SNLI", None)


def test_reads_conventions(tmp_path: Path, quick: None) -> None:
    lines = [
        '1\tHe said "no\n',  # a quote is an ordinary character
        "0\ta\u2028b\rc\n",  # only \n ends a line
        "1\tcrlf\r\n",
        "\n",
    ]
    path = write(tmp_path / "transfer" / "CR" / "all.tsv", rows(12))
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes() + "".join(lines).encode("utf-8"))
    data = load_transfer("cr", tmp_path, check_rows=False)
    assert data.splits["all"][12:] == [(1, ('He said "no',)), (0, ("a b c",)), (1, ("crlf",))]
    assert (data.task, data.key, data.split, data.n, data.train) == ("CR", "CR", "all", 15, None)
    assert data.source == str(path.parent) and len(data.sentences) == 15


def test_layouts_agree(tmp_path: Path, quick: None) -> None:
    for split, start in (("train", 0), ("test", 50)):
        part = rows(20, start, pairs=True)
        write(tmp_path / "plain" / "transfer" / "MRPC" / f"{split}.tsv", part)
        packed = write(tmp_path / "packed" / "MRPC" / f"{split}.tsv", reversed(part))
        packed.with_name(f"{split}.tsv.gz").write_bytes(gzip.compress(packed.read_bytes()))
        packed.unlink()
    first = load_transfer("MRPC", tmp_path / "plain", check_rows=False)
    assert first.splits["test"] == rows(20, 50, pairs=True) and (first.split, first.n) == ("test", 20)
    for folder in (tmp_path / "plain" / "transfer", tmp_path / "packed"):
        other = load_transfer("mrpc", str(folder), check_rows=False)
        assert other.sha256 == first.sha256
    write(tmp_path / "packed" / "MRPC" / "test.tsv", rows(20, 50, pairs=True))
    with pytest.raises(UserError, match="twice: remove one"):
        load_transfer("MRPC", tmp_path / "packed", check_rows=False)
    write(tmp_path / "plain" / "transfer" / "MRPC" / "test.tsv", rows(20, 51, pairs=True))
    assert load_transfer("MRPC", tmp_path / "plain", check_rows=False).sha256 != first.sha256


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("text\tlabels\n", "line 1: the header must be label<TAB>text"),
        ("", "is empty"),
        (HEADER, "CR all has no rows"),
        (HEADER + "1\ta\n1\n", "line 3: 1 fields"),
        (HEADER + "1\ta\tb\n", "line 2: 3 fields"),
        (HEADER + "a sentence\t1\n", "line 2: the label 'a sentence' is not an integer"),
        (HEADER + "1.0\ta\n", "line 2: the label '1.0' is not an integer"),
        (HEADER + "\ta\n", "line 2: the label '' is not an integer"),
        (HEADER + "2\ta\n", "line 2: the label 2 is not one of CR's, 0 to 1"),
        (HEADER + "-1\ta\n", "line 2: the label -1 is not one of"),
        (HEADER + "1\t \n", "line 2: an empty sentence"),
        (HEADER + "1\ta\n" * 30 + "0\tb\n" * 19, "CR all has 19 rows of class 0 in .*, and 20 are needed"),
    ],
)
def test_malformed_files_are_named(tmp_path: Path, content: str, words: str) -> None:
    path = tmp_path / "CR" / "all.tsv"
    path.parent.mkdir()
    path.write_text(content, encoding="utf-8")
    with pytest.raises(UserError, match=words) as caught:
        load_transfer("CR", tmp_path, check_rows=False)
    assert "needed" in words or str(path) in str(caught.value)
    assert not isinstance(caught.value, MissingData)


def test_row_guards(tmp_path: Path) -> None:
    for n in (3771, 3775):
        write(tmp_path / "CR" / "all.tsv", rows(n))
        assert load_transfer("CR", tmp_path).n == n
    write(tmp_path / "CR" / "all.tsv", rows(3770))
    with pytest.raises(UserError, match="CR all has 3770 rows in .*all.tsv, expected 3771 or 3775: it is cut off"):
        load_transfer("CR", tmp_path)
    write(tmp_path / "SUBJ" / "all.tsv", [(int(i >= 20), text) for i, (_, text) in enumerate(rows(5020))])
    with pytest.raises(UserError, match="5020 rows.*expected 10000: .*20 sentences of one class.* above 99"):
        load_transfer("SUBJ", tmp_path)
    write(tmp_path / "SUBJ" / "all.tsv", [(int(i >= 20), text) for i, (_, text) in enumerate(rows(10000))])
    with pytest.raises(UserError, match="SUBJ has 20 of class 0, 9980 of class 1 in .*, expected 5000 of each"):
        load_transfer("SUBJ", tmp_path)
    write(tmp_path / "SUBJ" / "all.tsv", rows(10000))
    assert load_transfer("SUBJ", tmp_path).n == 10000
    write(tmp_path / "MRPC" / "train.tsv", rows(3668, pairs=True))
    write(tmp_path / "MRPC" / "test.tsv", rows(1725, 5000, pairs=True))
    with pytest.raises(UserError, match="3668 rows.*expected 4076: that is GLUE's train set"):
        load_transfer("MRPC", tmp_path)


def test_sst2_trains_on_phrases_where_they_are(small: Path) -> None:
    folder = small / "transfer" / "SST2"
    assert load_transfer("SST2", small).train == "sentences"
    with pytest.raises(MissingData, match="SST2 train_phrases is not under .*train_phrases.tsv instead of train.tsv"):
        load_transfer("SST2", small, sst2_train="phrases")
    phrases = rows(24, 5000)
    packed = write(folder / "phrases", phrases)
    (folder / "train_phrases.tsv.gz").write_bytes(gzip.compress(packed.read_bytes()))
    for wanted in ("auto", "phrases"):
        data = load_transfer("sst2", small, sst2_train=wanted)
        assert data.train == "phrases" and data.splits["train"] == phrases and set(data.splits) == {
            "train", "dev", "test",
        }  # fmt: skip
    assert load_transfer("SST2", small, sst2_train="sentences").train == "sentences"
    (folder / "train.tsv").unlink()
    assert load_transfer("SST2", small).train == "phrases"
    with pytest.raises(MissingData, match="SST2 train is not under"):
        load_transfer("SST2", small, sst2_train="sentences")
    with pytest.raises(UserError, match="auto, phrases, sentences, not 'words'"):
        load_transfer("SST2", small, sst2_train="words")


def test_missing_data_say_what_to_put_where(tmp_path: Path) -> None:
    with pytest.raises(MissingData) as caught:
        load_transfer("TREC", tmp_path)
    for words in (
        "TREC train, test", str(tmp_path), "transfer/TREC/{train,test}.tsv", "5452, 500 rows", "labels 0 to 5",
        "label<TAB>text", "hf-robustcse prefetch --tasks transfer --to",
    ):  # fmt: skip
        assert words in str(caught.value)
    with pytest.raises(UserError, match="does not exist"):
        load_transfer("MR", tmp_path / "absent")


def test_hub(quick: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    calls = []

    def load_dataset(name: str, split: str, revision: str) -> datasets.Dataset:
        calls.append((name, split))
        part = rows({"train": 3668, "validation": 408, "test": 1725}[split], len(calls) * 5000, pairs=True)
        columns = {"label": [label for label, _ in part]}
        columns |= {f"text{side + 1}": [texts[side] for _, texts in part] for side in (0, 1)}
        return datasets.Dataset.from_dict(columns)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    data = load_transfer("MRPC", None)
    assert calls == [("SetFit/mrpc", "train"), ("SetFit/mrpc", "validation"), ("SetFit/mrpc", "test")]
    assert {split: len(part) for split, part in data.splits.items()} == {"train": 4076, "test": 1725}
    assert data.source == "hub:SetFit/mrpc@2e2058c90792fb6dc86125943e4d2f96a5155a6b"
    for split, part in data.splits.items():
        write(tmp_path / "MRPC" / f"{split}.tsv", part)
    assert load_transfer("MRPC", tmp_path).sha256 == data.sha256
    with pytest.raises(UserError, match="cornell-movie-review-data/rotten_tomatoes has no column text"):
        load_transfer("MR", None)
    cut = datasets.Dataset.from_dict({"label": [0, 1], "text": ["a", "b"]})
    monkeypatch.setattr(datasets, "load_dataset", lambda name, split, revision: cut)
    with pytest.raises(MissingData, match="SUBJ all has 4 rows in hub:SetFit/subj@f3c1162\\w+, expected 10000"):
        load_transfer("SUBJ", None)

    def unreachable(name: str, split: str, revision: str) -> datasets.Dataset:
        raise ConnectionError("Couldn't reach the Hub\nmore lines")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with pytest.raises(
        MissingData, match="SetFit/subj .*ConnectionError: Couldn't reach the Hub.*prefetch.*put transfer/SUBJ"
    ):
        load_transfer("SUBJ", None)


# --- scores ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("task", "sizes"),
    [
        ("MR", {"all": 150}),
        ("TREC", {"train": 180, "test": 60}),
        ("MRPC", {"train": 150, "test": 60}),
        ("SST2", {"train": 90, "dev": 60, "test": 60}),
    ],
)
def test_scores_against_plain_scikit_learn(
    task: str, sizes: dict[str, int], quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "DTYPE", np.float64)
    data = make(task, **sizes)
    encode = Noisy([data], scale=7.0)
    result = evaluate_transfer(encode, data, seed=3)
    assert len(encode.seen) == len(set(encode.seen))  # each distinct sentence once
    monkeypatch.setattr(transfer_reference, "FOLDS", 3)
    tables = {
        split: ([list(texts) for _, texts in part], np.array([label for label, _ in part]))
        for split, part in data.splits.items()
    }
    train = tables.get("train", tables.get("all"))
    grid = [1 / penalty for penalty in transfer.PENALTIES]
    expected = transfer_reference.evaluate(encode, train, tables.get("dev"), tables.get("test"), seed=3, grid=grid)
    assert {key: result[key] for key in expected} == pytest.approx(expected, abs=1e-9)
    assert result["accuracy"] == pytest.approx(sum(result["folds"]) / len(result["folds"]))
    assert len(result["folds"]) == len(result["penalty"]) == (3 if "all" in sizes else 1)
    assert set(result["penalty"]) <= set(transfer.PENALTIES)
    assert (result["n"], result["n_train"]) == (sizes.get("test", 150), sizes.get("train", 150))
    assert result["seed"] == 3 and result["not_converged"] == 0
    assert result.get("train") == ("sentences" if task == "SST2" else None)
    assert json.loads(json.dumps(result)) == result


def test_neither_scale_nor_threads_nor_kind_matter(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    data = make("MRPC", train=90, test=60)
    expected = evaluate_transfer(Noisy([data]), data)
    assert evaluate_transfer(Noisy([data], scale=2.0**20), data) == expected
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    assert evaluate_transfer(lambda s: torch.from_numpy(Noisy([data])(s)).requires_grad_(), data) == expected
    data = make("MR", all=90)
    assert evaluate_transfer(Noisy([data]), data, seed=1)["folds"] != evaluate_transfer(Noisy([data]), data)["folds"]


def test_degenerate_embeddings(quick: None) -> None:
    data = make("MR", all=90)
    for value in (0.0, 1.0):  # equal embeddings: one class is predicted throughout
        result = evaluate_transfer(lambda sentences, value=value: np.full((len(sentences), 3), value), data)
        assert result["accuracy"] == pytest.approx(50) and result["penalty"] == [64.0] * 3
    with pytest.raises(UserError, match="1 of 90 embeddings hold a NaN"):
        evaluate_transfer(lambda s: np.where(np.arange(len(s)) == 2, np.nan, 1.0)[:, None], data)


def test_fits_that_do_not_converge_are_counted(
    quick: None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, recwarn: pytest.WarningsRecorder
) -> None:
    monkeypatch.setattr(transfer, "MAX_ITER", 1)
    data = make("MR", all=90)
    result = evaluate_transfer(Noisy([data]), data)
    assert result["not_converged"] > 0 and not recwarn
    assert f"MR: {result['not_converged']} of 30 regressions did not converge in 1 steps" in capsys.readouterr().err


def test_tasks_share_sentences_and_averages_need_all_members(quick: None) -> None:
    sizes = {"train": 36, "dev": 24, "test": 24}
    tasks = []
    for name, info in transfer.TASKS.items():
        tasks.append(make(name, **{split: sizes.get(split, 36) for split in info.splits}))
    encode = Noisy(tasks)
    result = evaluate_tasks(encode, tasks)
    assert len(encode.seen) == len(set(encode.seen))
    scores = {name: record["accuracy"] for name, record in result["tasks"].items()}
    assert list(scores) == list(transfer.TASKS) and result["missing"] == []
    seven, six = result["averages"]["transfer"], result["averages"]["transfer_6"]
    assert seven == pytest.approx(sum(scores.values()) / 7)
    assert six == pytest.approx((sum(scores.values()) - scores["TREC"]) / 6)
    without = evaluate_tasks(encode, [data for data in tasks if data.task != "TREC"])
    assert without["averages"] == {"transfer": None, "transfer_6": pytest.approx(six)}
    assert without["missing"] == ["TREC"] and without["tasks"]["MR"] == result["tasks"]["MR"]
    assert evaluate_tasks(encode, tasks[:2])["averages"] == {"transfer": None, "transfer_6": None}


# --- the command -----------------------------------------------------------------------------------------------------


def run(bert: Path, tasks: list[str], data: Path, **options: object) -> dict:
    return run_evaluation(str(bert), tasks, data, pooling="mean", device="cpu", **options)


def test_group_with_missing_members(bert: Path, small: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    output = tmp_path / "out.json"
    results = run(bert, ["transfer", "embedded_dev", "mr"], small, output_json=output, seed=5)
    assert json.loads(output.read_text(encoding="utf-8")) == results
    assert list(results["tasks"]) == ["embedded_dev", "MR", "CR", "SUBJ", "SST2", "MRPC"]
    assert results["averages"] == {"sts": None, "transfer": None, "transfer_6": None}
    assert [entry["task"] for entry in results["missing"]] == ["MPQA", "TREC"]
    assert results["protocol"]["transfer"]["folds"] == 3 and results["library_versions"]["scikit-learn"]
    record = results["tasks"]["MR"]
    assert set(record) == {
        "accuracy", "folds", "dev_accuracy", "penalty", "n", "n_train", "seed", "not_converged", "split", "source",
        "sha256",
    }  # fmt: skip
    assert (record["seed"], record["split"], record["n"]) == (5, "all", 24)
    assert results["tasks"]["SST2"]["train"] == "sentences" and "f1" in results["tasks"]["MRPC"]
    printed = capsys.readouterr()
    assert "MISSING MPQA all is not under" in printed.err and "MISSING TREC train, test" in printed.err
    assert "MISSING MPQA, TREC: the average of the seven transfer tasks is not reported" in printed.err
    table = {line.split()[0]: line.split()[1:] for line in printed.out.splitlines() if line}
    assert table["MR"] == [f"{record['accuracy']:.2f}", f"{record['dev_accuracy']:.2f}", "24"]
    assert table["SST2"][-3:] == ["trained", "on", "sentences"] and len(table["MRPC"]) == 4
    assert table["average"] == ["-"] and table["missing:"] == ["MPQA,", "TREC"]


def test_complete_group_has_averages(bert: Path, small: Path, capsys: pytest.CaptureFixture) -> None:
    write(small / "transfer" / "MPQA" / "all.tsv", rows(24, 8000))
    for split, start in (("train", 9000), ("test", 9500)):
        write(small / "transfer" / "TREC" / f"{split}.tsv", rows(24, start, classes=4))
    with pytest.raises(UserError, match="TREC train has 0 rows of class 4"):
        run(bert, ["transfer"], small)
    transfer.TASKS["TREC"] = dataclasses.replace(transfer.TASKS["TREC"], classes=4)
    results = run(bert, ["transfer"], small, strict=True)
    assert results["missing"] == [] and results["averages"]["transfer"] is not None
    lines = capsys.readouterr().out.splitlines()
    assert f"average       {results['averages']['transfer']:>8.2f}" in lines
    assert f"without TREC  {results['averages']['transfer_6']:>8.2f}" in lines
    assert "missing" not in format_tables(results)


@pytest.mark.parametrize(
    ("tasks", "options", "words"),
    [
        (["transfer", "trec"], {}, "TREC train, test is not under"),
        (["MPQA"], {}, "MPQA all is not under"),
        (["transfer"], {"strict": True}, "missing of the group transfer: MPQA, TREC. MPQA all"),
        (["MR"], {"split": "dev"}, "leave --split dev out"),
        (["SST2"], {"sst2_train": "phrases"}, "train_phrases is not under"),
    ],
)
def test_refusals(bert: Path, small: Path, tasks: list[str], options: dict, words: str) -> None:
    with pytest.raises(UserError, match=words):
        run(bert, tasks, small, **options)


def test_training_refuses_transfer_tasks() -> None:
    for name in ("transfer", "mr"):
        with pytest.raises(UserError, match=f"{name} is a transfer task, which examples/run_eval.py scores"):
            load_tasks([name])


def test_script(
    bert: Path, small: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, tmp_path: Path
) -> None:
    output = tmp_path / "out.json"
    arguments = ["--model_name_or_path", str(bert), "--pooling", "cls", "--device", "cpu", "--tasks", "CR", "sst-2"]
    arguments += ["--data_dir", str(small), "--output_json", str(output), "--sst2_train", "sentences"]
    monkeypatch.setattr(sys, "argv", [str(SCRIPT), *arguments])
    runpy.run_path(str(SCRIPT), run_name="__main__")
    assert list(json.loads(output.read_text(encoding="utf-8"))["tasks"]) == ["CR", "SST2"]
    assert "transfer: accuracy x100" in capsys.readouterr().out
    path = small / "transfer" / "CR" / "all.tsv"
    path.write_text(path.read_text(encoding="utf-8").replace("\n1\t", "\nx\t", 1), encoding="utf-8")
    with pytest.raises(SystemExit) as caught:
        runpy.run_path(str(SCRIPT), run_name="__main__")
    assert caught.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: {path}, line 3: the label 'x' is not an integer")


@pytest.mark.slow
def test_real_data_against_plain_scikit_learn(benchmark_data: Path) -> None:
    from hf_robustcse.evaluation.embedders import load_embedder

    encoder = Path(transfer.__file__).parents[1] / "assets" / "encoder"
    tasks = [
        load_transfer(name, benchmark_data, sst2_train="sentences") for name in ("MR", "CR", "SUBJ", "SST2", "MRPC")
    ]
    sentences = list(dict.fromkeys(sentence for data in tasks for sentence in data.sentences))
    embedded = load_embedder(str(encoder), pooling="mean", device="cpu", batch_size=128)(sentences)
    table = dict(zip(sentences, embedded, strict=True))

    def encode(texts: list[str]) -> np.ndarray:
        return np.stack([table[" ".join(text.split())] for text in texts])

    scores = evaluate_tasks(encode, tasks)["tasks"]
    for name, record in scores.items():
        expected = transfer_reference.evaluate_folder(encode, benchmark_data / "transfer", name, "train")
        assert record["not_converged"] == 0
        assert {key: record[key] for key in expected} == pytest.approx(expected, abs=0.5), name
