"""Geometry of the embedding space: alignment, uniformity, anisotropy and collapse, on L2-normalised embeddings.

Alignment and uniformity are those of Wang & Isola (2020) as SimCSE reports them: alignment over the pairs whose gold
score is above 4, uniformity over all distinct sentences of the same set. Both need the unit sphere; embeddings are
normalised here, so a caller cannot forget to. Nothing holds an (n, n) matrix.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from hf_robustcse import functional
from hf_robustcse.errors import UserError
from hf_robustcse.evaluation.sts import Embeddings, Encode, Pair, StsData, evaluate_pairs

# "STS-B pairs with a score higher than 4" are SimCSE's positive pairs, all STS-B sentences its data distribution.
POSITIVE_ABOVE = 4.0
_ROWS = 1024


def uniformity(x: np.ndarray, *, t: float = 2.0) -> float:
    """`functional.uniformity` in blocks of rows: log mean exp(-t ||x_i - x_j||^2) over distinct pairs, at most 0.

    Args:
        x: (n, d), n at least 2; normalised here.
        t: the scale of the Gaussian potential.

    Returns:
        The value, between -4 t (two opposite points) and 0 (one point); lower is more uniform.
    """
    unit = torch.from_numpy(unit_rows(x))
    norms = unit.square().sum(dim=1)  # 1, or 0 for a zero embedding
    parts = []
    for start in range(0, len(unit), _ROWS):
        rows = slice(start, start + _ROWS)
        squared = (norms[rows, None] + norms - 2 * unit[rows] @ unit.T).clamp_min_(0)
        squared[range(len(squared)), range(start, start + len(squared))] = torch.inf  # a point is no pair with itself
        parts.append(torch.logsumexp((-t * squared).flatten(), dim=0))
    n = len(unit)
    return float(torch.logsumexp(torch.stack(parts), dim=0) - np.log(n * (n - 1)))


def mean_cosine(x: np.ndarray) -> float:
    """Mean cosine over all pairs of different rows, by (||sum||^2 - n) / (n (n - 1)): anisotropy (Ethayarajh 2019).

    Args:
        x: (n, d), n at least 2.

    Returns:
        The mean, between -1 / (n - 1) and 1 (one direction).
    """
    unit = unit_rows(x)
    n = len(unit)
    return float((np.square(unit.sum(axis=0)).sum() - np.square(unit).sum()) / (n * (n - 1)))


def embedding_std(x: np.ndarray) -> float:
    """Mean standard deviation per dimension of the unit embeddings, times sqrt(d) (Chen & He 2021).

    Args:
        x: (n, d).

    Returns:
        A value between 0 (all embeddings equal: collapse) and 1 (spread evenly over the sphere).
    """
    unit = unit_rows(x)
    return float(unit.std(axis=0).mean() * np.sqrt(unit.shape[1]))


def effective_rank(x: np.ndarray) -> float:
    """exp of the entropy of the singular values over their sum (Roy & Vetterli 2007), of the unit embeddings.

    Args:
        x: (n, d); rows are normalised, not centred.

    Returns:
        A value between 1 (one direction) and min(n, d); 0 if all embeddings are zero.
    """
    singular = np.linalg.svd(unit_rows(x), compute_uv=False)
    if singular[0] == 0:
        return 0.0
    share = singular / singular.sum()
    share = share[share > 0]
    return float(np.exp(-(share * np.log(share)).sum()))


def evaluate_geometry(
    encode: Encode, pairs: Sequence[Pair], *, positive_above: float = POSITIVE_ABOVE, seed: int = 0
) -> dict[str, float | int | None]:
    """Geometry of one set of scored pairs, each distinct sentence encoded once.

    Args:
        encode: n strings -> (n, d) array or tensor, normalised or not.
        pairs: (sentence1, sentence2, gold score), of at least two distinct sentences.
        positive_above: a pair with a gold score above this is positive.
        seed: of the shuffle behind `random_cosine`.

    Returns:
        `alignment` (0 to 4, lower is better) and `positive_cosine` over the positive pairs, None if there is none;
        `random_cosine` over every first sentence paired with another pair's second sentence at random (DCL Figure 3
        plots both cosines), None if that leaves no pair of different sentences; over all distinct sentences
        `uniformity` (t = 2), `mean_cosine`, `embedding_std` and `effective_rank`; `n` distinct sentences,
        `n_positive` pairs.

    Raises:
        UserError: for fewer than two distinct sentences, or embeddings that are not finite.
    """
    embeddings = Embeddings(encode, (sentence for pair in pairs for sentence in pair[:2]))
    unit = embeddings.unit
    if len(unit) < 2:
        raise UserError(f"geometry needs at least two distinct sentences, not {len(unit)}")
    left, right = (np.array([embeddings.index[pair[side]] for pair in pairs]) for side in (0, 1))
    positive = np.array([pair[2] > positive_above for pair in pairs])
    order = np.random.default_rng(seed).permutation(len(pairs))
    shuffled = np.empty_like(right)
    shuffled[order] = right[np.roll(order, 1)]  # one cycle, so no pair keeps its own second sentence
    differs = shuffled != left

    def cosine(first: np.ndarray, second: np.ndarray) -> float | None:
        return float(np.einsum("nd,nd->n", unit[first], unit[second]).mean()) if len(first) else None

    first, second = (torch.from_numpy(unit[side[positive]]) for side in (left, right))
    return {
        "alignment": float(functional.alignment(first, second)) if positive.any() else None,
        "uniformity": uniformity(unit),
        "mean_cosine": mean_cosine(unit),
        "positive_cosine": cosine(left[positive], right[positive]),
        "random_cosine": cosine(left[differs], shuffled[differs]),
        "embedding_std": embedding_std(unit),
        "effective_rank": effective_rank(unit),
        "n": len(unit),
        "n_positive": int(positive.sum()),
    }


def has_positives(data: StsData) -> bool:
    """Whether a set is scored from 0 to 5, as STS-B is, with a score above 4: on another scale that says nothing."""
    scores = [pair[2] for pair in data.pairs]
    return min(scores) >= 0 and POSITIVE_ABOVE < max(scores) <= 5


def evaluate_dev(encode: Encode, data: StsData) -> dict[str, float]:
    """What training watches, from one encoding pass: `spearman` ("all", x 100) and the geometry of the same set.

    Args:
        encode: n strings -> (n, d) array or tensor.
        data: a dev set; that it is not a test set (`StsData.is_test`) is for the caller to see to.

    Returns:
        `spearman`, `alignment`, `uniformity`, `mean_cosine`, `positive_cosine`, `random_cosine`, `embedding_std`,
        `effective_rank`; all finite floats. `alignment` and `positive_cosine` are left out for a set without positive
        pairs (`has_positives`).

    Raises:
        UserError: if the embeddings are not finite.
    """
    embeddings = Embeddings(encode, data.sentences)
    scores = {"spearman": evaluate_pairs(embeddings, data.subsets)["spearman"]}
    above = POSITIVE_ABOVE if has_positives(data) else float("inf")
    geometry = evaluate_geometry(embeddings, data.pairs, positive_above=above)
    return scores | {
        name: value for name, value in geometry.items() if value is not None and name not in ("n", "n_positive")
    }


def unit_rows(x: np.ndarray) -> np.ndarray:
    """Rows of norm 1 in float64 (n, d); a zero row stays zero."""
    x = np.asarray(x, dtype=np.float64)
    norms = np.linalg.norm(x, axis=1, keepdims=True)
    return np.divide(x, norms, out=np.zeros_like(x), where=norms > 0)
