"""Seconds of a training step, interleaved: the methods here, SimCSE's released step, sentence-transformers' trainer.

    python benchmarks/train_step.py --model_name_or_path MODEL --train_file sentences.txt.gz --output_json out.json

All train the same encoder ([CLS] pooling) on the same sentences, batch and length, in float32 with the same optimizer,
each under its own Trainer. ``mnrl`` is the MNRL trainer of sentence-transformers, given each sentence as its own
positive, which makes it SimCSE's objective. ``released`` does what the released code of SimCSE does in a step, written
anew for today's transformers: tokenised beforehand, both views of a padded batch in one pass, [CLS], Linear-Tanh, the
broadcasting cosine. A round trains each for `--steps` steps after `--warmup` steps; a step lasts from the end of one to
the end of the next, so it includes data loading. Ratios are of the seconds, within a round. ``simcse-padded`` and
``simcse-plain`` are simcse without what makes it fast, see `take_away`.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
from pathlib import Path
from typing import Any

import torch
import transformers
from datasets import Dataset
from measuring import at_least, check_output, machine, ratio
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.losses import MultipleNegativesRankingLoss
from sentence_transformers.models import Pooling, Transformer
from torch import Tensor, nn
from tqdm import tqdm
from transformers import AutoModel, AutoTokenizer, Trainer, TrainingArguments

from hf_robustcse import RobustCSEModel, RobustCSETrainer, RobustCSETrainingArguments
from hf_robustcse.data import ContrastiveCollator, Corpus, load_corpus, tokenize_corpus
from hf_robustcse.encoder import SentenceEncoder
from hf_robustcse.errors import Parser, UserError, command
from hf_robustcse.files import write_json
from hf_robustcse.methods import METHODS
from hf_robustcse.packing import packer_of
from hf_robustcse.trainer import StepClock

SYSTEMS = ("released", "mnrl", *METHODS, "simcse-padded", "simcse-plain")


class Released(nn.Module):
    """The objective of SimCSE as its released code computes it, on any encoder.

    Args:
        model_name_or_path: folder or Hub id.
        attention: transformers' ``attn_implementation``.
    """

    def __init__(self, model_name_or_path: str, attention: str) -> None:
        super().__init__()
        self.encoder = AutoModel.from_pretrained(
            model_name_or_path, dtype=torch.float32, attn_implementation=attention, add_pooling_layer=False
        )
        width = self.encoder.config.hidden_size
        self.head = nn.Sequential(nn.Linear(width, width), nn.Tanh())

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
        """The loss of (N, 2, L) tokens: the same sentence twice."""
        count = len(input_ids)
        output = self.encoder(input_ids.flatten(0, 1), attention_mask=attention_mask.flatten(0, 1))
        first, second = self.head(output.last_hidden_state[:, 0].view(count, 2, -1)).unbind(1)
        similarity = nn.functional.cosine_similarity(first.unsqueeze(1), second.unsqueeze(0), dim=-1) / 0.05
        return {"loss": nn.functional.cross_entropy(similarity, torch.arange(count, device=similarity.device))}


def take_away(encoder: SentenceEncoder, what: str) -> None:
    """Undo what makes a step fast, to see what it is worth: ``padded``, and ``plain``, padded with torch's dropout."""
    packer_of(encoder.backbone).off()
    if what == "plain":
        for parent in list(encoder.backbone.modules()):
            for name, child in parent.named_children():
                if isinstance(child, nn.Dropout):
                    setattr(parent, name, nn.Dropout(child.p))


def released_trainer(
    model_name_or_path: str, tokens: Dataset, tokenizer: Any, *, attention: str = "eager", **settings: Any
) -> Trainer:
    """A trainer that takes the released step.

    Args:
        model_name_or_path: folder or Hub id.
        tokens: rows of `tokenize_corpus`.
        tokenizer: theirs.
        attention: the released code has the attention that is now called eager.
        **settings: callbacks, and what the training arguments take.
    """
    collate = ContrastiveCollator(tokenizer)

    def twice(rows: list[dict[str, Any]]) -> dict[str, Tensor]:
        batch = collate(rows)
        return {name: batch[name].repeat(1, 2, 1) for name in ("input_ids", "attention_mask")}

    callbacks = settings.pop("callbacks", None)
    return Trainer(
        Released(model_name_or_path, attention),
        TrainingArguments(remove_unused_columns=False, **settings),
        train_dataset=tokens,
        data_collator=twice,
        callbacks=callbacks,
    )


@command
def main() -> None:
    parser = Parser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model_name_or_path", required=True)
    parser.add_argument("--train_file", required=True)
    parser.add_argument("--output_json", type=Path)
    parser.add_argument("--batch_size", type=int, default=64)
    parser.add_argument("--max_seq_length", type=int, default=32)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--warmup", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--systems", nargs="+", default=["released", "mnrl", "simcse", "vadv"], choices=SYSTEMS)
    parser.add_argument("--vadv_dropout", default="shared", choices=["shared", "independent", "off"])
    parser.add_argument("--released_attention", default="eager", choices=["eager", "sdpa"])
    args = parser.parse_args()
    at_least(1, args, "steps", "warmup", "rounds")
    at_least(2, args, "batch_size")
    at_least(3, args, "max_seq_length")
    check_output(args)
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()

    total = args.steps + args.warmup
    corpus = load_corpus(args.train_file, max_rows=total * args.batch_size)
    if len(corpus.dataset) < args.batch_size:
        raise UserError(f"{args.train_file} has {len(corpus.dataset)} sentences, fewer than a batch: {args.batch_size}")
    shared = {
        "per_device_train_batch_size": args.batch_size, "max_steps": total, "learning_rate": 3e-5, "report_to": "none",
        "disable_tqdm": True, "logging_strategy": "no", "save_strategy": "no", "dataloader_drop_last": True,
    }  # fmt: skip

    def ours(method: str, folder: str, clock: StepClock) -> RobustCSETrainer:
        method, _, without = method.partition("-")
        options = {
            "vadv": {"vadv_dropout": args.vadv_dropout},
            "dcl": {"dcl_augmentation": "dropout"},
            "anchor": {"anchor_noise": "pair"},
        }.get(method, {})
        model = RobustCSEModel.from_encoder(args.model_name_or_path, method=method, method_options=options)
        if without:
            take_away(model.encoder, without)
        tokens = tokenize_corpus(Corpus(corpus.dataset, 1, None), model.tokenizer, args.max_seq_length)
        return RobustCSETrainer(
            model,
            RobustCSETrainingArguments(output_dir=folder, eval_strategy="no", **shared),
            train_dataset=tokens,
            data_collator=ContrastiveCollator(model.tokenizer),
            callbacks=[clock],
        )

    def mnrl(folder: str, clock: StepClock) -> SentenceTransformerTrainer:
        transformer = Transformer(
            args.model_name_or_path, max_seq_length=args.max_seq_length, model_kwargs={"dtype": torch.float32}
        )
        pooling = Pooling(transformer.get_embedding_dimension(), "cls")
        model = SentenceTransformer(modules=[transformer, pooling])
        texts = corpus.dataset["text"]
        return SentenceTransformerTrainer(
            model,
            SentenceTransformerTrainingArguments(output_dir=folder, **shared),
            train_dataset=Dataset.from_dict({"anchor": texts, "positive": texts}),
            loss=MultipleNegativesRankingLoss(model, scale=20.0),
            callbacks=[clock],
        )

    def released(folder: str, clock: StepClock) -> Trainer:
        tokenizer = AutoTokenizer.from_pretrained(args.model_name_or_path)
        tokens = tokenize_corpus(Corpus(corpus.dataset, 1, None), tokenizer, args.max_seq_length)
        return released_trainer(
            args.model_name_or_path, tokens, tokenizer, attention=args.released_attention, output_dir=folder,
            callbacks=[clock], **shared,
        )  # fmt: skip

    seconds: dict[str, list[float]] = {name: [] for name in args.systems}
    for _ in tqdm(range(args.rounds), unit="round"):
        for name in args.systems:
            with tempfile.TemporaryDirectory() as folder:
                clock = StepClock()
                peers = {"mnrl": mnrl, "released": released}
                trainer = peers[name](folder, clock) if name in peers else ours(name, folder, clock)
                trainer.train()
            seconds[name].append(statistics.fmean(clock.seconds[args.warmup :]))
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    ratios = {f"{a}/{b}": ratio(seconds[a], seconds[b]) for a in seconds for b in seconds if a != b}
    result = {
        **machine(),
        "batch_size": args.batch_size,
        "max_seq_length": args.max_seq_length,
        "seconds_per_step": seconds,
        "median_seconds_per_step": medians,
        "ratios": ratios,
    }
    for name, value in medians.items():
        print(f"{name:<16} {value:.3f} s a step, {args.batch_size / value:.0f} sentences a second")
    for pair, found in ratios.items():
        if pair == "mnrl/released" or pair.endswith("/simcse"):
            print(f"{pair}: {found['median']:.3f} ({found['min']:.3f} to {found['max']:.3f})")
    if args.output_json:
        write_json(args.output_json, result)


if __name__ == "__main__":
    main()
