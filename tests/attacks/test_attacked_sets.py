"""Attacked sets: saved, loaded, and another model scored on them."""

from __future__ import annotations

import json
from pathlib import Path

import datasets
import numpy as np
import pytest

from hf_robustcse.attacks import Dissimilar, Example, Outcome, Recipe, Untargeted, attack_examples
from hf_robustcse.attacks.outcomes import attacked_row, recorded_row
from hf_robustcse.attacks.text import Document, Edited
from hf_robustcse.attacks.transformations import Synonyms
from hf_robustcse.errors import UserError
from hf_robustcse.evaluation.attacked_sets import (
    Dataset,
    evaluate_attacked_pairs,
    load_about,
    load_attacked_pairs,
    load_attacked_set,
    save_attacked_set,
)
from hf_robustcse.evaluation.run import run_evaluation


def row(first: str, second: str, gold: float, perturbed: str, status: str = "succeeded") -> dict:
    return {
        "sentence1": first, "sentence2": second, "perturbed_sentence2": perturbed, "score": 5 * gold, "gold": gold,
        "distance": 0.5, "status": status, "similarity_before": 0.5, "similarity_after": 0.25, "queries": 3,
        "victim": "a/model", "recipe": "table",
    }  # fmt: skip


ROWS = [
    row("x", "x", 1.0, "y"),
    row("x", "x", 0.9, "x", "failed"),
    row("x", "y", 1.0, "z"),  # the other model does not get this pair right to begin with
    row("x", "z", 0.5, "zz"),
]


def encode(texts: list[str]) -> np.ndarray:
    known = {"x": (1, 0), "y": (0, 1), "z": (0.6, 0.8), "zz": (-1, 0)}
    return np.array([known[text] for text in texts], dtype=np.float32)


def test_datasets_loads_what_was_saved(tmp_path):
    folder = tmp_path / "deep" / "AdvSTSB"
    save_attacked_set(ROWS, folder, about={"title": "AdvSTS: B", "recipe": {"recipe": "table"}})
    loaded = datasets.load_dataset(str(folder), cache_dir=str(tmp_path / "cache"))
    assert list(loaded) == ["test"] and loaded["test"].to_list() == ROWS == load_attacked_set(folder).to_list()
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert "# AdvSTS: B\n" in card and "| perturbed_sentence2 | `sentence2` after the attack |" in card
    assert load_about(folder) == {"title": "AdvSTS: B", "recipe": {"recipe": "table"}}
    save_attacked_set(ROWS[:1], folder, about={}, split="train")
    loaded = datasets.load_dataset(str(folder), cache_dir=str(tmp_path / "cache"))
    assert loaded["train"].to_list() == ROWS[:1] and [path.name for path in folder.parent.iterdir()] == ["AdvSTSB"]


def test_nothing_else_is_overwritten_and_nothing_is_half_written(tmp_path, monkeypatch):
    (tmp_path / "mine").mkdir()
    with pytest.raises(UserError, match="is there and is no attacked set"):
        save_attacked_set(ROWS, tmp_path / "mine", about={})
    with pytest.raises(UserError, match="no attacked example"):
        save_attacked_set([], tmp_path / "none", about={})
    monkeypatch.setattr(Dataset, "to_parquet", lambda self, path: (Path(path).write_bytes(b"half"), 1 / 0))
    with pytest.raises(ZeroDivisionError):
        save_attacked_set(ROWS, tmp_path / "set", about={})
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_outcomes_of_a_classifier(tmp_path):
    def victim(texts: list) -> np.ndarray:
        good = np.array([0.9 if "good" in text[-1] else 0.2 for text in texts])
        return np.stack([1 - good, good], axis=1)

    example = Example({"premise": "good luck", "hypothesis": "a good film"}, Untargeted(1), frozen=("premise",))
    recipe = Recipe("table", "", Synonyms(lambda word: {"good": ["fine"]}.get(word, []), "a table"))
    ((number, outcome),) = attack_examples([(7, example)], recipe, victim)
    made = {"row": number, **attacked_row(example, outcome)}
    assert made == {
        "row": 7, "premise": "good luck", "hypothesis": "a good film", "perturbed_hypothesis": "a fine film",
        "label": 1, "status": "succeeded", "prediction_before": 1, "prediction_after": 0,
        "score_before": pytest.approx(0.1), "score_after": pytest.approx(0.8), "queries": outcome.queries,
        "words_changed": 0.2,
    }  # fmt: skip
    save_attacked_set([json.loads(json.dumps(made))], tmp_path / "set", about={})
    assert load_attacked_set(tmp_path / "set")[0]["perturbed_hypothesis"] == "a fine film"
    with pytest.raises(UserError, match="no attacked set of sentence pairs: it has no column distance, gold"):
        load_attacked_pairs(tmp_path / "set")


def test_a_record_of_the_command_is_the_same_row():
    example = Example({"sentence2": "a b"}, Dissimilar(0.5), context={"sentence1": "c"})
    record = {
        "index": 3, "status": "failed", "gold": 0.5, "cosine_before": 0.5, "cosine_after": 0.75,
        "score_before": 0.0, "score_after": 0.25, "queries": 4, "words": 2, "changed": [{"after": "d"}],
        "original": {"sentence1": "c", "sentence2": "a b"}, "perturbed": {"sentence1": "c", "sentence2": "a d"},
    }  # fmt: skip
    document = Document(example.columns)
    found = Outcome("failed", document, Edited(document, {1: "d"}), np.array(0.5), np.array(0.75), 0.0, 0.25, 4)
    assert recorded_row(example, record) == {"row": 3, **attacked_row(example, found)}
    example = Example({"text": "a b"}, Untargeted(1))
    record |= {"original": {"text": "a b"}, "perturbed": {"text": "a d"}, "prediction_before": 1, "prediction_after": 1}
    answers = np.array([0.0, 1.0]), np.array([0.25, 0.75])
    document = Document(example.columns)
    found = Outcome("failed", document, Edited(document, {1: "d"}), *answers, 0.0, 0.25, 4)
    assert recorded_row(example, record) == {"row": 3, **attacked_row(example, found)}


def test_another_model_on_the_set(tmp_path):
    save_attacked_set(ROWS, tmp_path / "AdvSTSB", about={})
    pairs = load_attacked_pairs(tmp_path / "AdvSTSB")
    assert (pairs.name, pairs.victim, pairs.sentences) == ("AdvSTSB", "a/model", ["x", "y", "z", "zz"])
    record = evaluate_attacked_pairs(encode, pairs)
    # cosines before 1, 1, 0, 0.6; after 0, 1, 0.6, -1; gold 1, 0.9, 1, 0.5
    assert record["distance_before"] == pytest.approx((0 + 0.1 + 1 + 0.1) / 4)
    assert record["distance_after"] == pytest.approx((1 + 0.1 + 0.4 + 0.5) / 4)
    # ranks before 3.5, 3.5, 1, 2 and of the gold scores 3.5, 2, 3.5, 1
    assert record["spearman_before"] == pytest.approx(100 * np.corrcoef([3.5, 3.5, 1, 2], [3.5, 2, 3.5, 1])[0, 1])
    assert record["spearman_after"] == pytest.approx(100 * np.corrcoef([2, 4, 3, 1], [3.5, 2, 3.5, 1])[0, 1])
    assert record["transferred"] == 100.0 and record["n"] == 4  # both of the successes on pairs that it gets right


def test_texts_against_themselves(tmp_path):
    rows = [
        {"text": "x", "perturbed_text": new, "gold": 1.0, "distance": 0.5, "status": "succeeded", "victim": "v"}
        for new in ("y", "z")
    ]
    save_attacked_set(rows, tmp_path / "set", about={})
    record = evaluate_attacked_pairs(encode, load_attacked_pairs(tmp_path / "set"))
    assert record["spearman_after"] is None and record["distance_after"] == pytest.approx((1 + 0.4) / 2)
    assert record["transferred"] == 50.0


def test_the_command_scores_attacked_sets(bert, tmp_path, capsys):
    one = row("the dog runs", "a cat sleeps", 0.5, "a bird sleeps")
    save_attacked_set(
        [one, {**one, "sentence2": "a dog runs", "perturbed_sentence2": "a dog", "gold": 1.0}],
        tmp_path / "AdvSTSB",
        about={},
    )
    found = run_evaluation(str(bert), [], pooling="mean", device="cpu", attacked_sets=[tmp_path / "AdvSTSB"],
                           output_json=tmp_path / "out.json")  # fmt: skip
    assert found["attacked_sets"]["AdvSTSB"]["n"] == 2 and found["tasks"] == {}
    assert json.loads((tmp_path / "out.json").read_text())["attacked_sets"] == found["attacked_sets"]
    assert "attacked set AdvSTSB, made with a/model" in capsys.readouterr().out
    with pytest.raises(UserError, match="evaluate attacked sets without it"):
        run_evaluation(str(bert), [], attacked_sets=[tmp_path / "AdvSTSB"], whitening=True)


def test_what_is_no_attacked_set(tmp_path):
    with pytest.raises(UserError, match="is no attacked set: it needs a file attacked.parquet"):
        load_attacked_set(tmp_path)
    save_attacked_set(ROWS, tmp_path / "set", about={})
    (tmp_path / "set" / "attacked.parquet").write_bytes(b"PAR1 cut off")
    with pytest.raises(UserError, match="cannot be read"):
        load_attacked_set(tmp_path / "set")
