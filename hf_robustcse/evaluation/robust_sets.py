"""Robust sets: a test set with label-preserving perturbations, and how many predictions stay as they were.

DCL (Chen et al. 2021) evaluates on such sets, made with CheckList's operators (Ribeiro et al. 2020); `operators` has
them. A row's perturbation depends on its texts, the operators and the seed alone: not on its place or the process.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset, DatasetDict, List, Value, load_from_disk

from hf_robustcse.errors import UserError
from hf_robustcse.evaluation.operators import OPERATORS, perturb_row
from hf_robustcse.files import whole_folder
from hf_robustcse.synonyms import Synonyms, load_wordnet

ADDED = ("operators", "row")
SPLITS = ("original", "robust")


def robust_set(
    dataset: Dataset,
    columns: Sequence[str],
    *,
    operators: Sequence[str] | None = None,
    per_example: int = 1,
    seed: int = 0,
    protect: Callable[[dict[str, Any]], Iterable[str]] | None = None,
    fixed: Sequence[str] = (),
    neutral_in: str | None = None,
    synonyms: Synonyms | None = None,
) -> Dataset:
    """The data set with perturbed texts: the same rows and columns in the same order, and the columns of `ADDED`.

    Args:
        dataset: n rows.
        columns: the columns of text that are perturbed, together where the label is about several.
        operators: out of `operators.OPERATORS`. None for all that can be used: `neutral` needs `neutral_in`, `synonyms`
            needs `synonyms` or a WordNet (what is left out for want of one is printed).
        per_example: how many operators change a row, if as many can; drawn for each row.
        seed: of all choices.
        protect: a row -> the strings in it that stay as they are (entities, the answer of a question).
        fixed: columns of text that are read, so that all texts stay consistent, and not changed.
        neutral_in: the column of `columns` that `neutral` appends to, at its end.
        synonyms: of a word; by default the exact ones of WordNet.

    Returns:
        n rows, with `operators`, the names of those that changed the row (none where nothing could be changed), and
        `row`, its index in `dataset`.

    Raises:
        UserError: for a column that is not there or holds no text, an unknown operator or one without what it needs, or
            `per_example` below 1.
    """
    columns, fixed = list(columns), list(fixed)
    _check_columns(dataset, columns, fixed)
    if per_example < 1:
        raise UserError(f"the operators per example must be 1 or more, not {per_example}")
    if neutral_in is not None and neutral_in not in columns:
        raise UserError(f"neutral_in must be one of the perturbed columns {', '.join(columns)}, not {neutral_in!r}")
    chosen, synonyms = _usable(operators, neutral_in, synonyms)
    names = [*columns, *fixed]
    texts: dict[str, list[str]] = {name: [] for name in columns}
    applied: list[list[str]] = []
    plain = dataset.with_format(None)
    for number, row in enumerate(plain if protect else plain.select_columns(names)):
        if absent := [name for name in names if row[name] is None]:
            raise UserError(f"row {number} has no text in the column {absent[0]}")
        changed, done = perturb_row(
            [row[name] for name in names],
            chosen,
            seed=seed,
            neutral_in=None if neutral_in is None else columns.index(neutral_in),
            protected=protect(row) if protect else (),
            fixed=range(len(columns), len(names)),
            synonyms=synonyms,
            at_most=per_example,
        )
        for name, text in zip(columns, changed[: len(columns)], strict=True):
            texts[name].append(text)
        applied.append(done)
    result = dataset.add_column("operators", applied, feature=List(Value("string")))
    result = result.add_column("row", list(range(len(dataset))), feature=Value("int64"))
    result = result.remove_columns(columns)
    for name in columns:
        result = result.add_column(name, texts[name], feature=dataset.features[name])
    return result.select_columns([*dataset.column_names, *ADDED])


def _check_columns(dataset: Dataset, columns: Sequence[str], fixed: Sequence[str]) -> None:
    if not columns or len({*columns, *fixed}) < len(columns) + len(fixed):
        raise UserError("name at least one column to perturb, and each perturbed or fixed column once")
    for name in [*columns, *fixed]:
        if name not in dataset.column_names:
            raise UserError(f"there is no column {name!r}; there are {', '.join(dataset.column_names)}")
        if getattr(dataset.features[name], "dtype", None) not in ("string", "large_string"):
            raise UserError(f"the column {name} holds no text")
    if taken := set(ADDED) & set(dataset.column_names):
        raise UserError(f"the data set has a column {' and '.join(sorted(taken))}, which a robust set adds: rename it")


def _usable(
    operators: Sequence[str] | None, neutral_in: str | None, synonyms: Synonyms | None
) -> tuple[list[str], Synonyms | None]:
    """The operators that are asked for, or all whose resources are here, and the synonyms that they use."""
    if operators is not None and not operators:
        raise UserError(f"name at least one operator: {', '.join(OPERATORS)}")
    chosen = list(OPERATORS if operators is None else operators)
    if operators is None and neutral_in is None:
        chosen.remove("neutral")
    if "synonyms" in chosen and synonyms is None:
        try:
            synonyms = load_wordnet(exact=True)
        except UserError as error:
            if operators is not None:
                raise UserError(
                    "the operator synonyms needs WordNet or a word list. Set WORDNET_DIR to WordNet's folder or install"
                    " it (apt install wordnet-base, or python -m nltk.downloader wordnet; pip install"
                    f" hf_robustcse[wordnet]), pass synonyms, or leave the operator out ({error})"
                ) from error
            print("robust set: without the operator synonyms, because no WordNet was found", file=sys.stderr)
            chosen.remove("synonyms")
    return chosen, synonyms


def moved(text: str, perturbed: str, start: int, part: str) -> int:
    """Where a protected part of a text, such as the answer in a context, is after the perturbation.

    Args:
        text: before.
        perturbed: after, with `part` protected.
        start: where the part begins in `text`, in characters.
        part: the string.

    Returns:
        Where the same occurrence of the part begins in `perturbed`.

    Raises:
        UserError: if the part is not at `start`, or occurs in the two texts a different number of times.
    """
    before, after = (
        [at for at in range(len(whole)) if whole.startswith(part, at)] if part else [] for whole in (text, perturbed)
    )
    if start not in before:
        raise UserError(f"{part!r} does not begin at character {start} of its text")
    if len(before) != len(after):
        raise UserError(f"{part!r} occurs {len(before)} times in a text and {len(after)} times in the perturbed one")
    return after[before.index(start)]


def save_robust_set(original: Dataset, perturbed: Dataset, folder: str | Path) -> None:
    """Write both as a `DatasetDict` with the splits `original` and `robust`, which `datasets.load_from_disk` loads.

    The folder is there as a whole or not at all; a robust set that is there already is replaced.

    Args:
        original: n rows.
        perturbed: what `robust_set` made of them.
        folder: where to.

    Raises:
        UserError: if the two differ in their rows, or the folder is there and holds something else.
    """
    folder = Path(folder)
    if len(original) != len(perturbed) or "row" not in perturbed.column_names:
        raise UserError(f"a robust set of {len(original)} rows has as many and a column row: make it with robust_set")
    if folder.exists() and not _is_robust_set(folder):
        raise UserError(f"{folder} is there and is no robust set: name another folder")
    with whole_folder(folder) as new:
        DatasetDict(zip(SPLITS, (original, perturbed), strict=True)).save_to_disk(new)


def load_robust_set(folder: str | Path) -> DatasetDict:
    """The splits `original` and `robust` of a folder that `save_robust_set` wrote.

    Raises:
        UserError: if it is no such folder, or cannot be read.
    """
    if not _is_robust_set(Path(folder)):
        raise UserError(f"{folder} is no robust set: make one with save_robust_set")
    try:
        return load_from_disk(str(folder))
    except (OSError, ValueError) as error:  # pyarrow's errors are both
        raise UserError(f"the robust set {folder} cannot be read: {' '.join(str(error).split())}") from error


def _is_robust_set(folder: Path) -> bool:
    splits = folder / "dataset_dict.json"
    try:
        return splits.is_file() and json.loads(splits.read_text(encoding="utf-8")) == {"splits": list(SPLITS)}
    except ValueError:
        return False


def invariance_rate(predictions: Sequence[Any], perturbed_predictions: Sequence[Any], changed: Sequence[Any]) -> float:
    """The share x 100 of predictions that stay the same, among the rows that were changed.

    Args:
        predictions: n, on the original rows.
        perturbed_predictions: n, on the perturbed ones.
        changed: n, true for the rows that count, such as the column `operators` of a robust set.

    Raises:
        UserError: if no row was changed, so that there is no such share, or the lengths differ.
    """
    if not len(predictions) == len(perturbed_predictions) == len(changed):
        raise UserError(
            f"{len(predictions)} predictions, {len(perturbed_predictions)} perturbed ones, {len(changed)} rows"
        )
    same = [bool(a == b) for a, b, true in zip(predictions, perturbed_predictions, changed, strict=True) if bool(true)]
    if not same:
        raise UserError("no row was changed by the operators, so there is no invariance rate: choose others")
    return 100 * sum(same) / len(same)
