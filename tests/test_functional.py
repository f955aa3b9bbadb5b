"""Every equation of `hf_robustcse.functional` against a float64 loop over Python lists.

The oracles below use lists, floats and `math` only and share no helper with the package, so that an error in the
vectorised code cannot hide in its own test.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from hf_robustcse import functional as F

NORMS = ("linf", "l2", "l1")
GROUPS = ("token", "sentence")
KINDS = ("js", "kl", "skl")

# Stated tolerances. float64 differs from the oracle by the order of summation only. In float32 a cosine carries a few
# 1e-7, which 1 / temperature (20) multiplies.
EXACT = {"rtol": 1e-10, "atol": 1e-11}
SINGLE = {"rtol": 2e-5, "atol": 2e-5}
# bfloat16 keeps 8 significant bits: the result may be rounded once on return, never on the way.
HALF = {"rtol": 2.0**-7, "atol": 2.0**-7}


def rand(seed: int, *shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


X = rand(1, 5, 4)
Y = rand(2, 5, 4)
CUBE = rand(3, 2, 3, 4)


def tensor(values: Any, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)


def close(actual: torch.Tensor, expected: Any, **tolerance: float) -> None:
    if not isinstance(expected, torch.Tensor):
        expected = tensor(expected)
    torch.testing.assert_close(actual.detach().double(), expected.detach().double(), **(tolerance or EXACT))


# ---------------------------------------------------------------------------------------------------------------
# Oracles: float64 loops
# ---------------------------------------------------------------------------------------------------------------
Vector = Sequence[float]
Matrix = Sequence[Vector]


def dot(a: Vector, b: Vector) -> float:
    return math.fsum(x * y for x, y in zip(a, b, strict=True))


def length(a: Vector) -> float:
    return math.sqrt(dot(a, a))


def cos(a: Vector, b: Vector) -> float:
    if length(a) == 0 or length(b) == 0:
        return 0.0
    return dot(a, b) / (length(a) * length(b))


def log_sum(terms: Sequence[tuple[float, float]]) -> float:
    """log sum_k weight_k exp(logit_k); a weight of 0 means that the term does not exist."""
    terms = [(weight, logit) for weight, logit in terms if weight != 0]
    top = max(logit for _, logit in terms)
    return top + math.log(math.fsum(weight * math.exp(logit - top) for weight, logit in terms))


def oracle_info_nce(
    anchors: Matrix,
    positives: Matrix,
    tau: float = 0.05,
    noise: Matrix | None = None,
    noise_weight: float = 1.0,
    weights: Matrix | None = None,
    hard: Matrix | None = None,
    hard_weights: Matrix | None = None,
    decoupled: bool = False,
    offset: int = 0,
) -> float:
    rows = []
    for i, h in enumerate(anchors):
        own = offset + i
        terms = []
        for j, p in enumerate(positives):
            if j == own:
                if not decoupled:
                    terms.append((1.0, cos(h, p) / tau))
            else:
                terms.append((1.0 if weights is None else weights[i][j], cos(h, p) / tau))
        for g in noise or ():
            terms.append((noise_weight, cos(g, h) / tau))
        for j, n in enumerate(hard or ()):
            terms.append((1.0 if hard_weights is None else hard_weights[i][j], cos(h, n) / tau))
        rows.append(log_sum(terms) - cos(h, positives[own]) / tau)
    return math.fsum(rows) / len(rows)


def oracle_multi_positive(anchors: Matrix, positives: Sequence[Matrix], tau: float = 0.05) -> float:
    rows = []
    for i, h in enumerate(anchors):
        above = [(1.0, cos(h, block[i]) / tau) for block in positives]
        below = [(1.0, cos(h, p) / tau) for block in positives for p in block]
        rows.append(log_sum(below) - log_sum(above))
    return math.fsum(rows) / len(rows)


def softmax(logits: Vector) -> list[float]:
    top = max(logits)
    e = [math.exp(x - top) for x in logits]
    return [x / math.fsum(e) for x in e]


def oracle_kl(p: Vector, q: Vector) -> float:
    return math.fsum(a * math.log(a / b) for a, b in zip(p, q, strict=True) if a > 0)


def oracle_divergence(p_logits: Matrix, q_logits: Matrix, kind: str) -> float:
    rows = []
    for a, b in zip(p_logits, q_logits, strict=True):
        p, q = softmax(a), softmax(b)
        m = [(x + y) / 2 for x, y in zip(p, q, strict=True)]
        if kind == "kl":
            rows.append(oracle_kl(p, q))
        elif kind == "skl":
            rows.append((oracle_kl(p, q) + oracle_kl(q, p)) / 2)
        else:
            rows.append((oracle_kl(p, m) + oracle_kl(q, m)) / 2)
    return math.fsum(rows) / len(rows)


def size(v: Vector, norm: str) -> float:
    if norm == "linf":
        return max(abs(x) for x in v)
    return math.fsum(abs(x) for x in v) if norm == "l1" else length(v)


def oracle_project_vector(v: Vector, radius: float, norm: str) -> list[float]:
    if size(v, norm) <= radius:
        return list(v)
    if norm == "linf":
        return [min(max(x, -radius), radius) for x in v]
    if norm == "l2":
        return [x * radius / length(v) for x in v]
    # l1: the projection soft-thresholds. Bisect how far the threshold lies below the largest component, which unlike
    # the threshold itself has digits left when that component is huge; the norm of the result grows with it.
    top = size(v, "linf")
    low, high = 0.0, top
    for _ in range(400):
        middle = (low + high) / 2
        if math.fsum(max(abs(x) - top + middle, 0.0) for x in v) > radius:
            high = middle
        else:
            low = middle
    return [math.copysign(max(abs(x) - top + low, 0.0), x) for x in v]


def oracle_direction_vector(v: Vector, norm: str) -> list[float]:
    s = size(v, norm)
    return [x / s if s else 0.0 for x in v]


def by_group(x: Sequence[Matrix], per: str, f: Callable[[Vector], list[float]]) -> list[list[list[float]]]:
    """Apply `f` to every token vector, or to every sentence as one long vector."""
    if per == "token":
        return [[f(token) for token in sentence] for sentence in x]
    out = []
    for sentence in x:
        width = len(sentence[0])
        flat = f([value for token in sentence for value in token])
        out.append([flat[k : k + width] for k in range(0, len(flat), width)])
    return out


def oracle_noise_loss(noise: Matrix, anchors: Matrix, positives: Matrix, tau: float) -> float:
    """L_U of DCLR eq. 2."""
    rows = []
    for h, p in zip(anchors, positives, strict=True):
        rows.append(log_sum([(1.0, cos(h, n) / tau) for n in noise]) - cos(h, p) / tau)
    return math.fsum(rows) / len(rows)


def oracle_noise_gradient(noise: Matrix, anchors: Matrix, tau: float) -> list[list[float]]:
    gradient = [[0.0] * len(noise[0]) for _ in noise]
    for h in anchors:
        share = softmax([cos(h, n) / tau for n in noise])
        for j, n in enumerate(noise):
            c, a, b = cos(h, n), length(h), length(n)
            for k in range(len(n)):
                slope = (h[k] / a - c * n[k] / b) / b
                gradient[j][k] += share[j] * slope / (tau * len(anchors))
    return gradient


def oracle_ascend(
    noise: Matrix, anchors: Matrix, steps: int, lr: float, tau: float, relative: bool
) -> list[list[float]]:
    moved = [list(n) for n in noise]
    for _ in range(steps):
        gradient = oracle_noise_gradient(moved, anchors, tau)
        for j, g in enumerate(gradient):
            stride = lr * (length(moved[j]) if relative else 1.0)
            moved[j] = [x + stride * y for x, y in zip(moved[j], oracle_direction_vector(g, "l2"), strict=True)]
    return moved


def unit(v: Vector) -> list[float]:
    return oracle_direction_vector(v, "l2")


def distance(a: Vector, b: Vector) -> float:
    return length([x - y for x, y in zip(a, b, strict=True)])


def oracle_alignment(x: Matrix, y: Matrix, alpha: float = 2) -> float:
    return math.fsum(distance(unit(a), unit(b)) ** alpha for a, b in zip(x, y, strict=True)) / len(x)


def oracle_uniformity(x: Matrix, t: float = 2) -> float:
    pairs = list(itertools.combinations([unit(a) for a in x], 2))
    return log_sum([(1 / len(pairs), -t * distance(a, b) ** 2) for a, b in pairs])


def oracle_regression(online: Matrix, target: Matrix) -> float:
    return math.fsum(2 - 2 * cos(a, b) for a, b in zip(online, target, strict=True)) / len(online)


def slopes(f: Callable[..., float], inputs: Sequence[torch.Tensor], step: float = 1e-5) -> list[torch.Tensor]:
    """Central differences of an oracle in each component of each input."""
    out = []
    for which, x in enumerate(inputs):
        gradient = torch.zeros_like(x)
        for index in itertools.product(*(range(n) for n in x.shape)):
            values = []
            for sign in (1, -1):
                moved = [y.clone() for y in inputs]
                moved[which][index] += sign * step
                values.append(f(*(y.tolist() for y in moved)))
            gradient[index] = (values[0] - values[1]) / (2 * step)
        out.append(gradient)
    return out


# ---------------------------------------------------------------------------------------------------------------
# cosine_matrix
# ---------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("n", "m", "d"), [(1, 1, 1), (1, 4, 3), (5, 1, 2), (4, 6, 1), (7, 5, 16)])
def test_cosine_matrix_equals_the_loop(n: int, m: int, d: int) -> None:
    a, b = rand(1, n, d), rand(2, m, d)
    close(F.cosine_matrix(a, b), [[cos(x, y) for y in b.tolist()] for x in a.tolist()])


def test_cosine_matrix_without_columns_is_empty() -> None:
    assert F.cosine_matrix(rand(1, 3, 4), rand(2, 0, 4)).shape == (3, 0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_zero_vector_has_cosine_zero_and_a_finite_gradient(dtype: torch.dtype) -> None:
    a, b = rand(1, 3, 4, dtype=dtype), rand(2, 4, 4, dtype=dtype)
    a[1] = 0
    b[2] = 0
    a.requires_grad_(), b.requires_grad_()
    out = F.cosine_matrix(a, b)
    assert (out[1] == 0).all() and (out[:, 2] == 0).all()
    out.sum().backward()
    assert a.grad.isfinite().all() and b.grad.isfinite().all()


@pytest.mark.parametrize("scale", [1e-6, 1e-3, 1e4, 1e15])
def test_cosine_ignores_the_length(scale: float) -> None:
    a, b = rand(1, 3, 4, dtype=torch.float32), rand(2, 5, 4, dtype=torch.float32)
    close(F.cosine_matrix(a * scale, b), F.cosine_matrix(a, b), **SINGLE)


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_cosine_of_lengths_whose_square_leaves_float32_is_finite(scale: float) -> None:
    a, b = (rand(1, 3, 4, dtype=torch.float32) * scale).requires_grad_(), rand(2, 5, 4, dtype=torch.float32)
    out = F.cosine_matrix(a, b)
    assert out.isfinite().all() and (out.abs() <= 1 + 1e-5).all()
    (gradient,) = torch.autograd.grad(out.sum(), a)
    assert gradient.isfinite().all()


# ---------------------------------------------------------------------------------------------------------------
# info_nce
# ---------------------------------------------------------------------------------------------------------------
def multipliers(seed: int, n: int, columns: int, own: int | None) -> torch.Tensor:
    """Weights 0, 0.5, 1 and 2.5 with at least one term left per row, and a diagonal that must not matter."""
    choice = torch.randint(0, 4, (n, columns), generator=torch.Generator().manual_seed(seed))
    weights = tensor([0.0, 0.5, 1.0, 2.5])[choice]
    for i in range(n):
        weights[i, ((own or 0) + i + 1) % columns] = 2.5
        if own is not None:
            weights[i, own + i] = math.nan if i % 2 else 1e9
    return weights


@pytest.mark.parametrize("decoupled", [False, True])
@pytest.mark.parametrize("hard", ["none", "plain", "weighted"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("m", [None, 0, 3])
@pytest.mark.parametrize(("n", "d"), [(1, 3), (2, 1), (5, 4), (8, 12)])
def test_info_nce_equals_the_loop(n: int, d: int, m: int | None, weighted: bool, hard: str, decoupled: bool) -> None:
    anchors, positives = rand(1, n, d), rand(2, n, d)
    noise = None if m is None else rand(3, m, d)
    weights = multipliers(4, n, n, own=0) if weighted else None
    negatives = None if hard == "none" else rand(5, n, d)
    hard_weights = multipliers(6, n, n, own=None) if hard == "weighted" else None

    def product() -> torch.Tensor:
        return F.info_nce(
            anchors,
            positives,
            temperature=0.3,
            noise=noise,
            noise_weight=1.7,
            negative_weights=weights,
            hard_negatives=negatives,
            hard_negative_weights=hard_weights,
            decoupled=decoupled,
        )

    if decoupled and n == 1 and not m and negatives is None:
        with pytest.raises(ValueError):
            product()
        return
    out = product()
    assert out.shape == () and out.dtype == torch.float64
    expected = oracle_info_nce(
        anchors.tolist(),
        positives.tolist(),
        0.3,
        noise=None if noise is None else noise.tolist(),
        noise_weight=1.7,
        weights=None if weights is None else weights.tolist(),
        hard=None if negatives is None else negatives.tolist(),
        hard_weights=None if hard_weights is None else hard_weights.tolist(),
        decoupled=decoupled,
    )
    close(out, expected)


def test_info_nce_closed_form_and_default_temperature() -> None:
    eye = torch.eye(4, dtype=torch.float64)
    close(F.info_nce(eye, eye), math.log1p(3 * math.exp(-20)))
    close(F.info_nce(eye, eye, temperature=1.0), math.log(math.e + 3) - 1)
    close(F.info_nce(eye, eye, temperature=1.0, decoupled=True), math.log(3) - 1)
    # Row 0 meets the noise at cosine -1, the three other rows at cosine 0.
    first, others = math.log(math.e + 3 + 2 * math.exp(-1)) - 1, math.log(math.e + 3 + 2) - 1
    close(F.info_nce(eye, eye, temperature=1.0, noise=-eye[:1], noise_weight=2.0), (first + 3 * others) / 4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_single_row_with_its_positive_has_no_loss(dtype: torch.dtype) -> None:
    a = rand(1, 1, 4, dtype=dtype).requires_grad_()
    out = F.info_nce(a, rand(2, 1, 4, dtype=dtype))
    assert abs(out.item()) <= 1e-6
    (gradient,) = torch.autograd.grad(out, a)
    assert gradient.isfinite().all() and gradient.abs().max() <= 1e-5


def test_all_weights_zero_leaves_only_the_positive() -> None:
    a, p = rand(1, 4, 3).requires_grad_(), rand(2, 4, 3)
    out = F.info_nce(a, p, negative_weights=torch.zeros(4, 4, dtype=torch.float64))
    close(out, 0.0)
    (gradient,) = torch.autograd.grad(out, a)
    assert gradient.isfinite().all() and gradient.abs().max() <= 1e-12


@pytest.mark.parametrize(
    "extra",
    [
        {},
        {"noise": torch.zeros(0, 3, dtype=torch.float64)},
        {"noise": torch.ones(2, 3, dtype=torch.float64), "noise_weight": 0.0},
        {
            "hard_negatives": torch.ones(4, 3, dtype=torch.float64),
            "hard_negative_weights": torch.zeros(4, 4, dtype=torch.float64),
        },
    ],
)
def test_decoupled_without_any_negative_is_refused(extra: dict[str, Any]) -> None:
    zeros = torch.zeros(4, 4, dtype=torch.float64)
    with pytest.raises(ValueError):
        F.info_nce(rand(1, 4, 3), rand(2, 4, 3), negative_weights=zeros, decoupled=True, **extra)


def test_decoupled_with_one_row_without_negatives_never_returns_infinity() -> None:
    weights = torch.ones(4, 4, dtype=torch.float64)
    weights[2] = 0
    try:
        out = F.info_nce(rand(1, 4, 3), rand(2, 4, 3), negative_weights=weights, decoupled=True)
    except ValueError:
        return
    assert out.isfinite()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_weight_of_zero_removes_even_a_huge_term(dtype: torch.dtype) -> None:
    # exp(1 / 1e-3) is beyond float64: a product with 0, or a large negative constant, would not do.
    anchors = tensor([[1, 0, 0], [0, 1, 0]], dtype).requires_grad_()
    positives = tensor([[0, 0, 1], [1, 0.01, 0]], dtype).requires_grad_()
    weights = tensor([[1, 0], [1, 1]], dtype)
    noise = tensor([[1, 0, 0], [0, 1, 0]], dtype).requires_grad_()
    hard = tensor([[1, 0, 0], [1, 0, 0]], dtype).requires_grad_()
    out = F.info_nce(
        anchors,
        positives,
        temperature=1e-3,
        negative_weights=weights,
        noise=noise,
        noise_weight=0.0,
        hard_negatives=hard,
        hard_negative_weights=torch.zeros(2, 2, dtype=dtype),
    )
    expected = oracle_info_nce(anchors.tolist(), positives.tolist(), 1e-3, weights=weights.tolist())
    close(out, expected, rtol=1e-5, atol=1e-5)
    gradients = torch.autograd.grad(out, (anchors, positives, noise, hard), allow_unused=True)
    assert all(g is None or g.isfinite().all() for g in gradients)
    assert all(g is None or not g.any() for g in gradients[2:]), "a removed term still has a gradient"
    assert gradients[0][0].abs().max() <= 1e-4, "a removed term still has a gradient"


@pytest.mark.parametrize("shards", [1, 2, 3, 6])
@pytest.mark.parametrize("decoupled", [False, True])
def test_shards_with_offset_make_the_whole(shards: int, decoupled: bool) -> None:
    n, d = 6, 5
    inputs = [rand(s, n, d).requires_grad_() for s in (1, 2, 3)]
    noise, weights, hard_weights = rand(4, 4, d), multipliers(5, n, n, own=0), multipliers(6, n, n, own=None)
    anchors, positives, hard = inputs

    def shard(begin: int, end: int, offset: int) -> torch.Tensor:
        return F.info_nce(
            anchors[begin:end],
            positives,
            temperature=0.2,
            noise=noise,
            noise_weight=0.5,
            negative_weights=weights[begin:end],
            hard_negatives=hard,
            hard_negative_weights=hard_weights[begin:end],
            decoupled=decoupled,
            offset=offset,
        )

    whole = shard(0, n, 0)
    k = n // shards
    parts = torch.stack([shard(b, b + k, b) for b in range(0, n, k)])
    close(parts.mean(), whole)
    for got, expected in zip(
        torch.autograd.grad(parts.mean(), inputs), torch.autograd.grad(whole, inputs), strict=True
    ):
        close(got, expected)
    expected = oracle_info_nce(
        anchors[k : 2 * k].tolist() if shards > 1 else anchors.tolist(),
        positives.tolist(),
        0.2,
        noise=noise.tolist(),
        noise_weight=0.5,
        weights=(weights[k : 2 * k] if shards > 1 else weights).tolist(),
        hard=hard.tolist(),
        hard_weights=(hard_weights[k : 2 * k] if shards > 1 else hard_weights).tolist(),
        decoupled=decoupled,
        offset=k if shards > 1 else 0,
    )
    close(parts[1 if shards > 1 else 0], expected)


@pytest.mark.parametrize("offset", [-1, 3, 100])
def test_offset_outside_the_positives_is_refused(offset: int) -> None:
    with pytest.raises(ValueError):
        F.info_nce(rand(1, 2, 3), rand(2, 4, 3), offset=offset)


@pytest.mark.parametrize("temperature", [1.0, 0.02, 1e-4])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_losses_stay_finite_at_low_temperature(dtype: torch.dtype, temperature: float) -> None:
    a, p = rand(1, 6, 8).to(dtype).requires_grad_(), rand(2, 2, 6, 8).to(dtype)
    for out in (
        F.info_nce(a, p[0], temperature=temperature, noise=p[1]),
        F.info_nce(a, p[0], temperature=temperature, decoupled=True),
        F.multi_positive_info_nce(a, p, temperature=temperature),
    ):
        (gradient,) = torch.autograd.grad(out, a)
        assert out.isfinite() and gradient.isfinite().all()


@pytest.mark.parametrize("scale", [1e4, 1e8])
def test_huge_embeddings_in_bfloat16_are_finite(scale: float) -> None:
    a = (rand(1, 6, 8) * scale).to(torch.bfloat16).requires_grad_()
    p = (rand(2, 2, 6, 8) * scale).to(torch.bfloat16)
    small = (a.detach().float() / scale, p.float() / scale)
    for got, expected in (
        (F.info_nce(a, p[0], noise=p[1]), F.info_nce(small[0], small[1][0], noise=small[1][1])),
        (F.multi_positive_info_nce(a, p), F.multi_positive_info_nce(*small)),
        (F.alignment(a, p[0]), F.alignment(small[0], small[1][0])),
        (F.uniformity(a), F.uniformity(small[0])),
        (F.regression_loss(a, p[0]), F.regression_loss(small[0], small[1][0])),
    ):
        close(got, expected, **HALF)
        (gradient,) = torch.autograd.grad(got, a)
        assert gradient.isfinite().all()


# ---------------------------------------------------------------------------------------------------------------
# multi_positive_info_nce
# ---------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(("views", "n", "d"), [(1, 1, 1), (1, 5, 4), (2, 1, 3), (2, 5, 1), (3, 4, 6), (2, 7, 16)])
def test_multi_positive_equals_the_loop(views: int, n: int, d: int) -> None:
    anchors, positives = rand(1, n, d), rand(2, views, n, d)
    for tau in (0.05, 0.7):
        close(
            F.multi_positive_info_nce(anchors, positives, temperature=tau),
            oracle_multi_positive(anchors.tolist(), positives.tolist(), tau),
        )
    close(
        F.multi_positive_info_nce(anchors, positives), F.multi_positive_info_nce(anchors, positives, temperature=0.05)
    )


def test_one_positive_is_info_nce() -> None:
    anchors, positives = rand(1, 5, 4), rand(2, 5, 4)
    close(F.multi_positive_info_nce(anchors, positives[None]), F.info_nce(anchors, positives))


# ---------------------------------------------------------------------------------------------------------------
# divergence
# ---------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n", "c"), [(1, 1), (1, 5), (4, 2), (6, 9)])
def test_divergence_equals_the_loop(kind: str, n: int, c: int) -> None:
    p, q = 2 * rand(1, n, c), 2 * rand(2, n, c)
    close(F.divergence(p, q, kind=kind), oracle_divergence(p.tolist(), q.tolist(), kind))


def test_divergence_defaults_to_js() -> None:
    p, q = rand(1, 3, 4), rand(2, 3, 4)
    close(F.divergence(p, q), oracle_divergence(p.tolist(), q.tolist(), "js"))


@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0, 1e4])
def test_js_is_symmetric_and_between_zero_and_log_two(scale: float) -> None:
    p, q = scale * rand(1, 6, 5), scale * rand(2, 6, 5)
    forth, back = F.divergence(p, q, kind="js"), F.divergence(q, p, kind="js")
    close(forth, back, rtol=1e-12, atol=1e-15)
    assert -1e-15 <= forth.item() <= math.log(2) + 1e-12


@pytest.mark.parametrize("kind", KINDS)
def test_divergence_is_zero_only_between_equals(kind: str) -> None:
    p = rand(1, 6, 5)
    # Logits name a distribution up to a constant per row.
    close(F.divergence(p, p + rand(2, 6, 1), kind=kind), 0.0)
    q = p.clone()
    q[3, 2] += 0.01
    assert F.divergence(p, q, kind=kind) > 1e-9


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("scale", [1e4, 1e6])
def test_divergence_of_opposite_one_hot_distributions(kind: str, dtype: torch.dtype, scale: float) -> None:
    p, q = tensor([[scale, 0.0]], dtype).requires_grad_(), tensor([[0.0, scale]], dtype).requires_grad_()
    out = F.divergence(p, q, kind=kind)
    close(out, math.log(2) if kind == "js" else q.detach().double().max(), **HALF)
    for gradient in torch.autograd.grad(out, (p, q)):
        assert gradient.isfinite().all()


@pytest.mark.parametrize("kind", KINDS)
def test_divergence_gradient_at_equality_is_zero(kind: str) -> None:
    p = rand(1, 3, 4).requires_grad_()
    q = p.detach().clone().requires_grad_()
    for gradient in torch.autograd.grad(F.divergence(p, q, kind=kind), (p, q)):
        assert gradient.isfinite().all() and gradient.abs().max() <= 1e-15


# ---------------------------------------------------------------------------------------------------------------
# project and ascent_direction
# ---------------------------------------------------------------------------------------------------------------
SHAPES = [(1, 1, 1), (1, 3, 1), (2, 1, 5), (3, 4, 6)]


@pytest.mark.parametrize("per", GROUPS)
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("radius", [1e-5, 0.3, 2.0, 4.0])
@pytest.mark.parametrize("shape", SHAPES)
def test_project_equals_the_loop(shape: tuple[int, int, int], radius: float, norm: str, per: str) -> None:
    x = rand(1, *shape)
    x[0, 0, 0] *= 4  # uneven, so that groups lie on either side of the ball
    before = x.clone()
    out = F.project(x, radius, norm=norm, per=per)
    assert torch.equal(x, before), "the input was changed in place"
    assert out.shape == x.shape and out.dtype == x.dtype
    close(out, by_group(x.tolist(), per, lambda v: oracle_project_vector(v, radius, norm)), rtol=1e-9, atol=1e-12)
    close(F.project(out, radius, norm=norm, per=per), out, rtol=1e-12, atol=1e-15)
    assert (out.abs() <= x.abs() * (1 + 1e-12)).all() and (out * x >= 0).all()


def test_project_l1_is_not_a_rescaling() -> None:
    out = F.project(tensor([[[3.0, -1.0, 0.5]]]), 2.5, norm="l1", per="token")
    close(out, [[[2.25, -0.25, 0.0]]])


@pytest.mark.parametrize("per", GROUPS)
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
def test_project_keeps_inside_points_bit_for_bit(norm: str, per: str, dtype: torch.dtype) -> None:
    x = rand(1, 3, 4, 6, dtype=dtype)
    assert torch.equal(F.project(x, 1e3, norm=norm, per=per), x)
    x[1] *= 1e-3
    mixed = F.project(x, 0.1 if norm != "l1" else 0.2, norm=norm, per=per)
    assert torch.equal(mixed[1], x[1]), "a group inside the ball was touched because another one is outside"
    assert not torch.equal(mixed[0], x[0])


@pytest.mark.parametrize(("norm", "radius"), [("linf", 4.0), ("l2", 5.0), ("l1", 7.0)])
@pytest.mark.parametrize("per", GROUPS)
def test_project_keeps_the_boundary(norm: str, radius: float, per: str) -> None:
    x = tensor([[[3.0, 0.0, -4.0]]], torch.float32)
    assert torch.equal(F.project(x, radius, norm=norm, per=per), x)


@pytest.mark.parametrize("per", GROUPS)
@pytest.mark.parametrize("norm", NORMS)
def test_project_radius_zero_and_zero_delta(norm: str, per: str) -> None:
    x = rand(1, 2, 3, 4, dtype=torch.float32)
    zeros = torch.zeros_like(x)
    assert torch.equal(F.project(x, 0.0, norm=norm, per=per), zeros)
    assert torch.equal(F.project(zeros, 0.0, norm=norm, per=per), zeros)
    assert torch.equal(F.project(zeros, 1.0, norm=norm, per=per), zeros)


@pytest.mark.parametrize("per", GROUPS)
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("scale", [1.0, 1e3, 1e10, 1e30])
def test_project_is_exact_at_every_scale_in_float32(norm: str, per: str, scale: float) -> None:
    # 1e30 squared is beyond float32, and 1e10 - 1 is 1e10 there.
    x = scale * rand(1, 3, 4, 6, dtype=torch.float32)
    out = F.project(x, 1.0, norm=norm, per=per)
    close(out, by_group(x.tolist(), per, lambda v: oracle_project_vector(v, 1.0, norm)), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("radius", [1e-5, 1e-3, 1.0, 100.0])
def test_project_l1_of_a_whole_sentence_reaches_the_ball_in_float32(radius: float) -> None:
    out = F.project(rand(1, 1, 32, 256, dtype=torch.float32), radius, norm="l1", per="sentence")
    close(out.double().abs().sum(), radius, rtol=1e-5, atol=0.0)
    close(F.project(out, radius, norm="l1", per="sentence"), out, rtol=0.0, atol=1e-5 * radius)


@pytest.mark.parametrize("per", GROUPS)
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("shape", SHAPES)
def test_ascent_direction_equals_the_loop(shape: tuple[int, int, int], norm: str, per: str) -> None:
    g = rand(1, *shape)
    g[0, -1] = 0
    g[-1, 0] *= 1e-3
    out = F.ascent_direction(g, norm=norm, per=per)
    assert out.shape == g.shape and out.dtype == g.dtype
    close(out, by_group(g.tolist(), per, lambda v: oracle_direction_vector(v, norm)))


@pytest.mark.parametrize("per", GROUPS)
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("scale", [0.0, 1e-38, 1e-30, 1e-8, 1.0, 1e8, 1e30, 1e37])
def test_ascent_direction_has_unit_norm_at_every_scale(norm: str, per: str, scale: float) -> None:
    base = rand(1, 2, 3, 4, dtype=torch.float32)
    out = F.ascent_direction(base * scale, norm=norm, per=per)
    expected = by_group(base.tolist(), per, lambda v: oracle_direction_vector(v, norm))
    # At 1e-38 the smaller components are subnormal and keep few bits.
    close(out, tensor(expected) * (scale > 0), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("norm", NORMS)
def test_ascent_direction_of_tokens_of_very_different_size(norm: str) -> None:
    g = rand(1, 1, 4, 5, dtype=torch.float32) * tensor([1e30, 0.0, 1e-30, 1.0], torch.float32)[None, :, None]
    out = F.ascent_direction(g, norm=norm, per="token")
    close(out, by_group(g.tolist(), "token", lambda v: oracle_direction_vector(v, norm)), rtol=1e-5, atol=1e-6)


# ---------------------------------------------------------------------------------------------------------------
# ascend_noise
# ---------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("steps", [0, 1, 4])
@pytest.mark.parametrize(("m", "n", "d"), [(1, 1, 2), (3, 1, 4), (2, 5, 3), (6, 4, 8)])
def test_ascend_noise_equals_the_loop(m: int, n: int, d: int, steps: int, relative: bool) -> None:
    noise, anchors, positives = rand(1, m, d), rand(2, n, d), rand(3, n, d)
    out = F.ascend_noise(noise, anchors, positives, steps=steps, lr=0.05, temperature=0.3, relative=relative)
    expected = oracle_ascend(noise.tolist(), anchors.tolist(), steps, 0.05, 0.3, relative)
    close(out, expected, rtol=1e-8, atol=1e-9)


def test_ascend_noise_defaults() -> None:
    noise, anchors, positives = rand(1, 5, 4), rand(2, 3, 4), rand(3, 3, 4)
    expected = oracle_ascend(noise.tolist(), anchors.tolist(), 4, 1e-3, 0.05, relative=False)
    close(F.ascend_noise(noise, anchors, positives), expected, rtol=1e-8, atol=1e-9)


def test_noise_gradient_of_the_oracle_is_the_slope_of_its_loss() -> None:
    noise, anchors, positives = rand(1, 3, 4), rand(2, 2, 4).tolist(), rand(3, 2, 4).tolist()
    (expected,) = slopes(lambda x: oracle_noise_loss(x, anchors, positives, 0.3), [noise])
    close(tensor(oracle_noise_gradient(noise.tolist(), anchors, 0.3)), expected, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("relative", [False, True])
def test_ascend_noise_increases_the_loss(relative: bool) -> None:
    noise, anchors, positives = rand(1, 6, 8), rand(2, 4, 8), rand(3, 4, 8)
    values = []
    for steps in range(5):
        moved = F.ascend_noise(noise, anchors, positives, steps=steps, lr=1e-2, relative=relative)
        values.append(oracle_noise_loss(moved.tolist(), anchors.tolist(), positives.tolist(), 0.05))
    assert all(late > early for early, late in itertools.pairwise(values))


@pytest.mark.parametrize("surroundings", [torch.enable_grad, torch.no_grad])
def test_ascend_noise_leaves_no_trace(surroundings: Callable[[], Any]) -> None:
    inputs = [rand(s, 4, 3).requires_grad_() for s in (1, 2, 3)]
    before = [x.detach().clone() for x in inputs]
    for x in inputs:
        x.grad = torch.full_like(x, 7.0)
    with surroundings():
        out = F.ascend_noise(*inputs, steps=2, lr=0.1)
        unmoved = F.ascend_noise(*inputs, steps=0)
        assert torch.is_grad_enabled() == (surroundings is torch.enable_grad)
    assert not out.requires_grad and not unmoved.requires_grad
    assert not torch.equal(out, before[0])
    assert torch.equal(unmoved, before[0])
    for x, old in zip(inputs, before, strict=True):
        assert x.requires_grad and torch.equal(x.detach(), old) and (x.grad == 7).all()


def test_ascend_noise_through_a_graph_does_not_consume_it() -> None:
    leaf = rand(1, 4, 3).requires_grad_()
    anchors = leaf * 2
    F.ascend_noise(rand(2, 5, 3), anchors, anchors + 1, steps=2)
    anchors.sum().backward()
    assert (leaf.grad == 2).all()


def test_ascend_noise_with_zero_vectors_and_without_rows() -> None:
    noise, anchors = rand(1, 4, 3, dtype=torch.float32), rand(2, 4, 3, dtype=torch.float32)
    noise[1], anchors[2] = 0, 0
    assert F.ascend_noise(noise, anchors, anchors, relative=True).isfinite().all()
    assert F.ascend_noise(noise, anchors, anchors).isfinite().all()
    assert F.ascend_noise(noise[:0], anchors, anchors).shape == (0, 3)


# ---------------------------------------------------------------------------------------------------------------
# instance_weights, alignment, uniformity, regression_loss
# ---------------------------------------------------------------------------------------------------------------
def test_instance_weights() -> None:
    similarity = tensor([[0.1, 0.5, 0.4], [0.6, 1.0, -1.0], [0.49999, 0.5, 1.0]])
    out = F.instance_weights(similarity, 0.5)
    assert out.is_floating_point() and not out.requires_grad
    assert out.tolist() == [[1, 0, 1], [0, 1, 1], [1, 0, 1]]
    assert F.instance_weights(torch.ones(1, 1), 0.0).tolist() == [[1]]
    assert torch.equal(F.instance_weights(torch.ones(3, 3), 0.9), torch.eye(3))


@pytest.mark.parametrize("alpha", [1, 2, 3])
@pytest.mark.parametrize(("n", "d"), [(1, 1), (1, 4), (5, 1), (6, 7)])
def test_alignment_equals_the_loop(n: int, d: int, alpha: int) -> None:
    x, y = rand(1, n, d), rand(2, n, d)
    close(F.alignment(x, y, alpha=alpha), oracle_alignment(x.tolist(), y.tolist(), alpha), rtol=1e-9, atol=1e-12)
    if alpha == 2:
        close(F.alignment(x, y), oracle_alignment(x.tolist(), y.tolist()), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("alpha", [1, 2, 3])
def test_alignment_of_equals_is_zero_with_a_finite_gradient(alpha: int) -> None:
    x = rand(1, 4, 3).requires_grad_()
    out = F.alignment(x, x.detach(), alpha=alpha)
    assert abs(out.item()) <= 1e-7
    (gradient,) = torch.autograd.grad(out, x)
    assert gradient.isfinite().all()


@pytest.mark.parametrize("t", [0.5, 2, 1000])
@pytest.mark.parametrize(("n", "d"), [(2, 1), (2, 5), (7, 4), (12, 3)])
def test_uniformity_equals_the_loop(n: int, d: int, t: float) -> None:
    x = rand(3, n, d)
    close(F.uniformity(x, t=t), oracle_uniformity(x.tolist(), t), rtol=1e-9, atol=1e-9)
    if t == 2:
        close(F.uniformity(x), oracle_uniformity(x.tolist()), rtol=1e-9, atol=1e-9)


def test_uniformity_closed_forms() -> None:
    close(F.uniformity(torch.ones(5, 3, dtype=torch.float64)), 0.0)
    close(F.uniformity(torch.eye(5, dtype=torch.float64)), -4.0)
    # Far pairs only: exp(-4000) underflows unless the logarithm is taken of the sum as a whole.
    close(F.uniformity(tensor([[1.0, 0.0], [-1.0, 0.0]], torch.float32), t=1000), -4000.0, rtol=1e-5, atol=0.0)


def test_uniformity_of_duplicates_has_a_finite_gradient() -> None:
    x = torch.cat([rand(1, 3, 4), rand(1, 3, 4), torch.zeros(2, 4, dtype=torch.float64)]).requires_grad_()
    (gradient,) = torch.autograd.grad(F.uniformity(x), x)
    assert gradient.isfinite().all()


@pytest.mark.parametrize("n", [0, 1])
def test_uniformity_needs_a_pair(n: int) -> None:
    with pytest.raises(ValueError):
        F.uniformity(rand(1, n, 3))


@pytest.mark.parametrize(("n", "d"), [(1, 1), (1, 4), (5, 1), (6, 7)])
def test_regression_loss_equals_the_loop(n: int, d: int) -> None:
    x, y = rand(1, n, d), rand(2, n, d)
    close(F.regression_loss(x, y), oracle_regression(x.tolist(), y.tolist()))


# ---------------------------------------------------------------------------------------------------------------
# Gradients
# ---------------------------------------------------------------------------------------------------------------
_WEIGHTS = multipliers(7, 3, 3, own=0)
_HARD_WEIGHTS = multipliers(8, 3, 3, own=None)
Loss = tuple[Callable[..., torch.Tensor], Callable[..., float], list[tuple[int, ...]]]
LOSSES: dict[str, Loss] = {
    "info_nce": (
        lambda a, p: F.info_nce(a, p, temperature=0.4),
        lambda a, p: oracle_info_nce(a, p, 0.4),
        [(3, 2), (3, 2)],
    ),
    "info_nce_everything": (
        lambda a, p, g, h: F.info_nce(
            a,
            p,
            temperature=0.4,
            noise=g,
            noise_weight=0.7,
            negative_weights=_WEIGHTS,
            hard_negatives=h,
            hard_negative_weights=_HARD_WEIGHTS,
        ),
        lambda a, p, g, h: oracle_info_nce(a, p, 0.4, g, 0.7, _WEIGHTS.tolist(), h, _HARD_WEIGHTS.tolist()),
        [(3, 2), (3, 2), (2, 2), (3, 2)],
    ),
    "info_nce_decoupled": (
        lambda a, p, g: F.info_nce(a, p, temperature=0.4, noise=g, negative_weights=_WEIGHTS, decoupled=True),
        lambda a, p, g: oracle_info_nce(a, p, 0.4, g, weights=_WEIGHTS.tolist(), decoupled=True),
        [(3, 2), (3, 2), (2, 2)],
    ),
    "info_nce_offset": (
        lambda a, p: F.info_nce(a, p, temperature=0.4, offset=1),
        lambda a, p: oracle_info_nce(a, p, 0.4, offset=1),
        [(2, 3), (4, 3)],
    ),
    "multi_positive_info_nce": (
        lambda a, p: F.multi_positive_info_nce(a, p, temperature=0.4),
        lambda a, p: oracle_multi_positive(a, p, 0.4),
        [(3, 2), (2, 3, 2)],
    ),
    **{
        f"divergence_{kind}": (
            lambda p, q, kind=kind: F.divergence(p, q, kind=kind),
            lambda p, q, kind=kind: oracle_divergence(p, q, kind),
            [(2, 3), (2, 3)],
        )
        for kind in KINDS
    },
    "alignment": (F.alignment, oracle_alignment, [(3, 2), (3, 2)]),
    "alignment_3": (
        lambda x, y: F.alignment(x, y, alpha=3),
        lambda x, y: oracle_alignment(x, y, 3),
        [(3, 2), (3, 2)],
    ),
    "uniformity": (F.uniformity, oracle_uniformity, [(4, 3)]),
    # The target side is a constant in every use: only the online side is held to a gradient.
    "regression_loss": (
        lambda x: F.regression_loss(x, _TARGET),
        lambda x: oracle_regression(x, _TARGET.tolist()),
        [(3, 2)],
    ),
}
_TARGET = rand(9, 3, 2)


@pytest.mark.parametrize("name", LOSSES)
def test_gradient_passes_gradcheck(name: str) -> None:
    loss, _, shapes = LOSSES[name]
    inputs = [rand(20 + k, *shape).requires_grad_() for k, shape in enumerate(shapes)]
    assert torch.autograd.gradcheck(loss, inputs)


@pytest.mark.parametrize("name", LOSSES)
def test_gradient_equals_the_slope_of_the_oracle(name: str) -> None:
    loss, oracle, shapes = LOSSES[name]
    inputs = [rand(40 + k, *shape) for k, shape in enumerate(shapes)]
    leaves = [x.clone().requires_grad_() for x in inputs]
    for got, expected in zip(torch.autograd.grad(loss(*leaves), leaves), slopes(oracle, inputs), strict=True):
        close(got, expected, rtol=1e-6, atol=1e-8)


def test_cosine_matrix_passes_gradcheck() -> None:
    assert torch.autograd.gradcheck(F.cosine_matrix, (rand(1, 3, 4).requires_grad_(), rand(2, 2, 4).requires_grad_()))


# ---------------------------------------------------------------------------------------------------------------
# Every function: precision, autocast, purity, device
# ---------------------------------------------------------------------------------------------------------------
Case = tuple[Callable[..., torch.Tensor], list[tuple[int, ...]]]
CASES: dict[str, Case] = {
    "cosine_matrix": (F.cosine_matrix, [(5, 8), (6, 8)]),
    "info_nce": (lambda a, p: F.info_nce(a, p), [(6, 8), (6, 8)]),
    "info_nce_everything": (
        lambda a, p, g, h: F.info_nce(
            a,
            p,
            noise=g,
            noise_weight=0.7,
            negative_weights=multipliers(7, 6, 6, own=0).to(a),
            hard_negatives=h,
            hard_negative_weights=multipliers(8, 6, 6, own=None).to(a),
        ),
        [(6, 8), (6, 8), (4, 8), (6, 8)],
    ),
    "info_nce_decoupled": (lambda a, p: F.info_nce(a, p, decoupled=True), [(6, 8), (6, 8)]),
    "multi_positive_info_nce": (F.multi_positive_info_nce, [(6, 8), (2, 6, 8)]),
    **{
        f"divergence_{kind}": (lambda p, q, kind=kind: F.divergence(p, q, kind=kind), [(4, 7), (4, 7)])
        for kind in KINDS
    },
    **{
        f"project_{norm}_{per}": (lambda x, norm=norm, per=per: F.project(x, 0.5, norm=norm, per=per), [(2, 3, 4)])
        for norm in NORMS
        for per in GROUPS
    },
    **{
        f"ascent_direction_{norm}_{per}": (
            lambda x, norm=norm, per=per: F.ascent_direction(x, norm=norm, per=per),
            [(2, 3, 4)],
        )
        for norm in NORMS
        for per in GROUPS
    },
    "ascend_noise": (lambda n, a, p: F.ascend_noise(n, a, p, steps=2, lr=0.1), [(5, 8), (6, 8), (6, 8)]),
    "ascend_noise_relative": (
        lambda n, a, p: F.ascend_noise(n, a, p, steps=2, lr=0.1, relative=True),
        [(5, 8), (6, 8), (6, 8)],
    ),
    "instance_weights": (lambda s: F.instance_weights(s, 0.5), [(5, 5)]),
    "alignment": (F.alignment, [(6, 8), (6, 8)]),
    "uniformity": (F.uniformity, [(6, 8)]),
    "regression_loss": (F.regression_loss, [(6, 8), (6, 8)]),
}


def case(name: str, dtype: torch.dtype = torch.float64) -> tuple[Callable[..., torch.Tensor], list[torch.Tensor]]:
    function, shapes = CASES[name]
    return function, [rand(60 + k, *shape, dtype=dtype) for k, shape in enumerate(shapes)]


@pytest.mark.parametrize("name", CASES)
def test_float32_agrees_with_float64(name: str) -> None:
    function, inputs = case(name, torch.float32)
    single, double = function(*inputs), function(*(x.double() for x in inputs))
    assert single.dtype == torch.float32 and double.dtype == torch.float64
    close(single, double, **SINGLE)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", CASES)
def test_half_inputs_are_computed_in_float32(name: str, dtype: torch.dtype) -> None:
    function, inputs = case(name, dtype)
    leaves = [x.requires_grad_() for x in inputs]
    out, expected = function(*leaves), function(*(x.detach().float() for x in leaves))
    assert out.isfinite().all()
    # Rounded once at most, on return: half a unit in the last place of whatever type comes back.
    close(out, expected, rtol=max(torch.finfo(out.dtype).eps / 2, 1e-6), atol=1e-6)
    if out.requires_grad:
        for gradient in torch.autograd.grad(out.float().sum(), leaves, allow_unused=True):
            assert gradient is None or (gradient.dtype == dtype and gradient.isfinite().all())


@pytest.mark.parametrize("name", CASES)
def test_autocast_does_not_lower_the_precision(name: str) -> None:
    function, inputs = case(name, torch.float32)
    expected = function(*inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = function(*inputs)
    assert out.dtype == torch.float32
    close(out, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", CASES)
def test_functions_are_pure(name: str) -> None:
    function, inputs = case(name)
    before, rng = [x.clone() for x in inputs], torch.get_rng_state()
    first = function(*inputs)
    assert torch.equal(first, function(*inputs)), "hidden state"
    assert torch.equal(torch.get_rng_state(), rng), "random numbers were drawn"
    assert all(torch.equal(x, old) for x, old in zip(inputs, before, strict=True)), "an input was changed in place"
    strided = [x.transpose(0, -1).contiguous().transpose(0, -1) for x in inputs]
    close(function(*strided), first)


def test_tensors_may_be_named() -> None:
    assert torch.equal(F.cosine_matrix(a=X, b=Y), F.cosine_matrix(X, Y))
    assert torch.equal(F.info_nce(anchors=X, positives=Y), F.info_nce(X, Y))
    assert torch.equal(F.multi_positive_info_nce(anchors=X, positives=Y[None]), F.multi_positive_info_nce(X, Y[None]))
    assert torch.equal(F.divergence(p_logits=X, q_logits=Y), F.divergence(X, Y))
    kinds = {"norm": "l2", "per": "token"}
    assert torch.equal(F.project(delta=CUBE, radius=0.5, **kinds), F.project(CUBE, 0.5, **kinds))
    assert torch.equal(F.ascent_direction(grad=CUBE, **kinds), F.ascent_direction(CUBE, **kinds))
    assert torch.equal(F.ascend_noise(noise=X, anchors=X, positives=Y), F.ascend_noise(X, X, Y))
    assert torch.equal(F.instance_weights(similarity=X[:4], threshold=0.5), F.instance_weights(X[:4], 0.5))
    assert torch.equal(F.alignment(x=X, y=Y), F.alignment(X, Y))
    assert torch.equal(F.uniformity(x=X), F.uniformity(X))
    assert torch.equal(F.regression_loss(online=X, target=Y), F.regression_loss(X, Y))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("name", CASES)
def test_gpu_agrees_with_cpu(name: str) -> None:
    function, inputs = case(name)
    out = function(*(x.cuda() for x in inputs))
    assert out.is_cuda
    close(out.cpu(), function(*inputs), rtol=1e-9, atol=1e-9)


# ---------------------------------------------------------------------------------------------------------------
# Memory: no (N, M, d) tensor
# ---------------------------------------------------------------------------------------------------------------
class LargestTensor(TorchDispatchMode):
    """Records the size, in elements of its storage, of the largest tensor that any operator returns."""

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, torch.Tensor):
                self.elements = max(self.elements, leaf.untyped_storage().nbytes() // leaf.element_size())
        return out


ROWS, NOISE, WIDTH = 24, 30, 64
MEMORY: dict[str, tuple[Callable[..., torch.Tensor], list[tuple[int, ...]], int]] = {
    "cosine_matrix": (F.cosine_matrix, [(ROWS, WIDTH), (NOISE, WIDTH)], NOISE),
    "info_nce": (
        lambda a, p, g: F.info_nce(a, p, noise=g),
        [(ROWS, WIDTH), (ROWS, WIDTH), (NOISE, WIDTH)],
        ROWS + NOISE,
    ),
    "info_nce_hard_negatives": (
        lambda a, p, h: F.info_nce(a, p, hard_negatives=h, negative_weights=torch.ones(ROWS, ROWS)),
        [(ROWS, WIDTH), (ROWS, WIDTH), (ROWS, WIDTH)],
        2 * ROWS,
    ),
    "multi_positive_info_nce": (F.multi_positive_info_nce, [(ROWS, WIDTH), (2, ROWS, WIDTH)], 2 * ROWS),
    "ascend_noise": (
        lambda g, a, p: F.ascend_noise(g, a, p, steps=2),
        [(NOISE, WIDTH), (ROWS, WIDTH), (ROWS, WIDTH)],
        NOISE,
    ),
    "uniformity": (F.uniformity, [(ROWS, WIDTH)], ROWS),
}


def largest(function: Callable[..., torch.Tensor], shapes: list[tuple[int, ...]]) -> int:
    inputs = [rand(80 + k, *shape, dtype=torch.float32).requires_grad_() for k, shape in enumerate(shapes)]
    with LargestTensor() as meter:
        out = function(*inputs)
        if out.requires_grad:
            out.sum().backward()
    return meter.elements


@pytest.mark.parametrize("name", MEMORY)
def test_no_tensor_of_rows_by_columns_by_width(name: str) -> None:
    function, shapes, columns = MEMORY[name]
    assert largest(function, shapes) <= 2 * (ROWS * columns + ROWS * WIDTH + columns * WIDTH)


def test_the_meter_sees_a_broadcast() -> None:
    def naive(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cosine_similarity(a[:, None], b[None], dim=-1)

    assert largest(naive, [(ROWS, WIDTH), (NOISE, WIDTH)]) >= ROWS * NOISE * WIDTH


# ---------------------------------------------------------------------------------------------------------------
# Bad input
# ---------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("call", "shapes"),
    [
        (lambda: F.cosine_matrix(X, rand(1, 3, 7)), ("5, 4", "3, 7")),
        (lambda: F.info_nce(X, rand(1, 5, 7)), ("5, 4", "5, 7")),
        (lambda: F.info_nce(X, rand(1, 3, 4)), ("5, 4", "3, 4")),
        (lambda: F.info_nce(X, Y, noise=rand(1, 3, 7)), ("3, 7", "5, 4")),
        (lambda: F.info_nce(X, Y, hard_negatives=rand(1, 5, 7)), ("5, 7", "5, 4")),
        (lambda: F.info_nce(X, Y, hard_negatives=rand(1, 3, 4)), ("3, 4", "5, 4")),
        (lambda: F.info_nce(X, Y, negative_weights=torch.ones(5, 3)), ("5, 3", "5, 5")),
        (
            lambda: F.info_nce(X, Y, hard_negatives=Y, hard_negative_weights=torch.ones(3, 5)),
            ("3, 5", "5, 5"),
        ),
        (lambda: F.multi_positive_info_nce(X, rand(1, 2, 3, 4)), ("5, 4", "2, 3, 4")),
        (lambda: F.multi_positive_info_nce(X, rand(1, 2, 5, 7)), ("5, 4", "2, 5, 7")),
        (lambda: F.divergence(X, rand(1, 5, 7)), ("5, 4", "5, 7")),
        (lambda: F.divergence(X, rand(1, 1, 4)), ("5, 4", "1, 4")),
        (lambda: F.ascend_noise(rand(1, 3, 7), X, Y), ("3, 7", "5, 4")),
        (lambda: F.ascend_noise(X, X, rand(1, 3, 4)), ("5, 4", "3, 4")),
        (lambda: F.alignment(X, rand(1, 1, 4)), ("5, 4", "1, 4")),
        (lambda: F.regression_loss(X, rand(1, 1, 4)), ("5, 4", "1, 4")),
    ],
)
def test_mismatched_shapes_are_named(call: Callable[[], Any], shapes: tuple[str, str]) -> None:
    with pytest.raises(ValueError) as error:
        call()
    for shape in shapes:
        assert shape in str(error.value)


@pytest.mark.parametrize(
    "call",
    [
        lambda: F.cosine_matrix(X[0], Y),
        lambda: F.cosine_matrix(X, Y[None]),
        lambda: F.info_nce(X[0], Y[0]),
        lambda: F.info_nce(X[None], Y[None]),
        lambda: F.info_nce(X, Y, noise=X[0]),
        lambda: F.info_nce(X, Y, negative_weights=torch.ones(5)),
        lambda: F.multi_positive_info_nce(X, Y),
        lambda: F.divergence(X[0], Y[0]),
        lambda: F.project(X, 1.0, norm="l2", per="token"),
        lambda: F.ascent_direction(X, norm="l2", per="token"),
        lambda: F.ascend_noise(X[0], X, Y),
        lambda: F.instance_weights(X[0], 0.5),
        lambda: F.instance_weights(X, 0.5),
        lambda: F.alignment(X[0], Y[0]),
        lambda: F.uniformity(X[0]),
        lambda: F.regression_loss(X[0], Y[0]),
    ],
)
def test_wrong_dimensions_are_refused(call: Callable[[], Any]) -> None:
    with pytest.raises(ValueError):
        call()


@pytest.mark.parametrize("temperature", [0, 0.0, -0.05])
def test_temperature_must_be_positive(temperature: float) -> None:
    for call in (
        lambda: F.info_nce(X, Y, temperature=temperature),
        lambda: F.multi_positive_info_nce(X, Y[None], temperature=temperature),
        lambda: F.ascend_noise(X, X, Y, temperature=temperature),
    ):
        with pytest.raises(ValueError, match="temperature"):
            call()


@pytest.mark.parametrize(
    ("call", "choices"),
    [
        (lambda: F.divergence(X, Y, kind="wasserstein"), KINDS),
        (lambda: F.project(CUBE, 1.0, norm="l3", per="token"), NORMS),
        (lambda: F.project(CUBE, 1.0, norm="l2", per="batch"), GROUPS),
        (lambda: F.ascent_direction(CUBE, norm="l3", per="token"), NORMS),
        (lambda: F.ascent_direction(CUBE, norm="l2", per="batch"), GROUPS),
    ],
)
def test_an_unknown_choice_lists_the_choices(call: Callable[[], Any], choices: tuple[str, ...]) -> None:
    with pytest.raises(ValueError) as error:
        call()
    assert all(choice in str(error.value) for choice in choices)


@pytest.mark.parametrize("norm", NORMS)
def test_negative_radius_is_refused(norm: str) -> None:
    with pytest.raises(ValueError, match="radius"):
        F.project(CUBE, -1e-9, norm=norm, per="token")


@pytest.mark.parametrize(
    "extra",
    [
        {"noise": X, "noise_weight": -0.1},
        {"negative_weights": torch.ones(5, 5) - 2 * torch.eye(5).roll(1, 0)},
        {"hard_negatives": Y, "hard_negative_weights": -torch.ones(5, 5)},
    ],
)
def test_negative_weights_are_refused(extra: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="weight"):
        F.info_nce(X, Y, **extra)


def test_info_nce_with_a_weight_for_each_noise_vector_and_several_positives():
    """The full denominator: w for every kind of positive, c for each anchor and noise vector."""
    torch.manual_seed(0)
    h, p, *extra = torch.randn(4, 3, 5, dtype=torch.float64)
    noise = torch.randn(4, 5, dtype=torch.float64)
    w, c = torch.rand(3, 3, dtype=torch.float64), torch.rand(3, 4, dtype=torch.float64)
    w[0, 1] = c[2, 0] = 0.0

    total = 0.0
    kinds = [p.tolist(), *(x.tolist() for x in extra)]
    for i, anchor in enumerate(h.tolist()):
        above = sum(math.exp(cos(anchor, kind[i]) / 0.5) for kind in kinds)
        below = above
        for kind in kinds:
            for j in range(3):
                if j != i:
                    below += float(w[i, j]) * math.exp(cos(anchor, kind[j]) / 0.5)
        for k, vector in enumerate(noise.tolist()):
            below += float(c[i, k]) * math.exp(cos(anchor, vector) / 0.5)
        total -= math.log(above / below)
    got = F.info_nce(
        h, p, temperature=0.5, noise=noise, noise_weight=c, negative_weights=w, extra_positives=torch.stack(extra)
    )
    assert got.item() == pytest.approx(total / 3, rel=1e-12)
    with pytest.raises(ValueError, match="extra_positives must have shape"):
        F.info_nce(h, p, extra_positives=p)
    with pytest.raises(ValueError, match="noise_weight must not be negative"):
        F.info_nce(h, p, noise=noise, noise_weight=-c)
