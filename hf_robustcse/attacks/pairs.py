"""AdvSTS and its kin: attacks on a sentence encoder itself, through the similarity of two texts.

Scored pairs (STS-B, SICK-R): predicted and gold similarity are brought to [0, 1], and the attack edits one sentence to
drive ``|predicted - gold|`` up to a distance. Without labels: a text against itself, changed until the encoder finds it
no longer similar to what it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hf_robustcse.attacks import Example
from hf_robustcse.attacks.goals import Dissimilar
from hf_robustcse.attacks.victims import PairSimilarity
from hf_robustcse.data import VIEWS, load_corpus
from hf_robustcse.errors import UserError
from hf_robustcse.evaluation.attacked_sets import similarity_scores
from hf_robustcse.evaluation.sts import TASKS, Encode, StsData, load_sts, load_sts_file

EDITS = ("second", "first", "either")
"""Which sentence of a pair an attack may change; `either` may change both."""


def sts_examples(data: StsData, *, edit: str = "second", distance: float = 0.5) -> list[Example]:
    """The scored pairs of an STS task as examples, in its order.

    Args:
        data: of `load_sts`; gold scores of 0 to 5, SICK's of 1 to 5, become 0 to 1.
        edit: one of `EDITS`. The other sentence is the victim's to read, and no constraint compares it.
        distance: ``|predicted - gold|`` at which an attack has succeeded; 0.5 is TextAttack's rule for regression.

    Raises:
        UserError: for an unknown `edit`, or a distance outside (0, 1].
    """
    if edit not in EDITS:
        raise UserError(f"which sentence is edited must be one of {', '.join(EDITS)}, not {edit!r}")
    if not 0 < distance <= 1:
        raise UserError(f"the distance between predicted and gold similarity must be above 0 and at most 1: {distance}")
    lowest = TASKS[data.task].lowest if data.task in TASKS else 0.0
    free = {"second": ("sentence2",), "first": ("sentence1",), "either": ("sentence1", "sentence2")}[edit]
    examples = []
    for first, second, score in data.pairs:
        columns = {"sentence1": first, "sentence2": second}
        examples.append(
            Example(
                {name: columns[name] for name in free},
                Dissimilar((score - lowest) / (5 - lowest), distance),
                context={name: text for name, text in columns.items() if name not in free},
            )
        )
    return examples


def self_examples(texts: Iterable[str], *, threshold: float = 0.5) -> list[Example]:
    """Texts against themselves, which needs no labels: an attack has succeeded when cos(x, x') <= threshold.

    Args:
        texts: any.
        threshold: in [0, 1).

    Raises:
        UserError: for another threshold.
    """
    if not 0 <= threshold < 1:
        raise UserError(f"the similarity to fall to must be at least 0 and below 1, not {threshold}")
    goal = Dissimilar(1.0, 1 - threshold)
    return [Example({"text": text}, goal, context={"text": text}) for text in texts]


@dataclass(frozen=True)
class PairTask:
    """What a command attacks.

    Attributes:
        name: STSB, SICKR (with `_dev` or `_train` unless it is the test set) or similarity.
        examples: in the order of the source.
        more: of each example, what its row in the attacked set has besides: `row`, and `score` if it has one.
        source: file, or `hub:<data set>@<revision>`.
        sha256: of what was read, whatever its order.
    """

    name: str
    examples: list[Example]
    more: list[dict[str, Any]]
    source: str
    sha256: str


def load_pair_task(
    task: str,
    data_dir: str | Path | None = None,
    data_file: str | Path | None = None,
    *,
    split: str = "test",
    edit: str = "second",
    distance: float = 0.5,
    threshold: float = 0.5,
    text_column: str | None = None,
) -> PairTask:
    """The examples of a task by its name: an STS task, or `similarity` for texts against themselves.

    Args:
        task: `STSB`, `SICKR`, `stsb_dev` and so on, or `similarity`.
        data_dir: as in `load_sts`; None for the Hub.
        data_file: in place of a task's own data: pairs with the header `score sentence1 sentence2` on the task's scale;
            for `similarity` any corpus that `load_corpus` reads (without one: the sentences of STS-B).
        split: of an STS task whose name gives none.
        edit: as in `sts_examples`, like the next.
        distance: see there.
        threshold: as in `self_examples`.
        text_column: of the corpus of `similarity`, where its name is not to be guessed.

    Raises:
        UserError: for an unknown task, absent or malformed data, or a bad value.
    """
    if task.lower() == "similarity" and data_file is not None:
        corpus = load_corpus(data_file, text_columns=[text_column] if text_column else None)
        texts, source = list(corpus.dataset[VIEWS[0]]), str(data_file)
        name, sha256 = "similarity", corpus.report.sha256
    else:
        wanted = "STSB" if task.lower() == "similarity" else task
        data = load_sts(wanted, data_dir, split) if data_file is None else load_sts_file(wanted, data_file, split)
        source, sha256 = data.source, data.sha256
        if wanted == task:
            more = [{"row": row, "score": pair[2]} for row, pair in enumerate(data.pairs)]
            return PairTask(data.key, sts_examples(data, edit=edit, distance=distance), more, source, sha256)
        name, texts = "similarity", data.sentences
    examples = self_examples(texts, threshold=threshold)
    return PairTask(name, examples, [{"row": row} for row in range(len(texts))], source, sha256)


def pair_victim(encode: Encode, examples: Iterable[Example]) -> PairSimilarity:
    """The victim of such examples: it embeds every sentence that stays as it is once, before the first attack.

    Args:
        encode: n strings -> (n, d). An `Embedder` is told not to share texts with other processes.
        examples: all that it will be asked about.
    """
    if hasattr(encode, "alone"):
        encode.alone = True
    return PairSimilarity(encode, untouched=[text for example in examples for text in example.context.values()])


def pair_metrics(rows: Sequence[Mapping[str, Any]], *, name: str = "pairs") -> dict[str, Any]:
    """The summary of attacks on pairs.

    Args:
        rows: n at least 1, of `outcomes.attacked_row`.
        name: of the task, for messages.

    Returns:
        `attempted` (not skipped), `skipped`, `succeeded`, `success_rate` (x 100, of the attempted; None if there are
        none); `spearman_before`, `spearman_after`, `distance_before`, `distance_after` over all n pairs, those that
        were skipped as they are and those where the attack failed with the best text that it found
        (`attacked_sets.similarity_scores`); `queries_per_example` of the attempted, `words_changed` (share x 100, mean
        of the succeeded); `n`.
    """
    if not rows:
        raise UserError(f"{name}: no pair was attacked")
    attempted = [row for row in rows if row["status"] != "skipped"]
    succeeded = [row for row in attempted if row["status"] == "succeeded"]
    before, after, gold = (
        np.array([row[key] for row in rows], dtype=float) for key in ("similarity_before", "similarity_after", "gold")
    )
    return {
        "attempted": len(attempted),
        "skipped": len(rows) - len(attempted),
        "succeeded": len(succeeded),
        "success_rate": 100 * len(succeeded) / len(attempted) if attempted else None,
        **similarity_scores(before, after, gold, name=name),
        "queries_per_example": _mean(row["queries"] for row in attempted),
        "words_changed": _mean(100 * row["words_changed"] for row in succeeded),
    }


def _mean(values: Iterable[float]) -> float | None:
    values = list(values)
    return float(np.mean(values)) if values else None
