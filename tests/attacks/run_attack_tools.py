"""A tiny victim, data and synonyms for it, and the attack command in this process."""

from __future__ import annotations

import json
import random
import runpy
import sys
from pathlib import Path

import pytest
import torch
from tiny import WORDS, make_encoder
from transformers import AutoModelForSequenceClassification, AutoTokenizer

COMMAND = Path(__file__).parents[2] / "examples" / "run_attack.py"


def sentence(draw: random.Random, words: int = 8) -> str:
    return " ".join(draw.choices(WORDS[:-1], k=words))


def rows(n: int, seed: int = 0, words: int = 8) -> list[tuple[int, str]]:
    """Labelled sentences: 1 where more words come from the second half of the vocabulary than from the first."""
    draw = random.Random(seed)
    late = set(WORDS[len(WORDS) // 2 :])
    texts = [sentence(draw, words) for _ in range(n)]
    return [(int(sum(word in late for word in text.split()) > words // 2), text) for text in texts]


def write_rows(path: Path, pairs: list[tuple[int, str]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("label\ttext\n" + "".join(f"{label}\t{text}\n" for label, text in pairs), encoding="utf-8")
    return path


def make_classifier(folder: Path, **changes: object) -> Path:
    """A random classifier whose classes are about as frequent as each other."""
    make_encoder(folder, kind=AutoModelForSequenceClassification, **{"num_labels": 2, **changes})
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokens = AutoTokenizer.from_pretrained(folder)([text for _, text in rows(64)], padding=True, return_tensors="pt")
    with torch.no_grad():
        model.classifier.bias -= model(**tokens).logits.median(dim=0).values
    model.save_pretrained(folder)
    return folder


def make_synonyms(path: Path, words: int = len(WORDS) - 1) -> Path:
    draw = random.Random(3)
    lines = ("\t".join([word, *draw.sample(WORDS[:-1], 4)]) for word in WORDS[:words])
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def attack(monkeypatch: pytest.MonkeyPatch, *words: object) -> int:
    """Run the command; its exit code."""
    monkeypatch.setattr(sys, "argv", [str(COMMAND), *map(str, words)])
    try:
        runpy.run_path(str(COMMAND), run_name="__main__")
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


def records(folder: Path, name: str = "MR-pwws") -> list[dict]:
    lines = (folder / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def results(folder: Path) -> dict:
    return json.loads((folder / "results.json").read_text(encoding="utf-8"))


def same(first: list[dict], second: list[dict]) -> None:
    """Equal but for the rounding of scores, which depends on the batch."""
    assert len(first) == len(second)
    for one, other in zip(first, second, strict=True):
        for key in one:
            close = pytest.approx(one[key], abs=2e-5) if key.startswith("score") else one[key]
            assert other[key] == close, (key, one["index"])
