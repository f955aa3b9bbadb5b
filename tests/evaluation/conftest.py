"""A tiny random BERT and a folder of tiny STS files."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from pathlib import Path

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import pytest
import torch
from transformers import BertConfig, BertModel

WORDS = "a the cat dog bird man woman child sat ran ate saw on in under red big small quickly house tree".split()


@pytest.fixture(scope="session")
def sentences() -> list[str]:
    """60 distinct sentences of 1 to 12 words."""
    rng = random.Random(0)
    found = {" ".join(rng.choices(WORDS, k=rng.randint(1, 12))) for _ in range(80)}
    return sorted(found)[:60]


@pytest.fixture(scope="session")
def pairs(sentences: list[str]) -> list[tuple[str, str, float]]:
    """120 scored pairs of different sentences; every sentence is in several of them."""
    rng = random.Random(1)
    return [(*rng.sample(sentences, 2), rng.randint(0, 10) / 2) for _ in range(120)]


@pytest.fixture(scope="session")
def write_tsv() -> Callable[[Path, list], None]:
    """Write scored pairs as the reader expects them."""

    def write(path: Path, pairs: list) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = "".join(f"{score:g}\t{first}\t{second}\n" for first, second, score in pairs)
        path.write_text("score\tsentence1\tsentence2\n" + rows, encoding="utf-8")

    return write


@pytest.fixture(scope="session")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A plain encoder folder: a random BERT of 3 layers with its pooler, 32 positions, wide weights."""
    folder = tmp_path_factory.mktemp("bert")
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=24,
        num_hidden_layers=3,
        num_attention_heads=4,
        intermediate_size=48,
        max_position_embeddings=32,
        initializer_range=0.5,
    )
    BertModel(config).save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n", encoding="utf-8")
    settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": True}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def benchmark_data() -> Path:
    """The folder with the official data sets, for slow tests."""
    folder = os.environ.get("HF_ROBUSTCSE_DATA_DIR")
    if not folder:
        pytest.skip("set HF_ROBUSTCSE_DATA_DIR to the folder that holds sts/")
    return Path(folder)
