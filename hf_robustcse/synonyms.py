"""Synonyms from WordNet or from a word list, and sentences with some words replaced by them."""

from __future__ import annotations

import gzip
import io
import os
import random
import re
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hf_robustcse.errors import UserError
from hf_robustcse.wordnet import WordNet

Synonyms = Callable[[str], list[str]]
"""A lower-case word -> its synonyms, the word itself not among them."""

_WORD = re.compile(r"[^\W\d_]+(?:['’-][^\W\d_]+)*")
# WordNet has entries for these (angstrom, inch, iodine, the chemical He, ...) or none of the sense they mostly have.
_FUNCTION_WORDS = frozenset(
    """a about above after all am an and any are as at be been before being below but by can could did do does down for
    from had has have he her here his how i if in into is it its just like may me might more most must my no nor not
    now of off on or our out over she should so some such than that the their them then there these they this those to
    too under up us very was we were what when where which who will with would you your""".split()
)
# These stand in other places of a sentence than their synonyms ("a person" but no "a someone", "learn perfectly" but
# not "learn absolutely"), mean a number, or are judged otherwise.
_UNLIKE_THEIR_SYNONYMS = frozenset(
    """absolutely also anybody anyone auto belated buddy corp coup crony decidedly definitely dozens emphatically
    everybody everyone haired instead merely murphy nobody non percent perfectly person somebody someone takeover
    tardy tons utterly""".split()
)


def replace_words(text: str, synonyms: Synonyms, *, rate: float, seed: int) -> str:
    """The text with some of its words replaced by a synonym, and at least one if any has one.

    A text and a seed always give the same result, in every process and however often they are asked.

    Args:
        text: any; all but the replaced words stays as it is.
        synonyms: of a word.
        rate: probability that a word with a synonym is replaced, in [0, 1].
        seed: of the choice.
    """
    draw = random.Random(f"{seed} {text}")  # a string seeds by its SHA-512
    words = [(match, options) for match in _WORD.finditer(text) if (options := synonyms(match[0].lower()))]
    if not words:
        return text
    spared = draw.randrange(len(words))
    parts, end = [], 0
    for number, (match, options) in enumerate(words):
        hit, choice = draw.random() < rate, draw.choice(options)
        if hit or number == spared:
            parts += [text[end : match.start()], choice.capitalize() if match[0][0].isupper() else choice]
            end = match.end()
    return "".join(parts) + text[end:]


def read_word_list(path: str) -> Synonyms:
    """Synonyms from a file, which may be gzipped, with tab-separated synonyms on each line.

    Raises:
        UserError: if it cannot be read or has no two synonyms.
    """
    found: dict[str, list[str]] = {}
    try:
        with (gzip.open if path.lower().endswith(".gz") else open)(path, "rt", encoding="utf-8-sig") as file:
            lines = file.read().split("\n")
    except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the word list {path}: {' '.join(str(error).split())}") from error
    for line in lines:
        words = [word.strip() for word in line.split("\t") if word.strip()]
        for word in words:
            known = found.setdefault(word.lower(), [])
            known += [other for other in words if other.lower() != word.lower() and other not in known]
    if not any(found.values()):
        raise UserError(f"the word list {path} has no line with two tab-separated synonyms")
    return lambda word: found.get(word, [])


def load_wordnet(*, exact: bool = False) -> Synonyms:
    """Synonyms from WordNet: the lemmas of all synsets of a word, in WordNet's order; function words have none.

    The data is looked for in the folder WORDNET_DIR, in nltk's data path and in /usr/share/wordnet.

    Args:
        exact: only synonyms that fit nearly every sentence with the word. Both are base forms of one and the same part
            of speech and of no other, not verbs (whose synonyms take other objects), and share their first sense,
            which WordNet puts first for being the most frequent; both have at most two senses, and the synonym
            occurs in the texts that WordNet's counts come from.

    Raises:
        UserError: if there is no WordNet, or no nltk to read it.
    """
    reader = wordnet_reader()
    known: dict[str, list[str]] = {}

    def all_senses(word: str) -> list[str]:
        names = [name.replace("_", " ") for synset in reader.synsets(word) for name in synset.lemma_names()]
        itself = {word, *(reader.morphy(word, pos) for pos in "nvar")}  # its base forms are no synonyms either
        return [name for name in dict.fromkeys(names) if name.lower() not in itself]

    def only_sense(word: str) -> Any:
        """The first sense of a word that is the base form of one part of speech, and no verb; else None."""
        senses = reader.synsets(word)
        if not 0 < len(senses) <= 2 or len({"a" if sense.pos() == "s" else sense.pos() for sense in senses}) > 1:
            return None
        base = all(reader.morphy(word, pos) in (None, word) for pos in "nvar")
        return senses[0] if base and senses[0].pos() != "v" else None

    def first_sense(word: str) -> list[str]:
        sense = only_sense(word)
        lemmas = sense.lemmas() if sense else []
        names = [lemma.name() for lemma in lemmas if lemma.count() and lemma.name().isalpha() and lemma.name() != word]
        return [
            name
            for name in names
            if name.islower() and name not in _UNLIKE_THEIR_SYNONYMS and only_sense(name) == sense
        ]

    def synonyms(word: str) -> list[str]:
        if word in _FUNCTION_WORDS or (exact and word in _UNLIKE_THEIR_SYNONYMS):
            return []
        if word not in known:
            known[word] = first_sense(word) if exact else all_senses(word)
        return known[word]

    return synonyms


def read_wordnet(*, otherwise: str) -> WordNet:
    """The words of the WordNet that is here; looked for where `load_wordnet` looks.

    Args:
        otherwise: what to do without WordNet, for the message.

    Raises:
        UserError: if there is no WordNet.
    """
    root = _wordnet_root(otherwise)

    def read(file: str) -> bytes:
        if isinstance(root, str):
            return (Path(root) / file).read_bytes()
        with root.join(file).open() as stream:
            return stream.read()

    try:
        return WordNet(read)
    except (OSError, ValueError, LookupError) as error:
        raise UserError(f"cannot read the WordNet in {root}: {' '.join(str(error).split())}") from error


def wordnet_reader(*, otherwise: str = "choose --dcl_augmentation dropout or wordlist") -> Any:
    """nltk's reader of the WordNet that is here.

    Args:
        otherwise: what to do without WordNet, for the message.

    Raises:
        UserError: if there is no WordNet, or no nltk to read it.
    """
    try:
        from nltk.corpus.reader.wordnet import WordNetCorpusReader
    except ImportError as error:
        raise UserError("WordNet is read with nltk: pip install hf_robustcse[wordnet]") from error

    class Reader(WordNetCorpusReader):
        def map_wn(self, version: str = "wordnet") -> None:
            """No map to version 3.0: it serves other languages, and would need a second WordNet."""

        def open(self, file: str) -> Any:
            """A file of WordNet; Debian's has no lexnames, which are 45 names of files of its makers unused here."""
            try:
                return super().open(file)
            except OSError:
                if file != "lexnames":
                    raise
                return io.StringIO("".join(f"{number:02d}\tunknown\t0\n" for number in range(45)))

    root = _wordnet_root(otherwise)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the other languages are missing
            return Reader(root, None)
    except (OSError, ValueError, LookupError, AssertionError) as error:
        raise UserError(f"cannot read the WordNet in {root}: {' '.join(str(error).split())}") from error


def _wordnet_root(otherwise: str) -> Any:
    """Where the files of WordNet are: a folder, or nltk's pointer into its zip file."""
    try:
        import nltk.data
    except ImportError:
        nltk = None  # it only knows of one more place
    named = os.environ.get("WORDNET_DIR")
    folders = [Path(named), Path(named) / "dict"] if named else [Path("/usr/share/wordnet")]
    if nltk and not named:
        for resource in ("corpora/wordnet/", "corpora/wordnet.zip/wordnet/"):
            try:
                return nltk.data.find(resource)
            except LookupError:
                continue
    for folder in folders:
        if (folder / "data.noun").is_file():
            if nltk:
                nltk.data.path.append(str(folder))  # nltk reads nothing outside of its path
            return str(folder)
    where = f"WORDNET_DIR={named} holds no data.noun" if named else "there is no WordNet here"
    raise UserError(
        f"{where}: set WORDNET_DIR to its folder, install it (apt install wordnet-base, or python -m nltk.downloader "
        f"wordnet), or {otherwise}"
    )
