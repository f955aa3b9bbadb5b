"""Perturbations of word embeddings: what every adversarial method shares."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hf_robustcse import functional
from hf_robustcse.distributed import gather_rows, maximum


@contextlib.contextmanager
def dropout_off(module: nn.Module) -> Iterator[None]:
    """Put `module` in evaluation mode; afterwards every submodule is back in the mode that it was in."""
    training = [child for child in module.modules() if child.training]
    module.eval()
    try:
        yield
    finally:
        for child in training:
            child.training = True


class SharedDropout:
    """Passes that draw one and the same dropout mask: enter the object once for each, one after the other.

    The random state at the first entry is replayed at every later one, after which the random state is what it was
    before it: however many passes are replayed, the rest of the step draws what it would have drawn.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._first: tuple[Tensor, Tensor | None] | None = None
        self._outer: tuple[Tensor, Tensor | None] | None = None

    def __enter__(self) -> None:
        cuda = self._device.type == "cuda"
        now = (torch.get_rng_state(), torch.cuda.get_rng_state(self._device) if cuda else None)
        if self._first is None:
            self._first = now
        else:
            self._outer = now
            self._set(self._first)

    def __exit__(self, *exc: object) -> None:
        if self._outer is not None:
            self._set(self._outer)

    def _set(self, state: tuple[Tensor, Tensor | None]) -> None:
        torch.set_rng_state(state[0])
        if state[1] is not None:
            torch.cuda.set_rng_state(state[1], self._device)


def finite_or_zero(gradient: Tensor) -> Tensor:
    """Zero the gradient of every sentence that has a NaN or an infinity in it; (N, L, d)."""
    finite = gradient.isfinite().all(dim=2, keepdim=True).all(dim=1, keepdim=True)
    return gradient.where(finite, torch.zeros_like(gradient))


def attack_scale(device: torch.device) -> float:
    """What to multiply an attack's objective with before its gradient is taken, and divide the gradient by.

    For divergences: that of two nearly equal distributions has gradients that float16 flushes to zero. The gradient
    scaler of training does not see attacks, so they bring a factor of their own; the other types need none.
    """
    half = torch.is_autocast_enabled(device.type) and torch.get_autocast_dtype(device.type) == torch.float16
    return 2.0**14 if half else 1.0


def scaling_index(eta: Tensor, norm: functional.Norm) -> Tensor:
    """RobustSentEmbed eq. 2: ``n_i = ||eta_i|| / max_j ||eta_j||`` over the tokens of a sentence.

    Args:
        eta: (N, L, e).
        norm: linf, l2 or l1.

    Returns:
        (N, L, 1) in [0, 1]; 1 for a token without a perturbation, which the equation would leave without one forever.
    """
    largest = eta.abs().amax(dim=(1, 2), keepdim=True)  # divided out: a square would underflow
    size = torch.linalg.vector_norm(
        eta / largest.masked_fill(largest == 0, 1.0), ord=functional.ORDERS[norm], dim=2, keepdim=True
    )
    index = size / size.amax(dim=1, keepdim=True).masked_fill(largest == 0, 1.0)
    return index.masked_fill((eta == 0).all(dim=2, keepdim=True), 1.0)


def token_step(eta: Tensor, gradient: Tensor, *, size: float, radius: float, norm: functional.Norm) -> Tensor:
    """RobustSentEmbed eq. 3-4: ``n_i (eta_i + size G_i / ||G_i||)`` for each token, then the ball of the sentence.

    Args:
        eta: (N, L, e).
        gradient: G, (N, L, e).
        size: alpha.
        radius: epsilon.
        norm: of the index, the step and the ball.

    Returns:
        (N, L, e).
    """
    direction = functional.ascent_direction(gradient, norm=norm, per="token")
    return functional.project(scaling_index(eta, norm) * (eta + size * direction), radius, norm=norm)


def pgd_step(delta: Tensor, gradient: Tensor, *, size: float, radius: float, norm: functional.Norm) -> Tensor:
    """RobustSentEmbed eq. 5: ``delta + size G / ||G||`` for each sentence, then its ball; shapes as in `token_step`."""
    return functional.project(delta + size * functional.ascent_direction(gradient, norm=norm), radius, norm=norm)


def fgsm_step(delta: Tensor, gradient: Tensor, *, size: float, radius: float, norm: functional.Norm) -> Tensor:
    """RobustSentEmbed eq. 6: ``delta + size sign(G)``, then the sentence's ball; shapes as in `token_step`."""
    return functional.project(delta + size * gradient.sign(), radius, norm=norm)


@dataclasses.dataclass
class Chain:
    """One gradient ascent among several: where it starts, (N, L, e), its update (point, gradient) and its steps."""

    start: Tensor
    update: Callable[[Tensor, Tensor], Tensor]
    steps: int


def ascend_together(chains: Sequence[Chain], objective: Callable[[Tensor], Tensor]) -> list[Tensor]:
    """Independent ascents that share their forward and backward passes.

    Args:
        chains: all of one shape (N, L, e).
        objective: maps the C chains that are not done yet, (C, N, L, e), to the scalar sum of their objectives.

    Returns:
        The last point of each chain, detached.
    """
    points = [chain.start.detach() for chain in chains]
    done = 0
    for end in sorted({chain.steps for chain in chains if chain.steps > 0}):
        live = [i for i, chain in enumerate(chains) if chain.steps >= end]

        def update(point: Tensor, gradient: Tensor, live: list[int] = live) -> Tensor:
            return torch.stack([chains[i].update(p, g) for i, p, g in zip(live, point, gradient, strict=True)])

        last = functional.ascend(torch.stack([points[i] for i in live]), objective, update, steps=end - done)
        for i, point in zip(live, last, strict=True):
            points[i] = point
        done = end
    return points


class TokenTable(nn.Module):
    """The perturbation of every token of the vocabulary, shared by the corpus (after Li & Qiu 2021).

    The table is a buffer: saved, resumed, and the same on every process.

    Args:
        tokens: ``|V|``.
        width: e.
        start: its numbers are uniform in ``[-start, start] / sqrt(e)``.
    """

    def __init__(self, tokens: int, width: int, start: float = 0.0) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros(tokens, width))
        if start:
            self.rows.uniform_(-start, start).div_(width**0.5)

    def forward(self, input_ids: Tensor) -> Tensor:
        """(N, L) ids to (N, L, e)."""
        return self.rows[input_ids]

    @torch.no_grad()
    def write(self, input_ids: Tensor, words: Tensor, eta: Tensor) -> None:
        """Give each token of the global batch the mean of its perturbations there.

        Args:
            input_ids: (N, L); L may differ between processes.
            words: (N, L), the occurrences that count.
            eta: (N, L, e).
        """
        missing = maximum(input_ids.shape[1], input_ids.device) - input_ids.shape[1]
        pad = nn.functional.pad
        ids = gather_rows(pad(input_ids, (0, missing)))
        words = gather_rows(pad(words.to(torch.uint8), (0, missing))).bool()
        eta = gather_rows(pad(eta.to(self.rows.dtype), (0, 0, 0, missing)))[words]
        tokens, inverse, counts = ids[words].unique(return_inverse=True, return_counts=True)
        self.rows[tokens] = eta.new_zeros(len(tokens), eta.shape[1]).index_add(0, inverse, eta) / counts.unsqueeze(1)


def words_of(tokenizer: Any, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
    """(N, L): true for the tokens of the text, no padding and no special tokens (an unknown word is a word).

    Args:
        tokenizer: of the ids, or None if there is none: nothing is special then.
        input_ids: (N, L).
        attention_mask: (N, L).
    """
    special = set() if tokenizer is None else set(tokenizer.all_special_ids) - {tokenizer.unk_token_id}
    ids = torch.tensor(sorted(special), dtype=torch.long, device=input_ids.device)
    return attention_mask.bool() & ~torch.isin(input_ids, ids)


AUGMENTATIONS = ("dropout", "shuffle", "feature-cutoff", "token-cutoff", "span-cutoff")


def augment(embeds: Tensor, words: Tensor, *, kind: str, rate: float = 0.15) -> Tensor:
    """Another view of sentences for the positive pair, the strategies of DCLR's Figure 3 (after Yan et al. 2021).

    Args:
        embeds: (N, L, e) word embeddings, before positions are added.
        words: (N, L), true for the tokens that may change.
        kind: ``shuffle`` the words of each sentence; ``feature-cutoff``: set a random part of the components to 0, the
            same ones in all words of a sentence; ``token-cutoff``: set random words to 0; ``span-cutoff``: a span of
            words; ``dropout``: nothing, the encoder's dropout makes the difference.
        rate: the part that is cut, in [0, 1).

    Returns:
        (N, L, e).
    """
    count, length, width = embeds.shape
    device = embeds.device
    if kind == "dropout":
        return embeds
    if kind == "shuffle":
        place = torch.arange(length, device=device).expand(count, -1)
        # Words first, in order and at random; what is no word comes after them, in order both times.
        goes = torch.where(words, place, place + length).argsort(dim=1)
        comes = torch.where(words, torch.rand(count, length, device=device), place + 1.0).argsort(dim=1)
        source = place.clone().scatter_(1, goes, comes)
        return embeds.gather(1, source.unsqueeze(-1).expand(-1, -1, width))
    if kind == "feature-cutoff":
        cut = torch.rand(count, 1, width, device=device) < rate
        return embeds.masked_fill(cut & words.unsqueeze(-1), 0.0)
    if kind == "token-cutoff":
        cut = torch.rand(count, length, device=device) < rate
    else:
        total = words.sum(dim=1, keepdim=True)
        span = (rate * total).round()
        start = (torch.rand(count, 1, device=device) * (total - span + 1)).floor()
        number = words.cumsum(dim=1) - 1
        cut = (number >= start) & (number < start + span)
    return embeds.masked_fill((cut & words).unsqueeze(-1), 0.0)
