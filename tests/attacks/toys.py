"""Small resources for recipes, without any file: tables, vectors, a tagger, a language model, a sentence encoder."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tiny import WORDS
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerFast

from hf_robustcse.attacks.engine import Steps, run
from hf_robustcse.attacks.resources import Encoder, Resources
from hf_robustcse.attacks.resources.language_model import LanguageModel
from hf_robustcse.attacks.resources.lexicons import WordVectors
from hf_robustcse.attacks.text import Document, Edited

LEXICON = [word for word in WORDS if word != "."]


def edited(text: str, **more: str) -> Edited:
    """A text before the attack."""
    return Edited(Document({"text": text, **more}))


def result_of(steps: Steps) -> Any:
    """What a computation returns."""
    ((_, result),) = run([("it", lambda: steps)])
    return result


class ToyTagger:
    """Words in -s are verbs, "the" and "a" determiners, "happy" and "old" adjectives, all others nouns."""

    name = "toy"

    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []

    def __call__(self, items: list[tuple[str, ...]]) -> list[tuple[str, ...]]:
        self.asked += items
        special = {"the": "DET", "a": "DET", "happy": "ADJ", "old": "ADJ"}
        return [tuple(special.get(word, "VERB" if word.endswith("s") else "NOUN") for word in item) for item in items]


def toy_synonyms(word: str) -> list[str]:
    """Three other words, always the same."""
    if word.lower() not in LEXICON:
        return []
    at = LEXICON.index(word.lower())
    return [LEXICON[(at + step) % len(LEXICON)] for step in (1, 5, 11)]


def toy_vectors(dimension: int = 8) -> WordVectors:
    """A random vector for every word."""
    return WordVectors(LEXICON, np.random.default_rng(0).normal(size=(len(LEXICON), dimension)) + 1, "toy vectors")


def toy_encoder() -> Encoder:
    """The mean of a fixed random vector for each token; it stands for itself, whatever is asked beside it."""

    def vector(token: str) -> np.ndarray:
        return np.random.default_rng(zlib.crc32(token.encode())).normal(size=16) + 1

    def encode(texts: list[str]) -> np.ndarray:
        return np.stack([np.mean([vector(token) for token in text.split()], axis=0) for text in texts])

    return Encoder(encode, "toy encoder")


def toy_resources(language_model: LanguageModel) -> Resources:
    """All resources, loaded."""
    resources = Resources()
    resources.synonym_table = toy_synonyms
    resources.tagged_synonyms = lambda word, tag: toy_synonyms(word) if tag in ("NOUN", "VERB") else []
    resources.neighbours = toy_vectors()
    resources.language_model = language_model
    resources.encoder = toy_encoder()
    resources.tagger = ToyTagger()
    return resources


def word_pieces(folder: Path, seed: int = 0) -> Path:
    """Save a tiny random BERT with its head, whose tokenizer cuts words into pieces."""

    pieces = ["##s", "##ing", "##er", "##ed", "##1", "un", "play", "walk", "kick", "run", ",", "-", "'", "/"]
    vocabulary = {word: i for i, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS, *pieces])}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", vocabulary["[CLS]"]), ("[SEP]", vocabulary["[SEP]"])]
    )
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]", unk_token="[UNK]",
        mask_token="[MASK]", model_max_length=24,
    ).save_pretrained(folder)  # fmt: skip
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=len(vocabulary) + 3, hidden_size=16, num_hidden_layers=2, num_attention_heads=2,
        intermediate_size=32, max_position_embeddings=24, initializer_range=0.5,
    )  # fmt: skip
    BertForMaskedLM(config).save_pretrained(folder)
    return folder


class WordVictim:
    """Two classes, from fixed random weights of the words; batches are of the size that it names."""

    def __init__(self, batch_size: int = 32) -> None:
        self.batch_size = batch_size

    def __call__(self, texts: list[Any]) -> np.ndarray:
        texts = [text if isinstance(text, str) else " ".join(text) for text in texts]
        weight = [sum((zlib.crc32(word.encode()) % 1000 - 500) / 250 for word in text.split()) for text in texts]
        other = 1 / (1 + np.exp(np.array(weight)))
        return np.stack([other, 1 - other], axis=1)
