"""What the papers' figures show of an encoder, measured on plain sentences: no gold score is needed.

GS-InfoNCE Figure 1: how similar the hardest in-batch negatives are, against the batch size. DCLR Figure 1: how the
cosines of a sentence to its in-batch negatives are distributed. DCL Figure 2: where sentences and their perturbed
versions lie. All on L2-normalised embeddings, in blocks of rows: nothing holds an (n, n) or an (n, n, d) tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hf_robustcse.errors import UserError
from hf_robustcse.evaluation.geometry import uniformity, unit_rows
from hf_robustcse.evaluation.sts import Embeddings, Encode
from hf_robustcse.typos import add_typos

BATCH_SIZES = (8, 16, 32, 64, 128, 256, 512)
NEGATIVES = 255  # of DCLR's figure: those of a batch of 256
BINS = 100  # of the histogram, over [-1, 1]
MAP_SENTENCES = 200  # in the t-SNE, each with its perturbed version
MAX_SENTENCES = 10_000
_ORDERS = 5  # random orders of the sentences that are cut into batches
_ROWS = 1024


@dataclass(frozen=True)
class ProbeText:
    """The sentences of the probes.

    Attributes:
        sentences: distinct.
        perturbed: the same sentences with typos.
        noise: the rate of the typos.
        source: where they are from.
        available: how many distinct sentences there are.
    """

    sentences: list[str]
    perturbed: list[str]
    noise: float
    source: str
    available: int


def probe_text(
    sentences: Sequence[str], source: str, *, noise: float = 0.2, seed: int = 0, most: int | None = None
) -> ProbeText:
    """Choose the sentences of the probes, all or a random sample, and perturb them.

    Args:
        sentences: any; repetitions are dropped.
        source: where they are from.
        noise: probability that a word gets a typo, above 0 and at most 1 (`typos.add_typos`).
        seed: of sample and typos.
        most: how many sentences to keep, None for `MAX_SENTENCES`; of more a random sample is taken.

    Raises:
        UserError: for a noise out of range.
    """
    if not 0 < noise <= 1:
        raise UserError(f"--geometry_noise must be above 0 and at most 1, not {noise:g}")
    distinct = list(dict.fromkeys(sentences))
    chosen, most = distinct, most or MAX_SENTENCES
    if len(distinct) > most:
        rows = np.random.default_rng(seed).choice(len(distinct), most, replace=False)
        chosen = [distinct[row] for row in np.sort(rows)]
    perturbed = [add_typos(sentence, rate=noise, seed=seed) for sentence in chosen]
    return ProbeText(chosen, perturbed, noise, source, len(distinct))


def batch_sizes(n: int, k: int, sizes: Sequence[int] | None = None) -> list[int]:
    """The batch sizes that `top_negatives` can measure.

    Args:
        n: distinct sentences.
        k: negatives that are averaged.
        sizes: wanted; None takes those of `BATCH_SIZES` that are possible.

    Returns:
        Sizes between k + 1 and n, ascending.

    Raises:
        UserError: if k is below 1, a wanted size is impossible, or no size is possible.
    """
    if k < 1:
        raise UserError(f"--geometry_k must be at least 1, not {k}")
    possible = [size for size in BATCH_SIZES if k < size <= n]
    if sizes is None:
        if not possible:
            raise UserError(
                f"the probes have {n} distinct sentences; the {k} most similar of a batch of {BATCH_SIZES[0]} or more "
                "need more sentences, or a lower --geometry_k"
            )
        return possible
    for size in sizes:
        if not k < size <= n:
            raise UserError(
                f"--geometry_batch_sizes {size}: a batch with {k} negatives has at least {k + 1} sentences, and there "
                f"are {n}"
            )
    return sorted(set(sizes))


def top_negatives(x: np.ndarray, *, k: int = 4, sizes: Sequence[int] | None = None, seed: int = 0) -> dict[str, Any]:
    """GS-InfoNCE Figure 1: mean cosine of a sentence and its k most similar in-batch negatives, by batch size.

    For a size N the sentences are put in random order and cut into batches of N, what remains is left out, five times;
    the orders are those of `np.random.default_rng((seed, N)).permutation(n)`.

    Args:
        x: (n, d) embeddings of distinct sentences; normalised here.
        k: negatives that are averaged for each sentence.
        sizes: batch sizes, each above k and at most n; None takes the powers of two from 8 to 512.
        seed: of the batches.

    Returns:
        `k`; `batch_sizes`, and of each `mean` and `std` over its `batches`. The mean is between -1 and 1.

    Raises:
        UserError: for a size that is impossible.
    """
    unit = unit_rows(x)
    sizes = batch_sizes(len(unit), k, sizes)
    means, deviations, counts = [], [], []
    for size in sizes:
        draw = np.random.default_rng((seed, size))
        batches = []
        for _ in range(_ORDERS):
            order = draw.permutation(len(unit))
            for start in range(0, len(unit) - size + 1, size):
                batches.append(_mean_of_top(unit[order[start : start + size]], k))
        means.append(float(np.mean(batches)))
        deviations.append(float(np.std(batches)))
        counts.append(len(batches))
    return {"k": k, "batch_sizes": sizes, "mean": means, "std": deviations, "batches": counts}


def _mean_of_top(batch: np.ndarray, k: int) -> float:
    """Mean over the rows of a batch of the mean of their k largest cosines to other rows."""
    total = 0.0
    for start in range(0, len(batch), _ROWS):
        cosines = batch[start : start + _ROWS] @ batch.T
        rows = np.arange(len(cosines))
        cosines[rows, start + rows] = -np.inf
        total += np.partition(cosines, -k, axis=1)[:, -k:].sum()
    return float(total / (k * len(batch)))


def negative_cosines(x: np.ndarray, *, negatives: int = NEGATIVES, seed: int = 0) -> dict[str, Any]:
    """DCLR Figure 1: the distribution of the cosines of a sentence to its in-batch negatives.

    The sentences are put in the random order `np.random.default_rng(seed).permutation(n)`, as a ring; the negatives of
    each are those that follow it, so that every sentence has the same number of them.

    Args:
        x: (n, d) embeddings of at least two distinct sentences; normalised here.
        negatives: of each sentence; n - 1 if there are not as many.
        seed: of the order.

    Returns:
        `negatives`; `counts` in `BINS` bins of equal width over [-1, 1], each with its lower edge, the last with both;
        `mean` and `std` of the cosines.

    Raises:
        UserError: for fewer than two sentences.
    """
    unit = unit_rows(x)
    if len(unit) < 2:
        raise UserError(f"negatives need at least two distinct sentences, not {len(unit)}")
    n, negatives = len(unit), min(negatives, len(unit) - 1)
    ring = unit[np.random.default_rng(seed).permutation(n)]
    counts, total, squares = np.zeros(BINS, dtype=np.int64), 0.0, 0.0
    for start in range(0, n, _ROWS):
        rows = np.arange(start, min(start + _ROWS, n))
        columns = np.arange(start, rows[-1] + negatives + 1)
        product = ring[rows] @ ring[columns % n].T
        following = np.arange(len(rows))[:, None] + np.arange(1, negatives + 1)
        cosines = np.take_along_axis(product, following, axis=1).clip(-1, 1)
        counts += np.histogram(cosines, BINS, (-1, 1))[0]
        total, squares = total + cosines.sum(), squares + np.square(cosines).sum()
    mean = total / (n * negatives)
    deviation = np.sqrt(max(squares / (n * negatives) - mean**2, 0))
    return {"negatives": negatives, "mean": float(mean), "std": float(deviation), "counts": counts.tolist()}


def retrieval(encode: Encode, sentences: Sequence[str], perturbed: Sequence[str]) -> dict[str, float | int]:
    """How well a sentence is found again from its perturbed version, among all sentences: a dev metric without labels.

    Retrieval alone is served by any space in which sentences differ at all, so the uniformity is given beside it.

    Args:
        encode: n strings -> (n, d) array or tensor, normalised or not; called once.
        sentences: the sentences; all distinct ones are candidates.
        perturbed: of each sentence. One that equals its sentence is no query.

    Returns:
        `accuracy`: how often the sentence itself has the largest cosine, x 100; an equally similar other sentence
        makes it a miss. `cosine`: mean cosine of a sentence and its perturbed version; `uniformity` of the sentences
        (t = 2); `queries` and `candidates`, their numbers.

    Raises:
        UserError: for fewer than two distinct sentences, if the perturbation changed none, or if embeddings are not
            finite.
    """
    queries = [pair for pair in zip(sentences, perturbed, strict=True) if pair[0] != pair[1]]
    embeddings = Embeddings(encode, [*sentences, *(query for _, query in queries)])
    candidates = {sentence: row for row, sentence in enumerate(dict.fromkeys(sentences))}
    if len(candidates) < 2:
        raise UserError(f"retrieval needs at least two distinct sentences, not {len(candidates)}")
    if not queries:
        raise UserError("the perturbation changed none of the sentences; do they hold words?")
    unit = embeddings(list(candidates))
    own = np.array([candidates[sentence] for sentence, _ in queries])
    found, cosines = find_again(unit, embeddings([query for _, query in queries]), own)
    return {
        "accuracy": 100 * float(found.mean()),
        "cosine": float(cosines.mean()),
        "uniformity": uniformity(unit),
        "queries": len(queries),
        "candidates": len(candidates),
    }


def find_again(candidates: np.ndarray, queries: np.ndarray, own: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which queries are most similar to a candidate of their own; an equally similar other one makes it a miss.

    Args:
        candidates: (m, d) unit embeddings.
        queries: (n, d) unit embeddings.
        own: (n,) the candidate of each query.

    Returns:
        (n,) bool, and (n,) the cosines of the queries and their own candidates.
    """
    found, right = np.empty(len(queries), dtype=bool), np.empty(len(queries))
    for start in range(0, len(queries), _ROWS):
        block = slice(start, start + _ROWS)
        # Rounded, so that equal similarities are ties whatever the last bits of a matrix product are.
        cosines = (queries[block] @ candidates.T).round(12)
        place = np.arange(len(cosines)), own[block]
        right[block] = cosines[place]
        cosines[place] = -np.inf
        found[block] = right[block] > cosines.max(axis=1)
    return found, right


def sentence_map(
    encode: Encode, sentences: Sequence[str], perturbed: Sequence[str], *, seed: int = 0
) -> dict[str, dict[str, list[float]]]:
    """DCL Figure 2: sentences and their perturbed versions in two dimensions, by scikit-learn's t-SNE.

    Args:
        encode: n strings -> (n, d) array or tensor.
        sentences: at least two; of more than `MAP_SENTENCES` a random sample is taken.
        perturbed: of each sentence.
        seed: of sample and map.

    Returns:
        `sentences` and `perturbed`, each {`x`, `y`}: the coordinates, in the same order.
    """
    from sklearn.manifold import TSNE  # takes a second to import, and only this needs it

    embeddings = Embeddings(encode, [*sentences, *perturbed])
    rows = np.random.default_rng(seed).permutation(len(sentences))[:MAP_SENTENCES]
    unit = embeddings([*(sentences[row] for row in rows), *(perturbed[row] for row in rows)])
    # The principal axes of points that are all (nearly) one are noise, and their scale a division by zero.
    start = "pca" if unit.shape[1] > 1 and np.ptp(unit, axis=0).max() > 1e-6 else "random"
    perplexity = min(30.0, (len(unit) - 1) / 3)
    points = TSNE(2, perplexity=perplexity, init=start, random_state=seed, n_jobs=1).fit_transform(unit)
    columns = points.astype(float).round(3).T
    half = len(rows)
    return {
        name: {"x": columns[0, part].tolist(), "y": columns[1, part].tolist()}
        for name, part in (("sentences", slice(half)), ("perturbed", slice(half, None)))
    }


def evaluate_probes(
    encode: Encode, text: ProbeText, *, k: int = 4, sizes: Sequence[int] | None = None, seed: int = 0
) -> dict[str, Any]:
    """All probes of one text, each distinct sentence encoded once.

    Args:
        encode: n strings -> (n, d) array or tensor, normalised or not.
        text: of `probe_text`.
        k: as in `top_negatives`.
        sizes: as in `top_negatives`.
        seed: of batches, negatives and map.

    Returns:
        `source`; `n` sentences of `available` ones; `top_negatives`, `negatives` (of `negative_cosines`) and
        `perturbed`: the rate `noise`, what `retrieval` gives, and `map` (of `sentence_map`).

    Raises:
        UserError: if the text is too short, or embeddings are not finite.
    """
    embeddings = Embeddings(encode, [*text.sentences, *text.perturbed])
    unit = embeddings(text.sentences)
    return {
        "source": text.source,
        "n": len(unit),
        "available": text.available,
        "top_negatives": top_negatives(unit, k=k, sizes=sizes, seed=seed),
        "negatives": negative_cosines(unit, seed=seed),
        "perturbed": {
            "noise": text.noise,
            **retrieval(embeddings, text.sentences, text.perturbed),
            "map": sentence_map(embeddings, text.sentences, text.perturbed, seed=seed),
        },
    }
