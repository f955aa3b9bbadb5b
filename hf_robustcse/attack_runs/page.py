"""A page that stands alone: what was attacked and what became of it, side by side, with the changed words marked."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined

from hf_robustcse.files import atomic_write_text

TEMPLATE = Path(__file__).parents[1] / "assets" / "attack.html"
_TURNS = "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"
Pieces = list[tuple[str, bool]]
"""A text in pieces, and whether each is a changed word."""


def write_page(
    path: Path, records: Sequence[Mapping[str, Any]], summary: Mapping[str, Any], *, title: str, model: str
) -> None:
    """Write the page of one attack.

    Args:
        path: of the HTML file.
        records: of `records.record_of`; their texts may hold anything.
        summary: of `records.summarise`, with `examples` and `source`.
        title: the heading.
        model: the victim's name.
    """
    # Texts are what they are, markup or not: everything is escaped.
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    names = {"succeeded": "Succeeded", "failed": "Failed: the best text that was found", "skipped": "Skipped"}
    groups = [(names[status], [_entry(r) for r in records if r["status"] == status]) for status in names]
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    shown = {key: _shown(str(summary.get(key))) for key in ("source", "examples")}
    page = template.render(title=title, model=_shown(model), groups=groups, summary=dict(summary) | shown)
    atomic_write_text(path, page)


def _entry(record: Mapping[str, Any]) -> dict[str, Any]:
    columns = []
    for name, original in record["original"].items():
        changed = [change for change in record["changed"] if change["column"] == name]
        sides = pieces(original, record["perturbed"][name], changed)
        columns.append((name, *sides))
    return {**record, "columns": columns}


def pieces(original: str, perturbed: str, changed: Sequence[Mapping[str, Any]]) -> tuple[Pieces, Pieces]:
    """A text before and after in pieces, so that the changed words can be marked.

    Args:
        original: the text before.
        perturbed: the text after.
        changed: `start` in the original, `before` and `after` of each changed word.

    Returns:
        The pieces of the two texts; joined they are the texts, but for control characters, which are shown.
    """
    sides: tuple[Pieces, Pieces] = ([], [])
    for side, text, word in zip(sides, (original, perturbed), ("before", "after"), strict=True):
        end, shift = 0, 0
        for change in sorted(changed, key=lambda change: change["start"]):
            start = change["start"] + shift
            side += [(text[end:start], False), (text[start : start + len(change[word])], True)]
            end = start + len(change[word])
            shift += len(change[word]) - len(change["before"])
        side.append((text[end:], False))
    return tuple([(_shown(text), mark) for text, mark in side if text] for side in sides)


def _shown(text: str) -> str:
    """A text without control characters, which HTML does not allow, and without marks that turn its direction."""
    return "".join(
        "\N{REPLACEMENT CHARACTER}" if unicodedata.category(c) in ("Cc", "Cs") and c not in "\t\n" or c in _TURNS else c
        for c in text
    )
