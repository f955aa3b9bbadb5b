"""Positives made in the text: a sentence with typos, or with synonyms in place of some of its words."""

from __future__ import annotations

from typing import Any

from hf_robustcse.errors import UserError
from hf_robustcse.synonyms import Synonyms, load_wordnet, read_word_list, replace_words
from hf_robustcse.typos import add_typos, leave_out

TEXT_AUGMENTATIONS = ("typos", "synonyms")
"""The kinds; those of `perturb.AUGMENTATIONS` change word embeddings instead."""


class TextAugmentation:
    """Makes x', the positive of an unlabelled sentence x.

    x' is a function of the text and the seed alone: the same in every epoch, however many processes and workers there
    are, and after a resume.

    Args:
        kind: ``typos`` or ``synonyms``.
        rate: probability that a word is changed, above 0 and at most 1; of the words that can be, one is in any case.
        seed: of the choice.
        drop: with ``typos``, probability that what they leave alone, a short word, a number or a sign, is left out of
            x' (`typos.leave_out`), in [0, 1].
        word_list: file of synonyms, see `synonyms.read_word_list`; None takes WordNet's.
        option: how the options are called that made this, for messages: ``augmentation`` or ``anchor``.

    Raises:
        UserError: for another kind, rate or drop, a word list without ``synonyms``, or one that cannot be read, or if
            there is no WordNet.
    """

    def __init__(
        self,
        kind: str,
        *,
        rate: float = 0.15,
        seed: int = 42,
        drop: float = 0.0,
        word_list: str | None = None,
        option: str = "augmentation",
    ) -> None:
        if kind not in TEXT_AUGMENTATIONS:
            raise UserError(f"{kind!r} is made in no text: choose {' or '.join(TEXT_AUGMENTATIONS)}")
        check_rate(kind, rate, option=option)
        check_drop(kind, drop, option=option)
        check_word_list(kind, word_list, option=option)
        self.option = option
        self.kind, self.rate, self.seed, self.drop, self.word_list = kind, rate, seed, drop, word_list
        self._synonyms: Synonyms | None = self._load() if kind == "synonyms" else None

    def __getstate__(self) -> dict[str, Any]:
        """Without the synonyms, which each worker reads itself."""
        return {**self.__dict__, "_synonyms": None}

    def _load(self) -> Synonyms:
        if self.word_list is not None:
            return read_word_list(self.word_list)
        return load_wordnet(otherwise=f"name a list with --{self.option}_wordlist")

    def __call__(self, text: str) -> str:
        """x' of x; x itself if it has no word that can be changed."""
        if self.kind == "typos":
            return add_typos(leave_out(text, rate=self.drop, seed=self.seed), rate=self.rate, seed=self.seed)
        if self._synonyms is None:
            self._synonyms = self._load()
        return replace_words(text, self._synonyms, rate=self.rate, seed=self.seed)


def check_rate(kind: str, rate: float, *, option: str = "augmentation") -> None:
    """Refuse a rate that changes nothing, or is no probability.

    Raises:
        UserError: naming the option.
    """
    if not 0 < rate <= 1:
        raise UserError(f"--{option}_rate must be above 0 and at most 1 for {kind}, not {rate}")


def check_drop(kind: str, drop: float, *, option: str = "augmentation") -> None:
    """Refuse what is no probability, or leaves nothing out.

    Raises:
        UserError: naming the option.
    """
    if not 0 <= drop <= 1:
        raise UserError(f"--{option}_drop must be at least 0 and at most 1, not {drop}")
    if drop and kind != "typos":
        raise UserError(f"--{option}_drop belongs to typos, not to {kind}")


def check_word_list(kind: str, word_list: str | None, *, option: str = "augmentation") -> None:
    """Refuse a word list that nothing would read.

    Raises:
        UserError: naming the option.
    """
    if word_list is not None and kind != "synonyms":
        raise UserError(f"--{option}_wordlist belongs to synonyms, not to {kind}")
