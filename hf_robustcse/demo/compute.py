"""What the demo's page shows, computed: similarities, search, and attacks step by step. Nothing of Gradio is here."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from transformers import PreTrainedTokenizerBase

from hf_robustcse.attacks import Dissimilar, Example, attack_examples
from hf_robustcse.attacks.recipes import build_recipe
from hf_robustcse.attacks.resources import NONE, Resources
from hf_robustcse.attacks.resources.lexicons import WORDNET
from hf_robustcse.attacks.text import Document, Edited, is_one_word
from hf_robustcse.attacks.transformations import in_case_of
from hf_robustcse.attacks.victims import PairSimilarity
from hf_robustcse.errors import UserError
from hf_robustcse.evaluation.embedders import Embedder
from hf_robustcse.synonyms import Synonyms, load_wordnet, read_word_list
from hf_robustcse.typos import LEAST, add_typos

LONGEST = 500  # characters of a text
MOST_EDITS = 20
TOP = 10  # sentences that a search shows
DRAWN = ("typos", "synonyms")
"""Attacks that know no model: one word after another, in an order drawn with the seed."""
SEARCHED = ("deepwordbug", "pwws", "textbugger", "textfooler")
"""Attacks that ask one of the models which edit makes the text least similar."""
ATTACKS = (*DRAWN, *SEARCHED)
_QUERIES = 3000  # of a searched attack at most
_UNKNOWN = 0.5  # share of unknown tokens from which the reader is warned


class Model:
    """One of the models, and a corpus embedded by it.

    Args:
        name: that the page shows.
        embedder: of `load_embedder`.
        corpus: n sentences, at least two.

    Attributes:
        level: the mean cosine of two different sentences of the corpus. Encoders differ much in it, so that a
            similarity says something only beside its own level.
    """

    def __init__(self, name: str, embedder: Embedder, corpus: Sequence[str]) -> None:
        self.name = name
        self.embedder = embedder
        # A fast tokenizer cannot be asked by two threads at once, and each visitor has one.
        self._lock = threading.Lock()
        self._corpus = self(corpus)
        count = len(corpus)
        total = self._corpus.sum(axis=0)
        self.level = float((total @ total - count) / (count * (count - 1)))

    def __call__(self, texts: Sequence[str]) -> np.ndarray:
        """Embed n texts: (n, d) float64 of length 1."""
        with self._lock:
            rows = self.embedder(list(texts)).astype(np.float64)
        return rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)

    def nearest(self, row: np.ndarray) -> list[tuple[int, float]]:
        """The `TOP` sentences of the corpus nearest to a (d,) row of length 1: (number, cosine), nearest first."""
        cosines = self._corpus @ row
        return [(int(i), float(cosines[i])) for i in np.argsort(-cosines, kind="stable")[:TOP]]

    def unknown(self, text: str) -> float:
        """The share of a text's tokens that the model's vocabulary lacks, in [0, 1]."""
        tokenizer = self.embedder.model.tokenizer
        if not isinstance(tokenizer, PreTrainedTokenizerBase) or tokenizer.unk_token_id is None:
            return 0.0
        with self._lock:
            tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
        return tokens.count(tokenizer.unk_token_id) / max(1, len(tokens))


@dataclass(frozen=True)
class Step:
    """A text under attack after some edits.

    Attributes:
        pieces: the text in order, cut at the changed words: (text, None), or (new word, word that stood there).
        similarities: of the text and what it is compared with, by each model, in [-1, 1].
        kept: of each model's `TOP` nearest sentences of the unchanged text, how many are among those of this one.
        nearest_kept: whether each model's nearest sentence still is the same.
    """

    pieces: list[tuple[str, str | None]]
    similarities: tuple[float, ...]
    kept: tuple[int, ...]
    nearest_kept: tuple[bool, ...]

    @property
    def text(self) -> str:
        """The whole text."""
        return "".join(piece for piece, _ in self.pieces)

    @property
    def edits(self) -> int:
        """How many words are changed."""
        return sum(old is not None for _, old in self.pieces)


class Demo:
    """Two models (or more), a corpus to search, and what the attacks need.

    Args:
        models: with the same corpus.
        corpus: that they were made with.
        resources: of the attacks: synonyms, word neighbours.
    """

    def __init__(self, models: Sequence[Model], corpus: Sequence[str], resources: Resources | None = None) -> None:
        self.models = list(models)
        self.corpus = list(corpus)
        self.resources = resources or Resources()
        self.resources.sentence_encoder = self.resources.sentence_encoder or NONE

    @property
    def names(self) -> list[str]:
        """Of the models."""
        return [model.name for model in self.models]

    @cached_property
    def _synonyms(self) -> Synonyms:
        source = self.resources.synonyms
        return load_wordnet() if source == WORDNET else read_word_list(source)

    def missing(self, attack: str) -> str | None:
        """What an attack needs that is not here, in a line; None if it can be used."""
        if attack in ("synonyms", "pwws"):
            try:
                _ = self._synonyms
            except UserError:
                return "needs WordNet: pip install hf_robustcse[wordnet] and apt install wordnet-base, or --synonyms"
        if attack in ("textbugger", "textfooler") and not self.resources.word_neighbours:
            return "needs --word_neighbours"
        return None

    def similarity(self, first: str, second: str) -> tuple[list[float], list[str]]:
        """The cosine of two texts.

        Returns:
            Of each model, in [-1, 1]; and notes for the reader.

        Raises:
            UserError: for a text that is empty or too long.
        """
        texts = [checked(first, "the first text"), checked(second, "the second text")]
        rows = [model(texts) for model in self.models]
        return [float(row[0] @ row[1]) for row in rows], self.notes(*texts)

    def search(self, query: str) -> tuple[list[list[tuple[float, str]]], list[str]]:
        """The sentences of the corpus nearest to a query.

        Returns:
            Of each model `TOP` (cosine, sentence), nearest first; and notes for the reader.

        Raises:
            UserError: for a query that is empty or too long.
        """
        query = checked(query, "the query")
        found = [[(cosine, self.corpus[i]) for i, cosine in model.nearest(model([query])[0])] for model in self.models]
        common = set.intersection(*({sentence for _, sentence in rows} for rows in found))
        return found, [f"{len(common)} of {len(found[0])} sentences are found by both models.", *self.notes(query)]

    def attack(
        self, text: str, other: str = "", *, attack: str = "typos", edits: int = 8, target: int = 0, seed: int = 0
    ) -> Iterator[Step]:
        """A text under attack, edit by edit. The same arguments always give the same steps.

        Args:
            text: that is edited.
            other: that it is compared with; empty for the text itself as it was.
            attack: one of `ATTACKS`.
            edits: words to change at most, from 1 to `MOST_EDITS`.
            target: the number of the model that a searched attack asks.
            seed: of what is drawn.

        Yields:
            The unchanged text at once, then the text after each edit; fewer than `edits` if no more words can be
            changed.

        Raises:
            UserError: for a text that is empty, too long or has nothing to change, an unknown attack, or one that
                lacks its resources.
        """
        text = checked(text, "the sentence to attack")
        other = checked(other, "the text to compare with") if other.strip() else text
        if attack not in ATTACKS:
            raise UserError(f"unknown attack {attack!r}; known: {', '.join(ATTACKS)}")
        if not 1 <= edits <= MOST_EDITS:
            raise UserError(f"the number of edits must be between 1 and {MOST_EDITS}, not {edits}")
        if lacks := self.missing(attack):
            raise UserError(f"the attack {attack} {lacks}")
        document = Document({"text": text})
        if not document.words:
            raise UserError("there is no word to change in the sentence")
        references = [model([other])[0] for model in self.models]
        neighbours: list[list[int]] = []

        def step(current: Edited) -> Step:
            rows = [model([current.text])[0] for model in self.models]
            now = [[i for i, _ in model.nearest(row)] for model, row in zip(self.models, rows, strict=True)]
            if not neighbours:
                neighbours.extend(now)
            pairs = list(zip(now, neighbours, strict=True))
            return Step(
                pieces_of(current),
                tuple(float(row @ reference) for row, reference in zip(rows, references, strict=True)),
                tuple(len(set(found) & set(before)) for found, before in pairs),
                tuple(found[0] == before[0] for found, before in pairs),
            )

        current = Edited(document)
        yield step(current)
        if attack in SEARCHED:
            changes = self._searched(text, other, attack, target, seed)
        else:
            changes = self._drawn(document, attack, random.Random(f"{seed} {text}"), seed)
        if not changes:
            raise UserError(f"the attack {attack} finds no word to change in this sentence{_HINTS.get(attack, '')}")
        for position, word in changes[:edits]:
            current = current.replace(position, word)
            yield step(current)

    def _drawn(self, document: Document, attack: str, draw: random.Random, seed: int) -> list[tuple[int, str]]:
        """What replaces each word that can be changed, in an order drawn at random."""
        changes = {}
        long = any(len(word) >= LEAST for word in document.words)
        for at, word in enumerate(document.words):
            if attack == "typos":
                new = add_typos(word, rate=1, seed=seed) if len(word) >= LEAST or not long else word
            else:
                options = [option for option in self._synonyms(word.lower()) if is_one_word(option)]
                new = in_case_of(options[0], word) if options else word  # WordNet's first is the most frequent
            if new != word:
                changes[at] = new
        return draw.sample(list(changes.items()), len(changes))

    def _searched(self, text: str, other: str, attack: str, target: int, seed: int) -> list[tuple[int, str]]:
        """What a recipe puts in place of which words to make one model's similarity fall, in its order.

        A greedy search keeps each edit that it has made, so its first n are what it finds with n allowed.
        """
        victim = PairSimilarity(self.models[target], untouched=[other])
        recipe = build_recipe(attack, self.resources)
        example = Example({"text": text}, Dissimilar(1.0, distance=1.0), context={"other": other})
        ((_, outcome),) = attack_examples([(0, example)], recipe, victim, seed=seed, budget=_QUERIES)
        if outcome.status == "skipped":
            raise UserError(f"{self.names[target]} finds the two texts unlike already (a cosine of 0 or less)")
        return list(outcome.perturbed.replaced.items())

    def notes(self, *texts: str) -> list[str]:
        """What a reader should know of texts: that a model does not know their language."""
        shares = {model.name: max(map(model.unknown, texts)) for model in self.models}
        return [
            f"{name} does not know {share:.0%} of the tokens: it was trained on another language or script, and its "
            "figures say little."
            for name, share in shares.items()
            if share >= _UNKNOWN
        ]


_HINTS = {
    "synonyms": ": WordNet knows English nouns, verbs, adjectives and adverbs only",
    "pwws": " that WordNet has synonyms for and that makes the similarity fall",
    "deepwordbug": " that makes the similarity fall",
}


def checked(text: str, what: str) -> str:
    """The text without white space around it.

    Args:
        text: of the user.
        what: it is, for the message.

    Raises:
        UserError: if it is empty or has more than `LONGEST` characters.
    """
    text = (text or "").strip()
    if not text:
        raise UserError(f"type a sentence: {what} is empty")
    if len(text) > LONGEST:
        raise UserError(f"{what} has {len(text)} characters; the demo takes {LONGEST} at most")
    return text


def pieces_of(edited: Edited) -> list[tuple[str, str | None]]:
    """A text of one column cut at its changed words: (text, None), or (new word, word that stood there)."""
    document, pieces, end = edited.document, [], 0
    for position, word in edited.changed.items():
        start, stop = document.spans[position]
        pieces += [(document.texts[0][end:start], None), (word, document.words[position])]
        end = stop
    pieces.append((document.texts[0][end:], None))
    return [piece for piece in pieces if piece[0] or piece[1]]
