"""The attack command on sentence encoders: STS-B pairs and texts against themselves."""

from __future__ import annotations

import json

import datasets
import pytest
from tiny import SENTENCES

from hf_robustcse.attack_runs.arguments import Options
from hf_robustcse.attack_runs.run import run_attacks
from hf_robustcse.errors import UserError
from hf_robustcse.evaluation.attacked_sets import evaluate_attacked_pairs, load_attacked_pairs
from hf_robustcse.evaluation.embedders import load_embedder


@pytest.fixture
def options(bert, tmp_path) -> dict:
    (tmp_path / "words.tsv").write_text("dog\tcat\tbird\nruns\tsleeps\teats\nold\tbig\tsmall\n", encoding="utf-8")
    rows = [f"{i % 6}\t{SENTENCES[i]}\t{SENTENCES[(i * 3 + 1) % 10]}" for i in range(10)]
    (tmp_path / "pairs.tsv").write_text("\n".join(["score\tsentence1\tsentence2", *rows]) + "\n", encoding="utf-8")
    (tmp_path / "text.txt").write_text("\n".join(SENTENCES) + "\n", encoding="utf-8")
    return {
        "model_name_or_path": str(bert), "output_dir": str(tmp_path / "out"), "attack": ["pwws"], "pooling": "mean",
        "device": "cpu", "synonyms": str(tmp_path / "words.tsv"),
    }  # fmt: skip


def test_scored_pairs(options, bert, tmp_path):
    own = {"task": "STSB", "data_file": str(tmp_path / "pairs.tsv"), "distance": 0.9, "edit": "first"}
    found = run_attacks(Options(**options, **own))["attacks"]["STSB"]["pwws"]
    folder = tmp_path / "out" / "STSB-pwws"
    rows = datasets.load_dataset(str(folder), cache_dir=str(tmp_path / "cache"))["test"]
    assert [row["score"] for row in rows] == [i % 6 for i in range(10)] == [row["gold"] * 5 for row in rows]
    assert "perturbed_sentence1" in rows.column_names and "perturbed_sentence2" not in rows.column_names
    assert any(row["sentence1"] != row["perturbed_sentence1"] for row in rows)
    embedder = load_embedder(str(bert), pooling="mean", device="cpu")
    again = evaluate_attacked_pairs(embedder, load_attacked_pairs(folder))
    for name in ("spearman_before", "spearman_after", "distance_before", "distance_after"):
        assert found[name] == pytest.approx(again[name], abs=1e-4)
    assert found["attempted"] + found["skipped"] == found["n"] == 10 and "accuracy_before" not in found
    with pytest.raises(UserError, match="holds an attack with another examples"):
        run_attacks(Options(**options, **own | {"distance": 0.8}))


def test_texts_against_themselves(options, tmp_path):
    own = {"task": "similarity", "data_file": str(tmp_path / "text.txt"), "threshold": 0.95, "num_examples": 6}
    found = run_attacks(Options(**options, **own))["attacks"]["similarity"]["pwws"]
    rows = [json.loads(line) for line in (tmp_path / "out" / "similarity-pwws.jsonl").read_text().splitlines()]
    assert found["attempted"] == 6 and found["succeeded"] == sum(row["cosine_after"] <= 0.95 for row in rows)
    assert all(row["cosine_before"] == pytest.approx(1) for row in rows) and found["spearman_before"] is None
    assert run_attacks(Options(**options, **own))["attacks"]["similarity"]["pwws"] == found  # nothing is done twice
