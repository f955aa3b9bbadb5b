"""A dev set of the user's own: reading, bad rows, other scales, choosing the checkpoint."""

from __future__ import annotations

import csv
import gzip
import json
import math
import random

import numpy as np
import pytest
from tiny import SENTENCES, WORDS

from hf_robustcse.errors import UserError
from hf_robustcse.evaluation.dev_file import load_dev_file
from hf_robustcse.evaluation.geometry import evaluate_dev, evaluate_geometry, has_positives
from hf_robustcse.runs import parse_arguments, run

ROWS = [
    ("Мужчина играет на гитаре.", "Кто-то играет", 0.9),
    ("एक आदमी", "ein Mann, groß", -0.25),
    ("雨が降る", "晴れ", 1e-3),
]


def write(path, rows, header="score\tsentence1\tsentence2"):
    lines = [header, *("\t".join([str(s), a, b]) for a, b, s in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_formats_agree(tmp_path):
    plain = load_dev_file(write(tmp_path / "dev.tsv", ROWS))
    assert plain.pairs == ROWS and (plain.key, plain.split, plain.n) == ("dev_file", "dev", 3) and not plain.is_test
    with open(tmp_path / "dev.csv", "w", encoding="utf-8-sig", newline="") as file:
        writer = csv.writer(file)  # other order, another column, a comma inside, a byte order mark, CRLF
        writer.writerow(["sentence1", "note", "sentence2", "score"])
        writer.writerows([a, "x", f" {b}  ", s] for a, b, s in ROWS)
        writer.writerow([])
    packed = tmp_path / "DEV.CSV.gz"
    packed.write_bytes(gzip.compress((tmp_path / "dev.csv").read_bytes()))
    for path in (tmp_path / "dev.csv", packed):
        other = load_dev_file(path)
        assert other.pairs == ROWS and other.sha256 == plain.sha256 and other.source == str(path)
    changed = load_dev_file(write(tmp_path / "b.tsv", [*ROWS[:2], (*ROWS[2][:2], 1.0000001e-3)]))
    assert changed.sha256 != plain.sha256


HEADER = b"score\tsentence1\tsentence2\n"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "line 1: the header must name"),
        (b"score\ta\tb\n1\tx\ty\n", "line 1: the header must name the columns score, sentence1, sentence2"),
        (b"score\tscore\tsentence1\tsentence2\n", "line 1: the header must name"),
        (HEADER + b"1\tx\ty\n2\tx\n", "line 3: 2 fields, the header has 3"),
        (HEADER + b"1\tx\ty\nhigh\tx\ty\n", "line 3: the score 'high' is not a number"),
        (HEADER + b"4,5\tx\ty\n", "line 2: the score '4,5' is not a number; write 4.5"),
        (HEADER + b"\tx\ty\n", "line 2: the score '' is not a number$"),
        (HEADER + b"nan\tx\ty\n", "line 2: the score 'nan' is not finite"),
        (HEADER + b"-inf\tx\ty\n", "line 2: the score '-inf' is not finite"),
        (HEADER + b"1\tx\t \n", "line 2: an empty sentence"),
        (HEADER + b"1\tx\t\xff\n", "line 2 .*not UTF-8"),
        (HEADER + b"1\tx\ty\n\n", "has 1 pairs; a correlation needs at least two"),
        (HEADER + b"3\tx\ty\n3.0\tx\tz\n", "all 2 pairs have the score 3"),
    ],
)
def test_bad_files_are_named(tmp_path, content, words):
    path = tmp_path / "dev.tsv"
    path.write_bytes(content)
    with pytest.raises(UserError, match=words) as error:
        load_dev_file(path)
    assert str(path) in str(error.value)


def test_files_that_are_none(tmp_path):
    (tmp_path / "dev.txt").write_text("x")
    (tmp_path / "dev.csv").write_text('score,sentence1,sentence2\n1,"a,b\n')
    (tmp_path / "dev.tsv.gz").write_bytes(b"no gzip")
    for name, words in (
        ("nowhere.tsv", "does not exist"), ("dev.txt", "unknown extension; name it .tsv or .csv"), ("", "is no file"),
        ("dev.csv", "line 2"), ("dev.tsv.gz", "cannot be read"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=words):
            load_dev_file(tmp_path / name)


def encode(sentences):
    return np.array([np.random.default_rng(sum(map(ord, s))).normal(size=6) for s in sentences])


@pytest.mark.parametrize(
    ("scores", "like_sts"),
    [([0, 3, 4.5], True), ([5, 1, 2], True), ([0, 0.5, 1], False), ([-1, 0.2, 4.5], False), ([0, 40, 100], False),
     ([0, 4, 2], False)],
)  # fmt: skip
def test_alignment_only_on_the_scale_of_sts(tmp_path, scores, like_sts):
    rows = [(a, b, float(s)) for (a, b, _), s in zip(ROWS, scores, strict=True)]
    data = load_dev_file(write(tmp_path / "dev.tsv", rows))
    metrics = evaluate_dev(encode, data)
    assert has_positives(data) == like_sts == ("alignment" in metrics) == ("positive_cosine" in metrics)
    assert all(math.isfinite(value) for value in metrics.values()) and {"spearman", "random_cosine"} <= set(metrics)
    if like_sts:
        assert metrics["alignment"] == evaluate_geometry(encode, data.pairs)["alignment"]


# --- in training -----------------------------------------------------------------------------------------------------


@pytest.fixture
def corpus(tmp_path):
    path = tmp_path / "corpus.txt"
    path.write_text("\n".join(f"{a} {b}" for a in SENTENCES for b in SENTENCES), encoding="utf-8")
    return path


@pytest.fixture
def dev(tmp_path):
    draw = random.Random(0)
    rows = [(" ".join(draw.choices(WORDS, k=5)), " ".join(draw.choices(WORDS, k=5)), draw.random()) for _ in range(40)]
    return write(tmp_path / "dev.tsv", rows)


def train(bert, corpus, folder, *more):
    argv = [
        "--model_name_or_path", bert, "--train_file", corpus, "--output_dir", folder, "--max_steps", 6, "--eval_steps",
        2, "--per_device_train_batch_size", 8, "--learning_rate", "1e-3", "--use_cpu", "--disable_tqdm", "true", *more,
    ]  # fmt: skip
    return run(parse_arguments(list(map(str, argv))))


def test_it_chooses_the_checkpoint(bert, corpus, dev, tmp_path, capsys):
    results = train(bert, corpus, tmp_path / "run", "--dev_file", dev)
    printed = capsys.readouterr().out
    assert printed.count("alignment and positive_cosine, which are") == 1 and "embedded dev set" not in printed
    assert list(results["tasks"]) == list(results["before"]) == ["dev_file"]
    task = results["tasks"]["dev_file"]
    assert (task["split"], task["n"], task["source"]) == ("dev", 40, str(dev)) and "alignment" not in task
    assert results["selection"]["metric"] == "eval_dev_file_spearman" and not results["selection"]["on_test_set"]
    states = [json.loads(p.read_text()) for p in (tmp_path / "run").glob("checkpoint-*/trainer_state.json")]
    logs = max(states, key=lambda state: state["global_step"])["log_history"]
    scores = {log["step"]: log["eval_dev_file_spearman"] for log in logs if "eval_dev_file_spearman" in log}
    scores.pop(0, None)  # before training
    assert scores.keys() == {2, 4, 6} and task["spearman"] == max(scores.values())
    assert scores[results["selection"]["step"]] == max(scores.values())
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["evaluation"]["dev_file"]["sha256"] == task["sha256"]
    assert manifest["arguments"]["data"]["dev_file"] == str(dev)


def test_beside_other_sets_and_several_seeds(bert, corpus, dev, tmp_path):
    results = train(
        bert, corpus, tmp_path / "a", "--dev_file", dev, "--eval_tasks", "embedded_dev", "--seeds", 0, 1
    )  # fmt: skip
    assert list(results["tasks"]) == ["dev_file", "embedded_dev"] and "spearman_std" in results["tasks"]["dev_file"]
    assert (
        results["selection"]["metric"] == "eval_dev_file_spearman" and "alignment" in results["tasks"]["embedded_dev"]
    )
    alone = train(bert, corpus, tmp_path / "b", "--dev_file", dev, "--eval_tasks", "none", "--metric_for_best_model",
                  "dev_file_uniformity")  # fmt: skip
    assert list(alone["tasks"]) == ["dev_file"] and alone["selection"]["metric"] == "eval_dev_file_uniformity"


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--dev_file", "nowhere.tsv"], "--dev_file nowhere.tsv does not exist"),
        (["--dev_file", "dev.tsv", "--eval_strategy", "no"], "--eval_strategy no makes no use of --dev_file"),
        (
            ["--dev_file", "dev.tsv", "--metric_for_best_model", "dev_file_alignment"],
            "eval_dev_file_alignment does not",
        ),
        (["--dev_file", "dev.tsv", "--eval_tasks", "stsx"], "stsx"),
    ],
)
def test_refusals_write_nothing(bert, corpus, dev, tmp_path, monkeypatch, more, words):
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(UserError, match=words):
        train(bert, corpus, tmp_path / "run", *more)
    assert sorted(tmp_path.rglob("*")) == before
