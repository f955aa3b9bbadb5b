"""Robust and debiased sentence embeddings: a Hugging Face Trainer extension.

The names below load on first use, because importing transformers takes seconds.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hf_robustcse.arguments import RobustCSETrainingArguments
    from hf_robustcse.losses import RobustCSELoss
    from hf_robustcse.model import RobustCSEConfig, RobustCSEModel
    from hf_robustcse.sentence_transformer import SentenceTransformer
    from hf_robustcse.trainer import RobustCSETrainer

__version__ = "0.1.0"
__all__ = [
    "RobustCSEConfig", "RobustCSELoss", "RobustCSEModel", "RobustCSETrainer", "RobustCSETrainingArguments",
    "SentenceTransformer",
]  # fmt: skip

_HOMES = {
    "RobustCSEConfig": "model",
    "RobustCSELoss": "losses",
    "RobustCSEModel": "model",
    "RobustCSETrainer": "trainer",
    "RobustCSETrainingArguments": "arguments",
    "SentenceTransformer": "sentence_transformer",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
