"""What speaks against a model, derived from its numbers."""

from __future__ import annotations

from collections.abc import Sequence

from hf_robustcse.cards.about import ABOUT
from hf_robustcse.cards.checkpoint import EMBEDDED, Checkpoint
from hf_robustcse.cards.scores import BASELINE, Evidence, columns_of, comparable, name_of
from hf_robustcse.cards.text import Raw, plain
from hf_robustcse.evaluation.sts import TASKS
from hf_robustcse.report.read import Column, Value
from hf_robustcse.report.table import NAMES

OFTEN = 50.0
"""The success rate of an attack, in %, from which a card calls it out."""


def limits_of(checkpoint: Checkpoint, evidence: Evidence) -> list[Raw]:
    """The lines of a card's section of limits; never empty."""
    known = evidence.best_known
    scored = [column for column in columns_of(known) if column.group in ("sts", "transfer")]
    said: list[str] = [_escaped(line) for line in evidence.warnings]
    if not scored:
        said.append("Nothing was measured: there is no reason yet to think that it works.")
    said += below(known, evidence.untrained, scored, "the encoder before training")
    said += against_baseline(known, evidence.baseline, scored)
    said += _attacked(evidence)
    seeds = {known[column].seeds for column in scored}
    if scored and max(seeds) == 1:
        said.append(
            "One seed: what another would score is not known; a difference of a point between methods may be chance."
        )
    absent = sorted({why for task, why in evidence.missing.items() if task == "average"})
    said += [f"No average over the seven STS test sets: {_escaped(why)}." for why in absent]
    if checkpoint.base == EMBEDDED:
        said.append(
            "Trained from the tiny demonstration encoder of the package: the scores say little of how good the method "
            "is on an encoder of the usual size."
        )
    if scored and all(column.group == "transfer" or column.task in TASKS for column in scored):
        said.append("It was scored on English text only.")
    said.append("Only what the tables above show was measured; bias and harmful content were not looked at.")
    options = checkpoint.config.get("method_options") or {}
    for method in checkpoint.methods:
        said += [line for line, when in ABOUT[method].limits if when.items() <= options.items()]
    return [Raw(line) for line in said]


def _escaped(text: str) -> str:
    return plain(text)


def below(known: dict[Column, Value], other: dict[Column, Value], columns: Sequence[Column], what: str) -> list[str]:
    """Tasks on which the other one is better."""
    worse = [
        f"{name_of(column)}: {known[column].mean:.2f} after, {other[column].mean:.2f} before"
        for column in columns
        if comparable(known[column], other.get(column)) and known[column].mean < other[column].mean
    ]
    return [f"Worse than {what} on {'; '.join(worse)}."] if worse else []


def against_baseline(known: dict[Column, Value], other: dict[Column, Value], columns: Sequence[Column]) -> list[str]:
    """How often SimCSE is as good, and by how much more than the spread of the seeds it is not."""
    shared = [c for c in columns if comparable(known[c], other.get(c))]
    if not shared:
        return []
    worse = [c for c in shared if known[c].mean <= other[c].mean]
    said = []
    if worse:
        parts = [f"{name_of(c)} {known[c].mean:.2f} against {other[c].mean:.2f}" for c in worse]
        said.append(f"Not better than `{BASELINE}` on {len(worse)} of {len(shared)} sets: {'; '.join(parts)}.")
    better = [c for c in shared if c not in worse]
    within = [c for c in better if known[c].mean - other[c].mean <= max(known[c].std or 0.0, other[c].std or 0.0)]
    if within:
        names = ", ".join(name_of(c) for c in within)
        said.append(f"Better than `{BASELINE}` by no more than one standard deviation over seeds on {names}.")
    return said


def _attacked(evidence: Evidence) -> list[str]:
    found = {c: v for c, v in evidence.own.items() if c.group == "attacks" and c.metric == "success_rate"}
    often = {c: v for c, v in found.items() if v.mean >= OFTEN}
    said = []
    if often:
        # By the lower end of the interval: ten successes in ten say less than ninety-six in a hundred.
        worst = max(often, key=lambda column: often[column].low or often[column].mean)
        task, _, recipe = worst.task.rpartition(", ")
        said.append(
            f"{len(often)} of {len(found)} attacks succeed on half of the examples or more; the strongest, "
            f"{_escaped(recipe)} on {_escaped(NAMES.get(task, task))}, on {often[worst].mean:.1f} %."
        )
    shared = [c for c in found if comparable(found[c], evidence.baseline.get(c))]
    if shared:
        worse = sum(found[c].mean >= evidence.baseline[c].mean for c in shared)
        said.append(f"{worse} of {len(shared)} attacks succeed against it no less often than against `{BASELINE}`.")
    return said
