"""Seconds of a forward pass of which first tokens alone are read: as it is, and its last layer cut, interleaved.

    python benchmarks/first_tokens.py --model_name_or_path MODEL --output_json out.json

``embedder`` is a SentenceTransformer with [CLS] pooling, ``classifier`` a sequence classifier with a random head, in
float32, on batches of random tokens: `--lengths` each of one length, and ``mixed``, half of the sentences of half the
longest of them. Ratios are of the seconds as it is to those cut, within a round.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import torch
import transformers
from measuring import at_least, check_output, machine, ratio, spread
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from torch import Tensor

from hf_robustcse.errors import Parser, command
from hf_robustcse.files import write_json
from hf_robustcse.packing import FirstTokens


def load(name: str, system: str) -> FirstTokens:
    """A model: `answer` runs it as it is, the call cuts its last layer."""
    torch.manual_seed(0)  # of the classifier's head
    if system == "classifier":
        model = transformers.AutoModelForSequenceClassification.from_pretrained(name, dtype=torch.float32).eval()
        return FirstTokens(lambda features: model(**features).logits, model.base_model)
    transformer = Transformer(name)
    pooling = Pooling(transformer.get_embedding_dimension(), "cls")
    encoder = SentenceTransformer(modules=[transformer, pooling], device="cpu").float().eval()
    return FirstTokens(lambda features: encoder(dict(features))["sentence_embedding"], transformer.auto_model)


def batch(lengths: list[int], vocabulary: int) -> dict[str, Tensor]:
    """Random tokens (n, longest) of n sentences."""
    mask = (torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]).long()
    ids = torch.randint(vocabulary // 2, vocabulary, mask.shape)
    return {"input_ids": ids * mask, "attention_mask": mask}


def seconds(run: Callable[[dict[str, Tensor]], Tensor], features: dict[str, Tensor]) -> float:
    """Of one pass."""
    started = time.perf_counter()
    run(features)
    return time.perf_counter() - started


@command
def main() -> None:
    """Measure, print a line a batch, write."""
    parser = Parser(description="Seconds of a forward pass with and without the cut of the last layer.")
    parser.add_argument("--model_name_or_path", required=True, help="a folder or Hub id")
    parser.add_argument("--lengths", type=int, nargs="+", default=[20, 60], help="tokens of a sentence")
    parser.add_argument("--batch_sizes", type=int, nargs="+", default=[32, 128], help="sentences of a batch")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--output_json", type=Path, required=True)
    args: argparse.Namespace = parser.parse_args()
    at_least(1, args, "lengths", "batch_sizes", "rounds")
    check_output(args)
    transformers.utils.logging.set_verbosity_error()
    rows = []
    for system in ("embedder", "classifier"):
        plain, cut = load(args.model_name_or_path, system).answer, load(args.model_name_or_path, system)
        vocabulary = cut.backbone.config.vocab_size
        for size in args.batch_sizes:
            long = max(args.lengths)
            shapes = {str(length): [length] * size for length in args.lengths}
            shapes["mixed"] = [long // 2 if i % 2 else long for i in range(size)]
            for shape, lengths in shapes.items():
                features = batch(lengths, vocabulary)
                with torch.inference_mode():
                    distance = float((plain(features) - cut(features)).abs().max())
                    rounds = [(seconds(plain, features), seconds(cut, features)) for _ in range(args.rounds)]
                before, after = zip(*rounds, strict=True)
                rows.append(
                    {
                        "system": system,
                        "batch_size": size,
                        "length": shape,
                        "largest_difference": distance,
                        "seconds_plain": spread(before),
                        "seconds_cut": spread(after),
                        "ratio": ratio(before, after),
                    }
                )
                found = rows[-1]["ratio"]
                print(f"{system:10} {size:4} x {shape:5} {found['min']:.2f} {found['median']:.2f} {found['max']:.2f}")
    write_json(args.output_json, machine() | {"model": args.model_name_or_path, "rounds": args.rounds, "rows": rows})
    print(f"wrote {args.output_json}")


if __name__ == "__main__":
    main()
