"""``SentenceTransformer.from_pretrained``, because users of transformers write that call."""

from __future__ import annotations

import os
from typing import Any

import sentence_transformers


class SentenceTransformer(sentence_transformers.SentenceTransformer):
    """sentence-transformers' own class with the constructor's other name."""

    @classmethod
    def from_pretrained(cls, model_name_or_path: str | os.PathLike[str], **kwargs: Any) -> SentenceTransformer:
        """Load a checkpoint folder or Hub id.

        Args:
            model_name_or_path: any model that sentence-transformers loads.
            **kwargs: of its constructor (device, revision, token, ...).

        Returns:
            The model.
        """
        return cls(os.fspath(model_name_or_path), **kwargs)
