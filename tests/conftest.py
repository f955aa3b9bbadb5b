"""What all tests share: no network, quiet libraries, one tiny random encoder of each family."""

from __future__ import annotations

import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("OMP_NUM_THREADS", "1")  # the models are tiny: threads cost more than they give

from pathlib import Path

import pytest
import transformers
from tiny import FAMILIES, make_encoder, make_language_model


@pytest.fixture(autouse=True, scope="session")
def _quiet() -> None:
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()


@pytest.fixture(scope="session")
def encoders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Family -> folder of a tiny random encoder."""
    root = tmp_path_factory.mktemp("encoders")
    return {family: make_encoder(root / family, family) for family in FAMILIES}


@pytest.fixture(scope="session")
def masked_lm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny random BERT with its head for masked tokens."""
    return make_language_model(tmp_path_factory.mktemp("encoders") / "masked-lm")


@pytest.fixture(scope="session")
def bert(encoders: dict[str, Path]) -> Path:
    """The folder of a tiny random BERT."""
    return encoders["bert"]
