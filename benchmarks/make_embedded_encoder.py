"""Train the embedded tiny encoder: a WordPiece vocabulary and a small BERT, by masked-language modelling.

    python benchmarks/make_embedded_encoder.py --corpus wiki.txt.gz --output_dir hf_robustcse/assets/encoder

The corpus is one sentence per line (plain or gzip). The result is a stock ``BertForMaskedLM`` checkpoint in float16
safetensors with its tokenizer, so that ``AutoModel`` reads the encoder and ``AutoModelForMaskedLM`` the language model.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import random
import time
from pathlib import Path

import torch
from tokenizers import BertWordPieceTokenizer
from tqdm import tqdm
from transformers import BertConfig, BertForMaskedLM, BertTokenizerFast, DataCollatorForLanguageModeling


def read_lines(path: Path) -> list[str]:
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as file:
        return [line.strip() for line in file if line.strip()]


def train_tokenizer(lines: list[str], vocab_size: int, max_length: int) -> BertTokenizerFast:
    wordpiece = BertWordPieceTokenizer(lowercase=True)
    wordpiece.train_from_iterator(lines, vocab_size=vocab_size, min_frequency=3, limit_alphabet=200)
    vocabulary = wordpiece.get_vocab(with_added_tokens=True)
    return BertTokenizerFast(vocab=vocabulary, do_lower_case=True, model_max_length=max_length)


def batches(ids: list[list[int]], tokens: int, rng: random.Random) -> list[list[list[int]]]:
    """Batches of about `tokens` padded tokens, each of sentences of nearly one length, in random order."""
    order = sorted(range(len(ids)), key=lambda i: len(ids[i]) + rng.random() * 2)
    out, start = [], 0
    while start < len(order):
        end = start + 1
        while end < len(order) and (end + 1 - start) * len(ids[order[end]]) <= tokens:
            end += 1
        out.append([ids[i] for i in order[start:end]])
        start = end
    rng.shuffle(out)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--corpus", type=Path, required=True, help="one sentence per line, .txt or .txt.gz")
    parser.add_argument("--output_dir", type=Path, required=True)
    parser.add_argument("--vocab_size", type=int, default=10000)
    parser.add_argument("--hidden_size", type=int, default=160)
    parser.add_argument("--num_layers", type=int, default=3)
    parser.add_argument("--num_heads", type=int, default=5)
    parser.add_argument("--intermediate_size", type=int, default=480)
    parser.add_argument("--max_positions", type=int, default=128)
    parser.add_argument("--max_length", type=int, default=64)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--learning_rate", type=float, default=1.5e-3)
    parser.add_argument("--batch_tokens", type=int, default=3072)
    parser.add_argument("--mlm_probability", type=float, default=0.15)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    torch.manual_seed(args.seed)
    rng = random.Random(args.seed)
    lines = read_lines(args.corpus)
    tokenizer = train_tokenizer(lines, args.vocab_size, args.max_positions)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=args.hidden_size,
        num_hidden_layers=args.num_layers,
        num_attention_heads=args.num_heads,
        intermediate_size=args.intermediate_size,
        max_position_embeddings=args.max_positions,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = BertForMaskedLM(config)
    print(f"{len(lines)} sentences, vocabulary {len(tokenizer)}, {model.num_parameters() / 1e6:.2f} M parameters")
    # Dropout belongs to the later contrastive training; a model this small underfits one pass of the language model.
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
        if hasattr(module, "dropout_prob"):
            module.dropout_prob = 0.0

    ids = tokenizer(lines, truncation=True, max_length=args.max_length)["input_ids"]
    collate = DataCollatorForLanguageModeling(tokenizer, mlm_probability=args.mlm_probability)
    decay = [p for p in model.parameters() if p.dim() > 1]
    rest = [p for p in model.parameters() if p.dim() <= 1]
    optimizer = torch.optim.AdamW(
        [{"params": decay, "weight_decay": 0.01}, {"params": rest, "weight_decay": 0.0}],
        lr=args.learning_rate, betas=(0.9, 0.98), fused=True,
    )  # fmt: skip
    total = args.epochs * len(batches(ids, args.batch_tokens, random.Random(args.seed)))
    warmup = total // 20
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer,
        lambda s: (
            (s + 1) / warmup if s < warmup else 0.5 * (1 + math.cos(math.pi * min(1, (s - warmup) / (total - warmup))))
        ),
    )
    model.train()
    started, losses = time.time(), []
    with tqdm(total=total, unit="step", mininterval=10) as bar:
        for epoch in range(args.epochs):
            for rows in batches(ids, args.batch_tokens, rng):
                batch = collate([{"input_ids": row, "attention_mask": [1] * len(row)} for row in rows])
                labels = batch.pop("labels")
                hidden = model.bert(**batch).last_hidden_state
                masked = labels != -100  # the vocabulary product only where a token is predicted
                loss = torch.nn.functional.cross_entropy(model.cls(hidden[masked]), labels[masked])
                loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                schedule.step()
                optimizer.zero_grad(set_to_none=True)
                losses.append(loss.item())
                bar.update()
                if len(losses) % 50 == 0:
                    bar.set_postfix(epoch=epoch, mlm=f"{sum(losses[-200:]) / len(losses[-200:]):.3f}", refresh=False)
            save(model, tokenizer, args, losses, time.time() - started)


def save(model: BertForMaskedLM, tokenizer: BertTokenizerFast, args: argparse.Namespace, losses: list, seconds: float):
    half = BertForMaskedLM(model.config)
    half.load_state_dict(model.state_dict())
    half.half().save_pretrained(args.output_dir)
    tokenizer.save_pretrained(args.output_dir)
    record = {
        "corpus": args.corpus.name,
        **{k: v for k, v in vars(args).items() if not isinstance(v, Path)},
        "steps": len(losses),
        "mlm_loss_last_200_steps": round(sum(losses[-200:]) / len(losses[-200:]), 4),
        "seconds": round(seconds),
    }
    (args.output_dir / "training.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
