"""Attacked sets: what attacks made of a data set, saved as a data set of its own, and other models scored on it.

A folder of one Parquet file, a card and `about.json`, which `datasets.load_dataset(FOLDER)` loads and which can be
pushed to the Hub as it is. A column of text that was attacked stands beside what became of it, which has `perturbed_`
before its name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
from datasets import Dataset

from hf_robustcse.errors import UserError
from hf_robustcse.evaluation.sts import Embeddings, Encode, Pair, spearman
from hf_robustcse.files import whole_folder, write_json

FILE = "attacked.parquet"
ABOUT = "about.json"
PERTURBED = "perturbed_"
COLUMNS = {
    "row": "number of the example in its source",
    "label": "gold class",
    "score": "gold score as released",
    "gold": "gold similarity, in [0, 1]",
    "distance": "how far the similarity had to be from the gold one for a success",
    "status": "succeeded, failed (the text is the best one found) or skipped (the goal was reached before any change)",
    "prediction_before": "the victim's class of the original",
    "prediction_after": "the victim's class of the perturbed text",
    "similarity_before": "the victim's cosine of the original",
    "similarity_after": "the victim's cosine of the perturbed text",
    "score_before": "how far the attack was at the start, in [0, 1]",
    "score_after": "how far it came, in [0, 1]",
    "queries": "texts that the victim was asked",
    "words_changed": "share of the words that differ, in [0, 1]",
    "recipe": "the attack",
    "victim": "the model that was attacked",
}
"""What the columns beside the texts hold."""


def save_attacked_set(
    rows: Sequence[Mapping[str, Any]], folder: str | Path, *, about: Mapping[str, Any], split: str = "test"
) -> None:
    """Write an attacked set; the folder is there as a whole or not at all, and an attacked set in it is replaced.

    Args:
        rows: n at least 1, all with the same keys: texts, and out of `COLUMNS` (`attacks.outcomes.attacked_row` makes
            them).
        folder: where to.
        about: what the card and `about.json` say: `title`, and anything that JSON can hold, such as the recipe and the
            metrics.
        split: its name in the data set.

    Raises:
        UserError: if there are no rows, or the folder is there and holds something else.
    """
    folder = Path(folder)
    if not rows:
        raise UserError(f"there is no attacked example to write to {folder}")
    if folder.exists() and not is_attacked_set(folder):
        raise UserError(f"{folder} is there and is no attacked set: name another folder")
    dataset = Dataset.from_list([dict(row) for row in rows])
    with whole_folder(folder) as new:
        new.mkdir()
        dataset.to_parquet(new / FILE)
        write_json(new / ABOUT, about)
        (new / "README.md").write_text(_card(dataset, dict(about), split), encoding="utf-8")


def _card(dataset: Dataset, about: dict[str, Any], split: str) -> str:
    """The data set card: what loads it, where it is from, and what the columns hold."""
    title = about.pop("title", "An attacked set")
    described = {name: COLUMNS.get(name) for name in dataset.column_names}
    for name in dataset.column_names:
        if name.startswith(PERTURBED):
            described[name] = f"`{name.removeprefix(PERTURBED)}` after the attack"
    lines = [
        "---",
        f"pretty_name: {json.dumps(title)}",
        "configs:",
        "- config_name: default",
        "  data_files:",
        f"  - split: {split}",
        f"    path: {FILE}",
        "---",
        f"# {title}",
        "",
        f"{len(dataset)} examples with some words replaced. `datasets.load_dataset(FOLDER)` loads them.",
        "Texts and labels are those of the source, whose licence holds. The perturbed texts were found by a program",
        "and read by nobody: some no longer mean what the original meant.",
        "",
        "| column | |",
        "|---|---|",
        *(f"| {name} | {text or 'as in the source'} |" for name, text in described.items()),
        "",
        "```json",
        json.dumps(about, indent=2, ensure_ascii=False),
        "```",
    ]
    return "\n".join(lines) + "\n"


def is_attacked_set(folder: str | Path) -> bool:
    """Whether a folder is one that `save_attacked_set` wrote."""
    return (Path(folder) / FILE).is_file()


def load_attacked_set(folder: str | Path) -> Dataset:
    """The rows of an attacked set.

    Raises:
        UserError: if the folder is none, or cannot be read.
    """
    if not is_attacked_set(folder):
        raise UserError(f"{folder} is no attacked set: it needs a file {FILE}")
    try:
        return Dataset(pyarrow.parquet.read_table(Path(folder) / FILE))
    except (OSError, pyarrow.ArrowException, ValueError) as error:
        raise UserError(f"the attacked set {folder} cannot be read: {' '.join(str(error).split())}") from error


def load_about(folder: str | Path) -> dict[str, Any]:
    """What an attacked set says of itself: title, recipe, metrics and whatever else it was saved with."""
    return json.loads((Path(folder) / ABOUT).read_text(encoding="utf-8"))


@dataclass(frozen=True)
class AttackedPairs:
    """The pairs of an attacked set.

    Attributes:
        name: of its folder.
        before: n pairs as they were, with the gold similarity in [0, 1].
        after: n pairs as the attack left them.
        distance: (n,) what ``|similarity - gold|`` had to reach.
        succeeded: (n,) bool, whether the attack on its victim did.
        victim: that was attacked.
    """

    name: str
    before: list[Pair]
    after: list[Pair]
    distance: np.ndarray
    succeeded: np.ndarray
    victim: str

    @property
    def sentences(self) -> list[str]:
        """The distinct sentences."""
        return list(dict.fromkeys(text for pair in (*self.before, *self.after) for text in pair[:2]))


def load_attacked_pairs(folder: str | Path) -> AttackedPairs:
    """The pairs of an attacked set of STS (`sentence1`, `sentence2`), or of texts against themselves (`text`).

    Raises:
        UserError: if it is none, or one of a classifier.
    """
    dataset = load_attacked_set(folder)
    names = dataset.column_names
    sides = ("text", "text") if "text" in names else ("sentence1", "sentence2")
    if absent := {*sides, "gold", "distance", "status", "victim"} - {*names}:
        raise UserError(f"{folder} is no attacked set of sentence pairs: it has no column {', '.join(sorted(absent))}")
    edited = ["text", f"{PERTURBED}text"] if sides[0] == "text" else [
        f"{PERTURBED}{side}" if f"{PERTURBED}{side}" in names else side for side in sides
    ]  # fmt: skip
    before, after = (
        list(zip(*(dataset[column] for column in columns), dataset["gold"], strict=True)) for columns in (sides, edited)
    )
    succeeded = np.array([status == "succeeded" for status in dataset["status"]])
    distance = np.array(dataset["distance"], dtype=float)
    return AttackedPairs(Path(folder).resolve().name, before, after, distance, succeeded, dataset["victim"][0])


def evaluate_attacked_pairs(encode: Encode, pairs: AttackedPairs) -> dict[str, Any]:
    """How another model (or the victim itself) does on an attacked set.

    Args:
        encode: n strings -> (n, d); called once.
        pairs: of the set.

    Returns:
        What `similarity_scores` returns, and `transferred`: the share x 100 of the victim's failures that are this
        model's too, among those whose original pair it gets right; None if there are none.

    Raises:
        UserError: if an embedding is not finite.
    """
    embeddings = Embeddings.of(encode, pairs.sentences)
    before, after = (embeddings.cosines(side) for side in (pairs.before, pairs.after))
    gold = np.array([pair[2] for pair in pairs.before])
    far = [np.abs(side.clip(0, 1) - gold) >= pairs.distance for side in (before, after)]
    asked = pairs.succeeded & ~far[0]
    record = similarity_scores(before, after, gold, name=pairs.name)
    record["transferred"] = 100 * float(far[1][asked].mean()) if asked.any() else None
    return {**record, "victim": pairs.victim}


def similarity_scores(before: np.ndarray, after: np.ndarray, gold: np.ndarray, *, name: str) -> dict[str, Any]:
    """Scores of similarities before and after an attack.

    Args:
        before: (n,) cosines of the original pairs.
        after: (n,) of the attacked ones.
        gold: (n,) in [0, 1].
        name: of the set, for messages.

    Returns:
        `spearman_before` and `spearman_after` (x 100; None for fewer than two pairs or gold scores that are all equal),
        `distance_before` and `distance_after` (mean ``|similarity - gold|``, negative cosines counted as 0), `n`.
    """
    record: dict[str, Any] = {}
    for when, cosines in (("before", before), ("after", after)):
        ranked = len(gold) > 1 and np.ptp(gold) > 0
        record[f"spearman_{when}"] = 100 * spearman(cosines, gold, name=name) if ranked else None
        record[f"distance_{when}"] = float(np.abs(cosines.clip(0, 1) - gold).mean())
    return {**record, "n": len(gold)}
