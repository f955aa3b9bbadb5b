"""One tiny random encoder and tokenizer of each family, and sentences for them."""

from __future__ import annotations

from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM, PreTrainedTokenizerFast

WORDS = """a the dog cat man woman child bird runs sleeps eats sees reads plays
in on under near park house garden river red big small old happy quickly
slowly today and not apple book ball song is was with street city night morning .""".split()
SENTENCES = [
    "the dog runs in the park .",
    "a cat sleeps on the house",
    "the old man reads a book today .",
    "a bird sees the river",
    "the happy child plays with a red ball in the garden .",
    "a woman eats an apple",
    "the night is old and the city sleeps .",
    "small cat",
    "the man plays a song near the river in the morning",
    "a big dog eats quickly .",
]

SIZES = {
    "vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 2, "intermediate_size": 32,
    "max_position_embeddings": 66,
}  # fmt: skip
FAMILIES = {
    "bert": {},
    "roberta": {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "type_vocab_size": 1},
    "distilbert": {"dim": 16, "n_layers": 3, "n_heads": 2, "hidden_dim": 32},
    "electra": {"embedding_size": 8},
    "mpnet": {"pad_token_id": 1},
    "deberta-v2": {
        "relative_attention": True, "position_buckets": 8, "pos_att_type": ["p2c", "c2p"],
        "position_biased_input": False,
    },
    "xlm-roberta": {"pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "type_vocab_size": 1},
    "modernbert": {
        "pad_token_id": 1, "cls_token_id": 0, "sep_token_id": 2, "bos_token_id": 0, "eos_token_id": 2,
        "embedding_dropout": 0.1, "attention_dropout": 0.1, "mlp_dropout": 0.1,
    },
}  # fmt: skip


def make_tokenizer(pad_first: bool = True) -> PreTrainedTokenizerFast:
    """A word-level tokenizer; the padding token is number 0, or 1 as in RoBERTa."""
    special = (
        ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"] if pad_first else ["[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]"]
    )
    vocabulary = {word: i for i, word in enumerate(special + WORDS)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", vocabulary["[CLS]"]), ("[SEP]", vocabulary["[SEP]"])]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]", unk_token="[UNK]",
        mask_token="[MASK]", model_max_length=64,
    )  # fmt: skip


def make_encoder(
    folder: Path, family: str = "bert", seed: int = 0, *, kind: type = AutoModel, **changes: object
) -> Path:
    """Save a tiny random encoder and its tokenizer; returns the folder."""
    own = FAMILIES[family]
    sizes = {
        k: v
        for k, v in SIZES.items()
        if not (family == "distilbert" and k not in ("vocab_size", "max_position_embeddings"))
    }
    config = AutoConfig.for_model(family, **{**sizes, "pad_token_id": 0, **own, **changes})
    torch.manual_seed(seed)
    model = kind.from_config(config)
    for name, parameter in model.named_parameters():  # wider than 0.02, so that differences are not rounding
        if kind is not AutoModel or ("norm" not in name.lower() and parameter.dim() > 1):
            torch.nn.init.normal_(parameter, std=0.2)
    model.save_pretrained(folder)
    make_tokenizer(config.pad_token_id == 0).save_pretrained(folder)
    return folder


def make_language_model(folder: Path, family: str = "bert", seed: int = 0) -> Path:
    """Save a tiny masked-language model with all weights random, biases and norms too, and its tokenizer."""
    return make_encoder(folder, family, seed, kind=AutoModelForMaskedLM)


# What makes a method run on the tiny encoder, which has no language model, and on a bare batch, which has no texts.
OPTIONS = {
    "robustsentembed": {"rse_lambda2": 0.0},
    "dcl": {"dcl_augmentation": "dropout", "dcl_mlm_weight": 0.0, "dcl_hidden": 32},
    "anchor": {"anchor_noise": "pair"},
}


def options_of(name: str) -> dict[str, object]:
    """Options with which the method or stack runs on the tiny encoder."""
    return {key: value for part in name.split("+") for key, value in OPTIONS.get(part, {}).items()}
