"""Closed forms, and double loops in plain Python."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch

from hf_robustcse import functional
from hf_robustcse.errors import UserError
from hf_robustcse.evaluation import geometry
from hf_robustcse.evaluation.geometry import evaluate_dev, evaluate_geometry
from hf_robustcse.evaluation.sts import StsData, evaluate_pairs


def normalised(x: np.ndarray) -> list[list[float]]:
    return [[value / math.sqrt(sum(v * v for v in row)) for value in row] for row in x.tolist()]


def dot(u: list[float], v: list[float]) -> float:
    return sum(p * q for p, q in zip(u, v, strict=True))


def test_orthogonal_vectors() -> None:
    x = 3.0 * np.eye(5)
    assert geometry.uniformity(x) == pytest.approx(-4)  # every distance squared is 2
    assert geometry.mean_cosine(x) == pytest.approx(0)
    assert geometry.effective_rank(x) == pytest.approx(5)


def test_antipodal_vectors() -> None:
    x = np.array([[2.0, 0.0], [-0.5, 0.0]])
    assert geometry.uniformity(x) == pytest.approx(-8)
    assert geometry.mean_cosine(x) == pytest.approx(-1)
    assert geometry.effective_rank(x) == pytest.approx(1)
    assert geometry.embedding_std(x) == pytest.approx(math.sqrt(2) / 2)


def test_identical_vectors_are_collapsed() -> None:
    x = np.tile([1.0, 2.0, 3.0], (6, 1))
    assert geometry.uniformity(x) == pytest.approx(0, abs=1e-12)
    assert geometry.mean_cosine(x) == pytest.approx(1)
    assert geometry.effective_rank(x) == pytest.approx(1)
    assert geometry.embedding_std(x) == pytest.approx(0, abs=1e-12)


def test_spread_vectors_are_not() -> None:
    x = np.random.default_rng(0).normal(size=(5000, 16))
    assert geometry.embedding_std(x) == pytest.approx(1, abs=0.01)
    assert geometry.effective_rank(x) == pytest.approx(16, abs=0.1)
    assert geometry.mean_cosine(x) == pytest.approx(0, abs=0.01)


def test_zero_vectors_do_not_break() -> None:
    assert geometry.effective_rank(np.zeros((3, 2))) == 0.0
    assert geometry.embedding_std(np.zeros((3, 2))) == 0.0
    assert geometry.mean_cosine(np.array([[0.0, 0.0], [1.0, 0.0], [1.0, 0.0]])) == pytest.approx(1 / 3)


def test_uniformity_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.default_rng(0).normal(size=(23, 4))
    x[3] = 0
    whole = functional.uniformity(torch.from_numpy(x)).item()
    monkeypatch.setattr(geometry, "_ROWS", 5)
    assert geometry.uniformity(x) == pytest.approx(whole, abs=1e-12)
    assert geometry.uniformity(x, t=0.5) == pytest.approx(functional.uniformity(torch.from_numpy(x), t=0.5).item())


@pytest.fixture
def vectors(sentences: list[str]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(2)
    return {sentence: 1 + rng.normal(size=5) for sentence in sentences}


def test_against_double_loops(vectors: dict, pairs: list) -> None:
    calls = []

    def encode(sentences: list[str]) -> np.ndarray:
        calls.append(sentences)
        return np.array([vectors[sentence] for sentence in sentences])

    result = evaluate_geometry(encode, pairs)
    (encoded,) = calls
    assert len(encoded) == len(set(encoded)) == result["n"]
    unit = dict(zip(encoded, normalised(encode(encoded)), strict=True))
    positive = [(unit[first], unit[second]) for first, second, gold in pairs if gold > 4]
    assert result["n_positive"] == len(positive) == sum(gold in (4.5, 5.0) for *_, gold in pairs)
    expected = sum(sum((p - q) ** 2 for p, q in zip(u, v, strict=True)) for u, v in positive) / len(positive)
    assert result["alignment"] == pytest.approx(expected)
    assert result["positive_cosine"] == pytest.approx(sum(dot(u, v) for u, v in positive) / len(positive))
    different = list(itertools.permutations(unit.values(), 2))
    assert result["mean_cosine"] == pytest.approx(sum(dot(u, v) for u, v in different) / len(different))
    potential = sum(math.exp(-2 * sum((p - q) ** 2 for p, q in zip(u, v, strict=True))) for u, v in different)
    assert result["uniformity"] == pytest.approx(math.log(potential / len(different)))
    columns = list(zip(*unit.values(), strict=True))
    spread = [math.sqrt(sum((v - sum(c) / len(c)) ** 2 for v in c) / len(c)) for c in columns]
    assert result["embedding_std"] == pytest.approx(sum(spread) / len(spread) * math.sqrt(len(spread)))
    gram = np.array([[dot(u, v) for v in columns] for u in columns])
    singular = np.sqrt(np.linalg.eigvalsh(gram))
    share = singular / singular.sum()
    assert result["effective_rank"] == pytest.approx(math.exp(-sum(p * math.log(p) for p in share)))


def test_random_pairs_are_seeded_and_near_the_mean_cosine(vectors: dict, pairs: list) -> None:
    def encode(sentences: list[str]) -> np.ndarray:
        return np.array([vectors[sentence] for sentence in sentences])

    first, again, other = (evaluate_geometry(encode, pairs, seed=seed)["random_cosine"] for seed in (0, 0, 1))
    assert first == again != other
    assert first == pytest.approx(evaluate_geometry(encode, pairs)["mean_cosine"], abs=0.2)


def test_without_positive_pairs(vectors: dict, pairs: list) -> None:
    low = [(first, second, min(gold, 4.0)) for first, second, gold in pairs]

    def encode(sentences: list[str]) -> np.ndarray:
        return np.array([vectors[sentence] for sentence in sentences])

    result = evaluate_geometry(encode, low)
    assert result["alignment"] is None and result["positive_cosine"] is None and result["n_positive"] == 0
    assert "alignment" not in evaluate_dev(encode, StsData("STSB", "dev", {"dev": low}, "memory", "0"))
    with pytest.raises(UserError, match="two distinct"):
        evaluate_geometry(encode, [(low[0][0], low[0][0], 5.0)])


def test_dev_is_one_encoding_pass(vectors: dict, pairs: list) -> None:
    calls = []

    def encode(sentences: list[str]) -> torch.Tensor:
        calls.append(sentences)
        return torch.tensor(np.array([vectors[sentence] for sentence in sentences]))

    data = StsData("STSB", "dev", {"dev": pairs}, "memory", "0")
    scores = evaluate_dev(encode, data)
    assert len(calls) == 1 and calls[0] == data.sentences
    assert list(scores) == [
        "spearman", "alignment", "uniformity", "mean_cosine", "positive_cosine", "random_cosine", "embedding_std",
        "effective_rank",
    ]  # fmt: skip
    assert all(type(value) is float and math.isfinite(value) for value in scores.values())
    assert scores["spearman"] == evaluate_pairs(encode, data.subsets)["spearman"]
    assert scores["uniformity"] == evaluate_geometry(encode, pairs)["uniformity"]


def test_dev_of_a_collapsed_encoder_is_reported_not_raised(pairs: list) -> None:
    data = StsData("STSB", "dev", {"dev": pairs}, "memory", "0")
    with pytest.warns(UserWarning, match="similarities are equal"):
        scores = evaluate_dev(lambda sentences: np.ones((len(sentences), 4)), data)
    assert scores["spearman"] == 0 and scores["embedding_std"] == pytest.approx(0) and scores["uniformity"] == 0
