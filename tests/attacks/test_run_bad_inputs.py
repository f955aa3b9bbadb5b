"""Bad input to `run_attack.py`: exit code 2, one line that says what is wrong, and nothing written."""

from __future__ import annotations

import json

import pytest
from run_attack_tools import attack, make_classifier, make_synonyms, rows, write_rows
from tiny import make_encoder

GOOD = "label\ttext\n0\ta dog runs\n1\tthe cat sleeps\n"


@pytest.fixture(scope="module")
def ground(tmp_path_factory):
    folder = tmp_path_factory.mktemp("attack")
    make_classifier(folder / "classifier")
    make_classifier(folder / "three", num_labels=3)
    make_classifier(folder / "one", num_labels=1)
    make_encoder(folder / "encoder")
    make_synonyms(folder / "synonyms.txt")
    write_rows(folder / "mr.tsv", rows(12))
    for name, text in {
        "bad_label.tsv": "label\ttext\n0\ta dog\n7\ta cat\n",
        "no_label.tsv": "text\na dog\n",
        "words.tsv": "label\ttext\npositive\ta dog\n",
        "fields.tsv": "label\ttext\n0\ta dog\n1\ta\tcat\n",
        "empty.tsv": "label\ttext\n",
        "nothing.tsv": "",
        "mr.txt": GOOD,
        "zeros.tsv": "label\ttext\n0\ta dog\n",
        "half.jsonl": '{"label": 0.7, "text": "a dog"}\n',
        "infinite.jsonl": '{"label": Infinity, "text": "a dog"}\n',
        "figures.json": json.dumps({"attacks": {"MR": {"pwws": {"n": 0}}}}),
        "quote.csv": 'label,text\n0,"a dog\n1,a cat\n',
        "bad.jsonl": '{"label": 0, "text": "a dog"}\n{"label": 0, "text"\n',
        "surrogate.jsonl": '{"label": 0, "text": "a \\ud800 dog"}\n',
        "number.jsonl": '{"label": 0, "text": 5}\n',
        "model/config.json": "{}",
        "file": "x",
        "run/manifest.json": json.dumps({"identity": {}}),
    }.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "binary.tsv").write_bytes(b"label\ttext\n0\t\xff\xfe\n")
    return folder


CASES = {
    "no task": ({"task": None}, "--task must be given"),
    "unknown task": ({"task": "MRX"}, "unknown task 'MRX'; known: MR, IMDB"),
    "unknown attack": ({"attack": "nothing"}, "unknown attack 'nothing'; known: textfooler"),
    "unknown option": ({"colour": "red"}, "unrecognized arguments: --colour"),
    "no examples": ({"num_examples": 0}, "--num_examples must be at least 1"),
    "no width": ({"width": 0}, "--width must be at least 1"),
    "negative budget": ({"query_budget": -1}, "--query_budget must be at least 1"),
    "not a number": ({"num_examples": "many"}, "invalid int value: 'many'"),
    "absent file": ({"data_file": "{}/absent.tsv"}, "there is no file"),
    "folder": ({"data_file": "{}"}, "there is no file"),
    "suffix": ({"data_file": "{}/mr.txt"}, "mr.txt: a .tsv, .csv or .jsonl file with a header"),
    "label": ({"data_file": "{}/bad_label.tsv"}, "bad_label.tsv, line 3: the label 7"),
    "no label": ({"data_file": "{}/no_label.tsv"}, "no_label.tsv, line 2: there is no column label"),
    "label in words": ({"data_file": "{}/words.tsv"}, "words.tsv, line 2: the label 'positive' is not a number"),
    "fields": ({"data_file": "{}/fields.tsv"}, "fields.tsv, line 3: 3 fields, the header has 2"),
    "no rows": ({"data_file": "{}/empty.tsv"}, "empty.tsv has no rows"),
    "empty file": ({"data_file": "{}/nothing.tsv"}, "nothing.tsv has no rows"),
    "open quote": ({"data_file": "{}/quote.csv"}, "quote.csv: line 2 is not CSV"),
    "JSON": ({"data_file": "{}/bad.jsonl"}, "bad.jsonl: line 2 is not JSON"),
    "surrogate": ({"data_file": "{}/surrogate.jsonl"}, "surrogate.jsonl, line 1: a text that is not valid Unicode"),
    "text": ({"data_file": "{}/number.jsonl"}, "number.jsonl, line 1: the text is not a text"),
    "bytes": ({"data_file": "{}/binary.tsv"}, "binary.tsv: line 2 is not UTF-8"),
    "columns": ({"task": "SNLI"}, "line 2: there is no column sentence1"),
    "own without a file": ({"task": "own", "data_file": None}, "--task own is for rows of your own"),
    "data folder": ({"data_file": None, "data_dir": "{}/absent"}, "absent does not exist"),
    "no data": ({"data_file": None, "data_dir": "{}/model"}, "MR all is not under"),
    "absent model": ({"model_name_or_path": "{}/absent"}, "there is no model folder"),
    "empty model": ({"model_name_or_path": "{}/model"}, "cannot be loaded"),
    "classes": ({"model_name_or_path": "{}/three"}, "three has 3 classes, and MR has 2"),
    "encoder as classifier": ({"model_name_or_path": "{}/encoder", "victim": "classifier"}, "not a classifier"),
    "no training data": ({"model_name_or_path": "{}/encoder", "data_dir": "{}/model"}, "nothing to train a victim on"),
    "little training data": (
        {"model_name_or_path": "{}/encoder", "train_file": "{}/mr.tsv"}, "a victim needs 10 rows of each of 2 classes"),
    "absent training data": ({"model_name_or_path": "{}/encoder", "train_file": "{}/no.tsv"}, "there is no file"),
    "synonyms": ({"synonyms": "{}/absent.txt"}, "absent.txt"),
    "resource": ({"attack": "textfooler"}, "--attack textfooler: this recipe needs word neighbours"),
    "parameter": ({"parameter": "k=8"}, "--parameter k=8 is no parameter of these attacks (pwws: none)"),
    "output file": ({"output_dir": "{}/file"}, "file is a file"),
    "output of another kind": ({"output_dir": "{}/run"}, "holds a model or another kind of run"),
    "output is a model": ({"output_dir": "{}/classifier"}, "holds a model or another kind of run"),
    "length": ({"max_seq_length": 1}, "--max_seq_length must be at least 3"),
    "device": ({"device": "foo"}, "--device foo is not to be had"),
    "seed": ({"seed": -1}, "--seed must be at least 0"),
    "half a label": ({"data_file": "{}/half.jsonl"}, "half.jsonl, line 1: the label 0.7 is not a whole number"),
    "endless label": ({"data_file": "{}/infinite.jsonl"}, "infinite.jsonl, line 1: the label inf is not a number"),
    "regression": (
        {"model_name_or_path": "{}/one", "task": "own", "data_file": "{}/zeros.tsv"}, "one has one output"),
    "figure without figures": ({"figure": "{}/figures.json"}, "is no results.json with attacks"),
    "figure of nothing": ({"figure": "{}/model"}, "is no results.json with attacks"),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_bad_input(case, ground, tmp_path, monkeypatch, capfd):
    changes, message = CASES[case]
    out = tmp_path / "out"
    options = {
        "model_name_or_path": "{}/classifier", "task": "MR", "data_file": "{}/mr.tsv", "attack": "pwws",
        "synonyms": "{}/synonyms.txt", "output_dir": out, **changes,
    }  # fmt: skip
    words = [word for name, value in options.items() if value is not None
             for word in (f"--{name}", str(value).replace("{}", str(ground)))]  # fmt: skip
    before = {path: path.stat().st_mtime_ns for path in ground.rglob("*")}
    assert attack(monkeypatch, *words) == 2
    error = [line for line in capfd.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(error) == 1 and message in error[0], error
    assert not out.exists()
    assert {path: path.stat().st_mtime_ns for path in ground.rglob("*")} == before
