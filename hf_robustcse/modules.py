"""Poolers, projection heads and normalisations, as torch modules."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from hf_robustcse.distributed import all_reduce_sum, shared_normal, world_size

POOLERS = ("cls", "mean", "first-last", "top-two")
HEADS = ("none", "tanh", "mlp")


class Pooler(nn.Module):
    """Token vectors to one sentence vector.

    Args:
        kind: ``cls``, the first token; ``mean`` over the real tokens; ``first-last``, the mean over the tokens of the
            average of the first and the last layer; ``top-two``, of the last two layers (as in SimCSE's evaluation).
    """

    def __init__(self, kind: str) -> None:
        super().__init__()
        if kind not in POOLERS:
            raise ValueError(f"pooler must be one of {', '.join(POOLERS)}, not {kind!r}")
        self.kind = kind

    @property
    def layers(self) -> tuple[int, int] | None:
        """The two hidden states that are averaged (0 is the embedding layer), or None for the last one alone."""
        return {"first-last": (1, -1), "top-two": (-2, -1)}.get(self.kind)

    def forward(self, tokens: Tensor, attention_mask: Tensor) -> Tensor:
        """Pool (N, L, d) token vectors under a (N, L) mask into (N, d)."""
        if self.kind == "cls":
            return tokens[:, 0]
        mask = attention_mask.unsqueeze(-1).to(tokens.dtype)
        return (tokens * mask).sum(dim=1) / mask.sum(dim=1).clamp_min(1e-9)

    def extra_repr(self) -> str:
        return self.kind


class _Dropout(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, p: float) -> Tensor:
        # 16 random bits decide: an eighth of the time that torch takes on CPUs which MKL does not draw for.
        drop = round(p * 2**16)
        bits = torch.empty((x.numel() + 3) // 4, dtype=torch.int64, device="cpu").random_(-(2**63), None)
        keep = torch.from_numpy(bits.numpy().view("int16")[: x.numel()] >= drop - 2**15).view(x.shape)
        ctx.save_for_backward(keep)
        ctx.scale = 2**16 / (2**16 - drop)
        return (x * keep).mul_(ctx.scale)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (keep,) = ctx.saved_tensors
        return (grad * keep).mul_(ctx.scale), None


def dropout(x: Tensor, p: float) -> Tensor:
    """``nn.functional.dropout`` in training; on the CPU p is rounded to a multiple of 2^-16, and it is faster."""
    if x.device.type != "cpu" or p >= 1 - 2**-16 or torch.compiler.is_compiling():
        return nn.functional.dropout(x, p)
    return _Dropout.apply(x, p)


class Dropout(nn.Dropout):
    """`dropout` as a module."""

    def forward(self, x: Tensor) -> Tensor:
        """The same shape."""
        return dropout(x, self.p) if self.training and self.p > 0 else x


def use_fast_dropout(module: nn.Module) -> None:
    """Replace every plain ``nn.Dropout`` in a module by `Dropout`."""
    for parent in list(module.modules()):
        for name, child in parent.named_children():
            if type(child) is nn.Dropout:
                setattr(parent, name, Dropout(child.p).train(child.training))


class BatchNorm(nn.BatchNorm1d):
    """Batch normalisation whose statistics are those of the batches of all processes together.

    ``torch.nn.SyncBatchNorm`` does this on GPUs only; here it also holds on CPU, so that a run on several processes
    has the gradient of one process with the whole batch wherever it runs. Input (N, d), N at least 2 while training.
    While `tracking` is false, training passes leave the running statistics as they are.
    """

    tracking = True

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or (world_size() == 1 and self.tracking):
            return super().forward(x)
        if world_size() == 1:
            return nn.functional.batch_norm(x, None, None, self.weight, self.bias, training=True, eps=self.eps)
        wide = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
        count = all_reduce_sum(wide.new_tensor(float(wide.shape[0])))
        mean = all_reduce_sum(wide.sum(dim=0)) / count
        centred = wide - mean
        variance = all_reduce_sum(centred.square().sum(dim=0)) / count
        if self.tracking:
            with torch.no_grad():
                self.num_batches_tracked += 1
                self.running_mean.lerp_(mean.to(self.running_mean.dtype), self.momentum)
                self.running_var.lerp_((variance * count / (count - 1)).to(self.running_var.dtype), self.momentum)
        normalised = centred * torch.rsqrt(variance + self.eps)
        return (normalised * self.weight + self.bias if self.affine else normalised).to(x.dtype)


@contextlib.contextmanager
def statistics_frozen(module: nn.Module) -> Iterator[None]:
    """Passes in here normalise by their own batch, as in training, and leave no trace in the running statistics."""
    norms = [child for child in module.modules() if isinstance(child, BatchNorm)]
    for norm in norms:
        norm.tracking = False
    try:
        yield
    finally:
        for norm in norms:
            norm.tracking = True


class Head(nn.Sequential):
    """The projection head g of training: ``tanh`` is SimCSE's Linear-Tanh, ``mlp`` V-advCSE's two layers with BN.

    The ``mlp`` is Linear, BatchNorm, ReLU, Linear, BatchNorm, where the last normalisation has no scale and shift of
    its own, as is usual for contrastive heads; both linear layers precede a normalisation and so have no bias.
    """

    def __init__(self, kind: str, width: int) -> None:
        if kind not in HEADS:
            raise ValueError(f"head must be one of {', '.join(HEADS)}, not {kind!r}")
        if kind == "tanh":
            layers = [nn.Linear(width, width), nn.Tanh()]
        elif kind == "mlp":
            layers = [
                nn.Linear(width, width, bias=False), BatchNorm(width), nn.ReLU(),
                nn.Linear(width, width, bias=False), BatchNorm(width, affine=False),
            ]  # fmt: skip
        else:
            layers = []
        super().__init__(*layers)
        self.kind = kind
        for layer in layers:
            if isinstance(layer, nn.Linear):  # as transformers initialises a new layer, and so SimCSE's head
                nn.init.normal_(layer.weight, std=0.02)
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)

    def dense_layers(self) -> list[tuple[Tensor, Tensor, str]]:
        """The head at inference as (weight, bias, activation class) triples, batch normalisation folded in."""
        if self.kind == "none":
            return []
        if self.kind == "tanh":
            return [(self[0].weight.detach(), self[0].bias.detach(), "torch.nn.modules.activation.Tanh")]
        first, first_norm, _, second, second_norm = self
        return [
            (*_fold(first, first_norm), "torch.nn.modules.activation.ReLU"),
            (*_fold(second, second_norm), "torch.nn.modules.linear.Identity"),
        ]


def _fold(linear: nn.Linear, norm: nn.BatchNorm1d) -> tuple[Tensor, Tensor]:
    scale = torch.rsqrt(norm.running_var.double() + norm.eps)
    shift = -norm.running_mean.double() * scale
    if norm.affine:
        scale, shift = scale * norm.weight.detach().double(), shift * norm.weight.detach().double()
        shift = shift + norm.bias.detach().double()
    weight = linear.weight.detach()
    return (weight.double() * scale[:, None]).to(weight.dtype), shift.to(weight.dtype)


class SharedNoise(nn.Module):
    """Standard normal noise for the global batch, another one at every call.

    The calls are counted in a buffer: a resumed run draws what an uninterrupted one would have drawn.
    """

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seed", torch.zeros((), dtype=torch.long))
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))

    def forward(self, like: Tensor) -> Tensor:
        """Noise of the shape, type and device of `like` (n, ...), see `distributed.shared_normal`."""
        return shared_normal(like, seed=self._next())

    def rows(self, count: int, like: Tensor) -> Tensor:
        """`count` rows of noise, the same ones on every process; the width, type and device of `like` (n, d)."""
        generator = torch.Generator(like.device).manual_seed(self._next())
        return torch.randn(count, like.shape[1], generator=generator, dtype=like.dtype, device=like.device)

    def _next(self) -> int:
        seed = (int(self.seed) << 32) + int(self.calls)
        self.calls += 1
        return seed


class _PowerNormFunction(torch.autograd.Function):
    """DCL eq. 9: both passes use the running statistic, so the backward one is not the forward one's derivative."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, psi: Tensor, nu: Tensor, decay: float) -> Tensor:
        normalised = x / psi
        ctx.save_for_backward(normalised, weight, psi)
        ctx.nu, ctx.decay = nu, decay
        return weight * normalised + bias

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        normalised, weight, psi = ctx.saved_tensors
        scaled = weight * grad
        nu = ctx.nu
        grad_x = (scaled - nu * normalised) / psi
        count = all_reduce_sum(grad.new_tensor(float(grad.shape[0])))
        gamma = all_reduce_sum(normalised.square().sum(dim=0)) / count
        # nu is in the units of the gradients that arrive here: with W processes W times those of one process with the
        # whole batch, as every gradient before DDP takes the mean.
        lam = all_reduce_sum((scaled * normalised).sum(dim=0)) / count
        nu.mul_(1 - (1 - ctx.decay) * gamma).add_((1 - ctx.decay) * lam)
        return grad_x, (grad * normalised).sum(dim=0), grad.sum(dim=0), None, None, None


class PowerNorm(nn.Module):
    """Power normalisation with running statistics in both passes, DCL eq. 9 (after Shen et al. 2020).

    Forward: ``X / psi * weight + bias`` with the running quadratic mean psi of the steps before, which is then moved
    towards the batch's: ``psi^2 += (1 - alpha_fwd) (mean(X^2) - psi^2)``. During the first `warmup_steps` training
    steps the batch's own quadratic mean normalises instead, while the running one is already being gathered.
    Backward: ``dX = (weight * dY - nu * X_hat) / psi``, then
    ``nu = nu (1 - (1 - alpha_bwd) mean(X_hat^2)) + (1 - alpha_bwd) mean(weight * dY * X_hat)``.
    Evaluation uses psi. Statistics are those of all processes' rows together.

    Args:
        num_features: d; the input is (N, d).
        alpha_fwd: decay of psi^2, in [0, 1).
        alpha_bwd: decay of nu, in [0, 1).
        warmup_steps: training steps that use the batch's quadratic mean.
        eps: added under the root that gives psi.
    """

    def __init__(
        self,
        num_features: int,
        alpha_fwd: float = 0.9,
        alpha_bwd: float = 0.9,
        warmup_steps: int = 1000,
        eps: float = 1e-5,
    ) -> None:
        super().__init__()
        self.num_features, self.alpha_fwd, self.alpha_bwd = num_features, alpha_fwd, alpha_bwd
        self.warmup_steps, self.eps = warmup_steps, eps
        self.weight = nn.Parameter(torch.ones(num_features))
        self.bias = nn.Parameter(torch.zeros(num_features))
        self.register_buffer("psi2", torch.ones(num_features))
        self.register_buffer("nu", torch.zeros(num_features))
        self.register_buffer("steps", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        """Normalise (N, d)."""
        if x.dim() != 2 or x.shape[1] != self.num_features:
            raise ValueError(f"PowerNorm({self.num_features}) needs (N, {self.num_features}), not {tuple(x.shape)}")
        if not self.training:
            return self.weight * (x / (self.psi2 + self.eps).sqrt()) + self.bias
        x = x.to(self.psi2.dtype)  # the square of a float16 overflows early
        with torch.no_grad():
            count = all_reduce_sum(x.new_tensor(float(x.shape[0])))
            batch = all_reduce_sum(x.square().sum(dim=0)) / count
            square = batch if int(self.steps) < self.warmup_steps else self.psi2.clone()
            psi = (square + self.eps).sqrt()
            self.psi2.add_((1 - self.alpha_fwd) * (batch - self.psi2))
            self.steps += 1
        return _PowerNormFunction.apply(x, self.weight, self.bias, psi, self.nu, self.alpha_bwd)
