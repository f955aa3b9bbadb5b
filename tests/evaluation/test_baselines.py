"""Averaged word vectors against a loop over words, whitening against its definition and against sentence embeddings."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from hf_robustcse.errors import UserError
from hf_robustcse.evaluation import sts
from hf_robustcse.evaluation.baselines import fit_whitening, read_word_vectors, whiten_tasks
from hf_robustcse.evaluation.embedders import load_embedder
from hf_robustcse.evaluation.run import format_tables, run_evaluation
from hf_robustcse.evaluation.sts import StsData, evaluate_pairs, evaluate_tasks

VECTORS = {
    "the": [1.0, 0.5, -2.0],
    "cat": [0.25, 1.0, 0.0],
    "Cat": [8.0, 8.0, 8.0],
    "dog": [-1.0, 2.0, 4.0],
    ".": [3.0, 3.0, -3.0],
    "u.s.": [0.5, -0.5, 0.125],
}


def glove(vectors: dict[str, list[float]]) -> str:
    return "".join(f"{word} {' '.join(map(str, vector))}\n" for word, vector in vectors.items())


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "vectors.txt"
    path.write_text(glove(VECTORS), encoding="utf-8")
    return path


# --- word vectors ----------------------------------------------------------------------------------------------------


def test_mean_of_the_known_words(file: Path, capsys: pytest.CaptureFixture) -> None:
    found = {
        "the cat": ["the", "cat"],
        "Cat cat cat": ["Cat", "cat", "cat"],  # as it is written first, then in lower case
        "THE DOG, unheard-of.": ["the", "dog"],
        "the U.S. dog!": ["the", "dog"],  # u.s. is not U.S. without its points
        "u.s. dog .": ["u.s.", "dog", "."],
        "...": [],
        "nothing here": [],
    }
    embedder = load_embedder(str(file), batch_size=2, device="cpu")
    rows = embedder(list(found))
    for row, words in zip(rows.tolist(), found.values(), strict=True):
        expected = [math.fsum(VECTORS[word][i] for word in words) / max(len(words), 1) for i in range(3)]
        assert row == pytest.approx(expected, abs=1e-6)
    assert f"2 of 7 sentences hold no word of {file}: they embed to zero" in capsys.readouterr().out
    embedder(["the cat"])
    assert capsys.readouterr().out == ""
    about = embedder.description
    assert (about["pooling"], about["dimension"], about["max_seq_length"]) == ("glove", 3, None)
    assert (about["model"], about["device"], about["method"]) == (str(file), "cpu", None)
    assert embedder([]).shape == (0, 3)


@pytest.mark.parametrize("name", ["v.vec", "v.TXT", "v.txt.gz", "v.vec.gz", "v.data"])
def test_names_and_header(file: Path, tmp_path: Path, name: str) -> None:
    path = tmp_path / "named" / name
    path.parent.mkdir()
    text = "6 3 \n" + file.read_text(encoding="utf-8").replace("\n", " \n")  # word2vec's header, fastText's line ends
    path.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    pooling = "glove" if name == "v.data" else None
    sentences = ["the cat", "a dog"]
    expected = load_embedder(str(file), device="cpu")(sentences)
    np.testing.assert_array_equal(load_embedder(str(path), pooling=pooling, device="cpu")(sentences), expected)


def test_oddities_of_published_files(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    path = tmp_path / "v.txt"
    path.write_text("9 2\na 1 2\n. . . 3 4\n\na 5 6\nno\u00a0break 7 -8e-1\n", encoding="utf-8")
    words, vectors = read_word_vectors(path)
    assert words == ["a", ". . .", "no\u00a0break"]
    assert vectors.dtype == np.float32 and vectors == pytest.approx(np.array([[1, 2], [3, 4], [7, -0.8]]))
    assert "announces 9 words and holds 3" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"a 1 2\nb 1\n", "line 2: 2 fields, expected a word and 2 numbers"),
        (b"a 1 2\nb 1 2 3\n", "line 2: more than 2 numbers"),
        (b"2 3\na 1 2\n", "line 2: 3 fields, expected a word and 3 numbers"),
        (b"a 1 2\nb 1 x\n", "line 2: could not convert string to float: .*x"),
        (b"a 1 2\nb 1 nan\n", "line 2: a number is not finite"),
        (b"a 1 2\n 1 2\n", "line 2: no word"),
        (b"one sentence of a corpus\n", "line 1: could not convert"),
        (b"word\n", "line 1: 1 fields, expected a word and 1 numbers"),
        (b"a\t1\t2\n", "line 1: 1 fields"),
        (b"a 1 2\n\xff 1 2\n", "not UTF-8"),
        (b"", "holds no word vector"),
        (b"3 2\n", "holds no word vector"),
        ("\u00b2 \u00b2\n".encode(), "line 1: could not convert"),  # digits, but no numbers
    ],
)
def test_malformed_files(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "v.txt"
    path.write_bytes(content)
    with pytest.raises(UserError, match=f"{path}.*{words}"):
        load_embedder(str(path))


def test_refusals(file: Path, bert: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is no file"):
        load_embedder(str(tmp_path / "absent.txt"))
    broken = tmp_path / "v.txt.gz"
    broken.write_bytes(gzip.compress(file.read_bytes())[:-20])
    with pytest.raises(UserError, match="cannot be read"):
        load_embedder(str(broken))
    with pytest.raises(UserError, match="--pooling cls does not fit word vectors"):
        load_embedder(str(file), pooling="cls")
    with pytest.raises(UserError, match="leave --max_seq_length out"):
        load_embedder(str(file), max_seq_length=8)
    with pytest.raises(UserError, match="is a folder; --pooling glove"):
        load_embedder(str(bert), pooling="glove")
    assert load_embedder(str(file), pooling="mean", device="cpu").description["pooling"] == "glove"


def test_command_with_word_vectors(tmp_path: Path, pairs: list, write_tsv: Callable) -> None:
    rng = np.random.default_rng(0)
    vectors = {word: rng.normal(size=4).tolist() for first, *_ in pairs for word in first.split()}
    path = tmp_path / "v.txt"
    path.write_text(glove(vectors), encoding="utf-8")

    def average(sentences: list[str]) -> np.ndarray:
        return np.array([np.mean([vectors[word] for word in s.split() if word in vectors], axis=0) for s in sentences])

    results = run_evaluation(str(path), ["embedded_dev"], device="cpu")
    assert results["protocol"]["pooling"] == "glove" and results["model"] == str(path)
    ours = evaluate_pairs(load_embedder(str(path), device="cpu"), {"all": pairs})["spearman"]
    assert ours == pytest.approx(evaluate_pairs(average, {"all": pairs})["spearman"], abs=1e-6)


# --- whitening -------------------------------------------------------------------------------------------------------


@pytest.fixture
def rows() -> np.ndarray:
    """400 correlated rows of 6 dimensions, off the origin."""
    rng = np.random.default_rng(2)
    return rng.normal(size=(400, 6)) @ rng.normal(size=(6, 6)) + 5 * rng.normal(size=6)


def covariance(rows: np.ndarray) -> list[list[float]]:
    """In plain Python, from the definition."""
    n, width = rows.shape
    means = [math.fsum(column) / n for column in rows.T.tolist()]
    return [
        [math.fsum((row[i] - means[i]) * (row[j] - means[j]) for row in rows.tolist()) / n for j in range(width)]
        for i in range(width)
    ]


def test_zero_mean_and_unit_covariance(rows: np.ndarray) -> None:
    whitening = fit_whitening(rows, name="x")
    white = whitening(rows)
    assert white.shape == (400, 6) and (whitening.sentences, whitening.dropped) == (400, 0)
    assert np.abs(white.mean(axis=0)).max() < 1e-12
    np.testing.assert_allclose(covariance(white), np.eye(6), atol=1e-9)


def test_products_are_those_of_the_inverse_covariance(rows: np.ndarray) -> None:
    """x~ . y~ = (x - mu) S^-1 (y - mu), whatever rotation the eigenvectors come in."""
    white = fit_whitening(rows, name="x")(rows[:20])
    inverse, mean = np.linalg.inv(covariance(rows)), rows.mean(axis=0)
    for i in range(20):
        for j in range(20):
            expected = (rows[i] - mean) @ inverse @ (rows[j] - mean)
            assert white[i] @ white[j] == pytest.approx(expected, abs=1e-8)


def test_widest_dimensions_are_kept() -> None:
    rng = np.random.default_rng(3)
    scales = np.array([0.1, 5.0, 1.0, 3.0])
    rows = rng.normal(size=(2000, 4)) * scales
    white = fit_whitening(rows, 2, name="x")(rows)
    kept = (rows - rows.mean(axis=0))[:, [1, 3]] / rows.std(axis=0)[[1, 3]]
    assert white.shape == (2000, 2)
    np.testing.assert_allclose(np.abs(np.corrcoef(white.T, kept.T)[:2, 2:]), np.eye(2), atol=0.05)


def test_dimensions_without_variance_are_dropped(rows: np.ndarray, capsys: pytest.CaptureFixture) -> None:
    flat = np.concatenate([rows, rows[:, :2] - rows[:, 2:4], np.full((400, 1), 3.0)], axis=1).astype(np.float32)
    whitening = fit_whitening(flat.astype(np.float64), name="x")
    assert whitening.matrix.shape == (9, 6) and whitening.dropped == 3
    assert "whitening on x: 3 of 9 dimensions have no variance and are dropped" in capsys.readouterr().out
    np.testing.assert_allclose(covariance(whitening(flat)), np.eye(6), atol=1e-6)
    fit_whitening(flat.astype(np.float64), 4, name="x")
    assert capsys.readouterr().out == ""  # none of the four is among them


def test_too_few_sentences_are_refused(rows: np.ndarray) -> None:
    with pytest.raises(UserError, match="6 dimensions on the 7 different sentences of few makes all"):
        fit_whitening(rows[:7], name="few")
    assert fit_whitening(rows[:8], name="x").matrix.shape == (6, 6)
    assert fit_whitening(rows[:7], 5, name="x").matrix.shape == (6, 5)
    with pytest.raises(UserError, match="equally similar"):
        fit_whitening(np.tile(rows[:1], (50, 1)), name="same")
    for dim in (0, 7):
        with pytest.raises(UserError, match=f"--whitening_dim {dim} must be between 1 and 6"):
            fit_whitening(rows, dim, name="x")


def lookup(sentences: list[str], width: int = 5) -> Callable[[list[str]], np.ndarray]:
    """An encoder that counts: fixed float32 vectors, each sentence encoded once a call."""
    rng = np.random.default_rng(4)
    table = {sentence: rng.normal(size=width) * [4, 1, 1, 1, 0.2] + [9, 1, 0, 0, 0] for sentence in sentences}

    def encode(asked: list[str]) -> np.ndarray:
        assert len(asked) == len(set(asked))
        return np.array([table[sentence] for sentence in asked], dtype=np.float32)

    return encode


def by_hand(encode: Callable, pairs: list, fit_on: list[str], dim: int = 5) -> float:
    """Spearman of whitened embeddings with a singular value decomposition in place of eigenvectors."""
    own = encode(fit_on).astype(np.float64)
    mean = own.mean(axis=0)
    _, singular, axes = np.linalg.svd(own - mean, full_matrices=False)
    white = {
        sentence: ((encode([sentence])[0] - mean) @ axes.T / singular)[:dim] for pair in pairs for sentence in pair[:2]
    }
    return evaluate_pairs(lambda asked: np.array([white[s] for s in asked]), {"all": pairs})["spearman"]


def distinct(pairs: list) -> list[str]:
    return sorted({sentence for pair in pairs for sentence in pair[:2]})


def test_each_task_is_whitened_by_itself(sentences: list[str], pairs: list) -> None:
    encode = lookup(sentences)
    tasks = [StsData("STS12", "test", {"a": pairs[:20], "b": pairs[20:50]}, "x", "0"),
             StsData("STSB", "dev", {"dev": pairs[50:]}, "x", "0")]  # fmt: skip
    tables, about = whiten_tasks(encode, tasks, dim=4)
    scores = evaluate_tasks(tables, tasks)["tasks"]
    for data in tasks:
        expected = by_hand(encode, data.pairs, distinct(data.pairs), 4)
        assert scores[data.key]["spearman"] == pytest.approx(expected, abs=1e-6)
    counts = {data.key: {"sentences": len(distinct(data.pairs)), "dimension": 4, "dropped": 0} for data in tasks}
    assert about == {
        "transductive": True, "dim": 4, "fitted_on": "the unlabelled sentences of each scored set", "tasks": counts,
    }  # fmt: skip
    alone = evaluate_tasks(whiten_tasks(encode, tasks[:1], dim=4)[0], tasks[:1])["tasks"]["STS12"]
    assert alone["spearman"] == pytest.approx(scores["STS12"]["spearman"], abs=1e-9)
    plain = evaluate_tasks(encode, tasks)["tasks"]["STS12"]
    assert abs(plain["spearman"] - scores["STS12"]["spearman"]) > 1


def test_whitening_fitted_on_a_text(sentences: list[str], pairs: list, tmp_path: Path) -> None:
    text = tmp_path / "text.txt.gz"
    text.write_bytes(gzip.compress("\n".join(sentences[:30] + sentences[:5]).encode()))
    encode = lookup(sentences)
    tasks = [StsData("STSB", "dev", {"dev": pairs}, "x", "0")]
    tables, about = whiten_tasks(encode, tasks, text=text)
    score = evaluate_tasks(tables, tasks)["tasks"]["stsb_dev"]["spearman"]
    assert score == pytest.approx(by_hand(encode, pairs, sentences[:30]), abs=1e-6)
    assert len(about.pop("sha256")) == 64
    assert about == {
        "transductive": False, "dim": None, "fitted_on": str(text), "sentences": 30, "dimension": 5, "dropped": 0,
    }  # fmt: skip
    with pytest.raises(UserError):
        whiten_tasks(encode, tasks, text=tmp_path / "absent.txt")


def test_tensors_and_broken_embeddings(sentences: list[str], pairs: list) -> None:
    encode = lookup(sentences)
    tasks = [StsData("STSB", "dev", {"dev": pairs}, "x", "0")]
    expected = whiten_tasks(encode, tasks)[0]["stsb_dev"].unit
    tensors = whiten_tasks(lambda asked: torch.from_numpy(encode(asked)).requires_grad_(), tasks)[0]["stsb_dev"].unit
    np.testing.assert_array_equal(tensors, expected)
    with pytest.raises(UserError, match="NaN"):
        whiten_tasks(lambda asked: encode(asked) * np.nan, tasks)


@pytest.fixture
def data(tmp_path: Path, pairs: list, write_tsv: Callable, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_tsv(tmp_path / "data" / "STSB" / "dev.tsv", pairs)
    monkeypatch.setitem(sts.TASKS, "STSB", sts.StsTask("STSB", {"dev": 120}))
    return tmp_path / "data"


def test_command_records_the_whitening(bert: Path, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    options = {"pooling": "first-last", "device": "cpu"}
    plain = run_evaluation(str(bert), ["stsb_dev"], data, **options)
    assert "whitening" not in plain["protocol"]
    output = tmp_path / "out.json"
    results = run_evaluation(
        str(bert), ["stsb_dev"], data, whitening=True, whitening_dim=12, output_json=output, **options
    )
    assert json.loads(output.read_text(encoding="utf-8")) == results
    own = results["protocol"]["whitening"]
    assert own["transductive"] and own["tasks"]["stsb_dev"]["dimension"] == 12 and own["dim"] == 12
    assert "whitened, fitted on the unlabelled sentences of each scored set" in format_tables(results)
    assert results["tasks"]["stsb_dev"]["spearman"] != pytest.approx(plain["tasks"]["stsb_dev"]["spearman"], abs=0.1)
    text = tmp_path / "text.txt"
    text.write_text("\n".join(first for first, *_ in dict.fromkeys(sts.load_sts("stsb_dev", data).pairs)))
    implied = run_evaluation(str(bert), ["stsb_dev"], data, whitening_text=text, **options)
    assert implied["protocol"]["whitening"]["fitted_on"] == str(text)
    with pytest.raises(UserError, match="evaluate transfer, mr, geometry without it"):
        run_evaluation(str(bert), ["stsb_dev", "transfer", "mr", "geometry"], data, whitening=True, **options)
