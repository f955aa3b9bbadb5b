"""The baselines that need no training: averaged word vectors, and whitening (Su et al. 2021) on top of any encoder."""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, WordEmbeddings
from sentence_transformers.sentence_transformer.modules.tokenizer import WhitespaceTokenizer

from hf_robustcse.data import load_corpus
from hf_robustcse.errors import UserError
from hf_robustcse.evaluation.sts import Embeddings, Encode, StsData, encode_rows

WORD_VECTORS = "glove"
"""The name of the pooling of averaged word vectors."""
_SUFFIXES = (".txt", ".vec", ".txt.gz", ".vec.gz")

# A direction whose standard deviation is below 1e-5 of the widest one's is rounding of float32 embeddings, not text.
_EPS = 1e-10


def is_word_vectors(name: str, pooling: str | None = None) -> bool:
    """Whether a model's name means a text file of word vectors: by its suffix, or because the pooling says so."""
    return pooling == WORD_VECTORS or name.lower().endswith(_SUFFIXES)


def load_word_vectors(path: str | Path, device: str | None = None) -> SentenceTransformer:
    """Averaged word vectors of a text file, by sentence-transformers' own modules.

    A sentence is split at white space. A token that the file does not hold is looked up without the punctuation at its
    ends, then in lower case, and left out if that fails too. No stop words. The embedding is the mean of the vectors
    found, zero if there are none.

    Args:
        path: the file; see `read_word_vectors`.
        device: as in `embedders.load_embedder`.

    Returns:
        A SentenceTransformer of two modules.

    Raises:
        UserError: as in `read_word_vectors`.
    """
    words, vectors = read_word_vectors(path)
    # Row 0 is the padding that WordEmbeddings counts on, under a name that no token can have.
    weights = np.concatenate([np.zeros((1, vectors.shape[1]), dtype=np.float32), vectors])
    embeddings = WordEmbeddings(WhitespaceTokenizer(["\n", *words], stop_words=()), weights)
    return SentenceTransformer(modules=[embeddings, Pooling(vectors.shape[1], "mean")], device=device)


def read_word_vectors(path: str | Path) -> tuple[list[str], np.ndarray]:
    r"""Read a text file in the format of GloVe: a word and its numbers a line, separated by single spaces.

    The file may be gzipped and may begin with word2vec's header `count dimension`. A word may hold spaces, as a few of
    GloVe's 840B do. Of a word that occurs twice the first vector counts.

    Args:
        path: the file, UTF-8, lines end at `\n`.

    Returns:
        The words, and their vectors (words, dimension) in float32.

    Raises:
        UserError: if the file cannot be read, holds no vector, or has a malformed line (file and line are named).
    """
    path = Path(path)
    if not path.is_file():
        raise UserError(f"{path} is no file: word vectors are a text file, a word and its numbers a line")
    words: dict[str, None] = {}
    values = bytearray()
    dimension = announced = None
    number = 0
    opener = gzip.open if path.suffix.lower() == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8-sig", newline="\n") as file:
            for number, line in enumerate(file, 1):
                line = line.rstrip("\r\n ")
                if not line:
                    continue
                fields = line.split(" ")
                if number == 1 and len(fields) == 2 and all(field.isdecimal() for field in fields):
                    announced, dimension = map(int, fields)
                    continue
                if dimension is None:
                    dimension = len(fields) - 1
                word, vector = _parse(line, fields, dimension, f"{path}, line {number}")
                if word not in words:
                    words[word] = None
                    values += vector.tobytes()
    except UnicodeDecodeError as error:
        raise UserError(f"{path}, after line {number}: not UTF-8 ({error.reason})") from None
    except (OSError, EOFError, zlib.error) as error:  # the last two: a gzip file cut off or damaged
        raise UserError(f"{path} cannot be read: {error}") from None
    if not words:
        raise UserError(f"{path} holds no word vector: a line is a word and its numbers, separated by single spaces")
    if announced is not None and announced > len(words):
        print(f"{path} announces {announced} words and holds {len(words)} different ones: is it cut off?")
    return list(words), np.frombuffer(values, dtype=np.float32).reshape(len(words), -1)


def _parse(line: str, fields: list[str], dimension: int, where: str) -> tuple[str, np.ndarray]:
    """The word and the vector (dimension,) of one line."""
    if dimension < 1 or len(fields) <= dimension:
        raise UserError(
            f"{where}: {len(fields)} fields, expected a word and {max(dimension, 1)} numbers separated by single spaces"
        )
    word = " ".join(fields[:-dimension])
    try:
        vector = np.array(fields[-dimension:], dtype=np.float32)
    except ValueError as error:
        raise UserError(f"{where}: {error}") from None
    if len(fields) > dimension + 1 and _is_number(fields[-dimension - 1]):
        raise UserError(f"{where}: more than {dimension} numbers")
    if not word or not np.isfinite(vector).all():
        raise UserError(f"{where}: " + ("a number is not finite" if word else "no word before the numbers"))
    return word, vector


def _is_number(field: str) -> bool:
    try:
        float(field)
    except ValueError:
        return False
    return True


@dataclass(frozen=True)
class Whitening:
    """The map x -> (x - mean) W to zero mean and unit covariance, with W = U sqrt(1 / L) (Su et al. 2021).

    Attributes:
        mean: (d,).
        matrix: (d, k), W: its columns belong to the k largest eigenvalues L of the covariance.
        sentences: the number that it was fitted on.
        dropped: how many of the d directions have no variance to speak of and are left out whatever k.
    """

    mean: np.ndarray
    matrix: np.ndarray
    sentences: int
    dropped: int

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        """Whiten embeddings: (n, d) -> (n, k), float64."""
        return (rows - self.mean) @ self.matrix


def fit_whitening(rows: np.ndarray, dim: int | None = None, *, name: str) -> Whitening:
    """Fit mean and W on embeddings.

    Args:
        rows: (n, d) float64, finite, not normalised.
        dim: k, how many directions to keep, the widest first; None for all that have a variance.
        name: of the text, for messages.

    Returns:
        The whitening.

    Raises:
        UserError: if `dim` exceeds d, or too few sentences leave all of them equally far from each other.
    """
    n, width = rows.shape
    if dim is not None and not 1 <= dim <= width:
        raise UserError(f"--whitening_dim {dim} must be between 1 and {width}, the width of the embeddings")
    mean = rows.mean(axis=0)
    centred = rows - mean
    eigenvalues, vectors = np.linalg.eigh(centred.T @ centred / n)
    eigenvalues, vectors = eigenvalues[::-1], vectors[:, ::-1]
    # Where all embeddings are equal the widest direction is rounding too, of their mean.
    floor = max(_EPS * eigenvalues[0], n * np.square(np.finfo(np.float64).eps * np.abs(rows).max()))
    rank = int((eigenvalues > floor).sum())
    kept = min(rank, dim or width)
    if kept == 0 or kept >= n - 1:  # n points, whitened in all n - 1 directions that they span, are a regular simplex
        raise UserError(
            f"whitening {width} dimensions on the {n} different sentences of {name} makes all of them equally similar: "
            "choose a smaller --whitening_dim, or fit on more text with --whitening_text FILE"
        )
    if kept < (dim or width):
        print(f"whitening on {name}: {width - rank} of {width} dimensions have no variance and are dropped")
    return Whitening(mean, vectors[:, :kept] / np.sqrt(eigenvalues[:kept]), n, width - rank)


def whiten_tasks(
    encode: Encode, tasks: Sequence[StsData], *, text: str | Path | None = None, dim: int | None = None
) -> tuple[dict[str, Embeddings], dict[str, Any]]:
    """Whitened embeddings of STS tasks, each distinct sentence encoded once.

    Without `text` each task is whitened with mean and W of its own distinct sentences, the paper's "target" setting:
    transductive, but without a label. The paper's tasks with a train and a dev split fit on all splits; here it is the
    split that is scored.

    Args:
        encode: n strings -> (n, d) array or tensor, not whitened.
        tasks: the loaded tasks.
        text: a corpus (`data.load_corpus`) to fit one mean and W on instead; its first column is read.
        dim: how many directions to keep.

    Returns:
        `StsData.key` -> unit embeddings after whitening, and what `results.json` says of it: `transductive`, `dim`,
        `fitted_on`, and `sentences`, `dimension`, `dropped`, with a `text` once and with its `sha256`, else for each
        key in `tasks`.

    Raises:
        UserError: if the text cannot be read or an embedding is not finite, and as in `fit_whitening`.
    """
    shared = None
    if text is not None:
        corpus = load_corpus(text)
        shared = fit_whitening(encode_rows(encode, list(dict.fromkeys(corpus.dataset["text"]))), dim, name=str(text))
    index = {sentence: row for row, sentence in enumerate(dict.fromkeys(s for data in tasks for s in data.sentences))}
    rows = encode_rows(encode, list(index))
    tables, fitted = {}, {}
    for data in tasks:
        own = rows[[index[sentence] for sentence in data.sentences]]
        fitted[data.key] = shared or fit_whitening(own, dim, name=data.key)
        white = fitted[data.key](own)
        tables[data.key] = Embeddings(lambda _, white=white: white, data.sentences)
    about: dict[str, Any] = {"transductive": shared is None, "dim": dim}
    if shared is None:
        about |= {"fitted_on": "the unlabelled sentences of each scored set"}
        about["tasks"] = {key: _counts(whitening) for key, whitening in fitted.items()}
    else:
        about |= {"fitted_on": str(text), "sha256": corpus.report.sha256, **_counts(shared)}
    return tables, about


def _counts(whitening: Whitening) -> dict[str, int]:
    width = whitening.matrix.shape[1]
    return {"sentences": whitening.sentences, "dimension": width, "dropped": whitening.dropped}
