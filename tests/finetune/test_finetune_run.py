"""`run_finetune.py` from its command line to its files, on tiny data and a tiny encoder."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import sys
from pathlib import Path

import datasets
import pytest
from tiny import SENTENCES, make_tokenizer
from transformers import AutoModelForQuestionAnswering, AutoModelForSequenceClassification, AutoTokenizer

from hf_robustcse.errors import UserError
from hf_robustcse.evaluation import known_sets
from hf_robustcse.finetune import tasks
from hf_robustcse.finetune.kinds import make_kind
from hf_robustcse.finetune.known import score_known
from hf_robustcse.finetune.run import parse_arguments, run

ROOT = Path(__file__).parents[2]


@pytest.fixture
def data(tmp_path, monkeypatch) -> Path:
    """A data folder with RTE, ANLI's parts, STS-B, SQuAD and DialogRE, each of a few rows, and guards to match."""

    def guard(name: str, **rows: int) -> None:
        source = dataclasses.replace(tasks.SOURCES[name], rows={**tasks.SOURCES[name].rows, **rows})
        monkeypatch.setitem(tasks.SOURCES, name, source)

    folder = tmp_path / "data"

    def put(path: str, text: str) -> None:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text, encoding="utf-8")

    def pairs(n: int, classes: int, column: str = "label") -> str:
        rows = (f"{i % classes}\t{SENTENCES[i % 10]}\t{SENTENCES[(i * 3) % 10]}\n" for i in range(n))
        return f"{column}\tsentence1\tsentence2\n" + "".join(rows)

    guard("RTE", dev=12)
    put("glue/RTE/train.tsv", pairs(20, 2))
    put("glue/RTE/dev.tsv", pairs(12, 2))
    for number, dev, test in ((1, 6, 6), (2, 9, 9), (3, 6, 12)):
        guard(f"ANLI_R{number}", dev=dev, test=test)
        put(f"nli/ANLI_R{number}/dev.tsv", pairs(dev, 3))
        if number < 3:
            put(f"nli/ANLI_R{number}/test.tsv", pairs(test, 3))
    put("nli/SNLI/train.tsv", pairs(12, 3))
    put("nli/MNLI/train.tsv", pairs(9, 3))
    guard("STSB", dev=12, test=12)
    for split in ("train", "dev", "test"):
        put(f"sts/STSB/{split}.tsv", pairs(12, 6, "score"))
    question = [
        {
            "context": text,
            "question": "who sees the dog",
            "answers": {"text": [word], "answer_start": [text.index(word)]},
        }
        for text, word in ((text, text.split()[1]) for text in SENTENCES)
    ]
    put("squad/train_subset.json", json.dumps(question))
    put("squad/eval_subset.json", json.dumps(question[:6]))
    arguments = [
        {"x": "Speaker 1", "y": "dog", "rid": [3], "t": [""]},
        {"x": "Speaker 2", "y": "cat", "rid": [37], "t": [""]},
    ]
    dialogue = [["Speaker 1: the dog runs", "Speaker 2: the cat sees a bird"], arguments]
    guard("DialogRE", dev=4, test=4)
    for split in ("train", "dev", "test"):
        put(f"dialogre/{split}.json", json.dumps([dialogue] * 2))
    return folder


def go(*words: str | Path) -> dict:
    common = ["--use_cpu", "--max_steps", "2", "--per_device_train_batch_size", "4", "--robust_operators", "typos"]
    return run(parse_arguments([*common, *map(str, words)]))


def test_a_run_leaves_model_results_and_robust_sets(bert, data, tmp_path, capsys):
    out = tmp_path / "out"
    results = go("--task", "rte", "--model_name_or_path", bert, "--data_dir", data, "--output_dir", out)
    assert results == json.loads((out / "results.json").read_text(encoding="utf-8"))
    record = results["tasks"]["RTE"]
    assert record["n"] == 12 and record["split"] == "dev" and record["complete"]
    sets = datasets.load_from_disk(str(out / "robust_sets" / "RTE"))
    assert len(sets["original"]) == len(sets["robust"]) == 12
    changed = [a != b for a, b in zip(sets["original"]["sentence1"], sets["robust"]["sentence1"], strict=True)]
    assert any(changed) and record["robust"]["changed"] == sum(map(bool, sets["robust"]["operators"]))
    assert list(sets["original"]["label"]) == list(sets["robust"]["label"])
    assert not [path for path in out.iterdir() if path.suffix in (".bin", ".pt", ".pkl")]
    model = AutoModelForSequenceClassification.from_pretrained(out)
    assert model.config.id2label == {0: "entailment", 1: "not_entailment"}
    printed = capsys.readouterr().out
    assert "train: RTE train, 20 rows, a part of 2490" in printed and "robust accuracy" in printed

    again = go("--task", "rte", "--model_name_or_path", out, "--data_dir", data, "--output_dir", tmp_path / "again",
               "--evaluate_only")  # fmt: skip
    assert again["tasks"] == results["tasks"] and again["training"] == {**results["training"], "status": "earlier"}


def test_an_encoder_that_gives_its_hidden_states_is_fine_tuned_and_loaded_again(bert, data, tmp_path):
    """As an export with a pooling over several layers does."""
    encoder = tmp_path / "encoder"
    shutil.copytree(bert, encoder)
    config = json.loads((encoder / "config.json").read_text())
    (encoder / "config.json").write_text(json.dumps({**config, "output_hidden_states": True}))
    common = ("--task", "rte", "--data_dir", data, "--robust_sets", "none")
    trained = go(*common, "--model_name_or_path", encoder, "--output_dir", tmp_path / "out")
    again = go(*common, "--evaluate_only", "--model_name_or_path", tmp_path / "out", "--output_dir", tmp_path / "again")
    assert again["tasks"]["RTE"]["accuracy"] == trained["tasks"]["RTE"]["accuracy"]


def test_the_invariance_is_that_of_the_saved_sets(bert, data, tmp_path):
    out = tmp_path / "out"
    record = go("--task", "rte", "--model_name_or_path", bert, "--data_dir", data, "--output_dir", out)["tasks"]["RTE"]
    model = AutoModelForSequenceClassification.from_pretrained(out)
    tokenizer = AutoTokenizer.from_pretrained(out)
    sets = datasets.load_from_disk(str(out / "robust_sets" / "RTE"))

    def classes(rows: datasets.Dataset) -> list[int]:
        inputs = (tokenizer(row["sentence1"], row["sentence2"], return_tensors="pt") for row in rows)
        return [int(model(**one).logits.argmax()) for one in inputs]

    before, after = classes(sets["original"]), classes(sets["robust"])
    right = sum(a == b for a, b in zip(before, sets["original"]["label"], strict=True))
    assert record["accuracy"] == pytest.approx(100 * right / 12)
    kept = [a == b for a, b, names in zip(before, after, sets["robust"]["operators"], strict=True) if names]
    assert record["invariance"] == pytest.approx(100 * sum(kept) / len(kept))


def test_anli_pools_the_rounds_that_are_complete(bert, data, tmp_path, capsys):
    results = go("--task", "anli", "--model_name_or_path", bert, "--data_dir", data, "--output_dir", tmp_path / "o")
    assert set(results["tasks"]) == {"ANLI_R1", "ANLI_R2", "ANLI_R1_dev", "ANLI_R2_dev", "ANLI_R3_dev", "ANLI_dev"}
    parts = [results["tasks"][f"ANLI_R{n}_dev"] for n in (1, 2, 3)]
    pooled = results["tasks"]["ANLI_dev"]
    assert pooled["n"] == 21 and pooled["accuracy"] == pytest.approx(sum(p["accuracy"] * p["n"] for p in parts) / 21)
    assert {entry["task"] for entry in results["missing"]} >= {"ANLI_R3", "FEVER train", "ANLI_R1 train"}
    assert [part["source"] for part in results["training"]["on"]] == ["SNLI", "MNLI"]
    assert "MISSING ANLI_R3 test" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("task", "names"),
    [("squad", ["f1", "exact_match"]), ("dialogre", ["f1", "precision", "recall"]), ("stsb", ["spearman", "pearson"])],
)
def test_the_other_kinds(bert, data, tmp_path, task, names):
    out = tmp_path / "out"
    results = go("--task", task, "--model_name_or_path", bert, "--data_dir", data, "--output_dir", out)
    record = results["tasks"][tasks.TASKS[task].scored[-1][2]]
    assert [name in record and name in record["robust"] for name in names] == [True] * len(names)
    if task == "squad":
        AutoModelForQuestionAnswering.from_pretrained(out)
        assert not record["complete"]
    assert ("threshold" in results["protocol"]) == (task == "dialogre")


def test_seeds_are_summed_up(bert, data, tmp_path):
    out = tmp_path / "out"
    words = (
        "--task",
        "rte",
        "--model_name_or_path",
        bert,
        "--data_dir",
        data,
        "--output_dir",
        out,
        "--learning_rate",
        "0.1",
    )
    summary = go(*words, "--seeds", "0", "1")
    each = [json.loads((out / f"seed-{seed}" / "results.json").read_text()) for seed in (0, 1)]
    values = [one["tasks"]["RTE"]["robust"]["accuracy"] for one in each]
    assert summary["tasks"]["RTE"]["robust"]["accuracy"] == pytest.approx(sum(values) / 2)
    assert summary["tasks"]["RTE"]["accuracy_std"] >= 0 and summary["seeds"] == [0, 1]
    assert go(*words, "--seeds", "0", "1", "--resume_from_checkpoint", "last")["tasks"] == summary["tasks"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "--task is missing: one of anli"),
        (["--task", "glue"], "unknown task 'glue'"),
        (["--task", "rte", "--taks", "x"], "unknown argument --taks; did you mean --task"),
        (["--task", "rte", "--max_train_samples", "0"], "--max_train_samples must be at least 1"),
        (["--task", "rte", "--model_name_or_path", "nowhere/at all"], "cannot be loaded"),
        (["--task", "rte", "--robust_operators", "magic"], "magic"),
        (["--task", "stsb", "--robust_operators", "neutral"], "neutral may change the labels of stsb"),
        (["--task", "qqp"], "QQP train is not under"),
        (["--task", "rte", "--max_seq_length", "4000"], "--max_seq_length must be between 8 and the model's"),
        (["--task", "rte", "--evaluate_only"], "was not fine-tuned"),
        (["--task", "rte", "--evaluate_only", "--seeds", "1"], "leave --seeds out"),
        (["--task", "rte", "--eval_strategy", "steps", "--seeds", "1", "1"], "names a seed twice"),
        (["--task", "rte", "--resume_from_checkpoint", "last"], "there is no run to resume"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(bert, data, tmp_path, words, said):
    out = tmp_path / "out"
    words = [*words] if "--model_name_or_path" in words else [*words, "--model_name_or_path", str(bert)]
    words += [] if "--robust_operators" in words else ["--robust_operators", "typos"]
    with pytest.raises(UserError, match=said) as error:
        run(parse_arguments(["--use_cpu", "--data_dir", str(data), "--output_dir", str(out), *words]))
    assert "\n" not in str(error.value) and not out.exists()


def test_another_run_is_not_overwritten_and_the_command_exits_with_2(bert, data, tmp_path):
    out = tmp_path / "out"
    out.mkdir()
    (out / "results.json").write_text("{}")
    with pytest.raises(UserError, match="holds another run"):
        go("--task", "rte", "--model_name_or_path", bert, "--data_dir", data, "--output_dir", out)
    command = [
        sys.executable,
        str(ROOT / "examples" / "run_finetune.py"),
        "--task",
        "rte",
        "--data_dir",
        str(tmp_path / "no"),
    ]
    done = subprocess.run([*command, "--use_cpu"], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 2 and done.stderr.strip().count("\n") == 0 and "does not exist" in done.stderr
    assert not (tmp_path / "runs").exists()


def test_published_robust_sets_are_scored_when_they_are_there(bert, data, tmp_path, monkeypatch):
    def put(path: str, rows: list[str]) -> None:
        (data / path).parent.mkdir(parents=True, exist_ok=True)
        (data / path).write_text("\n".join(rows) + "\n", encoding="utf-8")

    pairs = [f"{i % 2}\t{SENTENCES[i]}\t{SENTENCES[9 - i]}" for i in range(4)]
    put("attack/AdvGLUE/rte.tsv", ["label\tsentence1\tsentence2", *pairs])
    monkeypatch.setitem(
        known_sets.KNOWN_SETS,
        "AdvGLUE_RTE",
        dataclasses.replace(known_sets.KNOWN_SETS["AdvGLUE_RTE"], rows={"dev": {"rte": 4}}),
    )
    words = ("--task", "rte", "--model_name_or_path", bert, "--data_dir", data)
    results = go(*words, "--output_dir", tmp_path / "a")
    assert results["tasks"]["AdvGLUE_RTE"]["n"] == 4 and 0 <= results["tasks"]["AdvGLUE_RTE"]["accuracy"] <= 100
    assert "AdvGLUE_RTE" not in go(*words, "--output_dir", tmp_path / "b", "--robust_sets", "none")["tasks"]
    with pytest.raises(UserError, match="SNLI_CAD is not for rte; those that are: AdvGLUE_RTE"):
        go(*words, "--output_dir", tmp_path / "c", "--robust_sets", "SNLI_CAD")


def test_groups_and_originals_of_a_published_set():
    kind = make_kind(tasks.TASKS["sst2"], make_tokenizer(), 16)

    def by_length(rows: datasets.Dataset) -> list[int]:
        return [len(text) % 2 for text in rows["text"]]

    def known(columns: dict, names: tuple[str, ...], original: dict | None = None) -> known_sets.KnownRobustSet:
        rows = [datasets.Dataset.from_dict(one) if one else None for one in (columns, original)]
        return known_sets.KnownRobustSet("X", "test", ("SST2",), names, *rows, "", "here", "0")

    groups = {"text": ["a", "bbb", "a", "bb"], "test": ["t"] * 4, "group": [0, 0, 1, 1], "variant": [0, 1, 0, 1]}
    record = score_known(kind, known(groups, ()), by_length)
    assert record["invariance"] == record["tests"]["t"] == 50 and record["n"] == 4
    edited = {"text": ["a", "bb", "bb", "d"], "label": [2, 0, 2, 1]}
    originals = {"text": ["aa", "b", "bb", "c"], "label": [0, 2, 0, 1]}
    record = score_known(kind, known(edited, ("negative", "neutral", "positive"), originals), by_length)
    # right on a and bb, wrong on the second bb; the neutral row is left out of both sides
    assert record["accuracy"] == pytest.approx(200 / 3) and record["n"] == 3 and record["without_label"] == 1
    assert record["original"]["accuracy"] == pytest.approx(100) and record["consistency"] == pytest.approx(200 / 3)
