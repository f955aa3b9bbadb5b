"""Gradient caching: a large batch in chunks of rows, of which one at a time has its activations in memory.

After Gao et al. 2021 (GradCache), by torch's own checkpointing: the forward pass keeps the results of a chunk alone,
and the backward pass computes the chunk again, with the dropout masks that it had. The gradient is that of one pass,
and there is one backward pass, so that DDP sees each parameter's gradient once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint


def recomputed(function: Callable[..., Tensor], *arguments: Any) -> Tensor:
    """`function` of `arguments`, whose intermediate results are computed again when a gradient needs them.

    Args:
        function: gives the same result for the same arguments, dropout aside: its masks are drawn again.
        *arguments: among them every tensor on whose device it draws.
    """
    if not torch.is_grad_enabled():
        return function(*arguments)
    device = next(value.device.type for value in arguments if isinstance(value, Tensor))

    def once(*arguments: Any) -> Tensor:
        # Autocast would cast each weight once for all chunks, whose gradients of it would then add up in sixteen bits.
        with torch.autocast(
            device,
            dtype=torch.get_autocast_dtype(device),
            enabled=torch.is_autocast_enabled(device),
            cache_enabled=False,
        ):
            return function(*arguments)

    return checkpoint(once, *arguments, use_reentrant=False, preserve_rng_state=True)


def in_chunks(function: Callable[..., Tensor], *tensors: Tensor, rows: int | None) -> Tensor:
    """`function` of some rows after the others.

    Args:
        function: maps tensors (n, ...) to a result (m, ...).
        *tensors: (N, ...) each.
        rows: n at most; None, or at least N, calls `function` once, as it is.

    Returns:
        The results one after the other: (N, ...) where m = n.
    """
    if rows is None or len(tensors[0]) <= rows:
        return function(*tensors)
    pieces = zip(*(tensor.split(rows) for tensor in tensors), strict=True)
    return torch.cat([recomputed(function, *piece) for piece in pieces])


def mean_in_chunks(function: Callable[..., Tensor], *tensors: Tensor, rows: int | None) -> Tensor:
    """The mean over N rows of which `function` gives the mean over n; arguments as in `in_chunks`.

    Returns:
        A scalar.
    """
    if rows is None or len(tensors[0]) <= rows:
        return function(*tensors)
    pieces = zip(*(tensor.split(rows) for tensor in tensors), strict=True)
    return torch.stack([len(piece[0]) * recomputed(function, *piece) for piece in pieces]).sum() / len(tensors[0])
