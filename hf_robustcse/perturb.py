"""Perturbations of word embeddings: what every adversarial method shares."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch
from torch import Tensor, nn


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

    The divergence of two nearly equal distributions has gradients that float16 flushes to zero. The gradient scaler of
    training does not see attacks, so they bring a factor of their own; the other types need none.
    """
    half = torch.is_autocast_enabled(device.type) and torch.get_autocast_dtype(device.type) == torch.float16
    return 2.0**14 if half else 1.0


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
