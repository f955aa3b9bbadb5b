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
