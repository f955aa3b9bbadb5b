"""What recipes need beyond the victim: WordNet, word neighbours, masked words, a sentence encoder, a tagger."""

from __future__ import annotations

import functools
from collections.abc import Callable

from hf_robustcse.synonyms import wordnet_reader


def wordnet_lemmas() -> Callable[[str], list[str]]:
    """WordNet's lemmas: word -> all single-word lemmas of all synsets of it (and of its base forms), sorted.

    Raises:
        UserError: if there is no WordNet, or no nltk to read it.
    """
    reader = wordnet_reader()

    @functools.cache
    def lemmas(word: str) -> list[str]:
        names = {name for synset in reader.synsets(word) for name in synset.lemma_names()}
        return sorted(name for name in names if name != word and "_" not in name)

    return lemmas
