"""Passes over the real tokens alone: the padding of a batch costs nothing but in the attention, where it is cheap.

A padded batch (N, L) becomes one row (1, T) of its T real tokens, with their positions. All in an encoder but the
attention works on single tokens and does not see the difference. For the attention, a function registered with
transformers under `NAME` puts queries, keys and values back into their places in (N, L); without a `Rows` it is SDPA.

Where nothing but the first token of each sentence is read, the last layer runs on the first tokens alone: of the others
it needs the keys and values.
"""

from __future__ import annotations

import dataclasses
import math
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import transformers  # its models load on first use: the methods' options need none
from torch import Tensor, nn

from hf_robustcse.modules import dropout

if TYPE_CHECKING:
    from transformers import PreTrainedModel

NAME = "robustcse"
_SHORT = threading.RLock()
"""One at a time of `FirstTokens`: each puts its own `forward` on a model, which others may share."""
_WORTH = 0.97
"""The largest share of real tokens that is packed: above it, the moving about costs what it saves."""
_OF_TOKENS = ("input_ids", "inputs_embeds", "token_type_ids")
_CLOSE, _CLOSE_HALF = 1e-2, 5e-2
"""How far the vectors of the probe may lie apart, relative to their largest number, in float32 (TF32 among it) and in
half precision: what is wrong, such as positions, moves them by much more."""


class _Take(torch.autograd.Function):
    """Some rows of a tensor, none of them twice: the gradient is put into place, where indexing would add it up."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(index)
        ctx.count = len(x)
        return x.index_select(0, index)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (index,) = ctx.saved_tensors
        return grad.new_zeros(ctx.count, *grad.shape[1:]).index_copy_(0, index, grad), None


class _Put(torch.autograd.Function):
    """Rows into their places among `count`, 0 elsewhere: the opposite of `_Take`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, index: Tensor, count: int) -> Tensor:
        ctx.save_for_backward(index)
        return x.new_zeros(count, *x.shape[1:]).index_copy_(0, index, x)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (index,) = ctx.saved_tensors
        return grad.index_select(0, index), None, None


@dataclasses.dataclass
class Rows:
    """Where the real tokens of a batch lie.

    Attributes:
        mask: (N, L), true for the real tokens.
        index: (T,) their places in the flattened mask.
        position: (T,) their columns.
        first: (N,) the number of each sentence's first token among the T.
        only_first: whether nothing but the first tokens is read of the last layer.
        tokens: (1, T, d), in the last layer if it runs on the first tokens alone: what it would run on.
    """

    mask: Tensor
    index: Tensor
    position: Tensor
    first: Tensor
    only_first: bool = False
    tokens: Tensor | None = None

    @property
    def whole(self) -> bool:
        """Whether there is no padding, so that nothing has to be moved."""
        return len(self.index) == self.mask.numel()

    def take(self, x: Tensor) -> Tensor:
        """The real tokens (T, ...) of (N, L, ...)."""
        return x.flatten(0, 1) if self.whole else _Take.apply(x.flatten(0, 1), self.index)

    def put(self, x: Tensor) -> Tensor:
        """(T, ...) back into (N, L, ...), 0 where there is padding."""
        rows = x if self.whole else _Put.apply(x, self.index, self.mask.numel())
        return rows.unflatten(0, self.mask.shape)


def find_rows(attention_mask: Tensor, *, most: float = _WORTH) -> Rows | None:
    """The real tokens of a (N, L) mask, padding on the right; None where packing saves nothing.

    Args:
        attention_mask: (N, L).
        most: the largest share of real tokens that is packed, in [0, 1].
    """
    mask = attention_mask.bool()
    lengths = mask.sum(dim=1)
    index = mask.flatten().nonzero().squeeze(1)
    if len(index) > most * mask.numel() or not bool(lengths.all()):
        return None
    return Rows(mask, index, index % mask.shape[1], lengths.cumsum(0) - lengths)


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    packing: Rows | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attention in transformers' form: (1, H, T, D) queries, keys and values to (1, T, H, D), or as SDPA does.

    Raises:
        NotImplementedError: for a kind of attention that is not known here.
    """
    sdpa = transformers.AttentionInterface()["sdpa"]
    if packing is None:
        return sdpa(module, query, key, value, attention_mask, scaling=scaling, dropout=dropout, **kwargs)
    if kwargs.get("position_bias") is not None or kwargs.get("is_causal") or getattr(module, "is_causal", False):
        raise NotImplementedError("packing knows plain attention over the whole sentence")
    query, key, value = (x[0].transpose(0, 1) for x in (query, key, value))  # (T, H, D)
    if packing.tokens is None:
        query = packing.put(query)
    else:
        query = query.unsqueeze(1)  # (N, 1, H, D)
        key, value = (of(packing.tokens)[0].unflatten(-1, key.shape[1:]) for of in (module.key, module.value))
    q, k, v = (x.transpose(1, 2) for x in (query, packing.put(key), packing.put(value)))
    keys = None if packing.whole else packing.mask[:, None, None, :]
    if (window := kwargs.get("sliding_window")) is not None:
        place = torch.arange(k.shape[2], device=k.device)
        # As in transformers' modelling files: flash attention's window, which counts the token itself.
        near = (place[: q.shape[2], None] - place).abs() < window
        keys = near if keys is None else keys & near
    if dropout and q.device.type == "cpu" and k.shape[1] == q.shape[1]:
        out = _attend(q, k, v, keys, q.shape[-1] ** -0.5 if scaling is None else scaling, dropout)
    else:
        out = sdpa(module, q, k, v, keys, scaling=scaling, dropout=dropout, is_causal=False)[0]
    return (packing.take(out)[None] if packing.tokens is None else out.transpose(0, 1)), None


def _attend(q: Tensor, k: Tensor, v: Tensor, keys: Tensor | None, scaling: float, p: float) -> Tensor:
    """What SDPA does on a CPU when there is dropout, with faster dropout: (N, H, L, D) to (N, L, H, D)."""
    scores = (q * scaling) @ k.transpose(2, 3)
    if keys is not None:
        # A padded query may see no key within its window; nobody reads it, but its gradient must be a number.
        scores = scores.masked_fill(~keys, torch.finfo(scores.dtype).min)
    return (dropout(scores.softmax(dim=-1), p) @ v).transpose(1, 2)


def _register() -> None:
    """Make the attention known to transformers."""
    transformers.AttentionInterface.register(NAME, attention)
    transformers.AttentionMaskInterface.register(NAME, transformers.AttentionMaskInterface()["sdpa"])


def _close(backbone: PreTrainedModel) -> float:
    half = next(backbone.parameters()).dtype in (torch.float16, torch.bfloat16)
    return _CLOSE_HALF if half else _CLOSE


class Packer:
    """Runs a backbone on the real tokens of a batch.

    Whether a backbone can be run so, and how it numbers positions, is found out by trying: two sentences padded and
    packed. Where the two differ, batches stay padded; so they do when the user chose another attention than SDPA.

    Args:
        backbone: any transformers encoder; its attention is replaced (`NAME`).
    """

    def __init__(self, backbone: PreTrainedModel) -> None:
        self._config = backbone.config
        self._offset: int | None = None
        """Of the first position."""
        self._skips = False
        """Whether the last layer can leave out what is not read."""
        if backbone.config._attn_implementation not in ("sdpa", NAME):
            return
        _register()
        backbone.set_attn_implementation(NAME)
        # BERT counts positions from 0, RoBERTa and its kin from behind the padding index. The nearest one counts: under
        # large vectors, a wrong position may pass for rounding. One that does not exist would end a process on a GPU.
        behind, places = 1 + (backbone.config.pad_token_id or 0), getattr(backbone.config, "max_position_embeddings", 0)
        offsets = [0, behind] if behind + 4 <= (places or 0) else [0]
        distances = [self._distance(backbone, offset) for offset in offsets]
        if min(distances) > _close(backbone):
            backbone.set_attn_implementation("sdpa")
            return
        self._offset = offsets[distances.index(min(distances))]
        layers = getattr(getattr(backbone, "encoder", None), "layer", None)
        if isinstance(layers, nn.ModuleList):
            hooks = [
                layers[-1].register_forward_pre_hook(_keep_first, with_kwargs=True),
                layers[-1].register_forward_hook(_as_sentences, with_kwargs=True),
            ]
            self._skips = self._distance(backbone, self._offset, only_first=True) <= _close(backbone)
            for hook in () if self._skips else hooks:
                hook.remove()

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Of a pickle, which another process may read."""
        self.__dict__.update(state)
        _register()

    @torch.no_grad()
    def _distance(self, backbone: PreTrainedModel, offset: int, only_first: bool = False) -> float:
        """How far packed passes are from padded ones, relative to the largest number; infinity if they fail."""
        weight, config = next(backbone.parameters()), backbone.config
        mask = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1]], device=weight.device)
        rows = find_rows(mask)
        rows.only_first = only_first
        training = [child for child in backbone.modules() if child.training]
        backbone.eval()
        try:
            embeddings = backbone.get_input_embeddings()
            width = getattr(embeddings, "embedding_dim", getattr(config, "embedding_size", config.hidden_size))
            embeds = torch.sin(torch.arange(8.0 * width)).view(2, 4, width).to(weight)  # no number is drawn here
            with torch.autocast(weight.device.type, enabled=False):
                wanted = backbone(inputs_embeds=embeds, attention_mask=mask).last_hidden_state
                found = self._run(backbone, rows, offset, inputs_embeds=embeds).last_hidden_state
            wanted = wanted[:, :1] if only_first else rows.take(wanted)[None]
            if found.shape != wanted.shape:
                return math.inf
            distance = float((found - wanted).abs().max() / wanted.abs().max())
            return math.inf if math.isnan(distance) else distance
        except Exception:  # whatever an unknown encoder makes of arguments that it does not know
            return math.inf
        finally:
            for child in training:
                child.training = True

    @staticmethod
    def _run(backbone: PreTrainedModel, rows: Rows, offset: int, **inputs: Any) -> Any:
        return backbone(**_packed(rows, offset, inputs))

    def off(self) -> None:
        """Run every batch padded from now on."""
        self._offset = None

    @property
    def packs(self) -> bool:
        """Whether the backbone can be run on packed batches; not after the user has chosen another attention."""
        return self._offset is not None and self._config._attn_implementation == NAME

    @property
    def skips(self) -> bool:
        """Whether its last layer can be run on the first tokens alone."""
        return self.packs and self._skips

    def find_rows(self, attention_mask: Tensor, *, only_first: bool) -> Rows | None:
        """The rows of a batch, or None where it is to be run padded.

        Args:
            attention_mask: (N, L), padding on the right.
            only_first: nothing but the first token of the last layer will be read.
        """
        if not self.packs:
            return None
        only_first = only_first and self.skips
        rows = find_rows(attention_mask, most=1.0 if only_first else _WORTH)
        if rows is not None:
            rows.only_first = only_first
        return rows

    def __call__(self, backbone: PreTrainedModel, rows: Rows | None, attention_mask: Tensor, **inputs: Any) -> Any:
        """The backbone's output, packed or, without `rows`, padded.

        Args:
            backbone: that of the constructor, or a model on top of it.
            rows: of `find_rows`.
            attention_mask: (N, L), that of the rows.
            **inputs: input_ids (N, L) or inputs_embeds (N, L, e), and options of the backbone.

        Returns:
            With (N, L, d) token vectors; with `rows` (1, T, d), or (N, 1, d) if they are read at the first token.
        """
        if rows is None:
            return backbone(attention_mask=attention_mask, **inputs)
        return self._run(backbone, rows, self._offset, **inputs)

    def keep_first(self, *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """What a backbone is given, packed, so that it gives (N, 1, d) vectors of the first tokens.

        What is not known here (positions of one's own, padding on the left) is left as it is.
        """
        given = {name: x for name, x in kwargs.items() if x is not None} | dict(zip(["input_ids"], args, strict=False))
        mask = given.pop("attention_mask", None)
        if len(args) > 1 or mask is None or mask.ndim != 2 or "input_ids" not in given or "position_ids" in given:
            return args, kwargs
        rows = self.find_rows(mask, only_first=True) if bool(mask[:, 0].all()) else None
        # RoBERTa gives no position to a padding token, even if a text names it.
        if rows is None or self._offset and bool((rows.take(given["input_ids"]) == self._config.pad_token_id).any()):
            return args, kwargs
        return (), _packed(rows, self._offset, given)


class FirstTokens:
    """Answers of a model that reads nothing but the first token of each sentence, in less time.

    Whether it reads no other, and its backbone can be run so, is found out by trying when it is first asked. Where the
    answers differ, the model is run as it is.

    Afterwards the backbone has the attention of this module, which is SDPA for all other passes.

    Args:
        answer: name -> (N, L) of a tokenizer to (N, ...), by a pass through the backbone.
        backbone: of the model; what is no encoder of transformers is left alone.
    """

    def __init__(self, answer: Callable[[dict[str, Tensor]], Tensor], backbone: Any) -> None:
        self.answer, self.backbone = answer, backbone
        self._alone: bool | None = None

    def __call__(self, features: dict[str, Tensor]) -> Tensor:
        """The answers (N, ...) to a batch."""
        if self._alone is None:
            with _SHORT:
                self._alone = self._try()
        return self._short(features) if self._alone else self.answer(features)

    def _short(self, features: dict[str, Tensor]) -> Tensor:
        backbone, packer, thread = self.backbone, packer_of(self.backbone), threading.get_ident()

        def packed(*args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() == thread:  # another thread may use the same model for itself
                args, kwargs = packer.keep_first(*args, **kwargs)
            return forward(*args, **kwargs)

        with _SHORT:
            forward, own = backbone.forward, "forward" in vars(backbone)  # some libraries put their own there
            backbone.forward = packed  # no hook: sentence-transformers calls `forward` itself
            try:
                return self.answer(features)
            finally:
                if own:
                    backbone.forward = forward
                else:
                    del backbone.forward

    @torch.no_grad()
    def _try(self) -> bool:
        if not isinstance(self.backbone, transformers.PreTrainedModel) or not packer_of(self.backbone).skips:
            return False
        words = self.backbone.get_input_embeddings().weight
        padding = self.backbone.config.pad_token_id or 0
        mask = torch.tensor([[1, 1, 0, 0], [1, 1, 1, 1]], device=words.device)
        ids = torch.arange(len(words), device=words.device)
        try:
            ids = ids[ids != padding][-8:].view(2, 4).where(mask.bool(), padding)
            wanted, found = (f({"input_ids": ids, "attention_mask": mask}) for f in (self.answer, self._short))
            close = (found - wanted).abs().max() <= _close(self.backbone) * wanted.abs().max()
            return found.shape == wanted.shape and bool(close)
        except Exception:  # whatever an unknown model makes of it
            return False


def packer_of(backbone: PreTrainedModel) -> Packer:
    """The packer of a backbone, made when it is first asked for: there must be weights to try it on."""
    packer = getattr(backbone, "_robustcse_packer", None)
    if packer is None:
        packer = backbone._robustcse_packer = Packer(backbone)
    return packer


def masked_logits(model: PreTrainedModel, input_ids: Tensor, attention_mask: Tensor, chosen: Tensor) -> Tensor:
    """The logits of a masked language model where they are wanted; its head, which is wide, runs there alone.

    Args:
        model: what ``AutoModelForMaskedLM`` gives.
        input_ids: (N, L).
        attention_mask: (N, L), padding on the right.
        chosen: (N, L), true for M real tokens.

    Returns:
        (M, V), in the order of `chosen`.
    """
    packer = packer_of(model.base_model)
    rows = packer.find_rows(attention_mask, only_first=False)
    places = (chosen.flatten() if rows is None else chosen.flatten()[rows.index]).nonzero().squeeze(1)
    base = model.base_model
    setattr(model, model.base_model_prefix, _Chosen(base, places))
    try:
        return packer(model, rows, attention_mask, input_ids=input_ids).logits[0]
    finally:
        setattr(model, model.base_model_prefix, base)


class _Chosen(nn.Module):
    """A backbone whose output has some of its token vectors alone. No hook: a compiled one has those it had before."""

    def __init__(self, base: nn.Module, places: Tensor) -> None:
        super().__init__()
        self.base, self.places = base, places

    def __getattr__(self, name: str) -> Any:
        """Of the backbone what is not here: some heads ask it for its word embeddings."""
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("base"), name)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        output = self.base(*args, **kwargs)
        output.last_hidden_state = _Take.apply(output.last_hidden_state.flatten(0, 1), self.places)[None]
        return output


def _packed(rows: Rows, offset: int, inputs: dict[str, Any]) -> dict[str, Any]:
    """What a backbone is given, packed; without the attention mask."""
    tokens = {name: rows.take(x)[None] for name, x in inputs.items() if name in _OF_TOKENS and x is not None}
    return {
        **inputs,
        **tokens,
        "position_ids": (rows.position + offset)[None],
        # Of four dimensions: transformers then makes no mask of T x T.
        "attention_mask": rows.mask.new_ones(1, 1, 1, 1),
        "packing": rows,
    }


def _keep_first(module: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
    """Before the last layer: go on with the first tokens (1, N, d) alone."""
    rows = kwargs.get("packing")
    if rows is None or not rows.only_first:
        return None
    rows = dataclasses.replace(rows, tokens=args[0])
    return (_Take.apply(args[0][0], rows.first)[None], *args[1:]), {**kwargs, "packing": rows}


def _as_sentences(module: nn.Module, args: Any, kwargs: dict[str, Any], output: Tensor) -> Tensor:
    """Behind the last layer: (N, 1, d), of which any head reads the first tokens."""
    rows = kwargs.get("packing")
    return output if rows is None or not rows.only_first else output.transpose(0, 1)
