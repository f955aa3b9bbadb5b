"""Pictures of the probes and noise curves of one model, or of several side by side; matplotlib is the extra `plots`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HOW_TO_GET = "pip install hf_robustcse[plots]"
Records = Mapping[str, Mapping[str, Any]]
"""The name of a model -> its record of `probes.evaluate_probes`; all of the same text."""


def has_matplotlib() -> bool:
    """Whether pictures can be drawn."""
    try:
        import matplotlib.figure  # noqa: F401
    except ImportError:
        return False
    return True


def draw_probes(records: Records, stem: str | Path) -> list[Path]:
    """Draw all probes.

    Args:
        records: of each model.
        stem: path and beginning of the files' names.

    Returns:
        The PNG files: `STEM_top_negatives.png`, `STEM_negatives.png`, `STEM_perturbed.png`.
    """
    stem = Path(stem)
    stem.parent.mkdir(parents=True, exist_ok=True)
    files = []
    for name, draw in (("top_negatives", top_negatives), ("negatives", negatives), ("perturbed", perturbed)):
        files.append(stem.with_name(f"{stem.name}_{name}.png"))
        draw(records).savefig(files[-1], dpi=150, metadata={"Software": None})
    return files


def draw_noise(records: Records, stem: str | Path) -> list[Path]:
    """Draw the noise curves.

    Args:
        records: of each model what `noise_curves.evaluate_noise` returns; a kind of noise that is not in all of them is
            drawn for those that have it.
        stem: as in `draw_probes`.

    Returns:
        The PNG files: `STEM_noise_typos.png`, `STEM_noise_synonyms.png`.
    """
    stem = Path(stem)
    stem.parent.mkdir(parents=True, exist_ok=True)
    files = []
    for kind in dict.fromkeys(kind for record in records.values() for kind in record):
        files.append(stem.with_name(f"{stem.name}_noise_{kind}.png"))
        curves = {label: record[kind] for label, record in records.items() if kind in record}
        noise_curves(curves, kind).savefig(files[-1], dpi=150, metadata={"Software": None})
    return files


def noise_curves(records: Records, kind: str) -> Figure:
    """Spearman, cosine to the original, and how often it is found again, against the rate of perturbed words.

    Args:
        records: of each model: set -> the result of `noise_curves.noise_curve`.
        kind: of noise, for the axis.
    """
    figure = _figure(3)
    panels = figure.subplots(1, 3)
    for label, sets in records.items():
        for name, record in sets.items():
            said = f"{_plain(label)}, {name}" if len(sets) > 1 else _plain(label)
            for axes, curve in zip(panels, ("spearman", "cosine", "retrieval"), strict=True):
                spread = record["spearman_std"] if curve == "spearman" else None
                axes.errorbar(record["rates"], record[curve], spread, label=said, marker="o", capsize=3)
    sets = ", ".join(dict.fromkeys(name for record in records.values() for name in record))
    titles = (f"Spearman x 100, {sets}", "cosine to the original", "% of originals found again")
    for axes, title in zip(panels, titles, strict=True):
        axes.set_xlabel(f"rate of words with {kind}")
        axes.set_title(title, fontsize="medium")
        axes.grid(alpha=0.3)
    panels[1].set_ylim(top=1.02)
    panels[2].set_ylim(-2, 102)
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize="small")
    return figure


def top_negatives(records: Records) -> Figure:
    """GS-InfoNCE Figure 1: the mean cosine of the most similar in-batch negatives, by batch size."""
    figure = _figure()
    axes = figure.subplots()
    sizes: set[int] = set()
    for label, record in records.items():
        probe = record["top_negatives"]
        sizes.update(probe["batch_sizes"])
        axes.errorbar(probe["batch_sizes"], probe["mean"], probe["std"], label=_plain(label), marker="o", capsize=3)
    axes.set_xscale("log", base=2)
    axes.set_xticks(sorted(sizes), map(str, sorted(sizes)))
    axes.minorticks_off()
    axes.set_xlabel("batch size")
    axes.set_ylabel(f"mean cosine of the {_first(records)['top_negatives']['k']} most similar negatives")
    axes.set_title("Hardest in-batch negatives (bars: standard deviation over batches)", fontsize="medium")
    axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=3, fontsize="small")  # nowhere on the curves
    return figure


def negatives(records: Records) -> Figure:
    """DCLR Figure 1: the distribution of the cosines of a sentence to its in-batch negatives."""
    figure = _figure()
    axes = figure.subplots()
    for label, record in records.items():
        probe = record["negatives"]
        counts = np.array(probe["counts"])
        edges = np.linspace(-1, 1, len(counts) + 1)
        share = 100 * counts / counts.sum()
        axes.stairs(share, edges, label=f"{_plain(label)} (mean {probe['mean']:.2f})", fill=len(records) == 1)
    axes.set_xlim(_range(records))
    axes.set_xlabel(f"cosine of a sentence to {_first(records)['negatives']['negatives']} random others")
    axes.set_ylabel(f"% of pairs in a bin of {2 / len(_first(records)['negatives']['counts']):g}")
    axes.set_title("In-batch negatives", fontsize="medium")
    axes.grid(alpha=0.3)
    figure.legend(loc="outside lower center", ncols=3, fontsize="small")
    return figure


def _range(records: Records) -> tuple[float, float]:
    """Where any histogram has a count, a little wider; never less than 0 to 1, so that a narrow cone looks narrow."""
    low, high = 0.0, 1.0
    for record in records.values():
        counts = record["negatives"]["counts"]
        low = min(low, np.linspace(-1, 1, len(counts) + 1)[np.flatnonzero(counts)[0]])
    return low - 0.02, high + 0.02


def perturbed(records: Records) -> Figure:
    """DCL Figure 2: sentences and their perturbed versions by t-SNE, a line between the two of each; one panel a model.

    The axes have no unit, and panels cannot be compared by distance.
    """
    figure = _figure(len(records))
    panels = figure.subplots(1, len(records), squeeze=False)[0]
    for axes, (label, record) in zip(panels, records.items(), strict=True):
        probe = record["perturbed"]
        one, other = probe["map"]["sentences"], probe["map"]["perturbed"]
        axes.plot([one["x"], other["x"]], [one["y"], other["y"]], color="0.7", linewidth=0.8, zorder=1)
        axes.scatter(one["x"], one["y"], s=14, label="sentence", zorder=2)
        axes.scatter(other["x"], other["y"], s=14, marker="x", linewidths=1, label="with typos", zorder=2)
        axes.set_title(
            f"{_plain(label)}\ntypos (rate {probe['noise']:g}): cosine {probe['cosine']:.2f}, "
            f"found again {probe['accuracy']:.1f}%",
            fontsize="medium",
        )
        axes.set_xticks([])
        axes.set_yticks([])
    panels[0].legend(fontsize="small")
    return figure


def _figure(panels: int = 1) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(6.4 * panels, 4.8), layout="constrained")


def _first(records: Records) -> Mapping[str, Any]:
    return next(iter(records.values()))


def _plain(label: str) -> str:
    """A name as it is: a dollar would begin a formula, and a leading underscore hides a line from the legend."""
    return label.replace("$", r"\$").lstrip("_") or label
