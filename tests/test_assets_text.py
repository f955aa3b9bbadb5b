"""The embedded texts are what their grammar writes, and are fit for what they are for."""

from __future__ import annotations

import collections
import gzip
import importlib.util
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[1]
ASSETS = ROOT / "hf_robustcse" / "assets"
CORPUS = ASSETS / "corpus.txt.gz"
DEV = ASSETS / "data" / "sts" / "EMBEDDED" / "dev.tsv"


@pytest.fixture(scope="module")
def grammar() -> Iterator[ModuleType]:
    spec = importlib.util.spec_from_file_location("make_embedded_text", ROOT / "benchmarks" / "make_embedded_text.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    yield module
    del sys.modules[spec.name]


@pytest.fixture(scope="module")
def corpus() -> list[str]:
    return gzip.decompress(CORPUS.read_bytes()).decode().splitlines()


@pytest.fixture(scope="module")
def pairs() -> list[tuple[float, str, str]]:
    header, *rows = DEV.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    assert header == "score\tsentence1\tsentence2"
    return [(float(score), one, two) for score, one, two in (row.split("\t") for row in rows)]


def test_regeneration_is_identical(grammar):
    texts = grammar.build(0)
    assert texts.keys() == {"corpus.txt.gz", "data/sts/EMBEDDED/dev.tsv"}
    assert texts["data/sts/EMBEDDED/dev.tsv"] == DEV.read_bytes()
    written, shipped = texts["corpus.txt.gz"], CORPUS.read_bytes()
    assert gzip.decompress(written) == gzip.decompress(shipped)
    # Flags (no file name) and time of the gzip header; what follows may differ from one zlib to the next.
    assert written[:8] == shipped[:8] == b"\x1f\x8b\x08\x00\x00\x00\x00\x00"


def test_another_build_is_identical_and_another_seed_is_not(grammar):
    small = grammar.build(1, corpus_size=200, dev_size=44)
    assert small == grammar.build(1, corpus_size=200, dev_size=44)
    assert small != grammar.build(2, corpus_size=200, dev_size=44)


def test_check_reports_a_difference(grammar, tmp_path, monkeypatch):
    texts = grammar.build(0, corpus_size=50, dev_size=11)
    monkeypatch.setattr(grammar, "build", lambda seed: texts)
    monkeypatch.setattr(sys, "argv", ["make_embedded_text.py", "--output_dir", str(tmp_path)])
    grammar.main()
    monkeypatch.setattr(sys, "argv", [*sys.argv, "--check"])
    grammar.main()
    with open(tmp_path / "data/sts/EMBEDDED/dev.tsv", "a", encoding="utf-8") as file:
        file.write("0\tOne.\tTwo.\n")
    with pytest.raises(SystemExit, match="not what this grammar writes"):
        grammar.main()


def test_corpus(corpus):
    assert len(corpus) == len(set(corpus)) == 20000
    assert len(CORPUS.read_bytes()) < 700_000
    assert all(6 <= len(text.split()) <= 25 for text in corpus)
    assert all(re.fullmatch(r"[A-Z][A-Za-z0-9' ,-]*[.?]", text) and "  " not in text for text in corpus)
    words = collections.Counter(word for text in corpus for word in re.findall(r"[\w'-]+", text.lower()))
    assert sum(count >= 5 for count in words.values()) >= 1500
    articles = [text for text in corpus if re.search(r"\b[Aa] [aeio]|\b[Aa]n [^aeiouhIE]", text)]
    assert all(re.search(r"\b[Aa] (one|euro)", text) for text in articles), articles[:3]


def test_dev_pairs(pairs):
    assert len(pairs) == len({(one, two) for _, one, two in pairs}) == 1000
    assert all(one != two for _, one, two in pairs)
    counts = collections.Counter(score for score, _, _ in pairs)
    assert sorted(counts) == [half / 2 for half in range(11)]
    assert max(counts.values()) - min(counts.values()) <= 1
    assert DEV.stat().st_size < 200_000


def test_dev_is_held_out(corpus, pairs):
    assert not {text for _, *pair in pairs for text in pair} & set(corpus)


def test_shared_words_do_not_solve_dev(pairs):
    stats = pytest.importorskip("scipy.stats")
    bags = [[set(re.findall(r"[\w'-]+", text.lower())) for text in pair] for _, *pair in pairs]
    jaccard = [len(one & two) / len(one | two) for one, two in bags]
    assert 0.3 < stats.spearmanr(jaccard, [score for score, _, _ in pairs])[0] < 0.6
