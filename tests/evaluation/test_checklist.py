"""CheckList on a frozen encoder: every number against loops and a classifier made by hand, bad files, the command."""

from __future__ import annotations

import dataclasses
import json
import random
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from hf_robustcse.errors import UserError
from hf_robustcse.evaluation import transfer
from hf_robustcse.evaluation.checklist import SUITES, Suite, evaluate_suite, load_suites
from hf_robustcse.evaluation.run import run_evaluation
from hf_robustcse.report.read import Column, collect

WORDS = "good fine nice great bad awful poor sad film plane man dog house tree".split()
GOOD, BAD = WORDS[:4], WORDS[4:8]


def vector(text: str) -> np.ndarray:
    """Counts of words, and the letters of the text, so that other words count too."""
    words = text.lower().split()
    return np.array([*(3.0 * words.count(word) for word in WORDS), *(0.1 * text.count(c) for c in "aeiox"), 1.0])


class Words:
    """`vector` of each text; remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, texts: list[str]) -> np.ndarray:
        self.asked += texts
        return np.stack([vector(text) for text in texts])


def table(path: Path, header: str, rows: list) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = [header.replace(" ", "\t"), *("\t".join(map(str, row)) for row in rows)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def inverted(rng: random.Random, text: str) -> str:
    words = text.split()
    words[rng.randrange(len(words))] = rng.choice(WORDS)
    return " ".join([*words, "x"])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Both suites and the sets that their classifiers are trained on, all small."""
    rng, data = random.Random(0), tmp_path / "data"

    def sentence(label: int) -> str:
        words = rng.choices(GOOD if label else BAD, k=2) + rng.choices(WORDS, k=3)
        return " ".join(rng.sample(words, 5))

    for split, n in (("train", 60), ("dev", 20), ("test", 20)):
        table(data / f"transfer/SST2/{split}.tsv", "label text", [(i % 2, sentence(i % 2)) for i in range(n)])
    for split, n in (("train", 60), ("test", 20)):
        pairs = [(i % 2, first, first if i % 2 else sentence(i % 4 // 2)) for i in range(n) for first in [sentence(0)]]
        table(data / f"transfer/MRPC/{split}.tsv", "label sentence1 sentence2", pairs)
    rows = {
        "SST2": {"train": (60,), "dev": (20,), "test": (20,), "train_phrases": (1,)},
        "MRPC": {"train": (60,), "test": (20,)},
    }
    for name, counts in rows.items():
        monkeypatch.setitem(transfer.TASKS, name, dataclasses.replace(transfer.TASKS[name], rows=counts))
    tests = data / "attack" / "CheckList"
    groups = [(test, group, sentence(group % 2)) for test in ("typos", "names") for group in range(8)]
    table(tests / "sentiment_inv.tsv", "test group variant text", [
        (test, group, variant, inverted(rng, text) if variant else text)
        for test, group, text in groups for variant in range(1 + 1 + group % 2)
    ])  # fmt: skip
    table(tests / "sentiment_mft.tsv", "test capability label text", [
        (test, "Vocabulary", label, sentence(label // 2))
        for test in ("single", "negation") for label in (0, 1, 2, 2, 0)
    ])  # fmt: skip
    pairs = [(group, sentence(0), sentence(1)) for group in range(6)]
    table(tests / "qqp_inv.tsv", "test group variant sentence1 sentence2", [
        row for group, a, b in pairs for row in (
            ("Symmetry", group, 0, a, b), ("Symmetry", group, 1, b, a),
            ("typo", group, 0, a, b), ("typo", group, 1, inverted(rng, a), b), ("typo", group, 2, a, inverted(rng, b)),
        )
    ])  # fmt: skip
    table(tests / "qqp_mft.tsv", "test capability label sentence1 sentence2", [
        ("Reflexivity", "Logic", 1, a, a) for _, a, _ in pairs
    ] + [("Modifier", "Vocabulary", 0, a, b) for _, a, b in pairs])  # fmt: skip
    return data


def classifier(suite: Suite, penalty: float):
    """The transfer protocol by hand: rows -> labels."""

    def raw(rows: list[tuple[str, ...]], scale: float) -> np.ndarray:
        sides = [np.stack([vector(text) for text in side]) / scale for side in zip(*rows, strict=True)]
        return sides[0] if len(sides) == 1 else np.hstack([abs(sides[0] - sides[1]), sides[0] * sides[1]])

    rows = suite.training.splits["train"]
    texts = [texts for _, texts in rows]
    everything = np.stack([vector(text) for side in zip(*texts, strict=True) for text in side])
    scale = np.sqrt(everything.var(axis=0).mean())
    x = raw(texts, scale)
    model = LogisticRegression(C=1 / penalty, max_iter=5000, tol=1e-8).fit(x - x.mean(0), [label for label, _ in rows])
    return lambda rows: model.predict(raw(rows, scale) - x.mean(0))


def cosine(a: str, b: str) -> float:
    x, y = vector(a), vector(b)
    return float(x @ y / np.linalg.norm(x) / np.linalg.norm(y))


def near(one: tuple[str, ...], other: tuple[str, ...]) -> float:
    if len(one) == 1:
        return cosine(one[0], other[0])
    (a, b), (c, d) = one, other
    return max(cosine(a, c) + cosine(b, d), cosine(a, d) + cosine(b, c)) / 2


@pytest.mark.parametrize("name", SUITES)
def test_against_loops_and_a_classifier_by_hand(folder: Path, name: str) -> None:
    [suite] = [suite for suite in load_suites(folder) if suite.name == name]
    encode = Words()
    record = evaluate_suite(encode, suite)
    assert len(encode.asked) == len(set(encode.asked)) and set(encode.asked) == set(suite.sentences)
    assert record == evaluate_suite(Words(), suite)
    assert record["classifier"]["task"] == SUITES[name]
    predict = classifier(suite, record["classifier"]["penalty"][0])
    columns = ["text"] if name == "sentiment" else ["sentence1", "sentence2"]
    groups: dict[tuple, dict[int, tuple]] = {}
    for row in suite.invariance.dataset:
        groups.setdefault((row["test"], row["group"]), {})[row["variant"]] = tuple(row[c] for c in columns)
    tests = list(dict.fromkeys(test for test, _ in groups))
    invariance = record["invariance"]
    assert list(invariance["tests"]) == tests
    for only in (*tests, None):
        same, cosines, found, changes, ones = [], [], [], [], []
        for (test, _), variants in groups.items():
            if only not in (test, None):
                continue
            predicted = {variant: predict([texts])[0] for variant, texts in variants.items()}
            same.append(all(value == predicted[0] for value in predicted.values()))
            ones.append(predicted[0] == 1)
            originals = {v[0] for (t, _), v in groups.items() if t == test}
            for variant, texts in variants.items():
                if variant:
                    cosines.append(near(texts, variants[0]))
                    others = max(near(texts, other) for other in originals if other != variants[0])
                    found.append(round(cosines[-1], 12) > round(others, 12))
                    if len(texts) == 2:
                        changes.append(abs(cosine(*texts) - cosine(*variants[0])))
        part = invariance if only is None else invariance["tests"][only]
        assert part["invariance"] == pytest.approx(100 * np.mean(same))
        assert part["positive"] == pytest.approx(100 * np.mean(ones))
        assert part["cosine"] == pytest.approx(np.mean(cosines))
        assert part["retrieval"] == pytest.approx(100 * np.mean(found))
        assert part.get("similarity_change", 0) == pytest.approx(np.mean(changes or [0]))
        assert (part["groups"], part["variants"]) == (len(same), len(cosines))
    right: dict[str, list[bool]] = {}
    for row in suite.functionality.dataset:
        wanted = {0: 0, 2: 1}.get(row["label"]) if name == "sentiment" else row["label"]
        if wanted is not None:
            right.setdefault(row["test"], []).append(predict([tuple(row[c] for c in columns)])[0] == wanted)
    cases = record["functionality"]
    assert cases["left_out"] == (2 if name == "sentiment" else 0)
    assert {test: values["accuracy"] for test, values in cases["tests"].items()} == pytest.approx(
        {test: 100 * np.mean(values) for test, values in right.items()}
    )
    assert cases["accuracy"] == pytest.approx(100 * np.mean(sum(right.values(), [])))
    if name == "qqp":  # both features of a pair are symmetric
        assert invariance["tests"]["Symmetry"]["invariance"] == invariance["tests"]["Symmetry"]["retrieval"] == 100


def test_the_classifier_is_that_of_the_transfer_task(folder: Path) -> None:
    for suite in load_suites(folder):
        scored = transfer.evaluate_transfer(Words(), suite.training)
        classify, record = transfer.train_classifier(Words(), suite.training)
        assert record == scored
        rows = suite.training.splits["test"]
        found = classify(transfer.Embeddings(Words(), suite.training.sentences), [texts for _, texts in rows])
        assert 100 * np.mean(found == [label for label, _ in rows]) == pytest.approx(scored["accuracy"])
    crossed = dataclasses.replace(suite.training, splits={"all": rows})
    with pytest.raises(ValueError, match="no train set"):
        transfer.train_classifier(Words(), crossed)


def test_a_sample_keeps_whole_groups(folder: Path) -> None:
    sentiment, pairs = load_suites(folder, cases=3)
    again = load_suites(folder, cases=3)[0]
    assert sentiment.invariance.dataset.to_list() == again.invariance.dataset.to_list()
    whole = load_suites(folder)[0].invariance.dataset.to_list()
    kept = {(row["test"], row["group"]) for row in sentiment.invariance.dataset}
    assert len(kept) == 6 and sum((row["test"], row["group"]) in kept for row in whole) == sentiment.invariance.n
    assert sentiment.functionality.n == 6 and pairs.functionality.n == 6
    with pytest.raises(UserError, match="--checklist_cases must be at least 1, not 0"):
        load_suites(folder, cases=0)


@pytest.mark.parametrize(
    ("file", "line", "message"),
    [
        ("sentiment_inv", "typos\t99\tx\ta man", "line 42: the variant 'x' is not an integer"),
        ("sentiment_inv", "typos\t99\t0\ta man", "the group 99 of the test 'typos' needs variant 0 once, and others"),
        ("sentiment_inv", "typos\t99\t0", "line 42: 3 fields between tabs, expected 4"),
        ("sentiment_mft", "single\tVocabulary\t3\ta man", "line 12: the label 3 is not one of"),
        ("qqp_inv", "typo\t99\t0\ta man\t ", "line 32: an empty sentence"),
    ],
)
def test_a_bad_line_is_named(folder: Path, file: str, line: str, message: str) -> None:
    path = folder / "attack" / "CheckList" / f"{file}.tsv"
    path.write_text(path.read_text(encoding="utf-8") + line + "\n", encoding="utf-8")
    with pytest.raises(UserError, match=message) as caught:
        load_suites(folder)
    assert f"{file}.tsv" in str(caught.value)


def test_what_is_missing_is_named(folder: Path, bert: Path) -> None:
    with pytest.raises(UserError, match="marcotcr/checklist.*attack/CheckList.*sentiment_inv.tsv.*--data_dir DIR"):
        run_evaluation(str(bert), ["checklist"], device="cpu", pooling="mean")
    with pytest.raises(UserError, match="--checklist_cases belongs to CheckList"):
        run_evaluation(str(bert), ["stsb"], folder, checklist_cases=3)
    (folder / "attack" / "CheckList" / "qqp_mft.tsv").unlink()
    with pytest.raises(UserError, match="put attack/CheckList/qqp_mft.tsv"):
        load_suites(folder)
    (folder / "transfer" / "SST2" / "dev.tsv").unlink()
    with pytest.raises(UserError, match="SST2 dev is not under"):
        load_suites(folder)


def test_the_command(folder: Path, bert: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    output = tmp_path / "out.json"
    how = {"pooling": "mean", "device": "cpu", "argv": ["run_eval.py"]}
    results = run_evaluation(str(bert), ["checklist"], folder, output_json=output, **how)
    assert json.loads(output.read_text(encoding="utf-8")) == results
    assert list(results["checklist"]) == ["sentiment", "qqp"] and results["tasks"] == {}
    printed = capsys.readouterr().out
    assert "CheckList, sentiment; classifier of SST2 sentences" in printed
    assert "left out: 2 cases with a label that SST2 has not" in printed and "CheckList, question pairs" in printed
    [row] = collect([output]).rows
    assert (
        row.scores[Column("checklist", "qqp", "test", "accuracy")].mean
        == (results["checklist"]["qqp"]["functionality"]["accuracy"])
    )
    value = row.scores[Column("checklist", "sentiment", "test", "invariance")]
    assert value.mean == results["checklist"]["sentiment"]["invariance"]["invariance"]
    assert value.protocol == "classifier of SST2 sentences, 24 cases"
