"""A dev set without labels: plain sentences in any language, and how well each is found again from its typos.

For text without any scored pairs. The sentences are those of a file, or taken out of the training corpus.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from hf_robustcse.data import VIEWS, Corpus, load_corpus
from hf_robustcse.errors import UserError
from hf_robustcse.evaluation.geometry import effective_rank, embedding_std, mean_cosine
from hf_robustcse.evaluation.probes import probe_text, retrieval
from hf_robustcse.evaluation.sts import Embeddings, Encode

MAX_SENTENCES = 2000  # of a file: with their versions with typos about as many texts to encode as STS-B dev has
SEED = 0  # of sample and typos: the same for every seed of a run, so that their scores can be compared


@dataclass(frozen=True)
class DevText:
    """Sentences and their versions with typos; beside `StsData` the other kind of dev set.

    Attributes:
        sentences: distinct.
        perturbed: of each sentence.
        noise: the rate of the typos.
        source: where they are from.
        sha256: of the sentences and their versions.
        held_out: how many rows of the training corpus were taken out for them.
    """

    sentences: list[str]
    perturbed: list[str]
    noise: float
    source: str
    sha256: str
    held_out: int = 0

    key = "dev_text"
    split = "dev"
    is_test = False

    @property
    def n(self) -> int:
        """The number of sentences."""
        return len(self.sentences)


def load_dev_text(path: str | Path, *, noise: float = 0.2) -> DevText:
    """The sentences of a corpus (`data.load_corpus`), a random sample of `MAX_SENTENCES` if there are more.

    Args:
        path: the file; of several columns the first is read.
        noise: probability that a word gets a typo, above 0 and at most 1 (`typos.add_typos`).

    Raises:
        UserError: if it cannot be read, a noise out of range, or sentences that are too few or hold no words.
    """
    return _dev_text(load_corpus(path).dataset[VIEWS[0]], str(path), noise, most=MAX_SENTENCES)


def hold_out(corpus: Corpus, number: int, *, noise: float = 0.2) -> tuple[DevText, Corpus]:
    """Take sentences out of a corpus: a random sample, the same for every seed of a run.

    Every row that holds one of them is taken out, in whichever of its columns.

    Args:
        corpus: not streamed.
        number: how many distinct sentences of the first column.
        noise: as in `load_dev_text`.

    Returns:
        The dev set, and what remains to train on.

    Raises:
        UserError: for a streamed corpus, a number below 2 or beyond the corpus, and as in `load_dev_text`.
    """
    if corpus.report is None:
        raise UserError("--dev_holdout needs a corpus in memory; with --streaming pass --dev_text FILE")
    columns = [corpus.dataset[view][:] for view in VIEWS[: corpus.views]]
    first = columns[0]
    distinct = len(set(first))
    if not 2 <= number < distinct:
        raise UserError(
            f"--dev_holdout {number} must be at least 2 and below the {distinct} distinct sentences of the corpus"
        )
    dev = _dev_text(first, corpus.report.source, noise, most=number)
    taken = set(dev.sentences)
    kept = [place for place, row in enumerate(zip(*columns, strict=True)) if taken.isdisjoint(row)]
    out = len(first) - len(kept)
    dev = DevText(dev.sentences, dev.perturbed, noise, f"held out of {dev.source}", dev.sha256, out)
    digest = hashlib.sha256(f"{corpus.report.sha256} {dev.sha256}".encode()).hexdigest()
    return dev, Corpus(corpus.dataset.select(kept, new_fingerprint=digest[:32]), corpus.views, corpus.report)


def _dev_text(sentences: Sequence[str], source: str, noise: float, *, most: int) -> DevText:
    if not 0 < noise <= 1:
        raise UserError(f"--dev_noise must be above 0 and at most 1, not {noise:g}")
    text = probe_text(sentences, source, noise=noise, seed=SEED, most=most)
    if len(text.sentences) < 2:
        raise UserError(f"{source} has {len(text.sentences)} distinct sentence; retrieval among them needs at least 2")
    if text.sentences == text.perturbed:
        raise UserError(f"{source}: no typo fits any of the sentences; do they hold words?")
    lines = "\n".join(f"{a}\t{b}" for a, b in zip(text.sentences, text.perturbed, strict=True))
    digest = hashlib.sha256(lines.encode("utf-8")).hexdigest()
    return DevText(text.sentences, text.perturbed, noise, source, digest)


def evaluate_dev_text(encode: Encode, data: DevText) -> dict[str, float]:
    """What training watches on a dev set without labels, from one encoding pass.

    `score`, which chooses the checkpoint, is retrieval minus uniformity. Wang & Isola (2020) judge an encoder by
    alignment and uniformity together, as either alone has a trivial optimum. Retrieval takes the place of alignment:
    it asks that a sentence be nearer to its typos than to others, and not that both be one point. A unit of uniformity
    weighs as much as a point of retrieval, so that between checkpoints of one run, which seldom differ by a tenth in
    uniformity, it decides where retrieval is equal, as where all is found. How good an encoder is for another task it
    does not say: typos test the form of a sentence and not its meaning.

    Args:
        encode: n strings -> (n, d) array or tensor.
        data: the dev set.

    Returns:
        `score`; `retrieval`: how often a sentence is found again from its version with typos, x 100; `cosine` between
        the two; `uniformity` (t = 2), `mean_cosine`, `embedding_std` and `effective_rank` of the sentences.

    Raises:
        UserError: if the embeddings are not finite.
    """
    embeddings = Embeddings(encode, [*data.sentences, *data.perturbed])
    found = retrieval(embeddings, data.sentences, data.perturbed)
    unit: np.ndarray = embeddings(data.sentences)
    return {
        "score": found["accuracy"] - found["uniformity"],
        "retrieval": found["accuracy"],
        "uniformity": found["uniformity"],
        "cosine": found["cosine"],
        "mean_cosine": mean_cosine(unit),
        "embedding_std": embedding_std(unit),
        "effective_rank": effective_rank(unit),
    }
