"""The tables of the studies and of the grids in README.md and docs/, from `results/study_*.json` and `ablation_*.json`.

    python -m benchmarks.study_pages    writes them anew, after a study was collected or a grid trained

A page has them between ``<!-- study: FILE PART -->`` and ``<!-- /study -->``: FILE is the name in results/ without
``.json``, PART one of ``all`` (`study.tables`), ``trials``, ``readme``, or a method; ``grid`` for the results.json of
run_ablation.py, ``words`` for what what_is_kept.py wrote. ``tests/test_docs.py`` compares the pages with the files.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

from benchmarks import study, what_is_kept
from hf_robustcse.cards.text import mean_and_std
from hf_robustcse.errors import UserError, command
from hf_robustcse.files import atomic_write_text, read_json

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results"
MARK = re.compile(r"(<!-- study: (\S+) (\S+) -->\n).*?(<!-- /study -->)", re.DOTALL)
SHORT = {
    "STS": "STS, mean", "transfer": "transfer", "typos 0.6": "typos 60 %", "synonyms 0.6": "synonyms 60 %",
    "found": "found again", "invariance": "CheckList",
}  # fmt: skip

GEOMETRY = ("alignment", "uniformity")


def pages() -> list[Path]:
    """README and the pages of docs/."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def part(name: str, wanted: str) -> str:
    """A block of a study, as Markdown that ends with a line break.

    Raises:
        UserError: for a part that the study does not have.
    """
    record = read_json(RESULTS / f"{name}.json")
    if wanted == "grid":
        return grid(record)
    if wanted == "words":
        return what_is_kept.table(record) + "\n"
    if wanted == "all":
        return study.tables(record).rstrip() + "\n"
    if wanted == "trials":
        return trials(record)
    summary = record["summary"]["steps"]
    systems = record["study"]["systems"]
    own = [system for system in summary if wanted in systems[system]["options"]["method"].split("+")]
    if wanted != "readme" and not own:
        raise UserError(f"{name}.json has no part {wanted!r}: all, trials, readme, or a method that it trained")
    first = next(iter(summary))
    return overview(record, list(summary) if wanted == "readme" else list(dict.fromkeys([first, *own])))


def overview(record: dict[str, Any], systems: Sequence[str]) -> str:
    """The figures that say most, of some systems."""
    summary, untrained = record["summary"]["steps"], record["untrained"]
    names = [name for name in SHORT if any(name in row for row in summary.values())]
    attacks = list(record["attacked"])
    heads = ["", *(SHORT[name] for name in names), *(f"attacks on {name} succeed" for name in attacks), "steps"]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    cells = [*(f"{untrained[name]:.2f}" for name in names), *("" for _ in attacks), "0"]
    lines.append(f"| untrained | {' | '.join(cells)} |")
    for system in systems:
        cells = [mean_and_std(summary[system].get(name)) for name in names]
        rates = (record["attacked"][name].get(system, {}).get("all") for name in attacks)
        cells += [f"{rate['success_rate']:.1f} %" if rate else "" for rate in rates]
        cells.append(f"{record['study']['steps']} + " * (system in record["goes_on"]) + f"{record['study']['steps']}")
        lines.append(f"| `{system}` | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def trials(record: dict[str, Any]) -> str:
    """What each system tried, its score on the dev set, and what was chosen."""
    lines = ["| system | tried beside the shared options: dev | chosen |", "|---|---|---|"]
    for system, tried in record["trials"].items():
        said = [
            f"{_options(one['options'])}: " + ("stopped" if one["dev"] is None else f"{one['dev']:.2f}")
            for one in tried
        ]
        chosen = _options(tried[record["chosen"][system]]["options"])
        lines.append(f"| `{system}` | {'; '.join(said)} | {chosen} |")
    return "\n".join(lines) + "\n"


def grid(record: dict[str, Any]) -> str:
    """A grid of run_ablation.py: the dev set, the mean of the test sets, geometry; the paper's figures beside them.

    What a cell gains on the first one is taken seed by seed, because the seeds differ more than the cells do.
    """
    rows = record["cells"]
    trained = [name for name, row in rows.items() if row["seeds"]]
    if not trained or not record["before"]:
        raise UserError(f"the grid {record['grid']} has no cell that was trained and scored on a dev set")
    tasks = rows[trained[0]]["tasks"]
    dev = next(iter(record["before"]))
    tests = [name for name, task in tasks.items() if task["split"] == "test"]
    sets = {dev.replace("_", " "): [dev], **({"test sets, mean": tests} if tests else {})}
    heads = [" ".join(f"`{name}`" for name in record["varied"]) or ""]
    heads += [head for name in sets for head in (name, f"over `{trained[0]}`, by seed")]
    heads += ["alignment", "uniformity", "seeds"]
    heads += [f"reported: {what}" for what in record["reported"]]
    lines = [f"| {' | '.join(heads)} |", "|---" * len(heads) + "|"]
    before: dict[str, dict[int, float]] = {}  # of the first cell: name -> seed -> score
    for name, row in rows.items():
        if not row["seeds"] and not row["failed"]:
            continue  # was not asked for
        cells = []
        for about, members in sets.items():
            scores = zip(
                *(row["tasks"][member]["spearman"]["values"] for member in members if row["seeds"]), strict=True
            )
            means = dict(zip(row["seeds"], map(statistics.fmean, scores), strict=True))
            others = before.setdefault(about, means) if name in trained else {}
            gains = [mean - others[seed] for seed, mean in means.items() if seed in others]
            cells += [_spread(means.values()), "" if name == trained[0] else _spread(gains, signed=True)]
        cells += [_spread(row["tasks"].get(dev, {}).get(metric, {}).get("values", ())) for metric in GEOMETRY]
        cells.append(f"{len(row['seeds'])}" + (f", {len(row['failed'])} failed" if row["failed"] else ""))
        cells += [f"{values[name]:g}" if name in values else "" for values in record["reported"].values()]
        lines.append(f"| `{name}` | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _spread(values: Collection[float], *, signed: bool = False) -> str:
    """Mean and standard deviation, "" of nothing."""
    if not values:
        return ""
    said = mean_and_std(study.spread_over_seeds([{"": value} for value in values])[""])
    return f"+{said}" if signed and not said.startswith("-") else said


def _options(options: dict[str, Any]) -> str:
    words = [f"`{name} {value if isinstance(value, str) else format(value, 'g')}`" for name, value in options.items()]
    return ", ".join(words) or "nothing"


def filled(text: str) -> str:
    """A page with its tables made anew."""
    return MARK.sub(lambda found: found[1] + part(found[2], found[3]) + found[4], text)


@command
def main() -> None:
    for path in pages():
        text = path.read_text(encoding="utf-8")
        if (new := filled(text)) != text:
            atomic_write_text(path, new)
            print(f"wrote {path.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
