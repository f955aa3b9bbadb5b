"""Tokenised texts as tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def padded(
    tokenizer: Any, rows: Sequence[dict[str, list[int]]], device: torch.device, **options: Any
) -> dict[str, Tensor]:
    """Tokenised texts as a batch, padded to the longest.

    Texts of one length, which most batches hold, need no padding. `return_tensors` of the tokenizer looks at each
    number in Python, which an accelerator would wait for.

    Args:
        tokenizer: pads.
        rows: what the tokenizer gave for n texts.
        device: of the tensors.
        **options: of `tokenizer.pad`.

    Returns:
        Name -> (n, longest).
    """
    lengths = {len(row["input_ids"]) for row in rows}
    columns = {name: [row[name] for row in rows] for name in rows[0]} if len(lengths) == 1 else None
    return {
        name: torch.tensor(column).to(device)
        for name, column in (columns or tokenizer.pad(list(rows), **options)).items()
    }
