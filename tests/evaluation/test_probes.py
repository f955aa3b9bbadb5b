"""The probes against float64 loops in plain Python, and their pictures."""

from __future__ import annotations

import builtins
import json
import math
import random
import statistics
from pathlib import Path

import numpy as np
import pytest

from hf_robustcse.errors import UserError
from hf_robustcse.evaluation import pictures, probes
from hf_robustcse.evaluation.geometry import uniformity
from hf_robustcse.evaluation.probes import (
    batch_sizes,
    evaluate_probes,
    negative_cosines,
    probe_text,
    retrieval,
    sentence_map,
    top_negatives,
)


def cosine(u: list[float], v: list[float]) -> float:
    norm = math.sqrt(sum(p * p for p in u)) * math.sqrt(sum(q * q for q in v))
    return sum(p * q for p, q in zip(u, v, strict=True)) / norm if norm else 0.0


def vectors(n: int, d: int = 6, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, d)) + 0.5


def loop_of_top(batch: list[list[float]], k: int) -> float:
    """Mean over a batch of the mean of the k largest cosines to the others."""
    means = []
    for i, one in enumerate(batch):
        others = sorted((cosine(one, other) for j, other in enumerate(batch) if j != i), reverse=True)
        means.append(sum(others[:k]) / k)
    return sum(means) / len(means)


# --- GS-InfoNCE Figure 1 ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1024, 7])
def test_top_negatives_against_a_loop(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "_ROWS", rows)
    x = vectors(45)
    x[3] = 0
    result = top_negatives(x, k=3, sizes=[16, 5, 45], seed=9)
    assert result["k"] == 3 and result["batch_sizes"] == [5, 16, 45] and result["batches"] == [45, 10, 5]
    for place, size in enumerate(result["batch_sizes"]):
        draw = np.random.default_rng((9, size))
        expected = []
        for _ in range(5):
            shuffled = [x[row].tolist() for row in draw.permutation(45)]
            expected += [loop_of_top(shuffled[start : start + size], 3) for start in range(0, 45 // size * size, size)]
        assert result["mean"][place] == pytest.approx(statistics.fmean(expected), abs=1e-12)
        assert result["std"][place] == pytest.approx(statistics.pstdev(expected), abs=1e-12)
    assert result["mean"] == sorted(result["mean"])  # more negatives hold more similar ones
    assert result["std"][2] == pytest.approx(0, abs=1e-12)  # a batch of all sentences is always the same


def test_the_batches_of_a_size_do_not_depend_on_the_other_sizes() -> None:
    x = vectors(70)
    alone, all_of_them = top_negatives(x, sizes=[32]), top_negatives(x)
    assert all_of_them["batch_sizes"] == [8, 16, 32, 64] and all_of_them["mean"][2] == alone["mean"][0]
    assert top_negatives(x, seed=1)["mean"] != all_of_them["mean"]


def test_impossible_batch_sizes() -> None:
    assert batch_sizes(600, 4) == [8, 16, 32, 64, 128, 256, 512] and batch_sizes(600, 8) == [16, 32, 64, 128, 256, 512]
    for n, k, sizes, words in (
        (7, 4, None, "7 distinct sentences"),
        (600, 512, None, "lower --geometry_k"),
        (600, 0, None, "--geometry_k must be at least 1"),
        (600, 4, [8, 4], "--geometry_batch_sizes 4: a batch with 4 negatives has at least 5"),
        (600, 4, [601], "there are 600"),
    ):
        with pytest.raises(UserError, match=words):
            batch_sizes(n, k, sizes)


# --- DCLR Figure 1 ----------------------------------------------------------------------------------------------------


def loop_of_bins(cosines: list[float]) -> list[int]:
    counts = [0] * 100
    for value in cosines:
        counts[min(99, math.floor((value + 1) / 0.02))] += 1
    return counts


@pytest.mark.parametrize(("n", "negatives", "rows"), [(40, 255, 1024), (40, 255, 7), (41, 6, 1024), (41, 6, 5)])
def test_negative_cosines_against_a_loop(n: int, negatives: int, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "_ROWS", rows)
    x = vectors(n)
    result = negative_cosines(x, negatives=negatives, seed=4)
    each = min(negatives, n - 1)
    ring = [x[row].tolist() for row in np.random.default_rng(4).permutation(n)]
    cosines = [cosine(ring[i], ring[(i + 1 + j) % n]) for i in range(n) for j in range(each)]
    assert result["negatives"] == each and sum(result["counts"]) == n * each == len(cosines)
    assert result["counts"] == loop_of_bins(cosines)
    assert result["mean"] == pytest.approx(statistics.fmean(cosines), abs=1e-12)
    assert result["std"] == pytest.approx(statistics.pstdev(cosines), abs=1e-12)
    if each == n - 1:  # every pair, so that the order does not matter
        everyone = [cosine(u, v) for i, u in enumerate(ring) for j, v in enumerate(ring) if i != j]
        assert result["counts"] == loop_of_bins(everyone)


def test_negatives_at_the_ends_of_the_range() -> None:
    opposite = negative_cosines(np.array([[1.0, 0.3], [-1.0, -0.3]]))
    assert opposite["counts"] == [2] + [0] * 99 and opposite["mean"] == pytest.approx(-1)
    same = negative_cosines(np.tile([0.1, 0.2, 0.3], (300, 1)))
    assert same["negatives"] == 255 and same["counts"] == [0] * 99 + [300 * 255] and same["std"] < 1e-6
    with pytest.raises(UserError, match="at least two"):
        negative_cosines(np.ones((1, 3)))


# --- retrieval --------------------------------------------------------------------------------------------------------


class Table:
    """An `encode` that looks vectors up and notes its calls."""

    def __init__(self, rows: dict[str, list[float]]) -> None:
        self.rows = rows
        self.calls: list[list[str]] = []

    def __call__(self, sentences: list[str]) -> np.ndarray:
        self.calls.append(sentences)
        return np.array([self.rows[sentence] for sentence in sentences])


@pytest.mark.parametrize("rows", [1024, 4])
def test_retrieval_against_a_loop(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "_ROWS", rows)
    draw = random.Random(0)
    sentences = [f"s{i}" for i in range(30)] + ["s4"]  # one twice
    table = {f"s{i}": [draw.gauss(0.3, 1) for _ in range(3)] for i in range(30)}
    changed = [f"p{i}" for i in range(31)]
    table |= {p: [value + draw.gauss(0, 0.5) for value in table[s]] for p, s in zip(changed, sentences, strict=True)}
    changed[7] = "s7"  # not perturbed: no query
    table["p8"] = table["s9"]  # becomes another sentence
    table["s11"] = [2 * value for value in table["s10"]]  # two sentences that the model cannot tell apart
    table["p10"] = table["p11"] = table["s10"]
    encode = Table(table)
    result = retrieval(encode, sentences, changed)
    assert len(encode.calls) == 1 and len(encode.calls[0]) == len(set(encode.calls[0]))
    hits, cosines = 0, []
    for s, p in zip(sentences, changed, strict=True):
        if s == p:
            continue
        own = cosine(table[s], table[p])
        cosines.append(own)
        hits += all(own > cosine(table[other], table[p]) + 1e-12 for other in set(sentences) - {s})
    assert 5 < hits < 28  # neither trivial
    assert result["accuracy"] == pytest.approx(100 * hits / 30) and result["queries"] == 30
    assert result["cosine"] == pytest.approx(statistics.fmean(cosines), abs=1e-12) and result["candidates"] == 30
    assert result["uniformity"] == pytest.approx(uniformity(np.array([table[f"s{i}"] for i in range(30)])))


def test_a_collapsed_model_finds_nothing() -> None:
    sentences, changed = [f"s{i}" for i in range(50)], [f"p{i}" for i in range(50)]
    # All one direction, up to rounding, which alone would let some win.
    scale, direction = np.random.default_rng(0).uniform(0.1, 10, size=100), vectors(1, 97)[0]
    table = Table({s: (f * direction).tolist() for s, f in zip(sentences + changed, scale, strict=True)})
    result = retrieval(table, sentences, changed)
    assert result["accuracy"] == 0 and result["uniformity"] == pytest.approx(0, abs=1e-9)
    assert retrieval(lambda s: np.zeros((len(s), 3)), sentences, changed)["accuracy"] == 0


def test_retrieval_refuses() -> None:
    for sentences, changed, words in ((["a"], ["b"], "two distinct"), (["a", "b"], ["a", "b"], "changed none")):
        with pytest.raises(UserError, match=words):
            retrieval(lambda s: np.ones((len(s), 2)), sentences, changed)
    with pytest.raises(UserError, match="NaN"):
        retrieval(lambda s: np.full((len(s), 2), np.nan), ["a", "b"], ["c", "d"])


# --- map, text, all together ------------------------------------------------------------------------------------------


def random_encoder(sentences: list[str]) -> np.ndarray:
    return np.array([np.random.default_rng(sum(map(ord, s))).normal(size=8) for s in sentences])


def test_map_is_seeded_and_pairs_are_near() -> None:
    sentences = [f"sentence {i}" for i in range(40)]
    rows = {s: x for s, x in zip(sentences, vectors(40).tolist(), strict=True)}
    rows |= {f"{s}x": [value + 1e-3 for value in x] for s, x in rows.items()}
    arguments = Table(rows), sentences, [f"{s}x" for s in sentences]
    first, again = sentence_map(*arguments, seed=3), sentence_map(*arguments, seed=3)
    assert first == again and list(first) == ["sentences", "perturbed"]
    points = [np.array([first[name]["x"], first[name]["y"]]).T for name in first]
    assert points[0].shape == (40, 2)
    distances = np.linalg.norm(points[0][:, None] - points[1], axis=2)
    assert (distances.argmin(axis=1) == np.arange(40)).mean() > 0.8  # at random it would be 1 in 40


@pytest.mark.parametrize("x", [np.ones((6, 4)), np.zeros((6, 4)), np.arange(1.0, 7.0)[:, None]])
def test_map_of_a_collapsed_model(x: np.ndarray) -> None:
    rows = dict(zip("abcdef", x.tolist(), strict=True))
    points = sentence_map(Table(rows), list("abc"), list("def"))
    json.dumps(points, allow_nan=False)


def test_map_samples_a_long_text() -> None:
    sentences = [f"sentence {i}" for i in range(300)]
    points = sentence_map(random_encoder, sentences, [f"x{s}" for s in sentences])
    assert {len(points[name][axis]) for name in points for axis in "xy"} == {200}


def test_probe_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "MAX_SENTENCES", 20)
    sentences = [f"the sentence number {chr(97 + i)}" for i in range(26)]
    text = probe_text(sentences + sentences, "memory", noise=0.5, seed=1)
    assert text.available == 26 and len(text.sentences) == 20 == len(set(text.sentences))
    assert text.sentences == sorted(text.sentences) and text == probe_text(sentences, "memory", noise=0.5, seed=1)
    assert text.sentences != probe_text(sentences, "memory", noise=0.5, seed=2).sentences
    assert all(a != b for a, b in zip(text.sentences, text.perturbed, strict=True))
    for noise in (0, -1, 1.5, math.nan):
        with pytest.raises(UserError, match="--geometry_noise must be above 0"):
            probe_text(sentences, "memory", noise=noise)


@pytest.fixture(scope="module")
def record(sentences: list[str]) -> dict:
    calls = []

    def encode(texts: list[str]) -> np.ndarray:
        calls.append(texts)
        return random_encoder(texts)

    text = probe_text(sentences, "memory")
    found = evaluate_probes(encode, text, k=2)
    assert len(calls) == 1 and len(calls[0]) == len(set(calls[0]))
    return found


def test_all_probes(record: dict, sentences: list[str]) -> None:
    assert json.loads(json.dumps(record, allow_nan=False)) == record
    assert list(record) == ["source", "n", "available", "top_negatives", "negatives", "perturbed"]
    assert record["n"] == len(sentences) and record["top_negatives"]["batch_sizes"] == [8, 16, 32]
    assert record["negatives"]["negatives"] == len(sentences) - 1
    assert list(record["perturbed"]) == [
        "noise", "accuracy", "cosine", "uniformity", "queries", "candidates", "map",
    ]  # fmt: skip


# --- pictures ---------------------------------------------------------------------------------------------------------


def test_pictures_hold_the_numbers(record: dict, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    other = json.loads(json.dumps(record))
    other["top_negatives"]["mean"] = [0.5, 0.6, 0.7]
    records = {"one": record, "$_two": other}
    figure = pictures.top_negatives(records)
    (axes,) = figure.axes
    for lines, probe in zip(axes.containers, (record, other), strict=True):
        assert lines[0].get_xdata().tolist() == probe["top_negatives"]["batch_sizes"]
        assert lines[0].get_ydata().tolist() == probe["top_negatives"]["mean"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["one", r"\$_two"]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["8", "16", "32"] and "2 most" in axes.get_ylabel()

    (axes,) = pictures.negatives({"one": record}).axes
    (steps,) = axes.patches
    counts = np.array(record["negatives"]["counts"])
    np.testing.assert_allclose(steps.get_data().values, 100 * counts / counts.sum())
    np.testing.assert_allclose(steps.get_data().edges, np.arange(-1, 1.01, 0.02), atol=1e-12)
    low, high = axes.get_xlim()
    assert low <= np.arange(-1, 1, 0.02)[counts > 0][0] and high >= 1
    assert f"{record['n'] - 1} random others" in axes.get_xlabel()

    panels = pictures.perturbed(records).axes
    assert len(panels) == 2
    for axes in panels:
        for points, name in zip(axes.collections, ("sentences", "perturbed"), strict=True):
            expected = record["perturbed"]["map"][name]
            np.testing.assert_allclose(points.get_offsets(), np.array([expected["x"], expected["y"]]).T)
        assert len(axes.lines) == record["n"]
        assert f"found again {record['perturbed']['accuracy']:.1f}%" in axes.get_title()

    files = pictures.draw_probes(records, tmp_path / "new" / "run.v1")
    assert [file.name for file in files] == [f"run.v1_{n}.png" for n in ("top_negatives", "negatives", "perturbed")]
    for file in files:
        content = file.read_bytes()
        assert content.startswith(b"\x89PNG\r\n\x1a\n") and len(content) > 10_000
    first = files[0].read_bytes()
    assert pictures.draw_probes(records, tmp_path / "new" / "run.v1")[0].read_bytes() == first


def test_without_matplotlib(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = builtins.__import__

    def without(name: str, *rest: object) -> object:
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return whole(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    assert not pictures.has_matplotlib() and "[plots]" in pictures.HOW_TO_GET
