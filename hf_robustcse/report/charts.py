"""Charts of the table, drawn with matplotlib (the extra `plots`) as PNG bytes."""

from __future__ import annotations

import io
import math
import warnings
from typing import TYPE_CHECKING

from hf_robustcse.report.read import Column
from hf_robustcse.report.table import Line, Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def draw(table: Table) -> list[tuple[str, bytes]]:
    """The charts that the table has numbers for.

    Args:
        table: of `table.build`.

    Returns:
        (caption, PNG), each PNG the same for the same table and the same matplotlib.
    """
    return [(caption, _png(figure)) for caption, figure in (*_bars(table), *_plane(table))]


def _bars(table: Table) -> list[tuple[str, Figure]]:
    """Bars from 0 for the STS average, or for each STS task where no average is complete."""
    found = [head for head in table.heads if head.column and head.column.group == "sts"]
    average = [head for head in found if head.column and head.column.task == "average"]
    heads = average or found
    places = {head: place for place, head in enumerate(table.heads)}
    lines = [line for line in table.lines if any(line.cells[places[head]].value for head in heads)]
    if not lines:
        return []
    across = min(3, len(heads))
    down = -(-len(heads) // across)
    figure = _figure(2.6 + 2.6 * across, down * (0.7 + 0.27 * len(lines)))
    panels = figure.subplots(down, across, sharey=True, squeeze=False).ravel()
    for axes, head in zip(panels, heads, strict=False):
        cells = [line.cells[places[head]] for line in lines]
        known = [(place, cell) for place, cell in enumerate(cells) if cell.value]
        means = [cell.value.mean for _, cell in known if cell.value]
        axes.barh(
            [place for place, _ in known], means, color="#4878a8", error_kw={"linewidth": 1, "capsize": 2},
            xerr=[cell.value.std or math.nan if cell.value else math.nan for _, cell in known],
        )  # fmt: skip
        for (place, cell), mean in zip(known, means, strict=True):
            mark = f" ({cell.mark})" if cell.mark else ""
            side = "left" if mean >= 0 else "right"
            axes.annotate(
                f"{mean:.1f}{mark}", (0, place), (3 if mean >= 0 else -3, 0), textcoords="offset points", va="center",
                ha=side, color="white", fontsize="x-small",
            )  # fmt: skip
        axes.set_yticks(range(len(lines)), [_label(line) for line in lines], fontsize="small")
        axes.set_title(head.name, fontsize="medium")
        axes.set_xlim(min(0, *means), max(0, *means) * 1.08)
        axes.grid(axis="x", alpha=0.3)
        axes.set_axisbelow(True)
    for axes in panels[len(heads) :]:
        axes.set_visible(False)
    panels[0].set_ylim(len(lines) - 0.4, -0.6)  # the first row on top
    what = "Average of the seven STS test sets" if average else "STS"
    return [(f"{what}, Spearman x 100, all; whiskers: standard deviation over seeds", figure)]


def _plane(table: Table) -> list[tuple[str, Figure]]:
    """Alignment against uniformity, one chart for each set and each kind of data."""
    charts = []
    for place, head in enumerate(table.heads):
        column = head.column
        if column is None or column.group != "geometry" or column.metric != "alignment":
            continue
        uniformity = Column("geometry", column.task, column.split, "uniformity")
        groups: dict[str, list[Line]] = {}
        for line in table.lines:
            if line.cells[place].value is not None and uniformity in line.row.scores:
                groups.setdefault(line.cells[place].mark, []).append(line)
        for mark, lines in groups.items():
            figure = _figure(8.4, max(4.8, 0.25 * len(lines)))
            axes = figure.subplots()
            for number, line in enumerate(lines):
                x, y = line.row.scores[uniformity], line.row.scores[column]
                axes.errorbar(
                    x.mean, y.mean, xerr=x.std, yerr=y.std, marker="osD^vP*X"[number // 10 % 8], linestyle="none",
                    color=f"C{number % 10}", label=_label(line), capsize=2, linewidth=1,
                )  # fmt: skip
            axes.set_xlabel("uniformity (lower: more spread out)")
            axes.set_ylabel("alignment (lower: pairs closer)")
            axes.grid(alpha=0.3)
            figure.legend(loc="outside right upper", fontsize="small")
            said = head.group + (f" ({mark})" if mark else "")
            charts.append((f"Alignment and uniformity, {said}; better is lower on both together", figure))
    return charts


def _label(line: Line) -> str:
    """A row's name as it is: a dollar would begin a formula, and a leading underscore hides a line from the legend."""
    name, method, pooling, _ = line.labels
    text = ", ".join([name, *(label for label in (method, pooling) if label != "-" and not name.endswith(label))])
    text = text if len(text) <= 48 else f"{text[:24]}…{text[-23:]}"
    return text.replace("$", r"\$").lstrip("_") or "_ "


def _figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, min(height, 100)), layout="constrained")


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # letters that the font lacks are drawn as boxes
        figure.savefig(buffer, dpi=120, format="png", metadata={"Software": None})
    return buffer.getvalue()
