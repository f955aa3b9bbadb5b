"""PWWS of TextAttack, in the interpreter that TextAttack needs: requests on standard input, answers on standard output.

    python benchmarks/textattack_worker.py --victim MODEL --threads 1

It needs `pip install textattack==0.3.11 flair==0.15.1 "datasets>=4"` and nothing of hf_robustcse, and the corpora
wordnet, omw-1.4 and stopwords of nltk (NLTK_DATA). The first line it writes says what it is: versions, threads, device,
the stop-words. Then each line read, {"wrapper": "stock", "examples": [{"columns": {"text": ...}, "label": 0}, ...]}, is
answered by a line {"outcomes": [...], "wall": seconds, "cpu": seconds of all its threads}. Wrappers: `stock` is
TextAttack's own, which pads every text to the model's length; `dynamic` pads to the longest of a batch; `near_free` is
the victim of near_free.py.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import os
import sys
import time
from collections import OrderedDict
from typing import Any

import nltk
import torch
from near_free import near_free

nltk.download = lambda *args, **kwargs: True  # TextAttack asks for its corpora anew each time

from textattack.attack_recipes import PWWSRen2019  # noqa: E402
from textattack.models.wrappers import HuggingFaceModelWrapper, ModelWrapper  # noqa: E402
from transformers import AutoModelForSequenceClassification, AutoTokenizer  # noqa: E402


class Dynamic(HuggingFaceModelWrapper):
    """TextAttack's wrapper, but that it pads to the longest text of a batch."""

    def __call__(self, texts: list[Any]) -> torch.Tensor:
        """Logits."""
        features = self.tokenizer(texts, padding=True, truncation=True, max_length=512, return_tensors="pt")
        with torch.no_grad():
            return self.model(**features.to(self.model.device)).logits


class NearFree(ModelWrapper):
    """The victim that costs next to nothing."""

    model = near_free

    def __call__(self, texts: list[Any]) -> list[list[float]]:
        """Probabilities."""
        return torch.tensor(near_free(texts), dtype=torch.float64)


def outcome(result: Any) -> dict[str, Any]:
    """What became of an example, in JSON."""
    before, after = result.original_result, result.perturbed_result
    return {
        "status": type(result).__name__.removesuffix("AttackResult").lower().replace("successful", "succeeded"),
        "columns": dict(after.attacked_text._text_input),
        "queries": after.num_queries,
        "score_before": float(before.score),
        "score_after": float(after.score),
        "prediction_before": int(before.output),
        "prediction_after": int(after.output),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--victim", help="classifier of transformers; without it there is only near_free")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what TextAttack prints is no answer
    torch.set_num_threads(args.threads)
    wrappers: dict[str, ModelWrapper] = {"near_free": NearFree()}
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if args.victim:
        model = AutoModelForSequenceClassification.from_pretrained(args.victim).eval().to(device)
        tokenizer = AutoTokenizer.from_pretrained(args.victim)
        wrappers.update(stock=HuggingFaceModelWrapper(model, tokenizer), dynamic=Dynamic(model, tokenizer))
    attacks = {name: PWWSRen2019.build(wrapper) for name, wrapper in wrappers.items()}
    packages = ["textattack", "torch", "transformers", "tokenizers", "nltk", "flair", "datasets", "numpy"]

    def write(value: dict[str, Any]) -> None:
        answers.write(json.dumps(value, ensure_ascii=False) + "\n")
        answers.flush()

    versions = {"python": sys.version.split()[0], **{name: importlib.metadata.version(name) for name in packages}}
    stopwords = nltk.corpus.stopwords.words("english")
    write({"versions": versions, "threads": torch.get_num_threads(), "device": device, "stopwords": stopwords})
    for line in sys.stdin:
        request = json.loads(line)
        attack = attacks[request["wrapper"]]
        wall, cpu = time.perf_counter(), time.process_time()
        results = []
        for example in request["examples"]:
            columns = example["columns"]
            text = OrderedDict(columns) if len(columns) > 1 else next(iter(columns.values()))
            results.append(attack.attack(text, example["label"]))
        seconds = {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
        write({"outcomes": [outcome(result) for result in results], **seconds})


if __name__ == "__main__":
    main()
