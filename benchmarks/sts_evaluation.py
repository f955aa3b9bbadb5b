"""Seconds of a whole STS evaluation, ours and SentEval's, with the same model, device, dtype and threads, interleaved.

    python benchmarks/sts_evaluation.py --model_name_or_path MODEL --data_dir data --output_json out.json

Ours is `sts.evaluate_tasks` as `examples/run_eval.py` calls it. The other does what SentEval's STSEval does with the
batcher of SimCSE's evaluation.py: the pairs of each subset sorted by the words of their first sentence, batches of
128 pairs, the first and then the second sentences of a batch tokenised, padded and encoded as they come, and the
cosine pair by pair. Of STS-B and SICK-R SentEval encodes train and dev too; here it is given the test set alone. Both
give the Spearman correlation over all pairs of a task. Loading of data and model is not timed.

That both compute the same is checked once more in float64, where the scores must agree to 1e-4 (x 100): in float32 the
similarities of SentEval differ in their last bits where they should be equal, as of identical sentences, and ranking
those bits moves a score by as much. There its similarities are rounded to 10 digits for the same reason.

With `--as_they_come` the other does not sort the pairs, as scripts that only have SentEval's batches do.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from measuring import at_least, check_output, machine, ratio
from scipy.stats import spearmanr
from sentence_transformers import SentenceTransformer
from sentence_transformers.util import batch_to_device
from tqdm import tqdm

from hf_robustcse.errors import Parser, command
from hf_robustcse.evaluation import sts
from hf_robustcse.evaluation.embedders import load_embedder
from hf_robustcse.evaluation.run import load_tasks
from hf_robustcse.files import write_json

PEER_BATCH = 128
QUICK = {"tasks": ["stsb"], "rounds": 5}


def batcher(model: SentenceTransformer) -> Callable[[list[str]], np.ndarray]:
    """A batch of sentences, tokenised, padded and encoded as it comes, as by the batcher of SimCSE's evaluation.py."""

    @torch.no_grad()
    def encode(sentences: list[str]) -> np.ndarray:
        features = model.tokenizer(
            sentences, padding=True, truncation=True, max_length=model.max_seq_length, return_tensors="pt"
        )
        return model(batch_to_device(dict(features), model.device))["sentence_embedding"].cpu().numpy()

    return encode


def senteval(
    model: SentenceTransformer, tasks: Sequence[sts.StsData], digits: int | None = None, as_they_come: bool = False
) -> dict[str, tuple[float, dict[sts.Pair, float]]]:
    """Task -> its score, x 100, and the similarity of each pair, rounded if digits are given."""
    encode = batcher(model)
    found = {}
    for data in tasks:
        similarities: list[float] = []
        gold: list[float] = []
        ordered: list[sts.Pair] = []
        for pairs in data.subsets.values():
            if not as_they_come:
                pairs = sorted(pairs, key=lambda pair: (len(pair[0].split()), len(pair[1].split()), pair[2]))
            ordered += pairs
            for start in range(0, len(pairs), PEER_BATCH):
                batch = pairs[start : start + PEER_BATCH]
                first, second = (encode([pair[side] for pair in batch]) for side in (0, 1))
                for u, v in zip(first, second, strict=True):
                    similarities.append(np.dot(u, v) / (np.linalg.norm(u) * np.linalg.norm(v)))
                gold += [pair[2] for pair in batch]
        if digits is not None:
            similarities = [round(float(value), digits) for value in similarities]
        score = 100 * float(spearmanr(similarities, gold)[0])
        found[data.key] = score, dict(zip(ordered, similarities, strict=True))
    return found


@command
def main() -> None:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model_name_or_path", required=True)
    parser.add_argument("--data_dir", required=True)
    parser.add_argument("--tasks", nargs="+", default=["sts"], help="as in run_eval.py: sts, or STS12, stsb_dev, ...")
    parser.add_argument("--pooling")
    parser.add_argument("--batch_size", type=int, default=64, help="of ours")
    parser.add_argument("--as_they_come", action="store_true", help="do not sort the pairs of the other")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help=f"in under three minutes: {QUICK}")
    parser.add_argument("--output_json", type=Path)
    args = parser.parse_args()
    at_least(1, args, "batch_size", "rounds")
    check_output(args)
    if args.quick:
        vars(args).update(QUICK)
    tasks, _ = load_tasks([task.lower() for task in args.tasks], args.data_dir)
    embedder = load_embedder(args.model_name_or_path, pooling=args.pooling, batch_size=args.batch_size)
    seconds: dict[str, list[float]] = {"hf_robustcse": [], "senteval": []}
    for number in tqdm(range(args.rounds), unit="round"):
        for system in sorted(seconds, reverse=number % 2 == 1):
            started = time.perf_counter()
            if system == "senteval":
                theirs = senteval(embedder.model, tasks, as_they_come=args.as_they_come)
            else:
                ours = sts.evaluate_tasks(embedder, tasks)["tasks"]
            seconds[system].append(time.perf_counter() - started)
    medians = {system: statistics.median(values) for system, values in seconds.items()}
    ratios = ratio(seconds["senteval"], seconds["hf_robustcse"])
    differences = {name: ours[name]["spearman"] - score for name, (score, _) in theirs.items()}
    embeddings = sts.Embeddings(embedder, (sentence for data in tasks for sentence in data.sentences))
    cosine = max(
        abs(value - theirs[data.key][1][pair])
        for data in tasks
        for pair, value in zip(data.pairs, embeddings.cosines(data.pairs), strict=True)
    )
    model = embedder.model.double()
    exact = sts.evaluate_tasks(lambda texts: model.encode(texts, batch_size=args.batch_size), tasks)["tasks"]
    checked = senteval(model, tasks, digits=10)
    in_float64 = {name: exact[name]["spearman"] - score for name, (score, _) in checked.items()}
    record = {
        **machine(),
        "model": args.model_name_or_path,
        "peer_sorts": not args.as_they_come,
        "tasks": {
            data.key: {
                "pairs": data.n, "distinct_sentences": len(data.sentences), "spearman": ours[data.key]["spearman"],
                "difference": differences[data.key], "difference_float64": in_float64[data.key],
            }
            for data in tasks
        },
        "encoded": {"hf_robustcse": len(embeddings.index), "senteval": 2 * sum(data.n for data in tasks)},
        "seconds": seconds,
        "median_seconds": medians,
        "ratios": {"senteval/hf_robustcse": ratios},
        "largest_difference_of_scores": max(map(abs, differences.values())),
        "largest_difference_of_scores_float64": max(map(abs, in_float64.values())),
        "largest_difference_of_cosines": float(cosine),
    }  # fmt: skip
    for system, value in medians.items():
        print(f"{system:<14}{value:8.2f} s, {record['encoded'][system]} sentences encoded")
    print(
        f"senteval/hf_robustcse: {ratios['min']:.2f} {ratios['median']:.2f} {ratios['max']:.2f} "
        f"(min, median, max of {args.rounds} rounds)"
    )
    print(
        f"largest difference of a score x 100: {record['largest_difference_of_scores']:.1e}, in float64 "
        f"{record['largest_difference_of_scores_float64']:.1e}; of a cosine {cosine:.1e}"
    )
    if args.output_json:
        write_json(args.output_json, record)
    if record["largest_difference_of_scores_float64"] > 1e-4:
        sys.exit("the scores differ by more than 0.0001")


if __name__ == "__main__":
    main()
