"""Load a model as an `encode` callable: a sentence-transformers folder or id, a plain encoder with a named pooling, or
a file of word vectors.

sentence-transformers does the work (modules, masked pooling), so that what is evaluated is what
`SentenceTransformer(path).encode` gives its users; here texts are tokenised once and put into batches of equal length.
"""

from __future__ import annotations

from collections.abc import Sequence
from logging import LogRecord
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer, WeightedLayerPooling
from torch import Tensor, nn
from transformers import AutoModel, PreTrainedTokenizerBase
from transformers.utils import logging

from hf_robustcse import layout
from hf_robustcse.distributed import encode_together, rank
from hf_robustcse.errors import UserError
from hf_robustcse.evaluation.baselines import WORD_VECTORS, is_word_vectors, load_word_vectors
from hf_robustcse.evaluation.embedding_cache import EmbeddingCache
from hf_robustcse.evaluation.padding import padded
from hf_robustcse.evaluation.sts import check_finite
from hf_robustcse.files import read_json
from hf_robustcse.packing import FirstTokens

# pooling -> hidden states that are averaged before the pooling over tokens; hidden_states[0] is the embedding layer.
# "first-last" and "top-two" are SimCSE's avg_first_last and avg_top2, mean-pooled.
_LAYERS = {"first-last": (1, -1), "top-two": (-2, -1)}
POOLINGS = ("cls", "mean", "max", *_LAYERS, "pooler")
_PROGRESS_FROM = 2000


class Embedder:
    """A loaded model: strings in, float32 sentence embeddings out.

    Args:
        model: the SentenceTransformer.
        batch_size: sentences per forward pass.
        description: what was loaded: model, revision, method, pooling, max_seq_length, dtype, device, dimension.

    Attributes:
        alone: whether a process embeds its sentences by itself, in place of a share of what all processes have.
        cache: where embeddings are kept, None for nowhere.
    """

    def __init__(self, model: SentenceTransformer, batch_size: int, description: dict[str, Any]) -> None:
        self.model = model
        self.batch_size = batch_size
        self.description = description
        self.alone = False
        self.cache: EmbeddingCache | None = None
        reads_first = description["pooling"] in ("cls", "pooler")
        self._answer = FirstTokens(self._plain, getattr(model[0], "auto_model", None) if reads_first else None)

    def __call__(self, sentences: Sequence[str]) -> np.ndarray:
        """Embed sentences, each process its share of them; long inputs show a progress bar on stderr.

        Args:
            sentences: n strings, the same on every process.

        Returns:
            (n, d) float32, in the order of `sentences`, as the model gives them (normalised only if it does that).

        Raises:
            UserError: if an embedding is not finite.
        """
        if not len(sentences):
            return np.zeros((0, self.description["dimension"]), dtype=np.float32)
        how = {
            "width": self.description["dimension"],
            "batch_size": self.batch_size,
            "progress": len(sentences) >= _PROGRESS_FROM and rank() == 0 and not self.alone,
            "alone": self.alone,
        }
        if self._reads_tokens():
            rows = self._encode_tokens(sentences, how).numpy()
        else:
            rows = encode_together(lambda batch: torch.from_numpy(self._encode(batch)), sentences, **how).numpy()
        check_finite(rows, sentences, f"the model {self.description['model']}")
        if self.description["pooling"] == WORD_VECTORS and (unknown := int((~rows.any(axis=1)).sum())):
            print(f"{unknown} of {len(rows)} sentences hold no word of {self.description['model']}: they embed to zero")
        return rows

    def keep(self, folder: str | Path) -> None:
        """Keep the embeddings in a folder from here on, and take from it what is there.

        Args:
            folder: as `embedding_cache` in `load_embedder`.

        Raises:
            UserError: as in `EmbeddingCache`.
        """
        if self._reads_tokens():
            self.cache = EmbeddingCache(folder, self.model, {"pooling": self.description["pooling"]})
        else:
            print(f"{self.description['model']} has a prompt or a tokenizer of its own: nothing is kept in {folder}")

    def _plain(self, features: dict[str, Tensor]) -> Tensor:
        return self.model(features)["sentence_embedding"]

    def _encode(self, batch: list[str]) -> np.ndarray:
        return self.model.encode(batch, batch_size=len(batch), show_progress_bar=False)

    def _reads_tokens(self) -> bool:
        """Whether `encode` of the model is its tokenizer and its modules: not so with a prompt or word vectors."""
        known = isinstance(self.model[0], Transformer) and isinstance(self.model.tokenizer, PreTrainedTokenizerBase)
        return known and self.model.default_prompt_name is None and not self.model[0].do_lower_case

    def _encode_tokens(self, sentences: Sequence[str], how: dict[str, Any]) -> Tensor:
        """Tokenise all sentences once and batch them by tokens, which leaves next to no padding.

        Sentences that the tokenizer makes equal ("A dog", "a dog") are one text, so that their embeddings are equal to
        the last bit wherever they come.
        """
        tokenizer = self.model.tokenizer
        tokens = tokenizer(list(sentences), truncation=True, max_length=self.model.max_seq_length)
        places: dict[tuple[int, ...], int] = {}
        row_of = [places.setdefault(tuple(ids), len(places)) for ids in tokens["input_ids"]]
        first = dict(zip(reversed(row_of), reversed(range(len(row_of))), strict=True))
        texts = [{name: column[first[row]] for name, column in tokens.items()} for row in range(len(places))]

        @torch.inference_mode()
        def encode(batch: list[dict[str, list[int]]]) -> Tensor:
            return self._answer(padded(tokenizer, batch, self.model.device))

        def embed(rows: list[int]) -> Tensor:
            lengths = [len(texts[row]["input_ids"]) for row in rows]
            return encode_together(encode, [texts[row] for row in rows], lengths=lengths, **how)

        found = self.cache(list(places), embed) if self.cache else embed(list(range(len(places))))
        return found[row_of]


class _PoolerOutput(nn.Module):
    """The backbone's own pooler (for BERT: tanh of a linear map of [CLS]), which sentence-transformers cannot name."""

    def __init__(self, pooler: nn.Module) -> None:
        super().__init__()
        self.pooler = pooler

    def forward(self, features: dict[str, Tensor]) -> dict[str, Tensor]:
        features["sentence_embedding"] = self.pooler(features["token_embeddings"])
        return features


def load_embedder(
    model_name_or_path: str,
    *,
    pooling: str | None = None,
    max_seq_length: int | None = None,
    batch_size: int = 64,
    device: str | None = None,
    embedding_cache: str | Path | None = None,
) -> Embedder:
    """Load a local folder or Hub id, in float32 whatever dtype it is stored in, or word vectors.

    A model with `modules.json` (any SentenceTransformer, and every checkpoint that this package exports) says itself
    how it pools: `pooling` may be left out, and is an error if it differs. A plain encoder is pooled by `pooling`, or
    by the mean with a line that says so. A file named .txt or .vec (.gz) holds word vectors, which are averaged.

    Args:
        model_name_or_path: the folder, id or file.
        pooling: one of `POOLINGS`: `cls` the last layer's first token; `mean`, `max` over the last layer's tokens;
            `first-last`, `top-two` the mean over tokens of the average of the first and last (`hidden_states[1]` and
            `[-1]`), or of the last two layers; `pooler` the model's own pooler output; `glove` averages the word
            vectors of a file whatever its name.
        max_seq_length: tokens per sentence with special tokens, longer ones are truncated; None keeps the model's.
        batch_size: sentences per forward pass.
        device: for example `cpu` or `cuda:0`; None takes an accelerator if there is one.
        embedding_cache: a folder where embeddings are kept, and taken from where they are there (`EmbeddingCache`);
            not those of word vectors and of models with a prompt, which is said.

    Returns:
        The embedder.

    Raises:
        UserError: if the model cannot be found or loaded, the pooling contradicts the saved one or does not exist
            for the model, max_seq_length exceeds the model's positions, or as in `EmbeddingCache`.
    """
    name = str(model_name_or_path)
    if pooling not in (None, WORD_VECTORS, *POOLINGS):
        raise UserError(f"unknown pooling {pooling!r}; known: {', '.join((*POOLINGS, WORD_VECTORS))}")
    if batch_size < 1:
        raise UserError(f"batch_size must be at least 1, not {batch_size}")
    if not name.strip():
        raise UserError("no model given: name a folder or a Hub id")
    if device is not None:
        try:
            torch.empty(0, device=device)
        except (RuntimeError, AssertionError) as error:
            reason = str(error).splitlines()[0]
            raise UserError(f"--device {device} is not there: take cpu, or leave it out ({reason})") from None
    if is_word_vectors(name, pooling) and not Path(name).is_dir():
        if embedding_cache is not None:
            print(f"word vectors are no work: those of {name} are not kept in {embedding_cache}")
        return _word_vectors(name, pooling, max_seq_length, batch_size, device)
    if pooling == WORD_VECTORS:
        raise UserError(f"{name} is a folder; --pooling {WORD_VECTORS} averages the word vectors of a text file")
    _check_folder(name)
    layout.check(name)
    reports = logging.get_logger("transformers.modeling_utils")
    reports.addFilter(_tells_of_a_problem)
    try:
        saved = layout.find(name, "modules.json") is not None
        if saved:
            model = SentenceTransformer(name, device=device, model_kwargs={"dtype": torch.float32})
        else:
            transformer = Transformer(name).float()
    except Exception as error:  # every library on the way has its own kinds
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(
            f"the model {name} cannot be loaded; it is neither a complete model folder nor a Hub id that can be reached"
            f" or is cached (with a network: hf-robustcse prefetch --model {name} --to DIR, then use"
            f" DIR/models/{name}). {reason[:300]}"
        ) from error
    finally:
        reports.removeFilter(_tells_of_a_problem)
    if saved:
        own = _saved_pooling(model)
        if pooling not in (None, own):
            raise UserError(
                f"--pooling {pooling} contradicts {name}, which was saved with pooling {own}: leave --pooling out"
            )
        pooling = own
    else:
        if pooling is None:
            pooling = "mean"
            print(f"{name} has no modules.json and no pooling was given: mean over tokens is used")
        modules = _plain_modules(name, transformer, pooling)
        model = SentenceTransformer(modules=modules, device=device)
        model.tokenizer.padding_side = "right"  # absolute positions start at the first token
    model.float().eval()
    _limit_length(model, max_seq_length)
    backbone = getattr(model[0], "auto_model", None)
    revision = getattr(getattr(backbone, "config", None), "_commit_hash", None)
    about = {"revision": revision, "method": saved_method(name), "max_seq_length": model.max_seq_length}
    embedder = Embedder(model, batch_size, _description(name, model, pooling) | about)
    if embedding_cache is not None:
        embedder.keep(embedding_cache)
    return embedder


def _tells_of_a_problem(record: LogRecord) -> bool:
    """Whether a log record is more than a report of heads that an encoder does not need, or of an absent pooler.

    The report is a table `weight | status`. An absent pooler is refused where it is used (`_plain_modules`).
    """
    text = record.getMessage()
    rows = [line for line in text.splitlines() if "|" in line and not line.startswith("pooler.")]
    return "LOAD REPORT" not in text or any(
        status in row for row in rows for status in ("MISSING", "MISMATCH", "CONVERSION")
    )


def _word_vectors(
    name: str, pooling: str | None, max_seq_length: int | None, batch_size: int, device: str | None
) -> Embedder:
    """The embedder of a file of word vectors; their average is a mean, so that name for it is accepted."""
    if pooling not in (None, "mean", WORD_VECTORS):
        raise UserError(f"--pooling {pooling} does not fit word vectors ({name}), which are averaged: leave it out")
    if max_seq_length is not None:
        raise UserError(f"the word vectors of {name} take sentences of any length: leave --max_seq_length out")
    model = load_word_vectors(name, device)
    return Embedder(model, batch_size, _description(name, model, WORD_VECTORS))


def _description(name: str, model: SentenceTransformer, pooling: str) -> dict[str, Any]:
    """What is said of any model."""
    return {
        "model": name,
        "revision": None,
        "method": None,
        "pooling": pooling,
        "max_seq_length": None,
        "dtype": "float32",
        "device": str(model.device),
        "dimension": int(model.encode("dimension", show_progress_bar=False).shape[0]),
    }


def _check_folder(name: str) -> None:
    """Refuse a path that is no model folder, before a Hub client calls it an invalid id."""
    path = Path(name)
    if path.is_dir():
        if not any((path / file).is_file() for file in ("config.json", "modules.json")):
            raise UserError(f"{name} is a folder without config.json or modules.json: not a model")
    elif path.exists():
        raise UserError(f"{name} is a file, not a model folder")
    elif path.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1:
        raise UserError(f"there is no model folder {name}")


def _plain_modules(name: str, transformer: Transformer, pooling: str) -> list[nn.Module]:
    """The modules that pool a plain encoder."""
    backbone = transformer.auto_model
    width, depth = backbone.config.hidden_size, backbone.config.num_hidden_layers
    if pooling == "pooler":
        pooler = getattr(backbone, "pooler", None)
        if pooler is None or pooler(torch.zeros(1, 2, width)).shape != (1, width):
            raise UserError(f"{name} ({type(backbone).__name__}) has no pooler: choose another --pooling")
        # Loading fills absent weights with random ones and only logs it; the log cannot be asked, so load once more.
        _, loaded = AutoModel.from_pretrained(name, output_loading_info=True)
        if absent := [key for key in loaded["missing_keys"] if key.startswith("pooler.")]:
            raise UserError(f"{name} holds no weights for its pooler ({absent[0]}): choose another --pooling")
        return [transformer, _PoolerOutput(pooler)]
    if pooling not in _LAYERS:
        return [transformer, Pooling(width, pooling)]
    backbone.config.output_hidden_states = True
    layers = WeightedLayerPooling(width, num_hidden_layers=depth, layer_start=0)
    with torch.no_grad():
        layers.layer_weights.zero_()
        for layer in _LAYERS[pooling]:
            layers.layer_weights[layer] += 1
    return [transformer, layers, Pooling(width, "mean")]


def _saved_pooling(model: SentenceTransformer) -> str:
    """The name of the pooling that a SentenceTransformer was saved with; `none` for one that has no such module."""
    modes = next((module.pooling_mode for module in model if isinstance(module, Pooling)), None)
    if modes is None:
        return "none"
    name = modes if isinstance(modes, str) else "+".join(modes)
    weights = next((module.layer_weights for module in model if isinstance(module, WeightedLayerPooling)), None)
    if weights is None:
        return name
    start = model[0].auto_model.config.num_hidden_layers + 1 - len(weights)
    used = [start + layer for layer, weight in enumerate(weights.tolist()) if weight]
    for pooling, layers in _LAYERS.items():
        equal = len({weight for weight in weights.tolist() if weight}) == 1
        if name == "mean" and equal and used == sorted({layer % (start + len(weights)) for layer in layers}):
            return pooling
    return f"{name} of weighted layers"


def _limit_length(model: SentenceTransformer, max_seq_length: int | None) -> None:
    """Set the maximum length, never beyond the table of absolute positions (where there is one)."""
    if max_seq_length is not None and max_seq_length < 3:
        raise UserError(f"max_seq_length must be at least 3 (two special tokens and one more), not {max_seq_length}")
    table = getattr(getattr(getattr(model[0], "auto_model", None), "embeddings", None), "position_embeddings", None)
    if isinstance(table, nn.Embedding):
        # RoBERTa counts positions from the padding index + 1, so two of its 514 rows are no token's.
        limit = table.num_embeddings - (0 if table.padding_idx is None else table.padding_idx + 1)
        if max_seq_length is None:
            max_seq_length = min(model.max_seq_length or limit, limit)
        elif max_seq_length > limit:
            raise UserError(f"max_seq_length {max_seq_length} exceeds the model's {limit} positions")
    if max_seq_length is not None:
        model.max_seq_length = max_seq_length


def saved_method(name: str) -> str | None:
    """The training method that an exported checkpoint records."""
    path = layout.find(name, layout.CONFIG)
    if path is None:
        return None
    settings = read_json(path)
    if not isinstance(settings, dict) or not isinstance(method := settings.get("method"), str):
        raise UserError(f"{path} is no configuration of this package: it names no method")
    return method
