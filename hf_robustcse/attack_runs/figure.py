"""Attacks in a picture: queries against accuracy lost (RobustSentEmbed Figure 2), and what more queries would do."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hf_robustcse.errors import UserError
from hf_robustcse.evaluation.pictures import HOW_TO_GET, has_matplotlib

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MARKERS = "osD^vP*X<>"
NEEDED = {"n", "attempted", "failed", "queries_per_example", "queries_to_success"}
DASHES = ("-", "--", ":", "-.", (0, (6, 1, 1, 1, 1, 1)), (0, (1, 3)), (0, (8, 3)), (0, (3, 1, 1, 3)))


def draw_command(output_dir: str, *files: str) -> None:
    """Draw result files side by side as `OUTPUT_DIR/attacks.png`.

    Raises:
        UserError: for a file that holds no attacks, or without matplotlib.
    """
    if not has_matplotlib():
        raise UserError(f"--figure needs matplotlib: {HOW_TO_GET}")
    path = Path(output_dir) / "attacks.png"
    draw_files([Path(name) for name in files], path)
    print(f"picture: {path}")


def draw_files(files: Sequence[Path], path: Path) -> None:
    """Draw the attacks of result files, of one victim each.

    Args:
        files: `results.json`, or the folders that hold one.
        path: the PNG.

    Raises:
        UserError: for a file that holds no attacks, or a path that cannot be written.
    """
    victims: dict[str, Mapping[str, Any]] = {}
    for file in files:
        file = file / "results.json" if file.is_dir() else file
        try:
            results = json.loads(file.read_text(encoding="utf-8"))
            attacks = {name: record for name, record in results["attacks"].items() if record}
            records = [one for record in attacks.values() for one in record.values()]
            if not records or not all(one["n"] and one.keys() >= NEEDED for one in records):
                raise LookupError("no figures of attacks")
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise UserError(f"{file} is no results.json with attacks ({type(error).__name__}: {error})") from error
        name = _label(results)
        victims[name if name not in victims else f"{name} ({file.parent})"] = attacks
    figure = draw(victims)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150, metadata={"Software": None})
    except OSError as error:
        raise UserError(f"{path} cannot be written: {error}") from error


def _label(results: Mapping[str, Any]) -> str:
    method = results.get("method")
    return f"{Path(str(results.get('model'))).name}{f' ({method})' if method else ''}"


def draw(victims: Mapping[str, Mapping[str, Any]]) -> Figure:
    """Two panels for each task, victims by colour and attacks by marker and dash.

    Left: mean queries of an attempted example, and the accuracy that the attack took (for similarities: the share of
    examples that it changed). Right: what is left of the accuracy when no example may cost more than so many queries;
    exact, because a search spends its queries in the same order whatever its budget.

    Args:
        victims: name -> {task: {recipe: record of `records.summarise`}}.

    Returns:
        The figure.
    """
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    tasks = list(dict.fromkeys(task for attacks in victims.values() for task in attacks))
    recipes = list(dict.fromkeys(recipe for attacks in victims.values() for one in attacks.values() for recipe in one))
    figure = Figure(figsize=(12.8, 4.8 * max(1, len(tasks))), layout="constrained")
    rows = figure.subplots(max(1, len(tasks)), 2, squeeze=False)
    for (left, right), task in zip(rows, tasks, strict=True):
        records = [record for attacks in victims.values() for record in attacks.get(task, {}).values()]
        reach = max((cost for record in records for cost in record["queries_to_success"]), default=1)
        for colour, attacks in enumerate(victims.values()):
            for recipe, record in attacks.get(task, {}).items():
                number, look = recipes.index(recipe), f"C{colour % 10}"
                before, after = 100 * record["attempted"] / record["n"], 100 * record["failed"] / record["n"]
                if record["queries_per_example"] is not None:
                    marker = MARKERS[number % len(MARKERS)]
                    left.plot(record["queries_per_example"], before - after, marker, color=look, markersize=8)
                costs = record["queries_to_success"]
                kept = [before - 100 * count / record["n"] for count in range(len(costs) + 1)]
                dashes = DASHES[number % len(DASHES)]
                right.step([1, *costs, reach], [*kept, kept[-1]], linestyle=dashes, color=look, where="post")
        left.set_title(_plain(task))
        left.set_xlabel("queries, mean of the attempted examples")
        left.set_ylabel("accuracy lost, in points")
        left.set_ylim(0, 1.08 * left.get_ylim()[1])
        left.set_xlim(0, 1.05 * left.get_xlim()[1])
        right.set_title(_plain(task))
        right.set_xscale("log")
        right.set_xlabel("queries that an example may cost")
        right.set_ylabel("accuracy under attack")
        right.set_ylim(0, 100)
    keys = [Line2D([], [], color=f"C{number % 10}", linewidth=4, label=_plain(name)) for number, name in
            enumerate(victims)]  # fmt: skip
    keys += [
        Line2D([], [], color="0.3", marker=MARKERS[number % len(MARKERS)], linestyle=DASHES[number % len(DASHES)],
               label=_plain(name)) for number, name in enumerate(recipes)
    ]  # fmt: skip
    figure.legend(handles=keys, loc="outside lower center", ncols=4, fontsize="small")
    return figure


def _plain(label: str) -> str:
    """A name as it is: a dollar would begin a formula, and a leading underscore hides a line from the legend."""
    return label.replace("$", r"\$").lstrip("_") or label
