"""Many logistic regressions on rows of one matrix at once, as cross-validation over a grid of penalties needs them.

The objective, the solver and its stopping rule are those of scikit-learn's `LogisticRegression` (scipy's L-BFGS-B), so
that each fit takes the steps that it would take alone. But a step's loss and gradient are computed for all fits
together: their matrix-vector products, which only wait for memory, become two products of matrices.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from scipy.optimize import minimize
from torch.nn.functional import binary_cross_entropy_with_logits, log_softmax, one_hot

TOLERANCE = 1e-4  # of the largest entry of the gradient of the mean loss, as in scikit-learn


class _Together:
    """Calls of several threads, answered at once as soon as every thread that still runs has called.

    Args:
        answer: {number of a thread: question} -> their answers, in order.
        threads: how many run.
    """

    def __init__(self, answer: Callable[[dict[int, Any]], Sequence[Any]], threads: int) -> None:
        self._answer = answer
        self._running = threads
        self._asked: dict[int, Any] = {}
        self._answers: dict[int, Any] = {}
        self._error: BaseException | None = None
        self._changed = threading.Condition()

    def ask(self, number: int, question: Any) -> Any:
        """The answer to the question of a thread."""
        with self._changed:
            self._asked[number] = question
            self._go_on()
            self._changed.wait_for(lambda: number in self._answers or self._error)
            if self._error:
                raise self._error
            return self._answers.pop(number)

    def leave(self) -> None:
        """A thread asks no more."""
        with self._changed:
            self._running -= 1
            self._go_on()

    def _go_on(self) -> None:
        if self._asked and len(self._asked) == self._running and not self._error:
            asked, self._asked = dict(sorted(self._asked.items())), {}
            try:
                self._answers = dict(zip(asked, self._answer(asked), strict=True))
            except BaseException as error:  # every thread has to hear of it, or it would wait forever
                self._error = error
            self._changed.notify_all()


def fit_together(
    x: np.ndarray,
    y: np.ndarray,
    fits: Sequence[tuple[np.ndarray, Sequence[float]]],
    *,
    classes: int,
    max_iter: int,
) -> tuple[list[np.ndarray], int]:
    """Fit logistic regressions, each on some rows of a matrix, for one penalty after the other.

    Args:
        x: (n, d) features, float32 or float64.
        y: (n,) classes, from 0.
        fits: of each regression the rows that it is fitted on, and penalties: the weight of half the squared norm of
            the weights (not of the intercept) against the sum of the losses. The first starts from zero, each later one
            from the one before.
        classes: how many there are.
        max_iter: steps at most.

    Returns:
        For each of `fits` the weights (penalties, 1 or classes, d + 1) in the type of `x`, the intercept last, one row
        for two classes; and how many solutions did not converge.
    """
    n, d = x.shape
    outputs = 1 if classes == 2 else classes
    features = torch.from_numpy(x)
    labels = torch.from_numpy(y.astype(np.int64))
    targets = labels.to(features.dtype) if outputs == 1 else one_hot(labels, classes).T.to(features.dtype)
    inside = torch.zeros(len(fits), n, dtype=features.dtype)
    for row, (rows, _) in zip(inside, fits, strict=True):
        row[torch.from_numpy(rows)] = 1
    sizes = inside.sum(dim=1, dtype=torch.float64)
    failed = [0] * len(fits)

    @torch.no_grad()
    def losses(asked: dict[int, np.ndarray]) -> list[tuple[float, np.ndarray]]:
        """The mean loss of each regression that asks, over its rows, and its gradient."""
        numbers = list(asked)
        w = torch.from_numpy(np.stack(list(asked.values()))).to(features.dtype).view(len(asked) * outputs, d + 1)
        rows = inside if len(asked) == len(fits) else inside[numbers]
        scores = torch.addmm(w[:, d:], w[:, :d], features.T)
        if outputs == 1:
            loss = binary_cross_entropy_with_logits(scores, targets.expand_as(scores), reduction="none").mul_(rows)
            slope = scores.sigmoid_().sub_(targets).mul_(rows)
        else:
            logs = log_softmax(scores.view(len(asked), outputs, n), dim=1)
            loss = (logs * targets).sum(dim=1).neg_().mul_(rows)
            slope = logs.exp_().sub_(targets).mul_(rows[:, None]).view(len(asked) * outputs, n)
        size = sizes[numbers]
        means = loss.sum(dim=1, dtype=torch.float64) / size
        gradient = torch.cat([slope @ features, slope.sum(dim=1, keepdim=True)], dim=1).double()
        gradients = (gradient.view(len(asked), -1) / size[:, None]).numpy()
        return list(zip(means.tolist(), gradients, strict=True))

    together = _Together(losses, len(fits))

    def fit(number: int) -> np.ndarray:
        size, found = float(sizes[number]), []
        w = np.zeros(outputs * (d + 1))

        def objective(w: np.ndarray, strength: float) -> tuple[float, np.ndarray]:
            loss, gradient = together.ask(number, w)
            weights = w.reshape(outputs, d + 1).copy()
            weights[:, d] = 0
            gradient = gradient + strength * weights.ravel()
            return loss + 0.5 * strength * float(np.vdot(weights, weights)), gradient

        try:
            for penalty in fits[number][1]:
                options = {"maxiter": max_iter, "maxls": 50, "gtol": TOLERANCE, "ftol": 64 * np.finfo(float).eps}
                solved = minimize(objective, w, (penalty / size,), "L-BFGS-B", jac=True, options=options)
                failed[number] += solved.status != 0
                found.append(solved.x.astype(x.dtype))
                w = found[-1].astype(np.float64)
        finally:
            together.leave()
        return np.stack(found).reshape(-1, outputs, d + 1)

    with ThreadPoolExecutor(len(fits)) as pool:
        return list(pool.map(fit, range(len(fits)))), sum(failed)


def predict(x: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """The classes (..., n) of n rows by weights (..., 1 or classes, d + 1), as `fit_together` gives them."""
    scores = weights[..., :-1] @ x.T + weights[..., -1:]
    return (scores[..., 0, :] > 0).astype(np.int64) if scores.shape[-2] == 1 else scores.argmax(axis=-2)
