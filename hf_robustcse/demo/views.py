"""What the demo computed as HTML and SVG; whatever a visitor, a corpus or a model's name says is escaped."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from hf_robustcse.demo.compute import Demo, Model, Step

COLOURS = ("#d9480f", "#1c7ed6")
CSS = """
.gradio-container {max-width: 1180px !important; width: 100% !important; margin: 0 auto !important}
.gradio-container main {width: 100%}
.side {display: flex; gap: 16px; flex-wrap: wrap}
.side > div {flex: 1; min-width: 280px; padding: 14px 18px; border: 1px solid var(--border-color-primary);
  border-radius: 10px}
.side .figure {font-size: 40px; font-weight: 600; line-height: 1.25}
.bar {position: relative; height: 10px; margin: 4px 0 8px; border-radius: 5px; background: var(--border-color-primary)}
.bar div {height: 100%; border-radius: 5px}
.bar i {position: absolute; top: -4px; width: 2px; height: 18px; background: var(--body-text-color)}
.quiet {font-size: 13px; opacity: .7}
table.plain {width: 100%; border-collapse: collapse; border: 0 !important; margin: 8px 0 0}
table.plain tr {border: 0 !important}
table.plain td, table.plain th {padding: 4px 8px 4px 0; border: 0 !important; text-align: left; vertical-align: top;
  font-variant-numeric: tabular-nums}
table.plain td {border-top: 1px solid var(--border-color-primary) !important}
.edited {font-size: 18px; line-height: 1.7; padding: 10px 14px; border: 1px solid var(--border-color-primary);
  border-radius: 10px; margin: 10px 0; overflow-wrap: anywhere}
.edited mark {background: #ffe066; color: #222; padding: 1px 4px; border-radius: 4px}
.edited s {color: #777; font-size: 14px; margin-left: 4px}
svg.plot {width: 100%; color: var(--body-text-color)}
"""
_WIDE, _HIGH = 640, 240  # of the plot, and where its axes are
_LEFT, _RIGHT, _TOP, _BOTTOM = 40, 628, 12, 200


def name_of(model: Model, number: int) -> str:
    """A model's name behind a square of its colour."""
    return f"<span style='color:{COLOURS[number]}'>■</span> <b>{escape(model.name)}</b>"


def notes(lines: Sequence[str]) -> str:
    """Remarks, a paragraph each."""
    return "".join(f"<p>{escape(line)}</p>" for line in lines)


def similarities(demo: Demo, values: Sequence[float]) -> str:
    """For each model a figure, a bar, and a tick at the level of unrelated sentences."""
    cards = []
    for number, (model, value) in enumerate(zip(demo.models, values, strict=True)):
        wide, tick = (100 * min(1, max(0, x)) for x in (value, model.level))
        colour = COLOURS[number]
        cards.append(
            f"<div>{name_of(model, number)}<div class='figure' style='color:{colour}'>{value:.3f}</div>"
            f"<div class='bar'><div style='width:{wide:.1f}%;background:{colour}'></div>"
            f"<i style='left:{tick:.1f}%'></i></div>"
            f"<span class='quiet'>unrelated sentences: {model.level:.2f} on average</span></div>"
        )
    return f"<div class='side'>{''.join(cards)}</div>"


def hits(demo: Demo, found: Sequence[Sequence[tuple[float, str]]]) -> str:
    """For each model a table of (cosine, sentence)."""
    cards = []
    for number, (model, rows) in enumerate(zip(demo.models, found, strict=True)):
        body = "".join(f"<tr><td>{cosine:.3f}</td><td>{escape(sentence)}</td></tr>" for cosine, sentence in rows)
        cards.append(f"<div class='hits'>{name_of(model, number)}<table class='plain'>{body}</table></div>")
    return f"<div class='side'>{''.join(cards)}</div>"


def edited(step: Step) -> str:
    """The text with its new words marked, each before the word that stood there."""
    parts = [
        escape(piece) if old is None else f"<mark>{escape(piece)}</mark><s>{escape(old)}</s>"
        for piece, old in step.pieces
    ]
    return f"<div class='edited'>{''.join(parts)}</div>"


def plot(demo: Demo, steps: Sequence[Step], edits: int) -> str:
    """Each model's similarity by the number of changed words, and its level of unrelated sentences, as SVG.

    Args:
        demo: of the models.
        steps: so far, at least one.
        edits: that the axis has room for.
    """
    levels = [model.level for model in demo.models]
    lowest = -1.0 if min(*levels, *(value for step in steps for value in step.similarities)) < 0 else 0.0

    def x(number: float) -> float:
        return _LEFT + (_RIGHT - _LEFT) * number / edits

    def y(value: float) -> float:
        return _BOTTOM - (_BOTTOM - _TOP) * (value - lowest) / (1 - lowest)

    parts = []
    for tick in range(5):
        value = lowest + (1 - lowest) * tick / 4
        parts.append(
            f"<path d='M{_LEFT} {y(value):.1f}H{_RIGHT}' stroke='currentColor' opacity='.15'/>"
            f"<text x='{_LEFT - 8}' y='{y(value) + 4:.1f}' text-anchor='end'>{value:.2f}</text>"
        )
    parts += [f"<text x='{x(n):.1f}' y='{_BOTTOM + 18}' text-anchor='middle'>{n}</text>" for n in range(edits + 1)]
    parts.append(f"<text x='{(_LEFT + _RIGHT) / 2}' y='{_HIGH - 4}' text-anchor='middle'>words changed</text>")
    for number, (colour, level) in enumerate(zip(COLOURS, levels, strict=False)):
        points = [(x(step.edits), y(step.similarities[number])) for step in steps]
        line = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
        parts.append(
            f"<path d='M{_LEFT} {y(level):.1f}H{_RIGHT}' stroke='{colour}' stroke-dasharray='2 5'/>"
            f"<polyline points='{line}' fill='none' stroke='{colour}' stroke-width='2.5'/>"
        )
        parts += [f"<circle cx='{a:.1f}' cy='{b:.1f}' r='4' fill='{colour}'/>" for a, b in points]
    return (
        f"<svg class='plot' viewBox='0 0 {_WIDE} {_HIGH}' font-size='12' fill='currentColor' role='img' "
        f"aria-label='similarity by words changed'>{''.join(parts)}</svg>"
        "<span class='quiet'>Dotted: two unrelated sentences under the same model.</span>"
    )


def table(demo: Demo, steps: Sequence[Step]) -> str:
    """A row for each step: words changed, and of each model the cosine and how many nearest sentences are kept."""
    heads = "".join(
        f"<th>{name_of(model, number)}</th><th>nearest kept</th>" for number, model in enumerate(demo.models)
    )
    rows = []
    for step in steps:
        cells = "".join(
            f"<td>{value:.3f}</td><td>{kept} of {whole}</td>"
            for value, kept, whole in zip(step.similarities, step.kept, steps[0].kept, strict=True)
        )
        rows.append(f"<tr><td>{step.edits}</td>{cells}</tr>")
    return f"<table class='plain steps'><tr><th>words</th>{heads}</tr>{''.join(rows)}</table>"


def verdict(demo: Demo, steps: Sequence[Step], *, itself: bool) -> str:
    """What became of the text, a line for each model.

    Args:
        demo: of the models.
        steps: all of them.
        itself: whether the text was compared with itself: only then is a fall a part of the way to unrelated.
    """
    first, last = steps[0], steps[-1]
    lines = []
    for number, model in enumerate(demo.models):
        before, after = first.similarities[number], last.similarities[number]
        part = itself and before > model.level
        way = (
            f", {100 * (before - after) / (before - model.level):.0f} % of the way to an unrelated sentence"
            if part
            else ""
        )
        lines.append(
            f"<p>{name_of(model, number)}: {before:.2f} → <b>{after:.2f}</b>{way}; keeps "
            f"{last.kept[number]} of {first.kept[number]} nearest sentences"
            f"{', the nearest among them' if last.nearest_kept[number] else ''}.</p>"
        )
    words = "word" if last.edits == 1 else "words"
    return f"<div class='verdict'><p>After <b>{last.edits}</b> changed {words}:</p>{''.join(lines)}</div>"
