"""The papers' equations as pure functions, and the one gradient-ascent loop that every attack uses.

Tensors are float32 or float64 on any device; half-precision inputs are computed in float32, autocast or not, because a
similarity divided by a temperature of 0.05 and a softmax over it lose too much in sixteen bits. No similarity is ever
taken by broadcasting: an ``(N, M, d)`` tensor does not exist here.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor

from hf_robustcse.chunks import in_chunks

Norm = Literal["linf", "l2", "l1"]
Per = Literal["token", "sentence"]
Divergence = Literal["js", "kl", "skl"]

NORMS = ("linf", "l2", "l1")
PERS = ("token", "sentence")
DIVERGENCES = ("js", "kl", "skl")
ORDERS = {"linf": math.inf, "l2": 2, "l1": 1}
"""Norm -> the order that ``torch.linalg.vector_norm`` takes."""


def _full_precision(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """Compute in float32 or wider with autocast off: half-precision tensors among the arguments are widened."""

    def widen(value: Any) -> Any:
        half = isinstance(value, Tensor) and value.dtype in (torch.float16, torch.bfloat16)
        return value.float() if half else value

    @functools.wraps(function)
    def wrapped(*args: Any, **kwargs: Any) -> Tensor:
        device = next(value.device for value in (*args, *kwargs.values()) if isinstance(value, Tensor))
        with torch.autocast(device.type, enabled=False):
            return function(*map(widen, args), **{key: widen(value) for key, value in kwargs.items()})

    return wrapped


def _check_matrix(**tensors: Tensor) -> None:
    for name, tensor in tensors.items():
        if tensor.dim() != 2:
            raise ValueError(f"{name} must have shape (rows, d), not {tuple(tensor.shape)}")
    widths = {tensor.shape[1] for tensor in tensors.values()}
    if len(widths) > 1:
        shapes = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in tensors.items())
        raise ValueError(f"the embeddings must have one width: {shapes}")


def _check_same(**tensors: Tensor) -> None:
    shapes = {tuple(tensor.shape) for tensor in tensors.values()}
    if len(shapes) > 1:
        raise ValueError(
            "the shapes must be equal: " + ", ".join(f"{name} {tuple(t.shape)}" for name, t in tensors.items())
        )


def _check_positive(**values: float) -> None:
    for name, value in values.items():
        if not (value > 0 and math.isfinite(value)):
            raise ValueError(f"{name} must be a positive number, not {value}")


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(choices)}, not {value!r}")


def _unit_rows(x: Tensor) -> Tensor:
    """Rows of L2 norm 1; a zero row stays zero.

    The largest magnitude is divided out first, so that a row whose square over- or underflows is still right; the
    quotient does not depend on it, so it may count as a constant for the gradient.
    """
    if x.numel() == 0:
        return x
    largest = x.detach().abs().amax(dim=-1, keepdim=True)
    zero = largest == 0
    scaled = x / largest.masked_fill(zero, 1.0)
    norm = torch.linalg.vector_norm(scaled, dim=-1, keepdim=True)
    return scaled / norm.masked_fill(zero, 1.0)


@_full_precision
def cosine_matrix(a: Tensor, b: Tensor) -> Tensor:
    """Cosine similarity of every row of `a` with every row of `b`, as one matrix product.

    Args:
        a: (N, d).
        b: (M, d).

    Returns:
        (N, M), in [-1, 1] up to rounding; a zero vector has similarity 0 with everything.

    Raises:
        ValueError: if the shapes do not fit.

    >>> cosine_matrix(torch.tensor([[3.0, 0.0], [0.0, 0.0]]), torch.tensor([[1.0, 0.0], [0.0, 2.0]]))
    tensor([[1., 0.],
            [0., 0.]])
    """
    _check_matrix(a=a, b=b)
    return _unit_rows(a) @ _unit_rows(b).T


def _log_weights(name: str, weights: Tensor, shape: tuple[int, int]) -> Tensor:
    """Logarithms of multipliers of exp(similarity); a weight of exactly 0 gives -inf, which removes the term."""
    if tuple(weights.shape) != shape:
        raise ValueError(f"{name} must have shape {shape}, not {tuple(weights.shape)}")
    if bool((weights < 0).any()):
        raise ValueError(f"{name} must not be negative")
    removed = weights == 0
    return weights.masked_fill(removed, 1.0).log().masked_fill(removed, -math.inf)


@_full_precision
def info_nce(
    anchors: Tensor,
    positives: Tensor,
    *,
    temperature: float = 0.05,
    noise: Tensor | None = None,
    noise_weight: float | Tensor = 1.0,
    negative_weights: Tensor | None = None,
    extra_positives: Tensor | None = None,
    hard_negatives: Tensor | None = None,
    hard_negative_weights: Tensor | None = None,
    decoupled: bool = False,
    offset: int | None = None,
) -> Tensor:
    """InfoNCE with every extension that the papers make to its denominator.

    SimCSE section 3 (Gao et al. 2021), its supervised form with hard negatives, GS-InfoNCE's noise negatives
    (Wu et al. 2021) and DCLR eq. 6 (Zhou et al. 2022)::

        l_i = -log exp(s(h_i, p_i)/t) / ( [exp(s(h_i, p_i)/t)] + sum_{j != i} w_ij exp(s(h_i, p_j)/t)
                                          + sum_j v_ij exp(s(h_i, q_j)/t) + c sum_k exp(s(h_i, g_k)/t) )

    with the cosine similarity s, `negative_weights` w, `hard_negatives` q and their weights v, `noise` g and its
    weight c. With `extra_positives` (RobustSentEmbed eq. 9) the positive's term is the sum over all kinds of
    positives, and the negatives are those of the other rows, of every kind.

    Args:
        anchors: (n, d); rows are h_i. n = N, or fewer with `offset`.
        positives: (N, d); row i (``offset + i``) belongs to anchor i, the others are its in-batch negatives.
        temperature: t, above 0.
        noise: (M, d) negatives shared by all anchors.
        noise_weight: c, at least 0: a number, or a tensor that broadcasts to (n, M).
        negative_weights: (n, N) multipliers, at least 0; a weight of exactly 0 removes the term whatever its
            similarity. The entry of the positive is ignored. They hold for every kind of positive.
        extra_positives: (P, N, d), P more positives of each row.
        hard_negatives: (N, d); all of them are negatives of every anchor.
        hard_negative_weights: (n, N) multipliers of the hard negatives' terms.
        decoupled: leave the positive out of the denominator, as DCLR eq. 6 is printed (the loss can then be
            negative). This is the *decoupled* loss; it has nothing to do with DCL, *disentangled* learning.
        offset: for a process that holds only its n rows of a global batch of N: where its own positives begin.

    Returns:
        The mean of l_i over the anchors, a scalar in nats.

    Raises:
        ValueError: for shapes that do not fit, a temperature that is not positive, negative weights, or a decoupled
            loss in which some anchor has no negative left.

    >>> x = torch.eye(2)
    >>> round(info_nce(x, x, temperature=1.0).item(), 4)  # log(1 + exp(-1))
    0.3133
    """
    _check_matrix(anchors=anchors, positives=positives)
    _check_positive(temperature=temperature)
    count, total = anchors.shape[0], positives.shape[0]
    if offset is None:
        _check_same(anchors=anchors, positives=positives)
        offset = 0
    if count == 0 or offset < 0 or offset + count > total:
        raise ValueError(
            f"anchors {tuple(anchors.shape)} at offset {offset} do not fit positives {tuple(positives.shape)}"
        )
    if not isinstance(noise_weight, Tensor) and noise_weight < 0:
        raise ValueError(f"noise_weight must not be negative, not {noise_weight}")
    rows = torch.arange(count, device=anchors.device)
    own = rows + offset
    unit = _unit_rows(anchors)
    log_weights = None
    if negative_weights is not None:
        log_weights = _log_weights("negative_weights", negative_weights, (count, total)).to(unit.dtype)
        log_weights = log_weights.index_put((rows, own), log_weights.new_zeros(()))
    kinds = [positives]
    if extra_positives is not None:
        if extra_positives.dim() != 3 or extra_positives.shape[1:] != positives.shape:
            raise ValueError(
                f"extra_positives must have shape (P, {total}, {positives.shape[1]}), not "
                f"{tuple(extra_positives.shape)}"
            )
        kinds.extend(extra_positives)
    blocks, positive = [], []
    for kind in kinds:
        logits = unit @ _unit_rows(kind).T / temperature
        positive.append(logits[rows, own])
        if log_weights is not None:
            logits = logits + log_weights
        if decoupled:
            logits = logits.index_put((rows, own), logits.new_tensor(-math.inf))
        blocks.append(logits)
    if hard_negatives is not None:
        _check_same(positives=positives, hard_negatives=hard_negatives)
        hard = unit @ _unit_rows(hard_negatives).T / temperature
        if hard_negative_weights is not None:
            hard = hard + _log_weights("hard_negative_weights", hard_negative_weights, (count, total)).to(hard.dtype)
        blocks.append(hard)
    if noise is not None and noise.shape[0] > 0 and (isinstance(noise_weight, Tensor) or noise_weight > 0):
        _check_matrix(anchors=anchors, noise=noise)
        logits = unit @ _unit_rows(noise).T / temperature
        if isinstance(noise_weight, Tensor):
            shape = (count, noise.shape[0])
            logits = logits + _log_weights("noise_weight", noise_weight.expand(shape), shape).to(logits.dtype)
        else:
            logits = logits + math.log(noise_weight)
        blocks.append(logits)
    terms = torch.cat(blocks, dim=1)
    if decoupled and bool(torch.isneginf(terms).all(dim=1).any()):
        raise ValueError("decoupled=True leaves some anchor without any negative: the loss is not defined")
    attracted = positive[0] if len(positive) == 1 else torch.logsumexp(torch.stack(positive), dim=0)
    return (torch.logsumexp(terms, dim=1) - attracted).mean()


@_full_precision
def multi_positive_info_nce(anchors: Tensor, positives: Tensor, *, temperature: float = 0.05) -> Tensor:
    """RobustSentEmbed eq. 9: InfoNCE with several positives for each anchor.

    ``l_i = -log sum_p exp(s(h_i, p_i)/t) / sum_p sum_j exp(s(h_i, p_j)/t)``: the negatives of i are the positives of
    the other rows, of every kind.

    Args:
        anchors: (N, d).
        positives: (P, N, d).
        temperature: t, above 0.

    Returns:
        The mean over the anchors, a scalar in nats.

    Raises:
        ValueError: for shapes that do not fit or a temperature that is not positive.
    """
    _check_positive(temperature=temperature)
    if anchors.dim() != 2 or positives.dim() != 3 or positives.shape[0] == 0 or positives.shape[1:] != anchors.shape:
        raise ValueError(
            f"expected anchors (N, d) and positives (P, N, d), not {tuple(anchors.shape)} and {tuple(positives.shape)}"
        )
    return info_nce(anchors, positives[0], extra_positives=positives[1:], temperature=temperature)


@_full_precision
def divergence(p_logits: Tensor, q_logits: Tensor, *, kind: Divergence = "js") -> Tensor:
    """Divergence of two softmax distributions, V-advCSE eq. 11-14.

    Args:
        p_logits: (N, C), the logits of P.
        q_logits: (N, C), the logits of Q.
        kind: ``kl`` is KL(P||Q); ``skl`` its symmetric mean, (KL(P||Q) + KL(Q||P)) / 2; ``js`` the Jensen-Shannon
            divergence with M = (P + Q) / 2, between 0 and ln 2.

    Returns:
        The mean over the rows, a scalar in nats.

    Raises:
        ValueError: for shapes that differ or an unknown kind.
    """
    _check_choice("kind", kind, DIVERGENCES)
    _check_matrix(p_logits=p_logits, q_logits=q_logits)
    _check_same(p_logits=p_logits, q_logits=q_logits)
    log_p, log_q = p_logits.log_softmax(dim=1), q_logits.log_softmax(dim=1)
    if kind == "kl":
        return (log_p.exp() * (log_p - log_q)).sum(dim=1).mean()
    if kind == "skl":
        return 0.5 * ((log_p.exp() - log_q.exp()) * (log_p - log_q)).sum(dim=1).mean()
    log_m = torch.logaddexp(log_p, log_q) - math.log(2)
    return 0.5 * (log_p.exp() * (log_p - log_m) + log_q.exp() * (log_q - log_m)).sum(dim=1).mean()


def _groups(x: Tensor, per: Per) -> Tensor:
    """(N, L, d) as (groups, features): one group per token, or one per sentence."""
    _check_choice("per", per, PERS)
    if x.dim() != 3:
        raise ValueError(f"a perturbation must have shape (N, L, d), not {tuple(x.shape)}")
    return x.reshape(-1, x.shape[2]) if per == "token" else x.reshape(x.shape[0], -1)


@_full_precision
def project(delta: Tensor, radius: float, *, norm: Norm = "linf", per: Per = "sentence") -> Tensor:
    """The Euclidean projection of each token's or sentence's perturbation onto a ball around zero.

    RobustSentEmbed eq. 4-6 and V-advCSE Algorithm 1. For ``l1`` this is the true projection (Duchi et al. 2008), which
    shrinks every component by one threshold, not a rescaling.

    Args:
        delta: (N, L, d).
        radius: of the ball, at least 0.
        norm: linf, l2 or l1.
        per: whether each token (d numbers) or each sentence (L * d numbers) has a ball of its own.

    Returns:
        (N, L, d); what lies inside its ball is unchanged.

    Raises:
        ValueError: for another shape, a negative radius, or an unknown norm or per.
    """
    _check_choice("norm", norm, NORMS)
    groups = _groups(delta, per)
    if not radius >= 0:
        raise ValueError(f"radius must not be negative, not {radius}")
    if norm == "linf":
        return delta.clamp(-radius, radius)
    if radius == 0:
        return torch.zeros_like(delta)
    if groups.numel() == 0:
        return delta
    if norm == "l2":
        largest = groups.abs().amax(dim=1, keepdim=True)
        scaled = groups / largest.masked_fill(largest == 0, 1.0)
        size = torch.linalg.vector_norm(scaled, dim=1, keepdim=True)
        projected = torch.where(size * largest > radius, scaled * (radius / size.masked_fill(size == 0, 1.0)), groups)
    else:
        magnitude = groups.abs()
        descending = magnitude.sort(dim=1, descending=True).values
        largest = descending[:, :1]
        descending = descending - largest  # the threshold is a small difference of large sums otherwise
        excess = descending.cumsum(dim=1) - radius
        index = torch.arange(1, groups.shape[1] + 1, device=groups.device, dtype=groups.dtype)
        kept = (descending * index > excess).sum(dim=1, keepdim=True).clamp_min(1)
        threshold = excess.gather(1, kept - 1) / kept
        shrunk = groups.sign() * (magnitude - largest - threshold).clamp_min(0)
        projected = torch.where(magnitude.sum(dim=1, keepdim=True) > radius, shrunk, groups)
    return projected.reshape(delta.shape)


@_full_precision
def ascent_direction(grad: Tensor, *, norm: Norm = "l2", per: Per = "sentence") -> Tensor:
    """``grad / ||grad||`` for each token or sentence, RobustSentEmbed eq. 3 and 5; zero where the gradient is zero.

    Args:
        grad: (N, L, d).
        norm: linf, l2 or l1.
        per: token or sentence.

    Returns:
        (N, L, d), of norm 1 or 0 in each group, also for gradients whose square over- or underflows.

    Raises:
        ValueError: for another shape or an unknown norm or per.
    """
    _check_choice("norm", norm, NORMS)
    groups = _groups(grad, per)
    if groups.numel() == 0:
        return grad
    largest = groups.abs().amax(dim=1, keepdim=True)
    scaled = groups / largest.masked_fill(largest == 0, 1.0)
    size = torch.linalg.vector_norm(scaled, ord=ORDERS[norm], dim=1, keepdim=True)
    return (scaled / size.masked_fill(size == 0, 1.0)).reshape(grad.shape)


def ascend(
    start: Tensor,
    objective: Callable[[Tensor], Tensor],
    update: Callable[[Tensor, Tensor], Tensor],
    *,
    steps: int,
) -> Tensor:
    """Gradient ascent on an input: the one loop behind V-advCSE, PGD, FGSM and DCLR's noise.

    Only the gradient with respect to the input is taken (``torch.autograd.grad``): the ``.grad`` of every parameter
    stays as it was, so that accumulated gradients, DDP hooks and a gradient scaler never notice the attack.

    Args:
        start: where to begin, any shape; not changed.
        objective: maps the input to a scalar.
        update: maps (input, gradient) to the next input.
        steps: how many.

    Returns:
        The last input, detached.
    """
    point = start.detach()
    for _ in range(steps):
        with torch.enable_grad():
            point = point.detach().requires_grad_(True)
            (gradient,) = torch.autograd.grad(objective(point), point)
        with torch.no_grad():
            point = update(point.detach(), gradient)
    return point.detach()


@_full_precision
def ascend_noise(
    noise: Tensor,
    anchors: Tensor,
    positives: Tensor,
    *,
    steps: int = 4,
    lr: float = 1e-3,
    temperature: float = 0.05,
    relative: bool = False,
    rows: int | None = None,
) -> Tensor:
    """DCLR eq. 2-4: noise negatives moved towards the least uniform place by normalised gradient ascent.

    ``g_j <- g_j + lr * G_j / ||G_j||`` with the gradient G of
    ``L_U = mean_i -log exp(s(h_i, p_i)/t) / sum_j exp(s(h_i, g_j)/t)``.

    Args:
        noise: (M, d), M at least 1; not changed.
        anchors: (N, d), constants here.
        positives: (N, d), constants here.
        steps: how many.
        lr: the length of a step; under cosine similarity 1e-3 hardly turns a vector of norm sqrt(d).
        temperature: t, above 0.
        relative: measure the step in units of ``||g_j||``.
        rows: anchors whose similarities are in memory at a time; None for all of them.

    Returns:
        (M, d), detached.

    Raises:
        ValueError: for shapes that do not fit or a temperature that is not positive.
    """
    _check_matrix(noise=noise, anchors=anchors, positives=positives)
    _check_same(anchors=anchors, positives=positives)
    _check_positive(temperature=temperature)
    unit = _unit_rows(anchors.detach())
    positive = (unit * _unit_rows(positives.detach())).sum(dim=1) / temperature

    def objective(point: Tensor) -> Tensor:
        keys = _unit_rows(point).T
        uniform = in_chunks(lambda some: torch.logsumexp(some @ keys / temperature, dim=1), unit, rows=rows)
        return (uniform - positive).mean()

    def update(point: Tensor, gradient: Tensor) -> Tensor:
        step = lr * torch.linalg.vector_norm(point, dim=1, keepdim=True) if relative else lr
        return point + step * _unit_rows(gradient)

    return ascend(noise, objective, update, steps=steps)


@_full_precision
def instance_weights(similarity: Tensor, threshold: float) -> Tensor:
    """DCLR eq. 5: weight 0 for a negative that the complementary model finds too similar, 1 for the others.

    Args:
        similarity: (N, N), similarities under the complementary model.
        threshold: phi; a similarity equal to it already has weight 0.

    Returns:
        (N, N) of 0 and 1, 1 on the diagonal.

    Raises:
        ValueError: unless the similarities are a square matrix.
    """
    if similarity.dim() != 2 or similarity.shape[0] != similarity.shape[1]:
        raise ValueError(f"similarity must have shape (N, N), not {tuple(similarity.shape)}")
    return (similarity < threshold).to(similarity.dtype).fill_diagonal_(1.0)


@_full_precision
def alignment(x: Tensor, y: Tensor, *, alpha: float = 2) -> Tensor:
    """``mean ||x_i - y_i||^alpha`` over positive pairs on the unit sphere (Wang & Isola 2020), lower is better.

    Args:
        x: (N, d); normalised here.
        y: (N, d); row i is the positive of x's row i.
        alpha: the exponent.

    Returns:
        A scalar between 0 and 2 ** alpha.

    Raises:
        ValueError: for shapes that differ, or no pair.
    """
    _check_matrix(x=x, y=y)
    _check_same(x=x, y=y)
    if x.shape[0] == 0:
        raise ValueError("alignment needs at least one pair")
    squared = (_unit_rows(x) - _unit_rows(y)).square().sum(dim=1)
    if alpha != 2:  # below 2 the power has no gradient at a distance of zero
        apart = squared > 0
        squared = squared.where(apart, 1.0).pow(alpha / 2) * apart
    return squared.mean()


@_full_precision
def uniformity(x: Tensor, *, t: float = 2) -> Tensor:
    """``log mean exp(-t ||x_i - x_j||^2)`` over distinct pairs on the unit sphere (Wang & Isola 2020), lower is better.

    Args:
        x: (N, d), N at least 2; normalised here.
        t: the scale of the Gaussian potential.

    Returns:
        A scalar between -4 t and 0.

    Raises:
        ValueError: for fewer than two rows.
    """
    _check_matrix(x=x)
    count = x.shape[0]
    if count < 2:
        raise ValueError(f"uniformity needs at least two rows, not {count}")
    unit = _unit_rows(x)
    squared_norm = unit.square().sum(dim=1)  # 1, or 0 for a zero vector
    squared = (squared_norm[:, None] + squared_norm - 2 * unit @ unit.T).clamp_min(0)
    itself = torch.eye(count, dtype=torch.bool, device=x.device)
    return torch.logsumexp((-t * squared).masked_fill(itself, -math.inf).flatten(), dim=0) - math.log(
        count * (count - 1)
    )


@_full_precision
def regression_loss(online: Tensor, target: Tensor) -> Tensor:
    """DCL eq. 8: ``||online - target||^2`` of unit vectors, that is 2 - 2 cos, mean over the rows.

    Args:
        online: (N, d).
        target: (N, d); detach it where the equation stops the gradient.

    Returns:
        A scalar between 0 and 4.

    Raises:
        ValueError: for shapes that differ.
    """
    _check_matrix(online=online, target=target)
    _check_same(online=online, target=target)
    return (2 - 2 * (_unit_rows(online) * _unit_rows(target)).sum(dim=1)).mean()
