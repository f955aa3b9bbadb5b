"""The transfer protocol once more, in plain scikit-learn without a line of the package, to hold its figures to.

python tests/evaluation/transfer_reference.py EMBEDDINGS_OR_MODEL DATA_DIR

EMBEDDINGS is an .npz file with `texts` (n strings) and `embeddings` (n, d), MODEL anything that SentenceTransformer
loads. Prints a line of JSON for each of MR, CR, SUBJ, SST2 and MRPC that DATA_DIR/transfer holds. Every fit starts from
zero, so this is several times slower than the package.
"""

from __future__ import annotations

import csv
import gzip
import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import f1_score
from sklearn.model_selection import GridSearchCV, PredefinedSplit, StratifiedKFold
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

FOLDS = 10
GRID = [1 / 16384, 1 / 4096, 1 / 1024, 1 / 256, 1 / 64, 1 / 16, 1 / 4, 1, 4]

Table = tuple[list[list[str]], np.ndarray]


def read(path: Path) -> Table:
    """The texts of each row, and the labels."""
    if not path.exists():
        path = path.with_name(path.name + ".gz")
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8", newline="\n") as file:
        rows = list(csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE))[1:]
    return [row[1:] for row in rows], np.array([int(row[0]) for row in rows])


def folds(seed: int) -> StratifiedKFold:
    return StratifiedKFold(n_splits=FOLDS, shuffle=True, random_state=seed)


def classifier(c: float = 1.0) -> Pipeline:
    return make_pipeline(StandardScaler(with_std=False), LogisticRegression(C=c, max_iter=1000))


def search(cv: object, grid: list[float]) -> GridSearchCV:
    return GridSearchCV(classifier(), {"logisticregression__C": grid}, cv=cv, scoring="accuracy")


def evaluate(
    encode: Callable[[list[str]], np.ndarray],
    train: Table,
    dev: Table | None = None,
    test: Table | None = None,
    seed: int = 0,
    grid: list[float] = GRID,
) -> dict[str, float]:
    """Accuracy (and for pairs F1) x 100 of one task; cross-validation where there is no test set."""
    flat = [text for row in train[0] for text in row]
    scale = float(np.sqrt(np.asarray(encode(flat), dtype=np.float64).var(axis=0).mean()))

    def features(table: Table) -> np.ndarray:
        sides = [np.asarray(encode(list(side)), dtype=np.float64) / scale for side in zip(*table[0], strict=True)]
        return sides[0] if len(sides) == 1 else np.concatenate([abs(sides[0] - sides[1]), sides[0] * sides[1]], axis=1)

    x, y = features(train), train[1]
    if test is None:
        scores = []
        for fit, held_out in folds(seed).split(x, y):
            scores.append(search(folds(seed), grid).fit(x[fit], y[fit]).score(x[held_out], y[held_out]))
        return {"accuracy": 100 * float(np.mean(scores))}
    if dev is None:
        model = search(folds(seed), grid).fit(x, y)
    else:
        both_x, both_y = np.concatenate([x, features(dev)]), np.concatenate([y, dev[1]])
        which = np.repeat([-1, 0], [len(y), len(dev[1])])  # -1: never held out
        chosen = search(PredefinedSplit(which), grid).set_params(refit=False).fit(both_x, both_y).best_params_
        model = classifier(*chosen.values()).fit(x, y)
    predicted = model.predict(features(test))
    result = {"accuracy": 100 * float(np.mean(predicted == test[1]))}
    if len(train[0][0]) == 2:
        result["f1"] = 100 * float(f1_score(test[1], predicted))
    return result


def evaluate_folder(
    encode: Callable[[list[str]], np.ndarray], folder: Path, task: str, sst2_train: str = "train_phrases"
) -> dict[str, float]:
    """One task of a `transfer` folder."""
    if (folder / task / "all.tsv").exists():
        return evaluate(encode, read(folder / task / "all.tsv"))
    train = read(folder / task / f"{sst2_train if task == 'SST2' else 'train'}.tsv")
    dev = read(folder / task / "dev.tsv") if task == "SST2" else None
    return evaluate(encode, train, dev, read(folder / task / "test.tsv"))


def main(source: str, data_dir: str) -> None:
    folder = Path(data_dir) / "transfer"
    if source.endswith(".npz"):
        stored = np.load(source)
        table = {" ".join(text.split()): row for text, row in zip(stored["texts"], stored["embeddings"], strict=True)}
    else:
        from sentence_transformers import SentenceTransformer

        model, table = SentenceTransformer(source), {}

    def encode(texts: list[str]) -> np.ndarray:
        texts = [" ".join(text.split()) for text in texts]
        if new := [text for text in dict.fromkeys(texts) if text not in table]:
            table.update(zip(new, model.encode(new, batch_size=64), strict=True))
        return np.stack([table[text] for text in texts])

    for task in ("MR", "CR", "SUBJ", "SST2", "MRPC"):
        if (folder / task).is_dir():
            print(json.dumps({"task": task, **evaluate_folder(encode, folder, task)}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
