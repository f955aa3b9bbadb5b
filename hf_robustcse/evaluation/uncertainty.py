"""How far a score would move with other pairs: percentile bootstrap of Spearman, alone and paired between two models.

A resample draws n of a task's n pairs with replacement, over all its subsets together ("all" is one correlation, so
nothing is stratified). The interval is the middle 95 % of the resampled correlations (Efron & Tibshirani 1993,
chapter 13). Two models are compared on the same resamples, so that what both find hard cancels.

What an interval does not hold: the spread over training seeds, and that pairs which share a sentence are no
independent draws.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from hf_robustcse.errors import UserError
from hf_robustcse.evaluation.sts import spearman

LEVEL = 0.95
LEAST = 100
"""Fewer resamples than this leave two or less beyond each end of the interval."""
_CELLS = 1 << 20  # of resamples x pairs held at a time
TOO_CLOSE = "cannot be told"


def check_samples(samples: int, *, off: bool = True) -> None:
    """Refuse a number of resamples that gives no interval.

    Args:
        samples: the number.
        off: whether 0 is allowed, for none.

    Raises:
        UserError: if it is too small.
    """
    if samples < LEAST and not (off and samples == 0):
        raise UserError(f"--bootstrap {samples} is too few: at least {LEAST}" + (", or 0 for none" if off else ""))


def resampled_spearman(similarities: np.ndarray, gold: np.ndarray, *, samples: int, seed: int, name: str) -> np.ndarray:
    """Spearman of each resample, the same resamples for every system.

    A resample is a weight for each pair, how often it was drawn; ranks then come from cumulated weights, so nothing is
    sorted again and ties get their exact average rank.

    Args:
        similarities: (m, n), the similarities of m systems for n pairs.
        gold: (n,), the gold scores.
        samples: the number of resamples.
        seed: of the draw.
        name: of the task; together with `seed` it fixes the draw, whatever other tasks there are.

    Returns:
        (m, samples) correlations between -1 and 1; 0 where a resample leaves one side constant.
    """
    systems = [_Ranks(values) for values in similarities]
    gold_ranks = _Ranks(gold)
    parts = []
    for weights in _draws(len(gold), samples, np.random.default_rng([seed, zlib.crc32(name.encode())])):
        y = gold_ranks(weights)
        weighted = weights * y
        y_square = (weighted * y).sum(axis=1)
        part = []
        for system in systems:
            x = system(weights)
            norm = np.sqrt((weights * x * x).sum(axis=1) * y_square)
            product = (weighted * x).sum(axis=1)
            part.append(np.divide(product, norm, out=np.zeros_like(norm), where=norm > 0))
        parts.append(part)
    return np.concatenate(parts, axis=1)


def interval(draws: np.ndarray) -> tuple[float, float]:
    """The ends of the middle 95 % of `draws` (samples,)."""
    low, high = np.quantile(draws, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def spearman_interval(
    similarities: np.ndarray, gold: np.ndarray, *, samples: int, seed: int, name: str
) -> dict[str, float]:
    """The interval of one score.

    Args:
        similarities: (n,).
        gold: (n,).
        samples: as in `resampled_spearman`, as the next two.
        seed: see there.
        name: see there.

    Returns:
        `spearman_low` and `spearman_high`, x 100.
    """
    draws = resampled_spearman(np.asarray(similarities)[None], gold, samples=samples, seed=seed, name=name)
    low, high = interval(100 * draws[0])
    return {"spearman_low": low, "spearman_high": high}


def verdict(low: float, high: float) -> str:
    """What an interval of B - A says: "B is better", "A is better", or "cannot be told" if it holds 0."""
    return "B is better" if low > 0 else "A is better" if high < 0 else TOO_CLOSE


def compare(
    a: Mapping[str, np.ndarray],
    b: Mapping[str, np.ndarray],
    gold: Mapping[str, np.ndarray],
    *,
    samples: int,
    seed: int,
    draw: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Paired bootstrap of two models, or of two sets of runs, on the same pairs.

    The score of several runs is the mean of their scores; their spread (`a_std`) is reported beside the interval and is
    no part of it. For the mean over tasks each task is resampled by itself, which makes that interval somewhat narrow
    where tasks share pairs (STS-B holds many of STS12 to STS16).

    Args:
        a: task -> (runs, n) similarities of A; or (runs, versions, n) where the same pairs were scored in several
            versions (perturbed, say), over whose scores a run's is the mean.
        b: the same of B, with as many runs or others.
        gold: task -> (n,) gold scores.
        samples: resamples a task.
        seed: of the draw.
        draw: task -> a name that fixes its draw in place of its own; tasks on the same pairs share one, and the
            interval of their mean is not too narrow then.

    Returns:
        `tasks`: task -> {`a`, `b`, `a_std`, `b_std` (None for one run), `difference` (B - A), `low`, `high`,
        `verdict`, `n`}, all x 100; `mean`: the same over the tasks, `n` their number.
    """
    tasks, scores, draws = {}, [], []
    for name, golds in gold.items():
        sides = [side[name].reshape(len(side[name]), -1, len(golds)) for side in (a, b)]
        rows = [side.reshape(-1, len(golds)) for side in sides]
        drawn = resampled_spearman(
            np.concatenate(rows), golds, samples=samples, seed=seed, name=(draw or {}).get(name, name)
        )
        split = len(rows[0])
        draws.append(100 * (drawn[split:].mean(axis=0) - drawn[:split].mean(axis=0)))
        scores.append(
            [[float(np.mean([100 * spearman(row, golds, name=name) for row in run])) for run in side] for side in sides]
        )
        tasks[name] = _record(*scores[-1], draws[-1], len(golds))
    means = [np.mean([score[side] for score in scores], axis=0).tolist() for side in (0, 1)]  # one value a run
    return {"tasks": tasks, "mean": _record(*means, np.mean(draws, axis=0), len(tasks))}


def _record(a: list[float], b: list[float], draws: np.ndarray, n: int) -> dict[str, Any]:
    low, high = interval(draws)
    record = {"a": float(np.mean(a)), "b": float(np.mean(b))}
    for side, runs in (("a_std", a), ("b_std", b)):
        record[side] = float(np.std(runs, ddof=1)) if len(runs) > 1 else None
    difference = record["b"] - record["a"]
    return {**record, "difference": difference, "low": low, "high": high, "verdict": verdict(low, high), "n": n}


def _draws(n: int, samples: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    """How often each of n pairs is drawn: blocks (resamples, n) of integers with rows that sum to n."""
    rows = max(1, _CELLS // n)
    for start in range(0, samples, rows):
        count = min(rows, samples - start)
        drawn = rng.integers(n, size=(count, n)) + n * np.arange(count)[:, None]
        yield np.bincount(drawn.ravel(), minlength=count * n).reshape(count, n)


class _Ranks:
    """The average ranks of n values in resamples of them, centred at 0."""

    def __init__(self, values: np.ndarray) -> None:
        distinct, self.place = np.unique(values, return_inverse=True)
        self.order = np.argsort(self.place, kind="stable")
        self.starts = np.searchsorted(self.place[self.order], np.arange(len(distinct)))

    def __call__(self, weights: np.ndarray) -> np.ndarray:
        """Ranks (resamples, n) of values drawn `weights` times; of no meaning where that is 0."""
        counts = np.add.reduceat(weights[:, self.order], self.starts, axis=1)
        # Of k copies after `below` others the ranks are below + 1 to below + k; the mean of all n ranks is (n + 1) / 2.
        ranks = counts.cumsum(axis=1) - (counts - 1) / 2 - (weights.shape[1] + 1) / 2
        return ranks[:, self.place]
