"""What several processes must do together so that they compute what one process with the whole batch would.

Every function is the identity (or the plain draw) when there is one process.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from tqdm import tqdm

from hf_robustcse.errors import UserError


def world_size() -> int:
    """The number of processes that train together."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def rank() -> int:
    """This process' number, from 0."""
    return dist.get_rank() if world_size() > 1 else 0


def join_group() -> None:
    """Join the processes that ``torchrun`` or ``accelerate launch`` started, if any, for work other than training.

    By gloo, whatever the device: what is exchanged lies on the CPU, and who waits for another may wait for a week.
    """
    if dist.is_available() and dist.is_torchelastic_launched() and not dist.is_initialized():
        dist.init_process_group("gloo", timeout=timedelta(days=7))
        if torch.cuda.is_available():
            torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())


def leave_group() -> None:
    """Leave the process group, if there is one: its threads may abort a process that ends inside it."""
    if dist.is_available() and dist.is_initialized():
        dist.destroy_process_group()


class _AllReduceSum(torch.autograd.Function):
    """Sum over the processes; every process' loss depends on the sum, so gradients are summed as well."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        total = x.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        total = grad.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)
        return total


class _AllGather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.rows = x.shape[0]
        parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(world_size())]
        dist.all_gather(parts, x.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        total = grad.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total)  # gloo has no reduce_scatter
        return total[rank() * ctx.rows : (rank() + 1) * ctx.rows]


def all_reduce_sum(x: Tensor) -> Tensor:
    """The sum of `x` over the processes, differentiable; the same shape."""
    return _AllReduceSum.apply(x) if world_size() > 1 else x


def gather_rows(x: Tensor) -> Tensor:
    """The rows of all processes in their order, differentiable.

    With a loss that is the mean over the local rows, and gradients averaged over the processes as DDP does, the
    gradient is exactly that of one process with the whole batch.

    Args:
        x: (n, ...), n the same on every process.

    Returns:
        (world_size * n, ...).
    """
    return _AllGather.apply(x) if world_size() > 1 else x


def maximum(value: int, device: torch.device) -> int:
    """The largest of the processes' values."""
    if world_size() == 1:
        return value
    tensor = torch.tensor(value, device=device)
    dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    return int(tensor)


def shared_normal(like: Tensor, *, seed: int) -> Tensor:
    """Standard normal noise that does not depend on how the global batch is spread over the processes.

    The noise of the whole batch is drawn from one seed and each process keeps its own rows. The second dimension
    (tokens) may differ between processes: the widest counts.

    Args:
        like: (n, ...), n the same on every process; gives shape, dtype and device.
        seed: the same on every process.

    Returns:
        Noise of the shape of `like`.
    """
    shape = list(like.shape)
    rows, shape[0] = shape[0], shape[0] * world_size()
    if len(shape) > 2:
        shape[1] = maximum(shape[1], like.device)
    generator = torch.Generator(like.device).manual_seed(seed)
    noise = torch.randn(shape, generator=generator, dtype=like.dtype, device=like.device)
    noise = noise[rank() * rows : (rank() + 1) * rows]
    return noise[:, : like.shape[1]] if len(shape) > 2 else noise


def encode_together(
    encode: Callable[[list[Any]], Tensor],
    sentences: Sequence[Any],
    *,
    width: int,
    batch_size: int,
    lengths: Sequence[int] | None = None,
    device: str | torch.device = "cpu",
    progress: bool = False,
    alone: bool = False,
) -> Tensor:
    """Embed texts in batches of similar length, each process its share.

    The texts are sorted, the longest first, cut into batches, and the batches dealt out in turn: every process has as
    many, of nearly the same lengths, and they are the same batches however many processes there are, so that the
    embeddings are too.

    Args:
        encode: the texts of one batch -> (m, width).
        sentences: n texts, in whatever form `encode` reads, the same on every process.
        width: of an embedding.
        batch_size: texts in a batch.
        lengths: of the n texts, in tokens if they are known; None takes `len`.
        device: on which the group exchanges tensors.
        progress: show a bar on stderr.
        alone: this process embeds all of them; the others may have other texts, or none.

    Returns:
        (n, width) float32 on the CPU, in the order of `sentences`, on every process.
    """
    size, n = 1 if alone else world_size(), len(sentences)
    lengths = list(map(len, sentences)) if lengths is None else lengths
    order = sorted(range(n), key=lambda i: -lengths[i])
    batches = [order[start : start + batch_size] for start in range(0, n, batch_size)]
    shares = [batches[process::size] for process in range(size)]
    x = torch.zeros(sum(map(len, shares[0])), width)  # no share has more texts than the first
    start = 0
    for batch in tqdm(shares[0 if alone else rank()], desc="encoding", unit="batch", disable=not progress):
        x[start : start + len(batch)] = encode([sentences[i] for i in batch]).cpu()
        start += len(batch)
    parts = gather_rows(x.to(device)).cpu().view(size, len(x), width) if n and size > 1 else x[None]
    out = torch.empty(n, width)
    for share, part in zip(shares, parts, strict=bool(n)):
        rows = [i for batch in share for i in batch]
        out[rows] = part[: len(rows)]
    return out


def all_here() -> None:
    """Wait until every process is here."""
    if world_size() > 1:
        dist.barrier()


def on_first(work: Callable[[], Any]) -> Any:
    """Do something on the first process while the others wait; what it returns, or its `UserError`, is everyone's.

    Args:
        work: returns plain values.

    Raises:
        UserError: on every process, if it was raised.
    """
    outcome: list[Any] = [None, None]
    if rank() == 0:
        try:
            outcome[0] = work()
        except UserError as error:
            outcome[1] = str(error)
    if world_size() > 1:
        dist.broadcast_object_list(outcome)
    if outcome[1] is not None:
        raise UserError(outcome[1])
    return outcome[0]


def gather_lists(values: list[Any]) -> list[Any]:
    """The values of all processes, one list after the other.

    Args:
        values: of this process; they may differ in number.
    """
    if world_size() == 1:
        return list(values)
    lists: list[Any] = [None] * world_size()
    dist.all_gather_object(lists, values)
    return [value for one in lists for value in one]


def say(*lines: str) -> None:
    """Print on the main process."""
    if rank() == 0:
        print(*lines, sep="\n", flush=True)
