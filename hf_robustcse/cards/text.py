"""Markdown that shows what was recorded as it is, whatever it holds, and names no machine or user."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from hf_robustcse.report.read import clean
from hf_robustcse.report.write import escape

TEMPLATES = Path(__file__).parents[1] / "assets" / "cards"
MISSING = "-"
_LONGEST = 200
# A drive, a home, the root, this folder or the one above; or an address.
_PLACE = re.compile(r"[A-Za-z]:[\\/]|[~/\\]|\.{1,2}(?:[\\/]|$)|[A-Za-z][\w+.-]*://")


class Raw(str):
    """Markdown that stays as it is."""


def render(template: str, **values: Any) -> str:
    """A template of ``assets/cards``; every value that is not `Raw` is shown as it is, on one line.

    Args:
        template: the file's name.
        **values: what the template names.

    Returns:
        The text, ending in one newline.
    """
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), finalize=lambda value: value if isinstance(value, Raw) else plain(value),
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, autoescape=False,
    )  # fmt: skip
    text = environment.get_template(template).render(values)
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


def plain(value: Any) -> Raw:
    """A value on one line, of a length that can be shown, with every character of Markdown and HTML escaped."""
    line = clean(value)
    return Raw(escape(line if len(line) <= _LONGEST else f"{line[:_LONGEST]}…"))


def code(value: Any) -> Raw:
    """A name as inline code where that can hold it, else escaped."""
    line = clean(value)
    return Raw(f"`{line}`") if line and len(line) <= _LONGEST and not set("`|<>&") & set(line) else plain(line)


def block(text: str, language: str = "") -> Raw:
    """A fenced block that its text cannot close."""
    fence = "`" * max(3, *(len(run) + 1 for run in re.findall("`+", text) or [""]))
    return Raw(f"{fence}{language}\n{text}\n{fence}")


def table(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> Raw:
    """A Markdown table; a cell that is not `Raw` is escaped, and None is "-"."""
    lines = [list(heads), ["---"] * len(heads), *rows]
    cells = [[MISSING if c is None else c if isinstance(c, Raw) else plain(c) for c in line] for line in lines]
    return Raw("\n".join(f"| {' | '.join(line)} |" for line in cells))


def public_path(name: str) -> str:
    """A path without its folders where they may say whose machine it is; a Hub id stays whole.

    Args:
        name: a path, an address or a Hub id.

    Returns:
        Its last part, or a relative path of at most two parts as it is.
    """
    parts = [part for part in re.split(r"[\\/]+", name.strip()) if part not in ("", ".", "..", "~")]
    if parts and (_PLACE.match(name.strip()) or len(parts) > 2):
        relative = not _PLACE.match(name.strip())
        return "/".join(parts[-2:]) if relative and re.fullmatch(r"seed-\d+", parts[-1]) else parts[-1]
    return name if parts else MISSING


def public_command(command: str) -> str:
    """A recorded command line with `public_path` for each of its words, and for the values in `--option=value`."""
    try:
        words = shlex.split(command)
    except ValueError:
        words = command.split()
    public = []
    for word in words:
        name, equals, value = word.partition("=") if word.startswith("-") else ("", "", word)
        value = public_path(value) if re.search(r"[\\/]", value) or value.startswith("~") else value
        public.append(f"{name}{equals}{value}")
    return clean(shlex.join(public))


def mean_and_std(value: Mapping[str, Any] | None) -> str:
    """A figure with its spread over seeds (`mean`, `std` or None) for a table, "" for none."""
    if value is None:
        return ""
    return f"{value['mean']:.2f}" if value["std"] is None else f"{value['mean']:.2f} ± {value['std']:.2f}"
