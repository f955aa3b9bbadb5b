"""Regressions that are fitted together against scikit-learn's, one at a time."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression

from hf_robustcse.evaluation.regression import fit_together, predict

PENALTIES = (1000.0, 30.0, 0.5)


def rows_of(classes: int, n: int = 240, d: int = 7) -> tuple[np.ndarray, np.ndarray, list[np.ndarray]]:
    """Features of very different size, classes of different size, and subsets of the rows."""
    rng = np.random.default_rng(classes)
    x = rng.normal(size=(n, d)) * np.geomspace(0.05, 8, d)
    y = np.argmax(x @ rng.normal(size=(d, classes)) + 4 * rng.normal(size=(n, classes)) + np.arange(classes), axis=1)
    return x, y, [np.flatnonzero(rng.random(n) < share) for share in (0.9, 0.9, 0.5)]


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize(("dtype", "precision"), [(np.float64, 2e-4), (np.float32, 5e-4)])
def test_against_scikit_learn(classes: int, dtype: type, precision: float) -> None:
    x, y, fits = rows_of(classes)
    weights, failed = fit_together(x.astype(dtype), y, fits, PENALTIES, classes=classes, max_iter=100)
    assert failed == 0 and weights.dtype == dtype
    assert weights.shape == (3, 3, 1 if classes == 2 else classes, 8)
    predicted = predict(x.astype(dtype), weights)
    for number, fit in enumerate(fits):
        for place, penalty in enumerate(PENALTIES):
            model = LogisticRegression(C=1 / penalty, tol=1e-10, max_iter=10000).fit(x[fit], y[fit])
            scores = x @ weights[number, place, :, :-1].T + weights[number, place, :, -1]
            expected = model.decision_function(x).reshape(len(x), -1)
            if classes > 2:  # adding a number to all classes changes nothing
                scores, expected = (values - values.mean(axis=1, keepdims=True) for values in (scores, expected))
            assert np.abs(scores - expected).max() < precision * np.abs(expected).max()
            assert np.mean(predicted[number, place] == model.predict(x)) > 0.99


def test_a_fit_does_not_depend_on_the_fits_beside_it() -> None:
    x, y, fits = rows_of(2)
    together, _ = fit_together(x, y, fits, PENALTIES, classes=2, max_iter=100)
    for number, fit in enumerate(fits):
        (alone,), _ = fit_together(x, y, [fit], PENALTIES, classes=2, max_iter=100)
        assert alone == pytest.approx(together[number], rel=1e-3, abs=1e-4)


def test_separable_classes_and_too_few_steps() -> None:
    x = np.array([[-2.0], [-1.0], [1.0], [2.0]])
    y = np.array([0, 0, 1, 1])
    weights, failed = fit_together(x, y, [np.arange(4)], (1e-3,), classes=2, max_iter=100)
    assert failed == 0 and (predict(x, weights[0, 0]) == y).all()
    _, failed = fit_together(x, y, [np.arange(4)], (1e-3, 1e-4), classes=2, max_iter=1)
    assert failed == 2
