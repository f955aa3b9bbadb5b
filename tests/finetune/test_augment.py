"""More training rows: random substitutions and attacks on a first model, on tiny data and a tiny encoder."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import datasets
import pytest
from tiny import SENTENCES
from transformers import AutoModelForSequenceClassification, AutoTokenizer, Trainer, TrainerCallback

from hf_robustcse.errors import UserError
from hf_robustcse.evaluation.attacked_sets import load_attacked_set
from hf_robustcse.finetune import augment, tasks
from hf_robustcse.finetune.run import parse_arguments, run

TABLE = [["dog", "cat", "bird"], ["runs", "sleeps", "eats"], ["man", "woman", "child"], ["red", "big", "small"]]
SYNONYM = {word: {other for other in line if other != word} for line in TABLE for word in line}


@pytest.fixture
def words(bert, tmp_path, monkeypatch) -> list[str]:
    """The options of all runs: tiny RTE, SST-2 and MRPC, a word list, few steps."""
    folder = tmp_path / "data"

    def put(path: str, source: str, header: str, rows: list[str], **guard: int) -> None:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
        known = tasks.SOURCES[source]
        monkeypatch.setitem(tasks.SOURCES, source, dataclasses.replace(known, rows={**known.rows, **guard}))

    pairs = [f"{i % 2}\t{SENTENCES[i % 10]}\t{SENTENCES[(i * 3) % 10]}" for i in range(20)]
    put("glue/RTE/train.tsv", "RTE", "label\tsentence1\tsentence2", pairs)
    put("glue/RTE/dev.tsv", "RTE", "label\tsentence1\tsentence2", pairs[:12], dev=12)
    put("transfer/MRPC/train.tsv", "MRPC", "label\tsentence1\tsentence2", pairs)
    put("transfer/MRPC/test.tsv", "MRPC", "label\tsentence1\tsentence2", pairs[:12], test=12)
    # What the animal is decides, so that a model learns it in no time and a synonym misleads it.
    places = ("in the park", "on the house", "near the river", "in the garden", "under a tree")
    texts = [f"{i % 2}\tthe {('dog', 'cat')[i % 2]} {('runs', 'eats')[i // 10]} {places[i % 5]}" for i in range(20)]
    put("transfer/SST2/train.tsv", "SST2", "label\ttext", texts)
    put("transfer/SST2/dev.tsv", "SST2", "label\ttext", texts[:8], dev=8)
    put("transfer/SST2/test.tsv", "SST2", "label\ttext", texts[:8], test=8)
    (tmp_path / "words.tsv").write_text("\n".join("\t".join(line) for line in TABLE) + "\n", encoding="utf-8")
    return [
        "--use_cpu", "--model_name_or_path", str(bert), "--data_dir", str(folder), "--augment_synonyms",
        str(tmp_path / "words.tsv"), "--robust_operators", "none", "--max_steps", "30", "--learning_rate", "0.003",
        "--per_device_train_batch_size", "8",
    ]  # fmt: skip


def without_synonyms(words: list[str]) -> list[str]:
    at = words.index("--augment_synonyms")
    return words[:at] + words[at + 2 :]


def go(words: list[str], *more: str | Path) -> dict:
    return run(parse_arguments([*words, *map(str, more)]))


def test_random_substitutions(words, tmp_path):
    out = tmp_path / "out"
    results = go(words, "--task", "sst2", "--augment", "da", "--augment_share", "0.5", "--output_dir", out)
    added = load_attacked_set(out / "augmented")
    about = results["training"]["augmented"]
    assert about["kind"] == "da" and about["drawn"] == 10 and about["rows"] == len(added) <= 10
    assert results["training"]["rows"] == 20 + len(added) and about["attacks"][0]["recipe"] == "pwws"
    train = tasks.load_split(tasks.SOURCES["SST2"], "train", tmp_path / "data").rows
    for row in added:
        assert row["text"] == train[row["row"]]["text"] and row["label"] == train[row["row"]]["label"]
        before, after = row["text"].split(), row["perturbed_text"].split()
        changed = [(a, b) for a, b in zip(before, after, strict=True) if a != b]
        assert changed and all(b in SYNONYM[a] for a, b in changed)
    loaded = datasets.load_dataset(str(out / "augmented"), cache_dir=str(tmp_path / "cache"))
    assert list(loaded) == ["train"] and not (out / "first-stage").exists()
    again = go(words, "--task", "sst2", "--augment", "da", "--augment_share", "0.5", "--output_dir", tmp_path / "b")
    assert again["tasks"] == results["tasks"]
    assert load_attacked_set(tmp_path / "b" / "augmented").to_list() == added.to_list()
    go(
        words,
        "--task",
        "sst2",
        "--augment",
        "da",
        "--augment_share",
        "0.5",
        "--seed",
        "7",
        "--output_dir",
        tmp_path / "c",
    )
    assert load_attacked_set(tmp_path / "c" / "augmented").to_list() != added.to_list()


def test_attacks_on_a_model_that_was_trained_without_the_rows(words, tmp_path):
    out = tmp_path / "out"
    results = go(words, "--task", "sst2", "--augment", "adv", "--augment_share", "1", "--output_dir", out,
                 "--augment_attack", "pwws", "random")  # fmt: skip
    about, added = results["training"]["augmented"], load_attacked_set(out / "augmented")
    assert about["drawn"] == 20 == about["succeeded"] + about["failed"] + about["skipped"]
    assert about["rows"] == about["succeeded"] == len(added) > 0 and about["queries"] > 20
    assert {row["recipe"] for row in added} <= {"pwws", "random"}
    model = AutoModelForSequenceClassification.from_pretrained(out / "first-stage").eval()
    tokenizer = AutoTokenizer.from_pretrained(out / "first-stage")

    def said(text: str) -> int:
        return int(model(**tokenizer(text, return_tensors="pt")).logits.argmax())

    for row in added:
        assert said(row["text"]) == row["label"] != said(row["perturbed_text"])
    assert not [path for path in out.rglob("*.bin") if "checkpoint" not in str(path)]
    plain = go(without_synonyms(words), "--task", "sst2", "--output_dir", tmp_path / "plain")
    first = json.loads((out / "first-stage" / "training.json").read_text())
    assert first["loss"] == pytest.approx(plain["training"]["loss"])  # the same as a run without augmentation
    assert results["training"]["loss"] != pytest.approx(plain["training"]["loss"])


@pytest.mark.parametrize("when", ["first stage", "attack", "training"])
def test_a_killed_run_goes_on(words, tmp_path, monkeypatch, when):
    options = (
        "--task",
        "sst2",
        "--augment",
        "adv",
        "--augment_share",
        "1",
        "--save_steps",
        "10",
        "--save_strategy",
        "steps",
    )
    whole = go(words, *options, "--output_dir", tmp_path / "whole")
    out, (train, attack) = tmp_path / "out", (Trainer.train, augment.attack_examples)

    class Kill(TrainerCallback):
        def on_step_begin(self, args, state, control, **more):
            if state.global_step == 13:
                raise KeyboardInterrupt

    def killed(self, *args, **more):
        if ("first-stage" in self.args.output_dir) == (when == "first stage"):
            self.add_callback(Kill)
        return train(self, *args, **more)

    def killed_attack(*args, **more):
        for number, found in enumerate(attack(*args, **more)):
            if number == 5:
                raise KeyboardInterrupt
            yield found

    with monkeypatch.context() as patch:
        if when == "attack":
            patch.setattr(augment, "attack_examples", killed_attack)
        else:
            patch.setattr(Trainer, "train", killed)
        with pytest.raises(KeyboardInterrupt):
            go(words, *options, "--output_dir", out)
    if when == "attack":
        log = out / "first-stage" / "attacked-0.jsonl"
        assert log.read_text().count("\n") == 5
        log.write_text(log.read_text() + '{"row": 19, "te')  # half a line
    asked = []
    monkeypatch.setattr(augment, "attack_examples", lambda examples, *args, **more: attack(
        (asked.append(number) or (number, example) for number, example in examples), *args, **more))  # fmt: skip
    results = go(words, *options, "--output_dir", out, "--resume_from_checkpoint", "last")
    assert len(asked) == {"first stage": 20, "attack": 15, "training": 0}[when]
    assert results["tasks"] == whole["tasks"]
    same = {"set", "queries"} if when == "attack" else {"set"}
    assert {k: v for k, v in results["training"]["augmented"].items() if k not in same} == {
        k: v for k, v in whole["training"]["augmented"].items() if k not in same
    }
    added = [load_attacked_set(folder / "augmented").to_list() for folder in (out, tmp_path / "whole")]
    assert added[0] == added[1]


@pytest.mark.parametrize(("task", "free"), [("rte", ["sentence2"]), ("mrpc", ["sentence1", "sentence2"])])
def test_of_premise_and_hypothesis_only_the_second_changes(words, tmp_path, task, free):
    go(words, "--task", task, "--augment", "da", "--augment_samples", "20", "--output_dir", tmp_path / "out")
    added = load_attacked_set(tmp_path / "out" / "augmented")
    names = [name for name in added.column_names if name.startswith("perturbed_")]
    assert names == [f"perturbed_{name}" for name in free] and len(added) > 5


def test_seeds_draw_their_own_rows(words, tmp_path):
    out = tmp_path / "out"
    summary = go(words, "--task", "rte", "--augment", "da", "--augment_samples", "5", "--seeds", "0", "1",
                 "--output_dir", out)  # fmt: skip
    drawn = [set(load_attacked_set(out / f"seed-{seed}" / "augmented")["row"]) for seed in (0, 1)]
    assert drawn[0] != drawn[1] and [one["augmented"]["drawn"] for one in summary["training"]["runs"]] == [5, 5]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--augment", "more"], "--augment must be one of none, da, adv, not 'more'"),
        (["--augment_attack", "pwws"], "--augment_attack needs --augment da or adv"),
        (["--augment", "da", "--augment_share", "2"], "--augment_share must be above 0 and at most 1, not 2"),
        (["--augment", "da", "--augment_samples", "0"], "--augment_samples must be at least 1"),
        (["--augment", "da", "--evaluate_only"], "leave --augment out"),
        (["--augment", "adv", "--task", "stsb"], "with classes of a text or a pair of texts; stsb is none"),
        (["--augment", "adv", "--task", "squad"], "squad is none"),
        (["--augment", "adv", "--augment_attack", "magic"], "unknown attack 'magic'; known: textfooler"),
        (["--augment", "adv", "--augment_attack", "bae"], "needs a masked language model: --augment_masked_lm"),
        (["--augment", "adv", "--augment_synonyms", "nowhere.tsv"], "cannot read the word list nowhere.tsv"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(words, tmp_path, options, said):
    words = words if options[0] == "--augment" else without_synonyms(words)
    with pytest.raises(UserError, match=said) as error:
        go(words, "--task", "sst2", *options, "--output_dir", tmp_path / "out")
    assert "\n" not in str(error.value) and not (tmp_path / "out").exists()


def test_nothing_to_rewrite_is_an_error(words, tmp_path):
    (tmp_path / "words.tsv").write_text("zebra\tokapi\n")
    with pytest.raises(UserError, match="none of 4 rows could be rewritten by pwws: draw more rows"):
        go(words, "--task", "sst2", "--augment", "da", "--output_dir", tmp_path / "out")
