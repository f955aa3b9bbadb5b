"""Many logistic regressions on rows of one matrix at once, as cross-validation over a grid of penalties needs them.

The objective is that of scikit-learn's `LogisticRegression`. The regressions of a cross-validation differ in few rows,
so they go together: a product of the matrix with one vector, which waits for memory, becomes one with many. Each takes
Newton's steps, found by conjugate gradients that all share one preconditioner, the Hessian at their mean; a fit takes
a dozen passes over the rows where lbfgs takes a hundred, and ends nearer to the optimum.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import log_softmax, logsigmoid, one_hot

_CONVERGED = 1e-7  # what a step is still worth, of the mean loss; the steps converge quadratically
_RESIDUAL = 0.03  # of a step
_MAX_INNER = 100
_ROUNDING = 1e-6  # of a loss in float32


class _Regressions:
    """Regressions in progress.

    Args:
        x: (n, d + 1), the last column ones.
        y: (n,) classes.
        inside: (fits, n), 1 for a row that a regression is fitted on, else 0.
        classes: how many there are.
    """

    def __init__(self, x: Tensor, y: Tensor, inside: Tensor, classes: int) -> None:
        self.x, self.inside = x, inside[:, None]
        self.outputs = 1 if classes == 2 else classes
        self.targets = (y[None] if self.outputs == 1 else one_hot(y, classes).T).to(x.dtype)
        self.sizes = inside.sum(dim=1, dtype=torch.float64)
        self.w = torch.zeros(len(inside), self.outputs, x.shape[1], dtype=torch.float64)
        self.strength = torch.zeros(x.shape[1], dtype=torch.float64)  # of the penalty; the intercept has none

    def fit(self, penalty: float, max_iter: int) -> Tensor:
        """Go from where they are to the optimum under a penalty; (fits,) which did not arrive."""
        self.strength[:-1] = penalty
        scores = self._scores(self.w)
        loss = self._loss(self.w, scores)
        going, preconditioner = torch.ones(len(self.w), dtype=torch.bool), None
        for _ in range(max_iter):
            p = scores.sigmoid() if self.outputs == 1 else scores.softmax(dim=1)
            gradient = self._back((p - self.targets) * self.inside) + self.strength * self.w
            if preconditioner is None:
                preconditioner = self._preconditioner(p)
            step, worth = self._solve(p, gradient, preconditioner)
            size = going.double()
            for _ in range(20):
                w = self.w - size[:, None, None] * step
                scores = self._scores(w)
                tried = self._loss(w, scores)
                if not (worse := tried > loss * (1 + _ROUNDING)).any():
                    break
                size = torch.where(worse, size / 2, size)
            self.w, loss = w, tried
            going &= worth > _CONVERGED * self.sizes
            if not going.any():
                break
        return going

    def _scores(self, w: Tensor) -> Tensor:
        """(fits, outputs, n) of weights (fits, outputs, d + 1)."""
        return (w.flatten(0, 1).to(self.x.dtype) @ self.x.T).view(*w.shape[:2], -1)

    def _back(self, slopes: Tensor) -> Tensor:
        """(fits, outputs, d + 1) of what each row gives (fits, outputs, n)."""
        found = (slopes.flatten(0, 1) @ self.x).double().view(*slopes.shape[:2], -1)
        if self.outputs > 1:  # all intercepts together change nothing, so that only rounding is left of their sum
            found[:, :, -1] -= found[:, :, -1].mean(dim=1, keepdim=True)
        return found

    def _loss(self, w: Tensor, scores: Tensor) -> Tensor:
        """(fits,) the sum of the losses and the penalty."""
        if self.outputs == 1:
            losses = -logsigmoid(torch.where(self.targets > 0, scores, -scores))
        else:
            losses = -(log_softmax(scores, dim=1) * self.targets).sum(dim=1, keepdim=True)
        return (losses * self.inside).sum(dim=(1, 2), dtype=torch.float64) + 0.5 * (self.strength * w * w).sum((1, 2))

    def _preconditioner(self, p: Tensor) -> Tensor:
        """(outputs, d + 1, d + 1) Cholesky factors of the mean Hessian of the regressions, without mixed classes."""
        factors = []
        for curvature in (p * (1 - p) * self.inside).mean(dim=0):
            hessian = (self.x.T @ (self.x * curvature[:, None])).double()
            hessian.diagonal().add_(self.strength + 1e-6 * hessian.diagonal().max() + 1e-12)
            factors.append(torch.linalg.cholesky(hessian))
        return torch.stack(factors)

    def _solve(self, p: Tensor, gradient: Tensor, preconditioner: Tensor) -> tuple[Tensor, Tensor]:
        """Newton's steps, by conjugate gradients, and (fits,) what each is worth: gradient . step."""

        def hessian(v: Tensor) -> Tensor:
            u = self._scores(v)
            if self.outputs > 1:
                u = u - (p * u).sum(dim=1, keepdim=True)
            weights = p * (1 - p) if self.outputs == 1 else p
            return self._back(weights * u * self.inside) + self.strength * v

        def precondition(v: Tensor) -> Tensor:
            return torch.cholesky_solve(v.permute(1, 2, 0), preconditioner).permute(2, 0, 1)

        step, residual = torch.zeros_like(gradient), gradient.clone()
        z = precondition(residual)
        direction, rho = z, (residual * z).sum(dim=(1, 2))
        least = rho * _RESIDUAL**2
        for _ in range(_MAX_INNER):
            if (rho <= least).all():
                break
            product = hessian(direction)
            curvature = (direction * product).sum(dim=(1, 2))
            # One that has arrived stays where it is while the others go on.
            alpha = torch.where((rho > least) & (curvature > 0), rho / curvature.clamp(min=1e-300), 0.0)[:, None, None]
            step, residual = step + alpha * direction, residual - alpha * product
            z = precondition(residual)
            rho, before = (residual * z).sum(dim=(1, 2)), rho
            direction = z + torch.where(before > 0, rho / before.clamp(min=1e-300), 0.0)[:, None, None] * direction
        return step, (gradient * step).sum(dim=(1, 2))


@torch.no_grad()
def fit_together(
    x: np.ndarray,
    y: np.ndarray,
    fits: Sequence[np.ndarray],
    penalties: Sequence[float],
    *,
    classes: int,
    max_iter: int,
) -> tuple[np.ndarray, int]:
    """Fit logistic regressions, each on some rows of a matrix, for one penalty after the other.

    Args:
        x: (n, d) features, float32 or float64.
        y: (n,) classes, from 0.
        fits: of each regression the rows that it is fitted on.
        penalties: of all of them in turn: the weight of half the squared norm of the weights (not of the intercept)
            against the sum of the losses. Each solution starts from the one before, the first from zero.
        classes: how many there are.
        max_iter: steps of Newton's method at most.

    Returns:
        The weights (fits, penalties, 1 or classes, d + 1) in the type of `x`, the intercept last, one row for two
        classes; and how many solutions did not converge.
    """
    features = torch.from_numpy(np.concatenate([x, np.ones_like(x[:, :1])], axis=1))
    inside = torch.zeros(len(fits), len(x), dtype=features.dtype)
    for row, rows in zip(inside, fits, strict=True):
        row[torch.from_numpy(rows)] = 1
    regressions = _Regressions(features, torch.from_numpy(y), inside, classes)
    found, failed = [], 0
    for penalty in penalties:
        failed += int(regressions.fit(penalty, max_iter).sum())
        found.append(regressions.w.to(features.dtype).numpy())
    return np.stack(found, axis=1), failed


@contextmanager
def one_thread() -> Iterator[None]:
    """No threads inside of torch's operations: whoever has threads of his own fills the cores with them."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def predict(x: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The classes (..., n) of n rows by weights (..., 1 or classes, d + 1), as `fit_together` gives them."""
    scores = weights[..., :-1] @ x.T + weights[..., -1:]
    return (scores[..., 0, :] > 0).astype(np.int64) if scores.shape[-2] == 1 else scores.argmax(axis=-2)
