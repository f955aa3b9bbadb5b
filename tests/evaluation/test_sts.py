"""The reader, and the scores against an independent implementation in plain Python."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import math
import shutil
from collections.abc import Callable
from pathlib import Path

import datasets
import numpy as np
import pytest
import torch

from hf_robustcse.errors import UserError
from hf_robustcse.evaluation import sts
from hf_robustcse.evaluation.sts import MissingData, StsData, evaluate_pairs, evaluate_tasks, load_sts, parse_task

HEADER = "score\tsentence1\tsentence2\n"


def ranks(values: list[float]) -> list[float]:
    return [
        sum(other < value for other in values) + (1 + sum(other == value for other in values)) / 2 for value in values
    ]


def reference(x: list[float], y: list[float]) -> float:
    """Pearson's correlation of average ranks, in percent."""
    a, b = ranks(x), ranks(y)
    mean_a, mean_b = sum(a) / len(a), sum(b) / len(b)
    covariance = sum((p - mean_a) * (q - mean_b) for p, q in zip(a, b, strict=True))
    return 100 * covariance / math.sqrt(sum((p - mean_a) ** 2 for p in a) * sum((q - mean_b) ** 2 for q in b))


def cosine(u: list[float], v: list[float]) -> float:
    norm = math.sqrt(sum(p * p for p in u)) * math.sqrt(sum(q * q for q in v))
    return sum(p * q for p, q in zip(u, v, strict=True)) / norm if norm else 0.0


class Table:
    """An `encode` that looks vectors up and counts its calls."""

    def __init__(self, vectors: dict[str, list[float]]) -> None:
        self.vectors = vectors
        self.seen: list[str] = []

    def __call__(self, sentences: list[str]) -> np.ndarray:
        self.seen += sentences
        return np.array([self.vectors[sentence] for sentence in sentences])


@pytest.fixture
def table(sentences: list[str]) -> Table:
    rng = np.random.default_rng(0)
    return Table({sentence: rng.normal(size=7).tolist() for sentence in sentences})


# --- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("STS12", ("STS12", "test")),
        ("sts16", ("STS16", "test")),
        ("STS-B", ("STSB", "test")),
        ("stsb_dev", ("STSB", "dev")),
        ("STS-B-dev", ("STSB", "dev")),
        ("SickR_TEST", ("SICKR", "test")),
        ("stsb_train", ("STSB", "train")),
        ("embedded_dev", ("EMBEDDED", "dev")),
        ("embedded", ("EMBEDDED", "dev")),
    ],
)
def test_parse_task(name: str, expected: tuple[str, str]) -> None:
    assert parse_task(name) == expected


def test_parse_task_split_applies_only_to_names_without_one() -> None:
    assert parse_task("STSB", "dev") == ("STSB", "dev")
    assert parse_task("stsb_test", "dev") == ("STSB", "test")


@pytest.mark.parametrize("name", ["STS17", "", "sts12_dev", "embedded_test", "stsb_validation"])
def test_parse_task_refuses(name: str) -> None:
    with pytest.raises(UserError):
        parse_task(name)


# --- reading ---------------------------------------------------------------------------------------------------------


def test_reads_official_conventions(tmp_path: Path) -> None:
    lines = [
        '5.000\tHe said "no\tShe said "yes" \n',  # quotes are ordinary characters
        "\tno gold score\tis dropped\n",
        "0\ta\u2028b\tlone\rreturn\n",  # only \n ends a line
        "2.5\tcrlf\tending\r\n",
        "\n",
    ]
    path = tmp_path / "sts" / "STSB" / "dev.tsv"
    path.parent.mkdir(parents=True)
    path.write_bytes(("\ufeff" + HEADER + "".join(lines)).encode("utf-8"))
    data = load_sts("stsb_dev", tmp_path, check_rows=False)
    expected = [('He said "no', 'She said "yes"', 5.0), ("a b", "lone return", 0.0), ("crlf", "ending", 2.5)]
    assert data.subsets == {"dev": expected}
    assert (data.task, data.split, data.n, data.key, data.source) == ("STSB", "dev", 3, "stsb_dev", str(path))


def test_layouts_agree(tmp_path: Path, pairs: list, write_tsv: Callable) -> None:
    plain = tmp_path / "plain" / "sts" / "STS13"
    write_tsv(plain / "OnWN.tsv", pairs[:50])
    write_tsv(plain / "FNWN.tsv", pairs[50:])
    packed = tmp_path / "packed" / "STS13"
    packed.mkdir(parents=True)
    for path in plain.iterdir():
        (packed / f"{path.name}.gz").write_bytes(gzip.compress(path.read_bytes()))
    first = load_sts("STS13", tmp_path / "plain", check_rows=False)
    assert list(first.subsets) == ["FNWN", "OnWN"] and first.pairs == pairs[50:] + pairs[:50]
    for folder in (tmp_path / "plain" / "sts", tmp_path / "packed"):
        other = load_sts("sts13", str(folder), check_rows=False)
        assert other.subsets == first.subsets and other.sha256 == first.sha256
    write_tsv(plain / "OnWN.tsv", pairs[:49])
    assert load_sts("STS13", tmp_path / "plain", check_rows=False).sha256 != first.sha256


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"sentence1\tsentence\tscore\n", "line 1: the header"),
        (b"score\tsentence1\tscore\n", "line 1: the header"),
        (HEADER.encode() + b"1\ta\tb\n" + HEADER.encode() + b"1\ta\tb\n", "line 3: the header is there again"),
        (b"", "is empty"),
        (HEADER.encode() + b"1\ta\tb\n2\tonly one\n", "line 3: 2 fields"),
        (HEADER.encode() + b"1\ta\tb\tc\n", "line 2: 4 fields"),
        (HEADER.encode() + b"high\ta\tb\n", "line 2: the score 'high'"),
        (HEADER.encode() + b"nan\ta\tb\n", "line 2: the score nan"),
        (HEADER.encode() + b"5.1\ta\tb\n", "line 2: the score 5.1 is outside 1 to 5"),
        (HEADER.encode() + b"0.5\ta\tb\n", "line 2: the score 0.5 is outside 1 to 5"),
        (HEADER.encode() + b"1\ta\t \n", "line 2: an empty sentence"),
        (HEADER.encode() + b"1\ta\tb\n1\ta\t\xff\n", "line 3 is not UTF-8"),
        (HEADER.encode() + b"1\ta\tb\n", "has 1 pairs"),
    ],
)
def test_malformed_files_are_named(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "SICKR" / "test.tsv"
    path.parent.mkdir()
    path.write_bytes(content)
    with pytest.raises(UserError, match=words) as caught:
        load_sts("SICKR", tmp_path, check_rows=False)
    assert str(path) in str(caught.value) and not isinstance(caught.value, MissingData)


def test_broken_gzip_and_doubled_subset(tmp_path: Path, pairs: list, write_tsv: Callable) -> None:
    folder = tmp_path / "STSB"
    folder.mkdir()
    packed = gzip.compress(HEADER.encode() + b"1\ta\tb\n" * 500)
    for broken in (packed[:-20], packed[:30] + b"\x00\xff" + packed[32:], b"no gzip"):
        (folder / "test.tsv.gz").write_bytes(broken)
        with pytest.raises(UserError, match="cannot be read"):
            load_sts("STSB", tmp_path)
    write_tsv(folder / "test.tsv", pairs)
    with pytest.raises(UserError, match="twice"):
        load_sts("STSB", tmp_path)


def test_row_count_guard(tmp_path: Path, pairs: list, write_tsv: Callable) -> None:
    write_tsv(tmp_path / "STS12" / "MSRpar.tsv", pairs)
    with pytest.raises(UserError, match="has 120 pairs.* expected 3108.*MSRpar 120"):
        load_sts("STS12", tmp_path)
    many = (pairs * 13)[:1500]
    write_tsv(tmp_path / "STS13" / "OnWN.tsv", many)
    assert load_sts("STS13", tmp_path).n == 1500
    write_tsv(tmp_path / "STS13" / "SMT.tsv", many[:750])
    with pytest.raises(UserError, match="2250 .* expected 1500.*SMT is excluded"):
        load_sts("STS13", tmp_path)


def test_missing_data_say_what_to_fetch(tmp_path: Path) -> None:
    with pytest.raises(MissingData) as caught:
        load_sts("STS14", tmp_path)
    for words in (
        f"STS14 test is not under {tmp_path}", "sts/STS14/{OnWN,deft-forum", "3750 pairs",
        f"hf-robustcse prefetch --tasks sts --to {tmp_path}", f"--data_dir {tmp_path}",
    ):  # fmt: skip
        assert words in str(caught.value)
    with pytest.raises(UserError, match="not a folder"):
        load_sts("STS14", tmp_path / "absent")


def test_embedded_dev() -> None:
    data = load_sts("embedded_dev", "/nowhere")
    assert data.n > 100 and not data.is_test and data.key == "embedded_dev"
    assert any(score > 4 for *_, score in data.pairs)


def test_hub_agrees_with_files(
    tmp_path: Path, pairs: list, write_tsv: Callable, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [(first, second + "  ", score) for first, second, score in pairs] * 13
    first, second, score = zip(*rows[:1499], strict=True)
    columns = {"score": [*score, None, 3.0], "sentence1": [*first, "x", "y"], "sentence2": [*second, "x", "z"]}
    calls = []

    def load_dataset(name: str, split: str, revision: str) -> datasets.Dataset:
        calls.append((name, split))
        return datasets.Dataset.from_dict(columns)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    hub = load_sts("STS13", None)
    assert hub.n == 1500 and not hub.subsets_known
    assert hub.source == "hub:mteb/sts13-sts@7e90230a92c190f1bf69ae9002b8cea547a64cca"
    write_tsv(tmp_path / "STS13" / "FNWN.tsv", [("y", "z", 3.0)])
    write_tsv(tmp_path / "STS13" / "OnWN.tsv", (pairs * 13)[:1499])
    assert load_sts("STS13", tmp_path).sha256 == hub.sha256
    assert load_sts("stsb_dev", None).subsets_known
    assert calls == [("mteb/sts13-sts", "test"), ("mteb/stsbenchmark-sts", "validation")]

    def encode(sentences: list[str]) -> np.ndarray:
        return np.random.default_rng(0).normal(size=(len(sentences), 3))

    record = evaluate_tasks(encode, [hub])["tasks"]["STS13"]
    assert record["spearman_mean"] is None and record["spearman_wmean"] is None and record["n"] == 1500


def test_hub_without_network_or_with_another_set(monkeypatch: pytest.MonkeyPatch) -> None:
    def unreachable(name: str, split: str, revision: str) -> datasets.Dataset:
        raise ConnectionError("Couldn't reach the Hub\nmore lines")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with pytest.raises(MissingData, match="mteb/sts16-sts .*ConnectionError: Couldn't reach the Hub more lines.*fetch"):
        load_sts("STS16", None)
    pooled = datasets.Dataset.from_dict({"score": [2.0] * 9927, "sentence1": ["a"] * 9927, "sentence2": ["b"] * 9927})
    monkeypatch.setattr(datasets, "load_dataset", lambda name, split, revision: pooled)
    with pytest.raises(MissingData, match="9927 pairs.*expected 4927.*pooled"):
        load_sts("SICKR", None)
    renamed = pooled.rename_column("score", "label")
    monkeypatch.setattr(datasets, "load_dataset", lambda name, split, revision: renamed)
    with pytest.raises(UserError, match="no column score"):
        load_sts("SICKR", None)


def test_hub_sick_is_cut_from_the_pooled_pairs_only_with_the_right_checksum(monkeypatch: pytest.MonkeyPatch) -> None:
    pooled = {"score": [1 + i % 5 for i in range(9927)]}
    pooled |= {name: [f"{name} {i}" for i in range(9927)] for name in HEADER.split()[1:]}
    asked = []

    def load_dataset(name: str, split: str, revision: str) -> datasets.Dataset:
        asked.append(split)
        rows = datasets.Dataset.from_dict(pooled)
        return rows if split == "test" else rows.select(range(5000, 9927))  # "test[5000:]"

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(MissingData, match="pooled.*not those of the release"):
        load_sts("SICKR", None)
    assert asked == ["test", "test[5000:]"]
    task = sts.TASKS["SICKR"]
    lines = sorted(f"{1 + i % 5}\tsentence1 {i}\tsentence2 {i}" for i in range(5000, 9927))
    checksum = hashlib.sha256("\n".join(lines).encode()).hexdigest()
    monkeypatch.setitem(sts.TASKS, "SICKR", dataclasses.replace(task, sha256={"test": checksum}))
    data = load_sts("SICKR", None)
    assert data.n == 4927 and data.source == "hub:mteb/sickr-sts@20a6d6f312dd54037fe07a32d58e5e168867909d"


def test_files_read_back_as_the_same_pairs(tmp_path: Path) -> None:
    pairs = [("a b", 'a "quoted" c', 1 / 3), ("x", "é", 5.0)]
    for task, subsets in (("STSB", {"dev": pairs}), ("STS12", {"all": pairs})):
        split = next(iter(subsets)) if task == "STSB" else "test"
        for name, text in StsData(task, split, subsets, "memory", "0").files().items():
            path = tmp_path / name
            path.parent.mkdir(parents=True)
            path.write_text(text, encoding="utf-8")
        data = load_sts(task, tmp_path, split, check_rows=False)
        assert data.subsets == subsets and data.subsets_known == (task == "STSB")


# --- scores ----------------------------------------------------------------------------------------------------------


def test_scores_against_plain_python(table: Table, pairs: list) -> None:
    subsets = {"one": pairs[:70], "two": pairs[70:110], "three": pairs[110:]}
    result = evaluate_pairs(table, subsets)
    assert len(table.seen) == len(set(table.seen))  # each distinct sentence once

    def score(chosen: list) -> float:
        cosines = [cosine(table.vectors[first], table.vectors[second]) for first, second, _ in chosen]
        return reference(cosines, [gold for *_, gold in chosen])

    each = {name: score(chosen) for name, chosen in subsets.items()}
    assert result["spearman"] == pytest.approx(score(pairs), abs=1e-9)
    assert {name: part["spearman"] for name, part in result["subsets"].items()} == pytest.approx(each, abs=1e-9)
    assert [part["n"] for part in result["subsets"].values()] == [70, 40, 10] and result["n"] == 120
    assert result["spearman_mean"] == pytest.approx(sum(each.values()) / 3, abs=1e-9)
    weighted = sum(each[name] * len(chosen) for name, chosen in subsets.items()) / 120
    assert result["spearman_wmean"] == pytest.approx(weighted, abs=1e-9)


def test_tensor_and_scale_do_not_matter(table: Table, pairs: list) -> None:
    expected = evaluate_pairs(table, {"all": pairs})

    def encode(sentences: list[str]) -> torch.Tensor:
        scale = torch.arange(1, len(sentences) + 1, dtype=torch.float64)[:, None]
        return torch.from_numpy(table(sentences)).requires_grad_() * scale

    assert evaluate_pairs(encode, {"all": pairs})["spearman"] == pytest.approx(expected["spearman"], abs=1e-9)
    half = evaluate_pairs(lambda sentences: torch.from_numpy(table(sentences)).bfloat16(), {"all": pairs})
    assert half["spearman"] == pytest.approx(expected["spearman"], abs=5)


def test_equal_similarities_are_ties(table: Table, sentences: list[str]) -> None:
    pairs = [(sentence, sentence, gold % 6) for gold, sentence in enumerate(sentences[:40])]
    pairs += [(sentences[40], sentences[41], 0.0), (sentences[42], sentences[43], 1.0)]
    cosines = [1.0] * 40 + [cosine(table.vectors[a], table.vectors[b]) for a, b, _ in pairs[40:]]
    expected = reference(cosines, [gold for *_, gold in pairs])
    assert evaluate_pairs(table, {"all": pairs})["spearman"] == pytest.approx(expected, abs=1e-9)


def test_zero_embedding_has_cosine_zero() -> None:
    table = Table({"zero": [0.0, 0.0], "x": [1.0, 0.0], "xy": [1.0, 1.0], "back": [-1.0, 0.0]})
    pairs = [("x", "zero", 2.0), ("x", "xy", 4.0), ("x", "back", 1.0), ("zero", "zero", 2.0)]
    assert evaluate_pairs(table, {"all": pairs})["spearman"] == pytest.approx(100)


def test_constant_side_is_zero_with_a_warning() -> None:
    table = Table({"a": [1.0, 2.0], "b": [2.0, 4.0]})
    with pytest.warns(UserWarning, match="similarities are equal"):
        assert evaluate_pairs(table, {"same": [("a", "b", 1.0), ("b", "a", 2.0)]})["spearman"] == 0.0
    table = Table({"a": [1.0, 2.0], "b": [2.0, 1.0]})
    with pytest.warns(UserWarning, match="gold scores are equal"):
        assert evaluate_pairs(table, {"same": [("a", "b", 1.0), ("b", "b", 1.0)]})["spearman"] == 0.0


def test_refuses_one_pair_and_broken_embeddings(table: Table, pairs: list) -> None:
    with pytest.raises(UserError, match="two: 1 pairs"):
        evaluate_pairs(table, {"one": pairs[:5], "two": pairs[5:6]})
    with pytest.raises(UserError, match="1 of .* NaN"):
        evaluate_pairs(lambda s: np.where(np.arange(len(s)) == 2, np.nan, 1.0)[:, None], {"all": pairs})
    with pytest.raises(ValueError, match="expected"):
        evaluate_pairs(lambda s: np.ones(len(s)), {"all": pairs})


def test_tasks_share_sentences_and_average_needs_all_seven(table: Table, pairs: list) -> None:
    tasks = [
        StsData(name, "test", {"only": pairs[5 * i : 5 * i + 40]}, "memory", "0") for i, name in enumerate(sts.STS_TEST)
    ]
    dev = StsData("STSB", "dev", {"dev": pairs}, "memory", "0")
    result = evaluate_tasks(table, [*tasks, dev])
    assert len(table.seen) == len(set(table.seen))
    assert list(result["tasks"]) == [*sts.STS_TEST, "stsb_dev"] and result["missing"] == []
    alone = [evaluate_pairs(table, data.subsets)["spearman"] for data in tasks]
    assert [result["tasks"][name]["spearman"] for name in sts.STS_TEST] == pytest.approx(alone)
    assert result["averages"]["sts"] == pytest.approx(sum(alone) / 7)
    partial = evaluate_tasks(table, [*tasks[:2], *tasks[3:], dev])
    assert partial["averages"] == {"sts": None} and partial["missing"] == ["STS14"]


@pytest.mark.slow
def test_official_files_pass_the_guard(tmp_path: Path, benchmark_data: Path) -> None:
    for task in ("STS12", "STS13", "STS15", "STSB", "stsb_dev", "SICKR", "sickr_dev"):
        data = load_sts(task, benchmark_data)
        assert data.n == sts.TASKS[data.task].rows[data.split]
    (tmp_path / "STS12").mkdir()
    shutil.copy(benchmark_data / "sts" / "STS12" / "MSRpar.tsv", tmp_path / "STS12")
    with pytest.raises(UserError, match="750 pairs"):
        load_sts("STS12", tmp_path)
