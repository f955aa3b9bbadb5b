"""Noise curves: every number against plain loops, each text encoded once, the command, its table and its pictures."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import spearmanr

from hf_robustcse import synonyms
from hf_robustcse.errors import UserError
from hf_robustcse.evaluation import run as command
from hf_robustcse.evaluation import sts
from hf_robustcse.evaluation.noise_curves import RATES, SEEDS, check_rates, noise_curve, perturbations
from hf_robustcse.evaluation.run import run_evaluation
from hf_robustcse.report.read import Column, collect
from hf_robustcse.typos import add_typos


class Letters:
    """Counts of letters, no two sentences of different letters alike; remembers what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def __call__(self, texts: list[str]) -> np.ndarray:
        self.asked += texts
        return np.array([self.one(text) for text in texts])

    @staticmethod
    def one(text: str) -> list[float]:
        return [
            1.0 + sum((place + 1) for place, c in enumerate(text.lower()) if c == letter) for letter in "abcdeghinorst"
        ]


def cosine(a: str, b: str) -> float:
    x, y = Letters.one(a), Letters.one(b)
    return sum(p * q for p, q in zip(x, y, strict=True)) / math.sqrt(sum(p * p for p in x) * sum(q * q for q in y))


@pytest.fixture
def data(pairs: list) -> sts.StsData:
    return sts.StsData("STSB", "test", {"all": pairs[:40]}, "here", "0" * 64)


@pytest.fixture
def words(tmp_path: Path) -> Path:
    path = tmp_path / "words.tsv"
    path.write_text("cat\tfeline\ndog\thound\tpooch\nhouse\thome\nquickly\tfast\n", encoding="utf-8")
    return path


@pytest.mark.parametrize("kind", ["typos", "synonyms"])
@pytest.mark.parametrize("perturbed", ["both", "second"])
def test_against_plain_loops(data: sts.StsData, words: Path, kind: str, perturbed: str) -> None:
    kinds, reason = perturbations(str(words))
    assert reason is None and list(kinds) == ["typos", "synonyms"]
    encode, rates = Letters(), [0.5, 0, 1.0]
    record = noise_curve(encode, data, kinds[kind], rates=rates, perturbed=perturbed)
    assert len(encode.asked) == len(set(encode.asked))
    assert record == noise_curve(Letters(), data, kinds[kind], rates=rates, perturbed=perturbed)
    listed = synonyms.read_word_list(str(words))
    sentences = list(dict.fromkeys(text for pair in data.pairs for text in pair[:2]))
    chosen = sentences if perturbed == "both" else list(dict.fromkeys(pair[1] for pair in data.pairs))
    assert record["rates"] == [0.0, 0.5, 1.0] and record["n"] == 40 and record["sentences"] == len(chosen)
    for place, rate in enumerate(record["rates"]):
        values = []
        for seed in SEEDS if rate else SEEDS[:1]:

            def noisy(text: str, rate: float = rate, seed: int = seed) -> str:
                if not rate:
                    return text
                if kind == "typos":
                    return add_typos(text, rate=rate, seed=seed)
                return synonyms.replace_words(text, listed, rate=rate, seed=seed)

            scores = [
                cosine(noisy(a) if perturbed == "both" else a, noisy(b)) for a, b, _ in data.pairs
            ]  # fmt: skip
            near, found, gone = [], [], []
            for text in chosen:
                other = noisy(text)
                left = other.split()
                kept = sum(1 for word in text.split() if word in left and not left.remove(word))
                gone.append(1 - kept / len(text.split()))
                if other != text:
                    near.append(cosine(text, other))
                    others = max(cosine(other, candidate) for candidate in sentences if candidate != text)
                    found.append(round(near[-1], 12) > round(others, 12))
            spearman = 100 * spearmanr(np.round(scores, 12), data.gold)[0]
            values.append((spearman, np.mean(near or [1]), 100 * np.mean(found or [1]), 100 * np.mean(gone)))
        mean = np.mean(values, axis=0)
        names = ("spearman", "cosine", "retrieval", "words_changed")
        assert [record[name][place] for name in names] == pytest.approx(mean, abs=1e-6)
        spread = np.std([value[0] for value in values], ddof=1) if rate else 0
        assert record["spearman_std"][place] == pytest.approx(spread, abs=1e-6)
    for name in ("spearman", "cosine", "retrieval"):
        first, *rest = record[name]
        expected = 100 * sum(rest) / len(rest) / first if first > 0 else None
        assert record["relative"][name] == (None if expected is None else pytest.approx(expected))


def test_originals_that_are_embedded_are_not_encoded_again(data: sts.StsData) -> None:
    once, encode = Letters(), Letters()
    known = sts.Embeddings(once, [*data.sentences, "something else"])
    kinds, _ = perturbations()
    record = noise_curve(encode, data, kinds["typos"], rates=[0.3], originals=known)
    assert not set(encode.asked) & set(data.sentences)
    assert record == noise_curve(Letters(), data, kinds["typos"], rates=[0.3])


def test_bad_input(data: sts.StsData, tmp_path: Path) -> None:
    assert check_rates(None) == list(RATES) and check_rates([1, 0.5]) == [0, 0.5, 1]
    for rates, message in (([1.2], "between 0 and 1, not 1.2"), ([0], "at least one rate above 0")):
        with pytest.raises(UserError, match=message):
            check_rates(rates)
    kinds, _ = perturbations()
    with pytest.raises(UserError, match="both, second"):
        noise_curve(Letters(), data, kinds["typos"], perturbed="first")
    nothing = tmp_path / "nothing.tsv"
    nothing.write_text("zebra\tquagga\n", encoding="utf-8")
    with pytest.raises(UserError, match="STSB: the noise changes no sentence"):
        noise_curve(Letters(), data, perturbations(str(nothing))[0]["synonyms"])
    with pytest.raises(UserError, match="cannot read the word list"):
        perturbations(str(tmp_path / "absent.tsv"))


def test_without_wordnet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("nltk")
    monkeypatch.setenv("WORDNET_DIR", str(tmp_path))
    kinds, reason = perturbations()
    assert list(kinds) == ["typos"] and "--noise_word_list FILE" in reason and "dcl" not in reason
    with pytest.raises(UserError, match="holds no data.noun"):
        perturbations(strict=True)


@pytest.fixture
def folder(tmp_path: Path, pairs: list, write_tsv: Callable, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder with STS-B: dev of 20 pairs, test of 30."""
    task = sts.TASKS["STSB"]
    monkeypatch.setitem(sts.TASKS, "STSB", sts.StsTask("STSB", {"dev": 20, "test": 30}, hub=task.hub))
    write_tsv(tmp_path / "data" / "sts" / "STSB" / "test.tsv", pairs[:30])
    write_tsv(tmp_path / "data" / "sts" / "STSB" / "dev.tsv", pairs[30:50])
    return tmp_path / "data"


def run(bert: Path, data: Path, tasks: tuple[str, ...] = ("noise",), **options: object) -> dict:
    return run_evaluation(str(bert), list(tasks), data, pooling="mean", device="cpu", **options)


def test_the_command(bert: Path, folder: Path, words: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    output = tmp_path / "out" / "noise.json"
    results = run(
        bert, folder, ("noise", "stsb"), noise_tasks=["STSB", "stsb_dev"], noise_rates=[0.5, 1],
        noise_word_list=str(words), output_json=output, argv=["run_eval.py"],
    )  # fmt: skip
    assert json.loads(output.read_text(encoding="utf-8")) == results
    assert {kind: list(sets) for kind, sets in results["noise"].items()} == dict.fromkeys(
        ("typos", "synonyms"), ["stsb_dev", "STSB"]
    )
    record = results["noise"]["typos"]["STSB"]
    assert record["spearman"][0] == pytest.approx(results["tasks"]["STSB"]["spearman"])
    assert record["sha256"] == results["tasks"]["STSB"]["sha256"] and record["split"] == "test"
    printed = capsys.readouterr().out
    assert "noise curves of STSB: synonyms in both sentences, mean of 3 noise seeds" in printed
    names = ["noise.json"]
    if command.drawing.has_matplotlib():
        names += ["noise_noise_synonyms.png", "noise_noise_typos.png"]
    assert sorted(path.name for path in output.parent.iterdir()) == names
    [row] = collect([output]).rows
    value = row.scores[Column("noise", "STSB, typos", "test", "relative cosine")]
    assert value.mean == record["relative"]["cosine"] and value.data == record["sha256"] and value.count == 30
    alone = run(bert, folder, noise_rates=[0.5, 1], noise_word_list=str(words))
    assert alone["tasks"] == {} and alone["noise"]["typos"]["STSB"] == record


def test_options_of_the_command(
    bert: Path, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    for tasks, options, message in (
        (("stsb",), {"noise_rates": [0.1]}, "--noise_rates belongs to the noise curves"),
        (("stsb",), {"noise_perturbed": "second"}, "--noise_perturbed belongs"),
        (("noise",), {"noise_tasks": ["geometry"]}, "--noise_tasks takes sts or STS sets: leave geometry out"),
        (("noise",), {"noise_rates": [2]}, "between 0 and 1"),
        (("noise",), {"noise_tasks": ["SICKR"]}, "SICKR test is not under"),
        (("noise",), {"whitening": True}, "evaluate noise without it"),
        (("stsb",), {"pictures": tmp_path / "p"}, "add geometry or noise"),
    ):
        with pytest.raises(UserError, match=message):
            run(bert, folder, tasks, **options)
    with pytest.raises(UserError, match="noise is no STS task"):
        command.load_tasks(["noise"], folder)
    monkeypatch.setenv("WORDNET_DIR", str(tmp_path))
    with pytest.raises(UserError, match="data.noun|nltk"):
        run(bert, folder, strict=True)
    capsys.readouterr()
    results = run(bert, folder, split="dev", noise_rates=[0.5])
    assert list(results["noise"]) == ["typos"] and list(results["noise"]["typos"]) == ["stsb_dev"]
    said = [line for line in capsys.readouterr().err.splitlines() if "MISSING" in line]
    assert len(said) == 1 and "typos alone" in said[0]
