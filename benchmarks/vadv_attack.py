"""How strong V-advCSE's perturbation is under each option, on a given encoder: no training.

    python benchmarks/vadv_attack.py --model_name_or_path MODEL --train_file sentences.txt.gz --output_json out.json

For every setting: the mean divergence F after the attack, F under a random perturbation on the same ball, and their
ratio, on the same sentences. A ratio near 1 says that the gradient step did nothing; F under `independent` dropout
without any perturbation is the noise that dropout alone makes.
"""

from __future__ import annotations

import argparse
import dataclasses
import shlex
import sys
from pathlib import Path

import torch
import transformers
from measuring import at_least, check_output
from tqdm import tqdm

from hf_robustcse import RobustCSEModel
from hf_robustcse.data import ContrastiveCollator, Corpus, load_corpus, tokenize_corpus
from hf_robustcse.errors import Parser, command
from hf_robustcse.evaluation.results import library_versions
from hf_robustcse.files import write_json
from hf_robustcse.methods.vadv import VAdv

SETTINGS: list[dict[str, object]] = [
    {},
    *({"vadv_sigma": v} for v in (1e-4, 1e-2, 0.1)),
    *({"vadv_epsilon": v, "vadv_step_size": v} for v in (0.1, 0.3, 3.0)),
    {"vadv_step_size": 0.3},
    {"vadv_step_size": 3.0},
    {"vadv_steps": 3},
    {"vadv_step": "literal"},
    {"vadv_step": "literal", "vadv_step_size": 100.0},
    {"vadv_norm": "linf", "vadv_epsilon": 0.02, "vadv_step_size": 0.02},
    {"vadv_norm": "linf", "vadv_epsilon": 0.05, "vadv_step_size": 0.05},
    {"vadv_divergence": "kl"},
    {"vadv_divergence": "skl"},
    {"vadv_distribution": "similarity"},
    {"vadv_dropout": "off"},
    {"vadv_dropout": "independent"},
]


@command
def main() -> None:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model_name_or_path", required=True)
    parser.add_argument("--train_file", required=True)
    parser.add_argument("--batches", type=int, default=4)
    parser.add_argument("--batch_size", type=int, default=32)
    parser.add_argument("--output_json", type=Path)
    args = parser.parse_args()
    at_least(1, args, "batches")
    at_least(2, args, "batch_size")
    check_output(args)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    model = RobustCSEModel.from_encoder(args.model_name_or_path, method="vadv").train()
    corpus = load_corpus(args.train_file, max_rows=args.batches * args.batch_size)
    rows = list(tokenize_corpus(Corpus(corpus.dataset, 1, None), model.tokenizer, 32))
    collate = ContrastiveCollator(model.tokenizer)
    batches = [collate(rows[i : i + args.batch_size]) for i in range(0, len(rows), args.batch_size)]
    method = model.method.methods["vadv"]
    with torch.no_grad():
        embeds = model.encoder.embed(batches[0]["input_ids"][:, 0])
    norm = float((embeds.norm(dim=2) * batches[0]["attention_mask"][:, 0]).sum() / batches[0]["attention_mask"].sum())

    def mean_divergence(**options: object) -> float:
        method.options = dataclasses.replace(VAdv.Options(), **options)
        torch.manual_seed(0)
        method.noise.calls.zero_()
        with torch.no_grad():
            return sum(float(model(**batch)["vadv"]) for batch in batches) / len(batches)

    table = []
    for setting in tqdm(SETTINGS, unit="setting"):
        options = dataclasses.replace(VAdv.Options(), **setting)
        attacked = mean_divergence(**setting)
        # Noise so wide that the projection leaves it on the ball: random, of the attack's norm.
        random = mean_divergence(**{**setting, "vadv_steps": 0, "vadv_sigma": 100 * options.vadv_epsilon})
        table.append(
            {"options": setting, "attacked": attacked, "random": random, "ratio": attacked / max(random, 1e-30)}
        )
    floor = mean_divergence(vadv_dropout="independent", vadv_steps=0, vadv_sigma=0.0)
    for row in table:
        name = " ".join(f"{k.removeprefix('vadv_')}={v}" for k, v in row["options"].items()) or "default"
        print(f"{name:<44} attacked {row['attacked']:.3e}  random {row['random']:.3e}  ratio {row['ratio']:8.2f}")
    print(f"dropout alone: {floor:.3e}; a word embedding's norm: {norm:.3f}")
    if args.output_json:
        write_json(
            args.output_json,
            {
                "command": shlex.join(["python", *sys.argv]),
                "library_versions": library_versions(),
                "defaults": dataclasses.asdict(VAdv.Options()),
                "word_embedding_norm": norm,
                "dropout_alone": floor,
                "settings": table,
            },
        )


if __name__ == "__main__":
    main()
