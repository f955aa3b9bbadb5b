"""The seam: what a method is given, what it gives back, and how several of them make one loss."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from types import NoneType
from typing import Any, ClassVar, Literal, get_args, get_origin, get_type_hints

import torch
from torch import Tensor, nn

from hf_robustcse import functional
from hf_robustcse.chunks import in_chunks, mean_in_chunks
from hf_robustcse.distributed import gather_rows, rank
from hf_robustcse.encoder import SentenceEncoder
from hf_robustcse.errors import UserError
from hf_robustcse.modules import HEADS, SharedNoise


@dataclasses.dataclass(frozen=True)
class Paper:
    """Where a method comes from and what its authors report."""

    title: str
    reported: dict[str, dict[str, float]]
    """Backbone -> {metric: value}, as printed in the paper."""
    arxiv: str | None = None
    bibtex: str | None = None
    tables: dict[str, str] = dataclasses.field(default_factory=dict)
    """Beginning or end of a metric's name -> the table or figure that prints it, where that is known."""

    def table_of(self, metric: str) -> str:
        """The table or figure that prints a metric, or ""."""
        return next((where for key, where in self.tables.items() if metric.startswith(key) or metric.endswith(key)), "")


@dataclasses.dataclass
class Batch:
    """One process' share of a training batch, N sentences of at most L tokens.

    Attributes:
        input_ids: (N, L), the anchors' tokens.
        attention_mask: (N, L).
        positive_ids: (N, L) ids of the labelled positives; None where a sentence is its own positive.
        positive_mask: (N, L), or None.
        words: (N, L), true for the tokens of the text: no padding, no special tokens.
        extras: what `Method.collate` made of the batch's texts.
        embeds: (N, L, e) word embeddings of the anchors, with gradient; None unless a method says `perturbs`.
        pooled: (N, d) = f(x), with gradient.
        pooled_pos: (N, d), f of the positives; `pooled` itself if no method is `paired`.
        h: (N, d) = g(f(x)).
        h_pos: (N, d), g of the positives.
        hard_negatives: (N, d), or None.
        text_hash: (N, V) hashes of the sentences of each row (anchor, [positive, [hard negative]]), or None; equal
            texts are never each other's negatives.
        embed: (ids (N, L)) -> (N, L, e): the encoder's word embeddings of other tokens.
        encode: (embeds (C * N, L, e)) -> (C * N, d): f of other embeddings under the same mask; C versions of the
            batch, one after the other, share a pass.
        encode_ids: (ids (M, L'), attention mask (M, L')) -> (M, d): f of other texts.
        project: (N, d) -> (N, d): g. Leaves the running statistics of its normalisations as they are, and normalises
            by the rows that it is given: one version of the batch at a time.
        dropout_free: a context in which `encode` applies no dropout (the head keeps its mode).
        same_dropout: a context in which `encode` applies the dropout masks of `pooled`; for methods that say `replays`.
        temperature: of every softmax over similarities.
        chunk_size: rows whose activations may be in memory at a time; None for all of them.
    """

    input_ids: Tensor
    attention_mask: Tensor
    positive_ids: Tensor | None
    positive_mask: Tensor | None
    words: Tensor
    extras: dict[str, Tensor]
    embeds: Tensor | None
    pooled: Tensor
    pooled_pos: Tensor
    h: Tensor
    h_pos: Tensor
    hard_negatives: Tensor | None
    text_hash: Tensor | None
    embed: Callable[[Tensor], Tensor]
    encode: Callable[[Tensor], Tensor]
    encode_ids: Callable[[Tensor, Tensor], Tensor]
    project: Callable[[Tensor], Tensor]
    dropout_free: Callable[[], Any]
    same_dropout: Callable[[], Any]
    temperature: float
    chunk_size: int | None = None

    def in_chunks(self, function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
        """`function` of tensors (N, ...), for passes of a method's own; see `chunks.in_chunks`."""
        return in_chunks(function, *tensors, rows=self.chunk_size)

    def mean_in_chunks(self, function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
        """A mean over the rows of tensors (N, ...), for losses of a method's own; see `chunks.mean_in_chunks`."""
        return mean_in_chunks(function, *tensors, rows=self.chunk_size)

    def info_nce(
        self,
        anchors: Tensor,
        *,
        offset: int = 0,
        noise_weight: float | Tensor = 1.0,
        negative_weights: Tensor | None = None,
        hard_negative_weights: Tensor | None = None,
        **others: Any,
    ) -> Tensor:
        """`functional.info_nce`, whose similarities are those of a chunk's anchors at a time; its arguments.

        A tensor of weights has a row for every anchor.
        """

        def loss(some: Tensor, numbers: Tensor) -> Tensor:
            rows = slice(int(numbers[0]), int(numbers[0]) + len(some))
            weights = noise_weight[rows] if isinstance(noise_weight, Tensor) else noise_weight
            return functional.info_nce(
                some,
                offset=offset + rows.start,
                noise_weight=weights,
                negative_weights=None if negative_weights is None else negative_weights[rows],
                hard_negative_weights=None if hard_negative_weights is None else hard_negative_weights[rows],
                **others,
            )

        return self.mean_in_chunks(loss, anchors, torch.arange(len(anchors)))


@dataclasses.dataclass
class Term:
    """A named part of the loss: ``weight * value`` is added, `value` is logged."""

    value: Tensor
    weight: float


@dataclasses.dataclass
class Contribution:
    """What one method adds to the loss of a batch; everything left empty adds nothing.

    All but the terms goes into the one contrastive loss, see `functional.info_nce`.

    Attributes:
        terms: loss terms of its own, by name.
        noise: (M, d) negatives shared by all anchors, the same on every process.
        noise_weight: of the noise, a number or a tensor that broadcasts to (N, M).
        negative_weights: (N, G) for this process' anchors and the G sentences of all processes.
        positives: (N, d) each, more positives of this process' anchors.
        decoupled: leave the positive out of the denominator.
    """

    terms: dict[str, Term] = dataclasses.field(default_factory=dict)
    noise: Tensor | None = None
    noise_weight: float | Tensor = 1.0
    negative_weights: Tensor | None = None
    positives: list[Tensor] = dataclasses.field(default_factory=list)
    decoupled: bool = False


class Method(nn.Module):
    """One paper: options, state (parameters and buffers) and its delta to the loss.

    A method never touches the trainer, the model or another method. Class attributes say what it is; `Options` is a
    dataclass whose field names carry the method's prefix, because they are command-line options.
    """

    name: ClassVar[str]
    paper: ClassVar[Paper]
    head: ClassVar[str] = "tanh"
    """The projection head that the paper trains with, one of ``modules.HEADS``."""
    outside: ClassVar[tuple[str, ...]] = ()
    """The options that name a file or a model outside the checkpoint."""
    contrastive: ClassVar[bool] = True
    """Whether the in-batch InfoNCE loss is part of the method."""
    needs_float32: ClassVar[bool] = False
    """Whether weights in half precision (not autocast) would round away its perturbations or its moving averages."""

    @dataclasses.dataclass
    class Options:
        pass

    def __init__(self, options: Any | None = None) -> None:
        super().__init__()
        self.options = options if options is not None else self.Options()
        for name, kind in get_type_hints(type(self.options)).items():
            value, choices = getattr(self.options, name), get_args(kind)
            if get_origin(kind) is Literal:
                if value not in choices:
                    raise UserError(f"--{name} must be one of {', '.join(choices)}, not {value!r}")
            elif not _is_one_of(value, choices or (kind,)):
                kinds = " or ".join("none" if k is NoneType else k.__name__ for k in choices or (kind,))
                raise UserError(f"--{name} must be {kinds}, not {value!r}")

    @property
    def replays(self) -> bool:
        """Whether the method needs `Batch.same_dropout`."""
        return False

    @property
    def perturbs(self) -> bool:
        """Whether the method needs `Batch.embeds`, which are as large as a layer's activations."""
        return False

    @property
    def paired(self) -> bool:
        """Whether the method needs the positive that is the sentence itself under another dropout mask."""
        return True

    @property
    def needs_text(self) -> bool:
        """Whether `collate` has to see the texts."""
        return False

    def check_not_negative(self, *names: str) -> None:
        """Refuse options that are no finite number of at least 0."""
        for name in names:
            value = getattr(self.options, name)
            if not 0 <= value < math.inf:
                raise UserError(f"--{name} must be a number of at least 0, not {value}")

    def attach(self, encoder: SentenceEncoder) -> None:
        """Build what depends on the encoder; called once, before the method's weights are loaded.

        A default that depends on the encoder is written into `options` here, so that the checkpoint says what it was.
        """
        return None

    def load_pretrained(self, model_name_or_path: str, **kwargs: Any) -> None:
        """Take what the method needs, beside the backbone, from the checkpoint that training starts from."""
        return None

    def attach_tokenizer(self, tokenizer: Any, max_length: int) -> None:
        """The encoder's tokenizer, and the most tokens of a sentence."""
        return None

    def set_seed(self, seed: int) -> None:
        """Seed whatever the method draws (dropout follows torch's own seed)."""
        for module in self.modules():
            if isinstance(module, SharedNoise):
                module.seed.fill_(seed)

    def after_update(self, encoder: SentenceEncoder, progress: float) -> None:
        """Called after each update of the weights; `progress` of the training so far is in (0, 1]."""
        return None

    def collate(self, texts: list[str]) -> dict[str, Tensor]:
        """What the method needs of the anchors' texts, by names of its own; runs in the data loader."""
        return {}

    def forward(self, batch: Batch) -> Contribution:
        """The method's delta for `batch`."""
        return Contribution()


def tokenized(name: str, tokenizer: Any, texts: list[str], max_length: int) -> dict[str, Tensor]:
    """Texts that a method made, for its `Method.collate`: ``NAME_input_ids`` and ``NAME_attention_mask``, (N, L').

    Raises:
        UserError: if the tokenizer is None.
    """
    if tokenizer is None:
        raise UserError(f"{name} needs the tokenizer: call model.attach_tokenizer(tokenizer)")
    batch = tokenizer(
        texts, padding=True, padding_side="right", truncation=True, max_length=max_length, return_tensors="pt"
    )
    return {f"{name}_{key}": batch[key] for key in ("input_ids", "attention_mask")}


def _is_one_of(value: Any, kinds: tuple[type, ...]) -> bool:
    """Whether a value is of one of the types; a whole number is a float too, a truth value is no number."""
    if isinstance(value, bool):
        return bool in kinds
    return isinstance(value, kinds) or (float in kinds and isinstance(value, int))


class Stack(nn.Module):
    """All methods named in ``a+b``: merges their contributions, calls `info_nce` once and adds the terms.

    Args:
        methods: in the order of the name.

    Raises:
        UserError: for a mixture that has no meaning.
    """

    def __init__(self, methods: list[Method]) -> None:
        super().__init__()
        names = [method.name for method in methods]
        for name in names:
            if names.count(name) > 1:
                raise UserError(f"--method {'+'.join(names)} names {name} twice")
        rest = [method.name for method in methods if method.contrastive and method.name != "simcse"]
        if "simcse" in names and rest:
            raise UserError(f"--method {'+'.join(names)}: the loss of simcse is part of {rest[0]}; leave simcse out")
        self.methods = nn.ModuleDict({method.name: method for method in methods})
        self.unconfirmed: dict[str, str] = {}

    @property
    def outside(self) -> dict[str, str]:
        """The options that name a file or a model outside the checkpoint (`Method.outside`), where they are set.

        A checkpoint records them, but one from elsewhere must not choose what is read here: those that the user has
        not named again are `unconfirmed`, and training with them is refused.
        """
        named = {option: getattr(m.options, option) for m in self.methods.values() for option in m.outside}
        return {name: value for name, value in named.items() if value not in (None, "self")}

    def check_confirmed(self) -> None:
        """Refuse to use what only a checkpoint names.

        Raises:
            UserError: naming the option.
        """
        for name, value in self.unconfirmed.items():
            raise UserError(
                f"the checkpoint names {value!r} as --{name}; it is used for training only if you name it too: "
                f"RobustCSEModel.from_pretrained(..., method_options={{{name!r}: ...}})"
            )

    @property
    def name(self) -> str:
        """The name that built it, such as ``vadv``."""
        return "+".join(self.methods)

    @property
    def head(self) -> str:
        """The projection head that its methods train with: the richest one wins."""
        return max((method.head for method in self.methods.values()), key=HEADS.index)

    @property
    def contrastive(self) -> bool:
        """Whether one of its methods has the in-batch loss."""
        return any(method.contrastive for method in self.methods.values())

    @property
    def paired(self) -> bool:
        """Whether one of its methods needs every sentence as its own positive."""
        return any(method.paired for method in self.methods.values())

    @property
    def replays(self) -> bool:
        """Whether one of its methods needs `Batch.same_dropout`."""
        return any(method.replays for method in self.methods.values())

    @property
    def perturbs(self) -> bool:
        """Whether one of its methods needs `Batch.embeds`."""
        return any(method.perturbs for method in self.methods.values())

    @property
    def needs_text(self) -> bool:
        """Whether `collate` has to see the texts."""
        return any(method.needs_text for method in self.methods.values())

    def attach(self, encoder: SentenceEncoder) -> None:
        """Let its methods build what depends on the encoder."""
        for method in self.methods.values():
            method.attach(encoder)

    def load_pretrained(self, model_name_or_path: str, **kwargs: Any) -> None:
        """Let its methods take what they need from the checkpoint that training starts from."""
        for method in self.methods.values():
            method.load_pretrained(model_name_or_path, **kwargs)

    def attach_tokenizer(self, tokenizer: Any, max_length: int) -> None:
        """Give its methods the encoder's tokenizer, and the most tokens of a sentence."""
        for method in self.methods.values():
            method.attach_tokenizer(tokenizer, max_length)

    def set_seed(self, seed: int) -> None:
        """Seed whatever its methods draw."""
        for method in self.methods.values():
            method.set_seed(seed)

    def after_update(self, encoder: SentenceEncoder, progress: float) -> None:
        """Tell its methods that the weights were updated."""
        for method in self.methods.values():
            method.after_update(encoder, progress)

    def collate(self, texts: list[str]) -> dict[str, Tensor]:
        """What its methods need of the anchors' texts."""
        self.check_confirmed()
        return {key: value for method in self.methods.values() for key, value in method.collate(texts).items()}

    def options(self) -> dict[str, Any]:
        """All options of all methods, flat."""
        return {k: v for method in self.methods.values() for k, v in dataclasses.asdict(method.options).items()}

    def forward(self, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of this process' rows and its named terms.

        Args:
            batch: see `Batch`.

        Returns:
            The scalar loss and {name: detached value}; the contrastive term is ``contrastive``.
        """
        self.check_confirmed()
        contributions = [method(batch) for method in self.methods.values()]
        terms: dict[str, Term] = {}
        if self.contrastive:
            terms["contrastive"] = Term(self._contrastive(batch, contributions), 1.0)
        for contribution in contributions:
            terms.update(contribution.terms)
        loss = torch.stack([term.weight * term.value for term in terms.values()]).sum()
        return loss, {name: term.value.detach() for name, term in terms.items()}

    def _contrastive(self, batch: Batch, contributions: list[Contribution]) -> Tensor:
        keys = global_keys(batch)
        noise = noise_weight = extra = None
        for contribution in contributions:
            if contribution.negative_weights is not None:
                weights = keys["negative_weights"]
                keys["negative_weights"] = (
                    contribution.negative_weights if weights is None else weights * contribution.negative_weights
                )
        noisy = [c for c in contributions if c.noise is not None]
        if noisy:
            noise = torch.cat([c.noise for c in noisy])
            weights = [_weight_matrix(c.noise_weight, len(batch.h), c.noise) for c in noisy]
            one = len(noisy) == 1 and not isinstance(noisy[0].noise_weight, Tensor)
            noise_weight = noisy[0].noise_weight if one else torch.cat(weights, dim=1)
        positives = [gather_rows(p) for c in contributions for p in c.positives]
        if positives:
            extra = torch.stack(positives)
        return batch.info_nce(
            batch.h,
            **keys,
            noise=noise,
            noise_weight=1.0 if noise_weight is None else noise_weight,
            extra_positives=extra,
            decoupled=any(c.decoupled for c in contributions),
        )


def global_keys(batch: Batch) -> dict[str, Any]:
    """What `functional.info_nce` contrasts this process' anchors, or other versions of them, with.

    Returns:
        Its arguments but the anchors: the positives and hard negatives of all processes, with gradient, the weights
        that keep equal texts from being contrasted, the temperature, and where this process' rows begin.
    """
    text_hash, hard_negatives = batch.text_hash, batch.hard_negatives
    weights = hard_weights = None
    if text_hash is not None:
        everyone = gather_rows(text_hash)
        ours, theirs = text_hash[:, :2], everyone[:, :2]  # of an anchor and its positive
        # Two rows that share a text are no negatives of each other; a hard negative that is one of them is none.
        # Most batches have no such rows, and then no matrix of weights either.
        if _rows_share(theirs):
            weights = ~_equal_texts(ours, theirs)
        if hard_negatives is not None and bool(torch.isin(everyone[:, 2].contiguous(), theirs.flatten()).any()):
            hard_weights = ~_equal_texts(ours, everyone[:, 2:])
    return {
        "positives": gather_rows(batch.h_pos),
        "temperature": batch.temperature,
        "negative_weights": weights,
        "hard_negatives": None if hard_negatives is None else gather_rows(hard_negatives),
        "hard_negative_weights": hard_weights,
        "offset": rank() * len(batch.h),
    }


def _rows_share(texts: Tensor) -> bool:
    """Whether a number of one row of (G, V) is in another row too."""
    order = texts.flatten().argsort(stable=True)
    values, rows = texts.flatten()[order], order // texts.shape[1]
    return bool(((values[1:] == values[:-1]) & (rows[1:] != rows[:-1])).any())


def _equal_texts(ours: Tensor, theirs: Tensor) -> Tensor:
    """(N, G): whether a row of (N, V) and one of (G, W) have a number in common."""
    same = torch.zeros(len(ours), len(theirs), dtype=torch.bool, device=ours.device)
    for mine in ours.T:
        for other in theirs.T:
            same |= mine[:, None] == other
    return same


def _weight_matrix(weight: float | Tensor, count: int, noise: Tensor) -> Tensor:
    """A noise weight as a (count, M) tensor."""
    return torch.as_tensor(weight, dtype=torch.float32, device=noise.device).expand(count, len(noise))
