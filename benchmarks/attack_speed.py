"""Parity and speed of PWWS, ours and TextAttack's, on the same victim, examples and WordNet, interleaved.

    NLTK_DATA=nltk_data python benchmarks/attack_speed.py --textattack_python ta/bin/python --victim MODEL \
        --dataset_file data/attack/MR/test1k.tsv --output_json out.json

TextAttack runs in a process of its own, with an interpreter of its own (see textattack_worker.py). The examples are cut
into chunks; on each chunk the systems run one after the other, in another order on every other chunk, with the same
number of threads, and what is reported is the median over the chunks of the ratio of their seconds, by the clock and
by the CPU. The systems: ours; `dynamic`, TextAttack with a wrapper that pads to the longest text of a batch; with
`--floor` the bare forward passes of the distinct texts that ours asked for, tokenised before, in batches of texts of
exactly one length; and on the first `--stock_examples` examples that are not skipped, one by one, `stock`, TextAttack
with its own wrapper.

Without `--victim` the victim is that of near_free.py, which costs next to nothing, and an example's label what the
victim says of it: then the seconds are those of the attack itself.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from attack_peer import TextAttack, as_example, as_record, pwws, read_examples
from measuring import at_least, check_output, machine, spread
from near_free import near_free
from tqdm import tqdm

from hf_robustcse.attacks import attack_examples
from hf_robustcse.attacks.text import as_key
from hf_robustcse.attacks.victims import Classifier, batches_of_tokens, load_classifier
from hf_robustcse.errors import Parser, UserError, command
from hf_robustcse.files import write_json

QUICK = {"near_free": {"examples": 100, "chunk": 20}, "victim": {"examples": 24, "chunk": 8}}
Examples = list[dict[str, Any]]
System = Callable[[Examples], dict[str, Any]]
"""Examples -> {"wall": seconds, "cpu": seconds, and perhaps "outcomes"}."""


class Recorded:
    """A victim, and the texts that it was asked."""

    def __init__(self, victim: Any) -> None:
        self.victim = victim
        self.batch_size = getattr(victim, "batch_size", 32)
        self.texts: dict[Any, None] = {}

    def __call__(self, texts: list[Any]) -> Any:
        self.texts.update(dict.fromkeys(texts))
        return self.victim(texts)


class Clock:
    """Seconds by the clock and by the CPU, over all threads of this process."""

    def __init__(self) -> None:
        self.wall, self.cpu = time.perf_counter(), time.process_time()

    def seconds(self) -> dict[str, float]:
        """Since it was made."""
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return {"wall": time.perf_counter() - self.wall, "cpu": time.process_time() - self.cpu}


def forward_only(classifier: Classifier, texts: Sequence[Any]) -> dict[str, float]:
    """Seconds of the forward passes of texts, tokenised before and without padding."""
    columns = [list(texts)] if isinstance(texts[0], str) else [list(column) for column in zip(*texts, strict=True)]
    tokens = classifier.tokenizer(*columns, truncation=True, max_length=classifier.max_length)
    rows = [{name: column[i] for name, column in tokens.items()} for i in range(len(texts))]
    groups: dict[int, list[int]] = {}
    for i, row in enumerate(rows):
        groups.setdefault(len(row["input_ids"]), []).append(i)
    batches = [
        classifier.tokenizer.pad([rows[same[i]] for i in batch], return_tensors="pt").to(classifier.device)
        for length, same in groups.items()
        for batch in batches_of_tokens([length] * len(same), classifier.batch_tokens)
    ]
    clock = Clock()
    with torch.inference_mode():
        for features in batches:
            classifier.model(**features).logits.cpu()
    return clock.seconds()


def interleave(examples: Examples, size: int, systems: dict[str, System]) -> list[dict[str, dict[str, Any]]]:
    """Chunk by chunk what each system gave; on every other chunk the first one comes last."""
    rounds = []
    for start in tqdm(range(0, len(examples), size), unit="chunk"):
        first, *others = systems
        names = [*others, first] if len(rounds) % 2 else [first, *others]
        rounds.append({name: systems[name](examples[start : start + size]) for name in names})
    return rounds


def ratios(rounds: list[dict[str, dict[str, Any]]], name: str) -> dict[str, Any]:
    """The seconds of a system over ours: the median over the chunks, and of all chunks together."""
    found: dict[str, Any] = {}
    for kind in ("wall", "cpu"):
        theirs, ours = ([chunk[system][kind] for chunk in rounds] for system in (name, "ours"))
        each = [a / b for a, b in zip(theirs, ours, strict=True)]
        found[kind] = {
            "ratio": spread(each),
            "ratio_of_sums": sum(theirs) / sum(ours),
            "seconds": theirs,
            "seconds_ours": ours,
        }
    return found


def parity(examples: Examples, ours: list[dict[str, Any]], theirs: list[dict[str, Any]]) -> dict[str, Any]:
    """How many outcomes are the same, and those that are not."""
    pairs = list(zip(ours, theirs, strict=True))
    same = {key: sum(a[key] == b[key] for a, b in pairs) for key in ("status", "columns", "queries")}
    succeeded = [(a, b) for a, b in pairs if a["status"] == b["status"] == "succeeded"]
    differing = [
        {"number": i, "example": examples[i], "ours": a, "textattack": b}
        for i, (a, b) in enumerate(pairs)
        if any(a[key] != b[key] for key in same)
    ]
    return {
        "examples": len(pairs),
        "same_status": same["status"],
        "same_text": same["columns"],
        "same_queries": same["queries"],
        "succeeded_in_both": len(succeeded),
        "succeeded_with_same_text": sum(a["columns"] == b["columns"] for a, b in succeeded),
        "largest_difference_of_scores": max(
            (abs(a["score_after"] - b["score_after"]) for a, b in pairs if a["columns"] == b["columns"]), default=None
        ),
        "queries_per_attacked_example": {
            name: statistics.mean([o["queries"] for o in outcomes if o["status"] != "skipped"] or [0])
            for name, outcomes in (("ours", ours), ("textattack", theirs))
        },
        "statuses": {
            name: dict(Counter(outcome["status"] for outcome in outcomes))
            for name, outcomes in (("ours", ours), ("textattack", theirs))
        },
        "differing": differing,
    }


@command
def main() -> None:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--textattack_python", required=True, help="interpreter of an environment with TextAttack")
    parser.add_argument("--victim", help="classifier of transformers; none: the near-free victim")
    parser.add_argument("--dataset_file", required=True)
    parser.add_argument("--examples", type=int, default=200)
    parser.add_argument("--stock_examples", type=int, default=0, help="for the stock wrapper; minutes each")
    parser.add_argument("--floor", action="store_true", help="also the bare forward passes")
    parser.add_argument("--chunk", type=int, default=50, help="examples between two turns")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batch_tokens", type=int, help="of ours and of the floor")
    parser.add_argument("--quick", action="store_true", help=f"in under three minutes: {QUICK}")
    parser.add_argument("--output_json", type=Path)
    args = parser.parse_args()
    at_least(1, args, "examples", "chunk", "threads", "batch_tokens")
    at_least(0, args, "stock_examples")
    check_output(args)
    if not args.victim and (args.floor or args.stock_examples or args.batch_tokens):
        raise UserError("--floor, --stock_examples and --batch_tokens are of a classifier: add --victim")
    if args.quick:
        vars(args).update(QUICK["victim" if args.victim else "near_free"])
    torch.set_num_threads(args.threads)
    if shutil.which(args.textattack_python) is None:
        raise UserError(f"--textattack_python {args.textattack_python} is no interpreter")
    try:
        examples = read_examples(args.dataset_file, args.examples)
    except (OSError, ValueError) as error:  # a header without `label` too
        raise UserError(f"--dataset_file {args.dataset_file} cannot be read: {error}") from None
    if len(examples) < 2:
        raise UserError(f"--dataset_file {args.dataset_file} has {len(examples)} examples: it must have at least 2")
    classifier = None
    if args.victim:
        classifier = load_classifier(args.victim)
        classifier.batch_tokens = args.batch_tokens or classifier.batch_tokens
    else:
        for example in examples:
            first, second = near_free([" ".join(example["columns"].values())])[0]
            example["label"] = int(second > first)
    asked: dict[Any, None] = {}
    with TextAttack(
        args.textattack_python, "--threads", str(args.threads), *(["--victim", args.victim] if args.victim else [])
    ) as worker:
        recipe = pwws(worker.about.pop("stopwords"))

        def ours(chunk: Examples) -> dict[str, Any]:
            victim = near_free
            if classifier:  # a new one: it remembers answers
                victim = Classifier(classifier.model, classifier.tokenizer, batch_tokens=classifier.batch_tokens)
            victim = Recorded(victim)
            clock = Clock()
            outcomes = dict(attack_examples(enumerate(map(as_example, chunk)), recipe, victim))
            seconds = clock.seconds()
            asked.clear()
            asked.update(victim.texts)
            return {"outcomes": [as_record(outcomes[i]) for i in range(len(chunk))], **seconds}

        def floor(chunk: Examples) -> dict[str, Any]:
            return forward_only(classifier, list(asked))

        theirs = "dynamic" if classifier else "near_free"
        systems: dict[str, System] = {theirs: lambda chunk: worker.attack(theirs, chunk), "ours": ours}
        if args.floor and classifier:
            systems["floor"] = floor  # of what ours has just asked
        for one in systems.values():
            one(examples[:2])  # WordNet is read, and the libraries have chosen their kernels
        stock = []
        if classifier and args.stock_examples:
            right = (e for e in examples if classifier([as_key((*e["columns"].values(),))]).argmax() == e["label"])
            attacked = list(islice(right, args.stock_examples))
            stock = interleave(attacked, 1, {"stock": lambda chunk: worker.attack("stock", chunk), "ours": ours})
        rounds = interleave(examples, args.chunk, systems)
    outcomes = {name: [o for chunk in rounds for o in chunk[name]["outcomes"]] for name in (theirs, "ours")}
    record = {
        **machine(),
        "textattack": worker.about,
        "victim": args.victim or "near_free",
        "dataset_file": args.dataset_file,
        "threads": args.threads,
        "parity": parity(examples, outcomes["ours"], outcomes[theirs]),
        "speed": {name: ratios(rounds, name) for name in systems if name != "ours"},
    }
    record["ratios"] = {
        f"{name}/ours, {kind}": v["ratio"] for name, of in record["speed"].items() for kind, v in of.items()
    }
    if classifier:
        record["batch_tokens"] = classifier.batch_tokens
    if stock:
        record["speed"]["stock"] = ratios(stock, "stock")
    found = record["parity"]
    for one in found["differing"]:
        print(f"{one['number']}: {one['example']}\n  ours       {one['ours']}\n  TextAttack {one['textattack']}")
    print(
        f"of {found['examples']} examples the same status on {found['same_status']}, text on {found['same_text']}, "
        f"queries on {found['same_queries']}; {found['statuses']}"
    )
    for name, kinds in record["speed"].items():
        for kind, value in kinds.items():
            print(
                f"{name}/ours, {kind}: {value['ratio']['median']:.3f}, median of {len(value['seconds'])} chunks; "
                f"{value['ratio_of_sums']:.3f} of the sums ({sum(value['seconds']):.2f} s, "
                f"ours {sum(value['seconds_ours']):.2f} s)"
            )
    if args.output_json:
        write_json(args.output_json, record)


if __name__ == "__main__":
    main()
