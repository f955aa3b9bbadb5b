"""A sentence encoder: any ``AutoModel`` with word embeddings, a pooler, and the head of training."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
import transformers  # its models load on first use: the methods' options need none
from torch import Tensor, nn

from hf_robustcse.errors import UserError
from hf_robustcse.modules import Head, Pooler, use_fast_dropout
from hf_robustcse.packing import packer_of

if TYPE_CHECKING:
    from transformers import PretrainedConfig, PreTrainedModel

# Configuration names of the dropouts that a forward pass in training mode applies; each model type has a few of them.
DROPOUT_NAMES = (
    "hidden_dropout_prob", "attention_probs_dropout_prob", "hidden_dropout", "attention_dropout", "dropout",
    "activation_dropout", "embedding_dropout", "mlp_dropout", "embd_pdrop", "attn_pdrop", "resid_pdrop", "dropout_rate",
)  # fmt: skip


class SentenceEncoder(nn.Module):
    """`backbone`, then `pooler` (f), then `head` (g).

    Padding costs nothing where the backbone allows it (see `packing`).

    Args:
        backbone: any transformers encoder with word embeddings.
        pooler: one of ``modules.POOLERS``.
        head: one of ``modules.HEADS``.

    Raises:
        UserError: if the backbone has no word embeddings or needs a decoder.
    """

    def __init__(self, backbone: PreTrainedModel, *, pooler: str = "cls", head: str = "none") -> None:
        super().__init__()
        check_backbone(backbone)
        self.backbone = backbone
        self.pooler = Pooler(pooler)
        self.head = Head(head, self.width)
        freeze_own_pooler(backbone)
        use_fast_dropout(backbone)

    @property
    def width(self) -> int:
        """d, the width of a sentence embedding."""
        return self.backbone.config.hidden_size

    @property
    def embedding_width(self) -> int:
        """e, the width of a word embedding."""
        return self.backbone.get_input_embeddings().embedding_dim

    def embed(self, input_ids: Tensor) -> Tensor:
        """Word embeddings (N, L, e) of (N, L) ids; e may differ from d."""
        return self.backbone.get_input_embeddings()(input_ids)

    def forward(
        self, attention_mask: Tensor, *, input_ids: Tensor | None = None, inputs_embeds: Tensor | None = None
    ) -> Tensor:
        """Pooled sentence vectors f(x), before the head.

        Args:
            attention_mask: (N, L), padding on the right.
            input_ids: (N, L), or
            inputs_embeds: (N, L, e) word embeddings.

        Returns:
            (N, d).
        """
        layers = self.pooler.layers
        inputs = {"input_ids": input_ids, "inputs_embeds": inputs_embeds, "output_hidden_states": layers is not None}
        packer = packer_of(self.backbone)
        rows = packer.find_rows(attention_mask, only_first=self.pooler.kind == "cls")
        output = packer(self.backbone, rows, attention_mask, **inputs)
        if layers is None:
            tokens = output.last_hidden_state
        else:
            first, second = layers
            tokens = (output.hidden_states[first] + output.hidden_states[second]) / 2
        if rows is None:
            return self.pooler(tokens, attention_mask)
        if rows.only_first:
            return tokens[:, 0]
        return self.pooler(rows.put(tokens[0]), attention_mask)


def freeze_own_pooler(backbone: PreTrainedModel) -> None:
    """BERT's next-sentence pooler takes no part here: without this DDP would wait for its gradient."""
    own_pooler = getattr(backbone, "pooler", None)
    if isinstance(own_pooler, nn.Module):
        own_pooler.requires_grad_(False)


def check_backbone(backbone: PreTrainedModel) -> None:
    """Refuse what cannot be trained here.

    Raises:
        UserError: if the backbone has no word embeddings or needs a decoder.
    """
    name = type(backbone).__name__
    try:
        embeddings = backbone.get_input_embeddings()
    except NotImplementedError:
        embeddings = None
    if not isinstance(embeddings, nn.Embedding) or not hasattr(backbone.config, "hidden_size"):
        raise UserError(f"{name} has no word embeddings to train on; choose a text encoder such as BERT or RoBERTa")
    if getattr(backbone.config, "is_encoder_decoder", False):
        raise UserError(f"{name} is an encoder-decoder; choose an encoder such as BERT or RoBERTa")


def load_backbone(model_name_or_path: str, *, dropout: float | None = None, **kwargs: object) -> PreTrainedModel:
    """Load a pretrained encoder in float32, whatever type its weights are stored in.

    Args:
        model_name_or_path: a folder or Hub id that ``AutoModel`` loads.
        dropout: set every dropout probability of the model, in [0, 1).
        **kwargs: passed to ``from_pretrained`` (revision, token, cache_dir, local_files_only, attn_implementation).

    Raises:
        UserError: if there is no such model, it cannot be reached, or it cannot be trained here.
    """
    hub = {key: kwargs[key] for key in ("revision", "token", "cache_dir", "local_files_only") if key in kwargs}
    try:
        config = transformers.AutoConfig.from_pretrained(model_name_or_path, **hub)
        if dropout is not None:
            set_dropout(config, dropout)
        backbone, info = transformers.AutoModel.from_pretrained(
            model_name_or_path, config=config, dtype=torch.float32, output_loading_info=True, **kwargs
        )
    except Exception as error:  # the readers of configurations and weights have a dozen kinds
        reason = str(error).strip().split("\n")[0]
        raise UserError(
            f"cannot load the encoder {model_name_or_path!r}: give a folder with config.json and model.safetensors, or "
            f"a Hub id that is reachable or in the cache ({reason})"
        ) from error
    check_backbone(backbone)
    # A pooler is not used, so a checkpoint of a language model may lack it; anything else would silently be random.
    missing = sorted(key for key in info["missing_keys"] if not key.startswith("pooler."))
    if missing:
        raise UserError(
            f"the weights in {model_name_or_path!r} do not fit its configuration: {len(missing)} are missing, such as "
            f"{missing[0]}"
        )
    return backbone


def blind_backbone(config: PretrainedConfig, layers: int) -> PreTrainedModel:
    """An encoder of the same kind, initialised at random, that reads ``inputs_embeds`` and has no word embeddings.

    Args:
        config: of the encoder that it takes after; not changed.
        layers: how many, from 1 to those of `config`.
    """
    config = copy.deepcopy(config)
    config.num_hidden_layers = layers
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[:layers]
    backbone = transformers.AutoModel.from_config(config, dtype=torch.float32)
    backbone.set_input_embeddings(nn.Identity())
    freeze_own_pooler(backbone)
    return backbone


class ReplacedTokenDetector(nn.Module):
    """Original or replaced, for every token, with a sentence embedding in the place of the first token's embedding.

    Args:
        backbone: a transformers encoder that reads ``inputs_embeds``.
        sentence_width: d.
        embedding_width: e; where it differs from d, a linear map takes the sentence embedding there.
    """

    def __init__(self, backbone: nn.Module, sentence_width: int, embedding_width: int) -> None:
        super().__init__()
        self.backbone = backbone
        use_fast_dropout(backbone)
        same = sentence_width == embedding_width
        self.condition = nn.Identity() if same else nn.Linear(sentence_width, embedding_width)
        self.classifier = nn.Linear(backbone.config.hidden_size, 1)

    def forward(self, embeds: Tensor, attention_mask: Tensor, h: Tensor) -> Tensor:
        """Logits (N, L), above 0 for replaced, of (N, L, e) embeddings under a (N, L) mask and (N, d) sentences.

        What stands where there is padding has no meaning.
        """
        first = self.condition(h).to(embeds.dtype).unsqueeze(1)
        embeds = torch.cat([first, embeds[:, 1:]], dim=1)
        packer = packer_of(self.backbone)
        rows = packer.find_rows(attention_mask, only_first=False)
        tokens = packer(self.backbone, rows, attention_mask, inputs_embeds=embeds).last_hidden_state
        logits = self.classifier(tokens).squeeze(-1)
        return logits if rows is None else rows.put(logits[0])


def load_masked_lm(model_name_or_path: str, **kwargs: Any) -> PreTrainedModel:
    """A masked language model in float32.

    Args:
        model_name_or_path: a folder or Hub id that ``AutoModelForMaskedLM`` loads.
        **kwargs: for ``from_pretrained``.

    Raises:
        UserError: if it cannot be loaded or has no trained head.
    """
    try:
        model, info = transformers.AutoModelForMaskedLM.from_pretrained(
            model_name_or_path, dtype=torch.float32, output_loading_info=True, **kwargs
        )
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"cannot load the language model {model_name_or_path!r} ({reason})") from error
    if missing := sorted(info["missing_keys"]):
        raise UserError(f"{model_name_or_path!r} has no trained head for masked tokens (it lacks {missing[0]})")
    return model


def load_generator(name: str | None, vocabulary: int) -> tuple[PreTrainedModel, int]:
    """A frozen masked language model on the CPU, and the id of its mask token.

    Args:
        name: folder or Hub id, or None if none is known.
        vocabulary: how many tokens it must know.

    Raises:
        UserError: if it cannot be loaded, or has no trained head, no mask token or another vocabulary.
    """
    if name is None:
        raise UserError("none is named")
    model = load_masked_lm(name)
    try:
        mask_token = transformers.AutoTokenizer.from_pretrained(name).mask_token_id
    except (OSError, ValueError, KeyError) as error:
        raise UserError(f"cannot load the tokenizer of {name!r} ({str(error).strip().splitlines()[0]})") from error
    if mask_token is None:
        raise UserError(f"the tokenizer of {name!r} has no mask token")
    if model.config.vocab_size != vocabulary:
        raise UserError(f"{name!r} has {model.config.vocab_size} tokens, the encoder {vocabulary}")
    return model.eval().requires_grad_(False), mask_token


def set_dropout(config: object, probability: float) -> list[str]:
    """Set every dropout of a model configuration; returns the names that it has."""
    names = [name for name in DROPOUT_NAMES if isinstance(getattr(config, name, None), (int, float))]
    for name in names:
        setattr(config, name, probability)
    return names
