"""Metrics, answers and relations against plain loops."""

from __future__ import annotations

import math

import numpy as np
import pytest
from datasets import Dataset
from tiny import make_tokenizer

from hf_robustcse.finetune import metrics
from hf_robustcse.finetune.kinds import Relations, Spans, make_kind
from hf_robustcse.finetune.tasks import RELATIONS, find_task

CONTEXT = "the dog runs in the park . the old man reads a book near the river today and sleeps on the house"


def test_classification_against_a_loop():
    rng = np.random.default_rng(0)
    gold, said = rng.integers(0, 2, 200).tolist(), rng.integers(0, 2, 200).tolist()
    tp, tn = (sum(a == b == label for a, b in zip(gold, said, strict=True)) for label in (1, 0))
    fp, fn = sum(b > a for a, b in zip(gold, said, strict=True)), sum(a > b for a, b in zip(gold, said, strict=True))
    scores = metrics.Classification().compute(predictions=said, references=gold)
    matthews = (tp * tn - fp * fn) / math.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
    expected = {"accuracy": (tp + tn) / 2, "f1": 200 * tp / (2 * tp + fp + fn), "matthews": 100 * matthews}
    assert scores == pytest.approx(expected)
    assert "f1" not in metrics.Classification().compute(predictions=[0, 1, 2], references=[0, 1, 1])


def test_regression_has_no_correlation_of_a_constant():
    scores = metrics.Regression().compute(predictions=[1.0, 2.0, 4.0], references=[0.0, 3.0, 5.0])
    assert scores["spearman"] == pytest.approx(100) and 90 < scores["pearson"] < 100
    assert metrics.Regression().compute(predictions=[1.0, 1.0], references=[0.0, 3.0])["spearman"] is None


@pytest.mark.parametrize(
    ("said", "gold", "f1", "exact"),
    [
        ("The Cat!", ["a cat"], 100, 100),
        ("the black cat", ["cat sat"], 50, 0),
        ("cat cat", ["cat"], 200 / 3, 0),
        ("dog", ["cat", "Dog."], 100, 100),
        ("", ["cat"], 0, 0),
        ("theatre", ["atre"], 0, 0),
    ],
)
def test_squad_counts_words(said, gold, f1, exact):
    scores = metrics.Squad().compute(predictions=[said], references=[gold])
    assert scores == pytest.approx({"f1": f1, "exact_match": exact})


def relations_by_loop(logits: np.ndarray, gold: list[list[int]], threshold: float) -> float:
    right = said = true = 0
    for row, labels in zip(logits, gold, strict=True):
        probabilities = [1 / (1 + math.exp(-value)) for value in row]
        chosen = [i for i, p in enumerate(probabilities) if p > 0.5]
        if not chosen and max(probabilities) > threshold:
            chosen = [probabilities.index(max(probabilities))]
        right += len(set(chosen) & set(labels))
        said += len(chosen)
        true += len(labels)
    precision, recall = right / said if said else 0, right / true
    return 100 * 2 * precision * recall / (precision + recall) if right else 0.0


def test_relations_choose_the_threshold_of_the_best_f1():
    rng = np.random.default_rng(1)
    gold = [sorted(rng.choice(RELATIONS, rng.integers(0, 3), replace=False).tolist()) for _ in range(60)]
    logits = rng.normal(-3, 1, (60, RELATIONS))
    for row, labels in zip(logits, gold, strict=True):
        row[labels] += 2.2
    rows = Dataset.from_dict({"label": gold})
    kind = Relations(find_task("dialogre"), make_tokenizer(), 64)
    kind.calibrate(logits, rows)
    by_threshold = {t / 100: relations_by_loop(logits, gold, t / 100) for t in range(51)}
    assert by_threshold[kind.threshold] == pytest.approx(max(by_threshold.values()))
    scores = kind.scores(kind.predictions(logits, rows, rows), rows)
    assert scores["f1"] == pytest.approx(by_threshold[kind.threshold]) and list(scores) == ["f1", "precision", "recall"]


def question(answer: str, text: str = "who reads a book ") -> dict:
    return {"question": text, "context": CONTEXT,
            "label": {"text": [answer], "answer_start": [CONTEXT.index(answer)]}}  # fmt: skip


def test_training_pieces_hold_the_answer_or_point_at_the_first_token():
    tokenizer = make_tokenizer()
    kind = make_kind(find_task("squad"), tokenizer, 20)
    rows = Dataset.from_list([question("old man"), question("house"), question("park", "the cat " * 20)])
    features = kind.train_features(rows)
    assert len(features) > len(rows)
    found = {"old man": 0, "house": 0, "park": 0}
    for feature in features:
        assert len(feature["input_ids"]) == 20
        start, end = feature["start_positions"], feature["end_positions"]
        text = tokenizer.decode(feature["input_ids"][start : end + 1])
        assert (start, end) == (0, 0) or text in found
        if (start, end) != (0, 0):
            found[text] += 1
    assert min(found.values()) >= 1


def test_the_best_span_is_that_of_a_loop_over_all_spans():
    kind = make_kind(find_task("squad"), make_tokenizer(), 20)
    assert isinstance(kind, Spans)
    rows = Dataset.from_list([question("old man"), question("park")])
    features = kind.features(rows)
    rng = np.random.default_rng(2)
    start, end = rng.normal(size=(2, len(features), 20))
    best = {0: (-math.inf, ""), 1: (-math.inf, "")}
    for piece, feature in enumerate(features):
        for i in range(20):
            for j in range(i, 20):
                if feature["spans"][i][0] >= 0 and feature["spans"][j][0] >= 0:
                    text = CONTEXT[feature["spans"][i][0] : feature["spans"][j][1]]
                    best[feature["row"]] = max(best[feature["row"]], (start[piece, i] + end[piece, j], text))
    assert kind.predictions((start, end), features, rows) == [best[0][1], best[1][1]]
    assert kind.same("The old man.", "old man") and not kind.same("old man", "man")
    assert kind.protected(rows[0]) == ["old man"]


def test_a_dialogue_keeps_its_arguments_and_labels():
    tokenizer = make_tokenizer()
    kind = Relations(find_task("dialogre"), tokenizer, 16)
    row = {"dialogue": "Speaker 1: the dog runs\nSpeaker 2: " + "the cat " * 30, "x": "dog", "y": "cat",
           "triggers": ["runs"], "label": [3, 7]}  # fmt: skip
    features = kind.features(Dataset.from_list([row]))
    words = tokenizer.convert_ids_to_tokens(features[0]["input_ids"])
    assert len(words) == 16 and words.count("dog") == 2 and words[-1] in ("cat", "[SEP]")
    assert [i for i, value in enumerate(features[0]["labels"]) if value] == [3, 7]
    assert set(kind.protected(row)) == {"dog", "cat", "runs", "Speaker 1", "Speaker 2"}
