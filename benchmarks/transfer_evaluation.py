"""Seconds of a transfer evaluation, ours and SentEval's way, with the same model, device, dtype and cores, interleaved.

    python benchmarks/transfer_evaluation.py --model_name_or_path MODEL --data_dir data --output_json out.json

Ours is `transfer.evaluate_tasks` as `examples/run_eval.py` calls it. The others encode and fit in other ways:

* `senteval`: the sentences of a task sorted by their words, in batches of 128, padded and encoded as they come (of
  MRPC the first and then the second ones), as SentEval does with the batcher of SimCSE's evaluation.py; and a
  regression of its own for each fold, inner fold and penalty, from zero, as on SentEval's scikit-learn path.
* `one_by_one`: encoded as ours, and the fits that choose a penalty one at a time, each started from the one before, as
  the package itself did before they were solved together.

All have the same features, folds, grid of penalties and scored regressions, so that the accuracies say whether they
compute the same. Loading of data and model is not timed. All use one core, unless `--threads` says otherwise: the folds
of ours go side by side then, and of the others only those that are scored.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import torch
from measuring import at_least, check_output, machine, ratio
from sklearn.linear_model import LogisticRegression
from sts_evaluation import PEER_BATCH, batcher
from tqdm import tqdm

from hf_robustcse.errors import Parser, command
from hf_robustcse.evaluation import transfer
from hf_robustcse.evaluation.embedders import Embedder, load_embedder
from hf_robustcse.evaluation.run import load_transfer_tasks
from hf_robustcse.files import write_json

QUICK = {"tasks": ["mrpc"], "rounds": 2}
SYSTEMS = ("hf_robustcse", "one_by_one", "senteval")


def senteval_encode(embedder: Embedder, data: transfer.TransferData) -> Callable[[Sequence[str]], np.ndarray]:
    """A task's sentences, encoded as SentEval does; as a look-up."""
    encode, rows = batcher(embedder.model), {}
    for split in data.splits.values():
        for side in range(len(split[0][1])):
            texts = sorted((texts[side] for _, texts in split), key=lambda text: len(text.split()))
            for start in range(0, len(texts), PEER_BATCH):
                batch = texts[start : start + PEER_BATCH]
                rows.update(zip(batch, encode(batch), strict=True))
    return lambda sentences: np.stack([rows[sentence] for sentence in sentences])


def fit_one_by_one(warm: bool) -> Callable[..., tuple[np.ndarray, int]]:
    """What stands in for `regression.fit_together`: scikit-learn's fits, one at a time."""

    def fit(x: np.ndarray, y: np.ndarray, fits: Sequence, penalties: Sequence, *, classes: int, max_iter: int) -> Any:
        found = []
        for rows in fits:
            fit_x, fit_y, path = x[rows], y[rows], []
            model = LogisticRegression(max_iter=max_iter, warm_start=warm)
            for penalty in penalties:
                model.set_params(C=1 / penalty).fit(fit_x, fit_y)
                path.append(np.concatenate([model.coef_, model.intercept_[:, None]], axis=1))
            found.append(np.stack(path))
        return np.stack(found), 0

    return fit


def evaluate(system: str, embedder: Embedder, tasks: Sequence[transfer.TransferData]) -> dict[str, Any]:
    """{"scores": task -> its result, "encoding": seconds, "fits": seconds} of one system."""
    clock, scores = {"encoding": 0.0, "fits": 0.0}, {}

    def timed(kind: str, work: Callable[[], Any]) -> Any:
        started = time.perf_counter()
        result = work()
        clock[kind] += time.perf_counter() - started
        return result

    if system != "senteval":
        texts = [sentence for data in tasks for sentence in data.sentences]
        shared = timed("encoding", lambda: transfer.Embeddings(embedder, texts))
    for data in tasks:
        encode = (
            timed("encoding", lambda data=data: senteval_encode(embedder, data)) if system == "senteval" else shared
        )
        if system == "hf_robustcse":
            scores[data.key] = timed("fits", lambda data=data: transfer.evaluate_transfer(shared, data))
        else:
            with mock.patch.object(transfer, "fit_together", fit_one_by_one(warm=system == "one_by_one")):
                scores[data.key] = timed(
                    "fits", lambda data=data, encode=encode: transfer.evaluate_transfer(encode, data)
                )
    return {"scores": scores, **clock}


@command
def main() -> None:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model_name_or_path", required=True)
    parser.add_argument("--data_dir", required=True)
    parser.add_argument("--tasks", nargs="+", default=["transfer"], help="transfer, or mr, cr, subj, ...")
    parser.add_argument("--pooling")
    parser.add_argument("--systems", nargs="+", choices=SYSTEMS, default=list(SYSTEMS))
    parser.add_argument("--sst2_train", default="sentences")
    parser.add_argument("--batch_size", type=int, default=64, help="of ours")
    parser.add_argument("--threads", type=int, default=1, help="cores")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help=f"in under three minutes: {QUICK}")
    parser.add_argument("--output_json", type=Path)
    args = parser.parse_args()
    at_least(1, args, "batch_size", "threads", "rounds")
    check_output(args)
    if args.quick:
        vars(args).update(QUICK)
    torch.set_num_threads(args.threads)
    tasks, _ = load_transfer_tasks([task.lower() for task in args.tasks], args.data_dir, args.sst2_train)
    embedder = load_embedder(args.model_name_or_path, pooling=args.pooling, batch_size=args.batch_size)
    embedder(tasks[0].sentences[: args.batch_size])  # the libraries have chosen their kernels
    rounds: list[dict[str, dict[str, Any]]] = []
    for number in tqdm(range(args.rounds), unit="round"):
        order = args.systems if number % 2 == 0 else args.systems[::-1]
        rounds.append({system: evaluate(system, embedder, tasks) for system in order})
    seconds = {
        system: {
            "all": [one[system]["encoding"] + one[system]["fits"] for one in rounds],
            **{kind: [one[system][kind] for one in rounds] for kind in ("encoding", "fits")},
        }
        for system in args.systems
    }
    ours = args.systems[0]
    ratios = {}
    for system in args.systems[1:]:
        for kind in seconds[ours]:
            ratios[f"{system}/{ours}, {kind}"] = ratio(seconds[system][kind], seconds[ours][kind])
    scores = {system: rounds[-1][system]["scores"] for system in args.systems}
    shown = ("accuracy", "f1", "dev_accuracy", "penalty", "folds")
    record = {
        **machine(),
        "model": args.model_name_or_path,
        "threads": torch.get_num_threads(),
        "rows": {data.key: sum(map(len, data.splits.values())) for data in tasks},
        "seconds": seconds,
        "ratios": ratios,
        "scores": {
            system: {task: {key: one[key] for key in shown if key in one} for task, one in found.items()}
            for system, found in scores.items()
        },
        "largest_difference_of_accuracies": {
            system: max(abs(found[task]["accuracy"] - scores[ours][task]["accuracy"]) for task in found)
            for system, found in scores.items()
            if system != ours
        },
    }
    for system, kinds in seconds.items():
        found = ", ".join(f"{kind} {statistics.median(values):.2f} s" for kind, values in kinds.items())
        accuracies = " ".join(f"{task} {one['accuracy']:.2f}" for task, one in scores[system].items())
        print(f"{system:<14}{found}; {accuracies}")
    for name, values in ratios.items():
        print(f"{name}: {values['min']:.2f} {values['median']:.2f} {values['max']:.2f} (min, median, max)")
    print(f"largest difference of an accuracy: {record['largest_difference_of_accuracies']}")
    if args.output_json:
        write_json(args.output_json, record)


if __name__ == "__main__":
    main()
