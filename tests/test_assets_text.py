"""The embedded corpus and dev set are what their grammar writes, and fit to train and to measure on."""

from __future__ import annotations

import gzip
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
ASSETS = ROOT / "hf_robustcse" / "assets"
DEV = ASSETS / "data" / "sts" / "EMBEDDED" / "dev.tsv"


def corpus() -> list[str]:
    return gzip.open(ASSETS / "corpus.txt.gz", "rt", encoding="utf-8").read().splitlines()


def dev() -> list[list[str]]:
    header, *rows = DEV.read_text(encoding="utf-8").splitlines()
    assert header == "score\tsentence1\tsentence2"
    return [row.split("\t") for row in rows]


def test_the_grammar_writes_them_again():
    script = ROOT / "benchmarks" / "make_embedded_text.py"
    subprocess.run([sys.executable, str(script), "--output_dir", str(ASSETS), "--check"], check=True)


def test_the_corpus_is_varied():
    lines = corpus()
    assert len(lines) == len(set(lines)) >= 15000
    words = Counter(word.strip(".,?!").lower() for line in lines for word in line.split())
    assert len(words) > 1500
    assert max(Counter(lines).values()) == 1
    assert (ASSETS / "corpus.txt.gz").stat().st_size < 700_000


def test_the_dev_set_is_graded_and_held_out():
    rows = dev()
    assert len(rows) == 1000 and all(len(row) == 3 for row in rows)
    scores = Counter(round(float(score)) for score, _, _ in rows)
    assert set(scores) == {0, 1, 2, 3, 4, 5} and min(scores.values()) > 50
    assert not {sentence for _, *pair in rows for sentence in pair} & set(corpus())


def test_the_encoder_is_small():
    assert (ASSETS / "encoder" / "model.safetensors").stat().st_size < 6_000_000
