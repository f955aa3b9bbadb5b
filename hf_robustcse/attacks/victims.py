"""Victims: whatever answers a list of texts (or of tuples of columns) with a row of numbers each.

Any callable will do. `Classifier` is a classifier of transformers, `EncoderWithHead` a sentence encoder under a
classifier, `PairSimilarity` a sentence encoder that compares the two texts of a pair. The first two can be given to
TextAttack as a model wrapper.
"""

from __future__ import annotations

import hashlib
from array import array
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers  # its models load on first use: the options name attacks alone
from torch import nn

from hf_robustcse import layout
from hf_robustcse.errors import UserError
from hf_robustcse.evaluation.padding import padded
from hf_robustcse.packing import FirstTokens

Text = str | tuple[str, ...]
Victim = Callable[[list[Text]], Any]
"""n texts -> (n, classes) probabilities or logits, or (n,) similarities: an array, a tensor or lists."""

_CHARACTERS_PER_TOKEN = 40
_REMEMBERED = 100_000


class Asked:
    """A victim as a service of the engine: texts sorted by length, in batches, its answers checked.

    Args:
        victim: any callable.
        classes: whether it answers with the probabilities of classes; else with one similarity.
        batch_size: texts per call; None takes `victim.batch_size`, or 32.
    """

    def __init__(self, victim: Victim, *, classes: bool = True, batch_size: int | None = None) -> None:
        self.victim = victim
        self.classes = classes
        self.batch_size = batch_size or getattr(victim, "batch_size", 32)

    def __call__(self, texts: list[Text]) -> list[np.ndarray]:
        """The rows of float64 answers, in the order of the texts.

        Raises:
            UserError: if the victim's answers have a wrong shape or are not finite.
        """
        order = sorted(range(len(texts)), key=lambda i: -_length(texts[i]))
        answers: list[np.ndarray] = [np.empty(0)] * len(texts)
        for start in range(0, len(texts), self.batch_size):
            batch = order[start : start + self.batch_size]
            rows = self._rows([texts[i] for i in batch])
            for i, row in zip(batch, rows, strict=True):
                answers[i] = row
        return answers

    def _rows(self, texts: list[Text]) -> np.ndarray:
        given = self.victim(texts)
        if isinstance(given, torch.Tensor):
            given = given.detach().float().cpu() if given.dtype == torch.bfloat16 else given.detach().cpu()
        rows = np.asarray(given, dtype=np.float64)
        if self.classes and (rows.ndim != 2 or rows.shape[1] < 2) or len(rows) != len(texts):
            wanted = f"({len(texts)}, classes)" if self.classes else f"({len(texts)},)"
            raise UserError(f"the victim answered {len(texts)} texts with shape {rows.shape}, not {wanted}")
        if not np.isfinite(rows).all():
            bad = texts[int((~np.isfinite(rows.reshape(len(rows), -1))).any(axis=1).argmax())]
            raise UserError(f"the victim's answer to {str(bad)[:80]!r} is not finite")
        if self.classes and ((np.abs(rows.sum(axis=1) - 1) > 1e-4).any() or (rows < 0).any()):
            rows = softmax(rows)
        return rows


def _length(text: Text) -> int:
    return len(text) if isinstance(text, str) else sum(map(len, text))


def softmax(logits: np.ndarray) -> np.ndarray:
    """Probabilities of (n, classes) logits, in float64."""
    weights = np.exp(logits - logits.max(axis=1, keepdims=True))
    return weights / weights.sum(axis=1, keepdims=True)


class Classifier:
    """A classifier of transformers: texts, or pairs of texts, in, probabilities out.

    Texts of equal tokens get one forward pass and one answer, and batches hold texts of equal or nearly equal length,
    so that there is next to no padding.

    Args:
        model: AutoModelForSequenceClassification.
        tokenizer: its tokenizer.
        max_length: tokens of an input; None for all that the model takes.
        batch_tokens: tokens of a forward pass; None for 2048 on a CPU, which fits its caches, and 65536 elsewhere.
    """

    batch_size = 4096

    def __init__(
        self, model: nn.Module, tokenizer: Any, *, max_length: int | None = None, batch_tokens: int | None = None
    ) -> None:
        self.model = model.eval()
        self.tokenizer = tokenizer
        limit = min(tokenizer.model_max_length, positions(model))
        self.max_length = min(max_length or limit, limit)
        self.device = next(model.parameters()).device
        self.batch_tokens = batch_tokens or (2048 if self.device.type == "cpu" else 65536)
        self._answer = FirstTokens(self._plain, getattr(model, "base_model", None))
        self.forwards = 0  # texts that went through the model
        # A row's last bits depend on its batch. What has the same tokens, as words that differ only in case often have,
        # must have the same score, or an attack takes that noise for progress.
        self._known: dict[bytes, np.ndarray] = {}

    def __call__(self, texts: Sequence[Text]) -> np.ndarray:
        """Probabilities.

        Args:
            texts: n texts, or n tuples of two.

        Returns:
            (n, classes) float64.
        """
        keys, rows = self._tokens(texts)
        new = {key: row for key, row in rows.items() if key not in self._known}
        self._known.update(zip(new, self._logits(list(new.values())), strict=True))
        logits = np.stack([self._known[key] for key in keys])
        while len(self._known) > _REMEMBERED:
            del self._known[next(iter(self._known))]
        return softmax(logits)

    def _logits(self, rows: list[dict[str, list[int]]]) -> np.ndarray:
        logits = np.empty((len(rows), self.model.config.num_labels))
        lengths = [len(row["input_ids"]) for row in rows]
        for batch in batches_of_tokens(lengths, self.batch_tokens):
            features = padded(self.tokenizer, [rows[i] for i in batch], self.device)
            with torch.inference_mode():
                logits[batch] = self._answer(features).double().cpu().numpy()
        self.forwards += len(rows)
        return logits

    def _plain(self, features: dict[str, torch.Tensor]) -> torch.Tensor:
        return self.model(**features).logits

    def _tokens(self, texts: Sequence[Text]) -> tuple[list[bytes], dict[bytes, dict[str, list[int]]]]:
        """A digest of each text's tokens, and the tokens of each digest."""
        columns = [texts] if isinstance(texts[0], str) else zip(*texts, strict=True)
        seen = list(zip(*(within_reach(column, self.tokenizer, self.max_length) for column in columns), strict=True))
        distinct = list(dict.fromkeys(seen))
        tokens = self.tokenizer(*map(list, zip(*distinct, strict=True)), truncation=True, max_length=self.max_length)
        kinds = [name for name in ("input_ids", "token_type_ids") if name in tokens]
        digests, rows = {}, {}
        for i, text in enumerate(distinct):
            content = array("q", [number for name in kinds for number in tokens[name][i]]).tobytes()
            digests[text] = hashlib.blake2b(content, digest_size=16).digest()
            rows.setdefault(digests[text], {name: column[i] for name, column in tokens.items()})
        return [digests[text] for text in seen], rows


def positions(model: nn.Module) -> int:
    """How many tokens a model of transformers takes."""
    base = getattr(model, "base_model", None)
    table = getattr(getattr(base, "embeddings", None), "position_embeddings", None)
    if isinstance(table, nn.Embedding):
        # RoBERTa counts positions from the padding index + 1, so two of its 514 rows are no token's.
        return table.num_embeddings - (0 if table.padding_idx is None else table.padding_idx + 1)
    return getattr(model.config, "max_position_embeddings", None) or 512


def within_reach(texts: Sequence[str], tokenizer: Any, max_length: int) -> list[str]:
    """Texts without what lies beyond the tokens that a model takes, which would only cost time.

    A long text is cut at the white space behind 8 characters a token, if that much fills the model; else far behind.

    Args:
        texts: n texts.
        tokenizer: a tokenizer of transformers.
        max_length: tokens of an input.

    Returns:
        n texts of the same first `max_length` tokens.
    """
    if tokenizer.truncation_side != "right":
        return list(texts)
    out = [text[: max_length * _CHARACTERS_PER_TOKEN] for text in texts]
    ends = {i: text.find(" ", max_length * 8) for i, text in enumerate(out) if len(text) > max_length * 8}
    shorter = {i: out[i][:end] for i, end in ends.items() if end > 0}
    if shorter:
        distinct = list(dict.fromkeys(shorter.values()))
        tokens = tokenizer(distinct, truncation=True, max_length=max_length)["input_ids"]
        full = {text for text, ids in zip(distinct, tokens, strict=True) if len(ids) >= max_length}
        for i, text in shorter.items():
            out[i] = text if text in full else out[i]
    return out


def batches_of_tokens(lengths: Sequence[int], budget: int) -> Iterator[list[int]]:
    """Cut texts into batches of at most `budget` tokens and of one length, but for batches that would be small.

    Args:
        lengths: of n texts, in tokens.
        budget: tokens of a batch with its padding; a longer text is a batch of its own.

    Yields:
        Indices of the texts of a batch.
    """
    batch: list[int] = []
    for i in sorted(range(len(lengths)), key=lambda i: lengths[i]):
        longest = lengths[i]
        full = longest * (len(batch) + 1) > budget
        # A batch of less than a quarter of the budget is better filled up with a little padding.
        uneven = batch and longest > lengths[batch[-1]] and 4 * longest * len(batch) >= budget
        if batch and (full or uneven):
            yield batch
            batch = []
        batch.append(i)
    if batch:
        yield batch


def load_classifier(
    model_name_or_path: str, *, max_length: int | None = None, device: str | None = None, dtype: str = "float32"
) -> Classifier:
    """A fine-tuned classifier of a folder or the Hub.

    Args:
        model_name_or_path: folder or id.
        max_length: tokens of an input; None for all that the model takes.
        device: for example `cpu` or `cuda:0`; None takes an accelerator if there is one.
        dtype: of the weights: float32, bfloat16 or float16.

    Raises:
        UserError: if it cannot be loaded or is no classifier.
    """
    name = str(model_name_or_path)
    if name.startswith((".", "/", "~")) and not Path(name).is_dir():
        raise UserError(f"there is no model folder {name}")
    layout.check(name)
    try:
        config = transformers.AutoConfig.from_pretrained(name)
        tokenizer = transformers.AutoTokenizer.from_pretrained(name)
        if not any("SequenceClassification" in kind for kind in config.architectures or ()):
            raise UserError(
                f"{name} is {' and '.join(config.architectures or ['a model of unknown kind'])}, not a classifier"
            )
        if tokenizer.pad_token is None:
            raise UserError(f"the tokenizer of the classifier {name} has no padding token: set one and save it again")
        model = transformers.AutoModelForSequenceClassification.from_pretrained(name, dtype=getattr(torch, dtype))
    except UserError:
        raise
    except Exception as error:  # the Hub client and the file readers have a dozen kinds
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(f"the classifier {name} cannot be loaded: {reason[:300]}") from error
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    return Classifier(model.to(device), tokenizer, max_length=max_length)


class _Remembered:
    """An encoder that embeds a text once, as long as it remembers it: one text of a pair comes again and again."""

    def __init__(self, encode: Callable[[list[str]], Any], size: int = 20000, kept: Iterable[str] = ()) -> None:
        self.encode = encode
        self.size = size
        self._known: OrderedDict[str, np.ndarray] = OrderedDict()
        self._kept = self._embed(list(dict.fromkeys(kept)))  # never forgotten

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        distinct = [text for text in dict.fromkeys(texts) if text not in self._kept]
        self._known.update(self._embed([text for text in distinct if text not in self._known]))
        found = {text: self._known[text] for text in distinct}
        for text in distinct:
            self._known.move_to_end(text)
        while len(self._known) > self.size:
            self._known.popitem(last=False)
        rows = [self._kept[text] if text in self._kept else found[text] for text in texts]
        return np.stack(rows).astype(np.float64)

    def _embed(self, texts: list[str]) -> dict[str, np.ndarray]:
        if not texts:
            return {}
        rows = self.encode(texts)
        rows = rows.detach().float().cpu().numpy() if isinstance(rows, torch.Tensor) else np.asarray(rows)
        return dict(zip(texts, rows, strict=True))


class EncoderWithHead:
    """A frozen sentence encoder under a classifier of its embeddings.

    Args:
        encode: texts -> (n, d) embeddings: an `Embedder`, or `SentenceTransformer.encode`.
        head: scikit-learn's `predict_proba`, or a torch module that gives logits. It reads u for one text, and
            ``[u, v, |u - v|, u * v]`` for a pair, as SentEval does.
    """

    batch_size = 4096

    def __init__(self, encode: Callable[[list[str]], Any], head: Any) -> None:
        self.model = head
        self._encode = _Remembered(encode)

    def __call__(self, texts: Sequence[Text]) -> np.ndarray:
        """Probabilities.

        Args:
            texts: n texts, or n tuples of two.

        Returns:
            (n, classes) float64.
        """
        features = self.features(texts)
        if hasattr(self.model, "predict_proba"):
            return self.model.predict_proba(features)
        with torch.inference_mode():
            weight = next(self.model.parameters())
            return softmax(self.model(torch.as_tensor(features).to(weight)).double().cpu().numpy())

    def features(self, texts: Sequence[Text]) -> np.ndarray:
        """What the head reads: (n, d) of texts, (n, 4d) of pairs, float64."""
        if isinstance(texts[0], str):
            return self._encode(texts)
        u, v = (self._encode([pair[side] for pair in texts]) for side in (0, 1))
        return np.concatenate([u, v, np.abs(u - v), u * v], axis=1)


class PairSimilarity:
    """A sentence encoder that compares: the cosine of the two texts of a pair.

    Args:
        encode: texts -> (n, d) embeddings.
        untouched: texts that no attack changes; they are embedded here, once and for all.
    """

    batch_size = 4096

    def __init__(self, encode: Callable[[list[str]], Any], untouched: Iterable[str] = ()) -> None:
        self.model = encode
        self._encode = _Remembered(encode, kept=untouched)

    def __call__(self, pairs: Sequence[Text]) -> np.ndarray:
        """The cosines, in [-1, 1].

        Args:
            pairs: n tuples of two texts.

        Returns:
            (n,) float64.
        """
        u, v = (self._encode([pair[side] for pair in pairs]) for side in (0, 1))
        scale = np.linalg.norm(u, axis=1) * np.linalg.norm(v, axis=1)
        return (u * v).sum(axis=1) / np.maximum(scale, 1e-12)
