"""A masked language model as services of the engine: the most likely words at a place of a text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import transformers  # its models load on first use
from torch import Tensor, nn

from hf_robustcse.attacks.text import is_one_word
from hf_robustcse.attacks.victims import batches_of_tokens, positions
from hf_robustcse.encoder import load_masked_lm
from hf_robustcse.errors import UserError
from hf_robustcse.evaluation.padding import padded

if TYPE_CHECKING:
    from transformers import PreTrainedModel

Place = tuple[str, int, int]
"""A text, and where a word of it starts and ends, in characters."""


class LanguageModel:
    """A masked language model, its vocabulary as words, and its predictions at single places of texts.

    Its head runs at the places that are asked for alone.

    Args:
        model: AutoModelForMaskedLM.
        tokenizer: its fast tokenizer.
        name: for the results.
        batch_tokens: tokens of a forward pass; None for 2048 on a CPU and 65536 elsewhere.

    Attributes:
        texts: what each entry of the vocabulary is in a text, without the marks of its tokenizer.
        begins: (vocabulary,), whether an entry begins a word.
        word: (vocabulary,), whether an entry is exactly one word and not special.
        special: entries such as [UNK].
        wordpiece: whether the vocabulary is BERT's kind, which marks what continues a word by `##`.

    Raises:
        UserError: if the tokenizer is not a fast one or has no mask token.
    """

    def __init__(self, model: PreTrainedModel, tokenizer: Any, name: str, *, batch_tokens: int | None = None) -> None:
        if not getattr(tokenizer, "is_fast", False) or tokenizer.mask_token is None:
            raise UserError(f"--masked_lm {name} has no fast tokenizer with a mask token")
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.name = name
        self.device = next(model.parameters()).device
        self.batch_tokens = batch_tokens or (2048 if self.device.type == "cpu" else 65536)
        self.max_length = min(tokenizer.model_max_length, positions(model))
        size = model.get_output_embeddings().weight.shape[0]
        self.texts, begins, self.wordpiece = _vocabulary(tokenizer, size)
        self.special = frozenset(tokenizer.all_special_ids)
        word = [is_one_word(text) and i not in self.special for i, text in enumerate(self.texts)]
        self.begins, self.word = np.array(begins), np.array(word)

    @classmethod
    def load(cls, name: str, device: str | None = None) -> LanguageModel:
        """A model of a folder or the Hub, in float32.

        Raises:
            UserError: if it cannot be loaded, or has no trained head or no fast tokenizer.
        """
        if name.startswith((".", "/", "~")) and not Path(name).is_dir():
            raise UserError(f"--masked_lm {name}: there is no model folder of this name")
        model = load_masked_lm(name)
        try:
            tokenizer = transformers.AutoTokenizer.from_pretrained(name)
        except (OSError, ValueError, KeyError) as error:
            reason = str(error).strip().splitlines()[0]
            raise UserError(f"cannot load the tokenizer of --masked_lm {name} ({reason})") from error
        return cls(model.to(device or ("cuda" if torch.cuda.is_available() else "cpu")), tokenizer, name)

    def encode(self, places: Sequence[Place], *, masked: bool) -> tuple[list[dict[str, list[int]]], list[list[int]]]:
        """Texts as tokens, and which tokens the words are.

        A text is cut off where the model ends. If the word is behind that, the text begins shortly before the word.

        Args:
            places: n words in their texts.
            masked: whether one mask stands for each word.

        Returns:
            The n inputs of the model, and the n lists of token numbers; empty where the model does not see the word.
        """
        texts, spans, mask = [], [], self.tokenizer.mask_token
        for text, start, end in places:
            if masked:
                text, end = text[:start] + mask + text[end:], start + len(mask)
            texts.append(text)
            spans.append((start, end))
        rows, found = self._tokens(texts, spans, masked)
        if far := [i for i, tokens in enumerate(found) if not tokens and spans[i][0] > self.max_length // 2]:
            cuts = [_cut(texts[i], spans[i][0], self.max_length // 2) for i in far]
            texts = [texts[i][cut:] for i, cut in zip(far, cuts, strict=True)]
            spans = [(spans[i][0] - cut, spans[i][1] - cut) for i, cut in zip(far, cuts, strict=True)]
            for i, row, tokens in zip(far, *self._tokens(texts, spans, masked), strict=True):
                rows[i], found[i] = row, tokens
        return rows, found

    def _tokens(
        self, texts: list[str], spans: list[tuple[int, int]], masked: bool
    ) -> tuple[list[dict[str, list[int]]], list[list[int]]]:
        encoded = self.tokenizer(texts, truncation=True, max_length=self.max_length, return_offsets_mapping=True)
        offsets = encoded.pop("offset_mapping")
        rows = [{name: column[i] for name, column in encoded.items()} for i in range(len(texts))]
        found = []
        for row, places, (start, end) in zip(rows, offsets, spans, strict=True):
            tokens = [at for at, (first, last) in enumerate(places) if first < end and last > start]
            if masked:
                tokens = [at for at in tokens if row["input_ids"][at] == self.tokenizer.mask_token_id]
            found.append(tokens)
        return rows, found

    def top(self, places: Sequence[Place], k: int, *, masked: bool, allowed: np.ndarray | None = None) -> list[list]:
        """The most likely entries of the vocabulary at each piece of each word.

        Args:
            places: n words in their texts.
            k: entries of each piece.
            masked: whether one mask stands for each word, which then is one piece.
            allowed: (vocabulary,), the entries that count; None for all.

        Returns:
            For each word, for each piece of it, at most k entries, the most likely first.
        """
        rows, found = self.encode(places, masked=masked)
        out: list[list] = [[] for _ in places]
        seen = [i for i, tokens in enumerate(found) if tokens]
        barred = None if allowed is None else torch.from_numpy(~allowed).to(self.device)
        count = min(k, len(self.texts) if allowed is None else int(allowed.sum()))
        for batch in batches_of_tokens([len(rows[i]["input_ids"]) for i in seen], self.batch_tokens):
            batch = [seen[i] for i in batch]
            features = padded(self.tokenizer, [rows[i] for i in batch], self.device, padding_side="right")
            row_of = [row for row, i in enumerate(batch) for _ in found[i]]
            logits = self._logits(features, row_of, [at for i in batch for at in found[i]])
            if barred is not None:
                logits = logits.masked_fill(barred, -torch.inf)
            for row, entries in zip(row_of, logits.topk(count, dim=-1).indices.tolist(), strict=True):
                out[batch[row]].append(entries)
        return out

    def _logits(self, features: Any, rows: list[int], tokens: list[int]) -> Tensor:
        """The logits (n, vocabulary) at n tokens: the head reads the hidden states of these alone."""

        def select(module: nn.Module, args: Any, output: Any) -> Any:
            output.last_hidden_state = output.last_hidden_state[rows, tokens][None]
            return output

        # The base model gives its hidden states to the head, whatever the head of the architecture is called.
        handle = self.model.base_model.register_forward_hook(select)
        try:
            with torch.inference_mode():
                return self.model(**features).logits[0, :, : len(self.texts)]
        finally:
            handle.remove()


def _vocabulary(tokenizer: Any, size: int) -> tuple[list[str], list[bool], bool]:
    """The entries as they stand in a text, which of them begin a word, and whether `##` marks those that do not."""
    tokens = tokenizer.convert_ids_to_tokens(range(min(size, len(tokenizer))))
    tokens = [token or "" for token in tokens]
    if any(token.startswith("##") for token in tokens):
        return [token.removeprefix("##") for token in tokens], [not token.startswith("##") for token in tokens], True
    marks = [mark for mark in "Ġ▁" if any(token.startswith(mark) for token in tokens)]
    begins = [not marks or token.startswith(marks[0]) for token in tokens]
    return [tokenizer.convert_tokens_to_string([token]).strip() for token in tokens], begins, False


def _cut(text: str, start: int, reach: int) -> int:
    """Where a text may begin so that a word comes early: after the first space of the `reach` characters before it."""
    space = text.find(" ", start - reach, start)
    return start - reach if space < 0 else space + 1


@dataclass(frozen=True)
class MostLikely:
    """The words that a model puts in place of a masked word: a service, place -> at most k words.

    Attributes:
        model: the language model.
        k: how many.
    """

    model: LanguageModel
    k: int

    def __call__(self, places: list[Place]) -> list[list[str]]:
        """The k most likely words, pieces of words among them, without special entries; the most likely first."""
        found = self.model.top(places, self.k, masked=True, allowed=self.model.word)
        return [[self.model.texts[entry] for pieces in word for entry in pieces] for word in found]


@dataclass(frozen=True)
class LikelyPieces:
    """What a model finds likely at each piece of a word that stands there: a service, place -> k entries a piece.

    Attributes:
        model: the language model.
        k: how many.
    """

    model: LanguageModel
    k: int

    def __call__(self, places: list[Place]) -> list[list[list[int]]]:
        """For each piece of each word the k most likely entries of the vocabulary, the most likely first."""
        return self.model.top(places, self.k, masked=False)
