"""The card of a method."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def method_card(method: str, results: Sequence[str | Path] = ()) -> str:
    raise NotImplementedError
