"""The table as Markdown, as CSV and as one page that holds everything it shows."""

from __future__ import annotations

import base64
import csv
import io
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, StrictUndefined
from jinja2.filters import do_mark_safe

from hf_robustcse.report.read import Comparison, Source
from hf_robustcse.report.table import LABELS, MISSING, NAMES, Table, printed

TEMPLATE = Path(__file__).parents[1] / "assets" / "report.html"
_MARKDOWN = re.compile(r"([\\`*_\[\]|~#])")
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
_PICTURES = {"png": "image/png", "svg": "image/svg+xml"}


def markdown(table: Table, title: str, sources: Sequence[Source]) -> str:
    """The report as GitHub-flavoured Markdown.

    Args:
        table: of `table.build`.
        title: the heading.
        sources: the files, listed in the end.

    Returns:
        The text.
    """
    lines = [f"# {escape(title)}", ""]
    rows = [[*LABELS, *(head.full for head in table.heads)]]
    lines += _rule([escape(cell) for cell in rows[0]])
    for line in table.lines:
        cells = [escape(label) for label in line.labels]
        for cell in line.cells:
            text = f"**{cell.text}**" if cell.best else cell.text
            cells.append(f"{text} ({cell.mark})" if cell.mark else text)
        lines.append(_line(cells))
    lines += _list("", table.notes)
    lines += _list("Missing (-)", table.missing)
    if table.comparisons:
        lines += ["", "## Paired comparisons", ""]
        lines += _rule(["A", "B", "task", "A", "B", "B - A", "95 % interval", "verdict"])
        lines += [_line([escape(cell) for cell in cells]) for cells in comparison_cells(table.comparisons)]
    if table.reported:
        lines += ["", "## What the papers report, for settings of their own", ""]
        lines += _rule(["", *table.reported])
        lines += [_line([escape(cell) for cell in cells]) for cells in reported_cells(table)]
    lines += ["", "## Files", ""]
    lines += [f"- {escape(source.path)}, sha256 {source.sha256}" for source in sources]
    return "\n".join(lines) + "\n"


def csv_text(table: Table) -> str:
    """The table as CSV, numbers in full: a column of means and one of deviations for each task; empty where missing.

    A text that a spreadsheet would take for a formula begins with an apostrophe.

    Args:
        table: of `table.build`.

    Returns:
        The text.
    """
    buffer = io.StringIO()
    writer = csv.writer(buffer, quoting=csv.QUOTE_NONNUMERIC, lineterminator="\n")
    heads: list[str] = []
    for head in table.heads:
        heads += [head.full, f"{head.full}, std", f"{head.full}, seeds"] if head.column else [head.full]
    writer.writerow([_harmless(text) for text in (*LABELS, "path", *heads)])
    for line in table.lines:
        row: list[Any] = [_harmless("" if label == MISSING else label) for label in line.labels]
        row.append(_harmless(line.model))
        for head, cell in zip(table.heads, line.cells, strict=True):
            if head.column is None:
                row.append("" if cell.text == MISSING else float(cell.text))
            elif cell.value is None:
                row += ["", "", ""]
            else:
                row += [cell.value.mean, "" if cell.value.std is None else cell.value.std, cell.value.seeds]
        writer.writerow(row)
    return buffer.getvalue()


def html(
    table: Table,
    title: str,
    sources: Sequence[Source],
    pictures: Sequence[tuple[str, str, bytes]],
    remarks: Sequence[str] = (),
    command: str = "",
) -> str:
    """The report as one page: no script, nothing loaded from anywhere, pictures inside.

    Args:
        table: of `table.build`.
        title: the heading.
        sources: the files.
        pictures: (caption, png or svg, bytes).
        remarks: lines about what was read and drawn.
        command: that made the page.

    Returns:
        The page.
    """
    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    groups: list[tuple[str, int]] = []
    for head in table.heads:
        if groups and groups[-1][0] == head.group:
            groups[-1] = (head.group, groups[-1][1] + 1)
        else:
            groups.append((head.group, 1))
    firsts = {sum(span for _, span in groups[:number]) for number in range(len(groups))}
    template = environment.from_string(TEMPLATE.read_text(encoding="utf-8"))
    return template.render(
        title=title,
        labels=LABELS,
        table=table,
        groups=groups,
        firsts=firsts,
        comparisons=comparison_cells(table.comparisons),
        reported=reported_cells(table),
        sources=sources,
        pictures=[(caption, data_uri(kind, content)) for caption, kind, content in pictures],
        remarks=remarks,
        command=command,
    )


def data_uri(kind: str, content: bytes) -> Any:
    """A picture as a data URI that needs no escaping."""
    return do_mark_safe(f"data:{_PICTURES[kind]};base64,{base64.b64encode(content).decode('ascii')}")


def comparison_cells(comparisons: Sequence[Comparison]) -> list[list[str]]:
    """The lines of paired comparisons as text."""
    rows = []
    for entry in comparisons:
        sides = [
            f"{entry.values[side]:.2f}"
            + (f" ± {entry.values[f'{side}_std']:.2f}" if f"{side}_std" in entry.values else "")
            for side in ("a", "b")
        ]
        ends = f"{entry.values['low']:+.2f} to {entry.values['high']:+.2f}"
        name, space, rest = entry.task.partition(" ")  # "STSB typos (test, all)"
        task = NAMES.get(name, name) + space + rest
        rows.append([entry.a, entry.b, task, *sides, f"{entry.values['difference']:+.2f}", ends, entry.verdict])
    return rows


def reported_cells(table: Table) -> list[list[str]]:
    """What the papers report, one line for each figure."""
    rows = []
    for figure in dict.fromkeys(figure for column in table.reported.values() for figure in column):
        row = [figure]
        for column in table.reported.values():
            value, where = column.get(figure, (None, ""))
            row.append(MISSING if value is None else printed(value) + (f", {where}" if where else ""))
        rows.append(row)
    return rows


def _list(title: str, entries: Sequence[str]) -> list[str]:
    head = ["", f"## {title}"] if title and entries else []
    return head + ["", *(f"- {escape(entry)}" for entry in entries)] if entries else []


def _rule(heads: Sequence[str]) -> list[str]:
    return [_line(heads), "|" + "---|" * len(heads)]


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def escape(text: Any) -> str:
    """A text that Markdown shows as it is."""
    return _MARKDOWN.sub(r"\\\1", str(text)).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _harmless(text: Any) -> str:
    return f"'{text}" if str(text).startswith(_FORMULA) else str(text)
