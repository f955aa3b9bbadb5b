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

Synonyms = Callable[[str], list[str]]
"""A lower-case word -> its synonyms, the word itself not among them."""

_OTHERWISE = "choose --dcl_augmentation dropout or wordlist"
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


def load_wordnet(*, exact: bool = False, otherwise: str = _OTHERWISE) -> Synonyms:
    """Synonyms from WordNet: the lemmas of all synsets of a word, in WordNet's order; function words have none.

    The data is looked for in the folder WORDNET_DIR, in nltk's data path and in /usr/share/wordnet.

    Args:
        exact: only synonyms that fit nearly every sentence with the word. Both are base forms of one and the same part
            of speech and of no other, not verbs (whose synonyms take other objects), and share their first sense,
            which WordNet puts first for being the most frequent; both have at most two senses, and the synonym
            occurs in the texts that WordNet's counts come from.
        otherwise: what to do without WordNet, for the message.

    Raises:
        UserError: if there is no WordNet, or no nltk to read it.
    """
    known: dict[str, list[str]] = {}
    wordnet = reader = None
    if exact:  # counts and parts of speech of senses: nltk knows them, at a millisecond a word
        reader = wordnet_reader(otherwise=otherwise)
    else:
        wordnet = read_wordnet(otherwise=otherwise)

    def all_senses(word: str) -> list[str]:
        names = [name.replace("_", " ") for name in wordnet.names(word)]
        itself = {word, *(wordnet.base_form(word, part) for part in "nvar")}  # its base forms are no synonyms either
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


class WordNet:
    """WordNet's words, read from the files of its database: index.*, data.* and *.exc (wndb(5WN), morphy(7WN)).

    It gives what nltk's reader gives, in a tenth of the time a word. nltk's builds every synset with all its
    relations, which is most of the time of an attack by synonyms on a quick victim.

    Args:
        folder: of the files.

    Raises:
        OSError: if a file cannot be read.
        ValueError: if a file is no part of WordNet.
    """

    _FILES = {"n": "noun", "v": "verb", "a": "adj", "r": "adv"}
    _ENDINGS = {
        "n": "s: ses:s ves:f xes:x zes:z ches:ch shes:sh men:man ies:y",
        "v": "s: ies:y es:e es: ed:e ed: ing:e ing:",
        "a": "er: est: er:e est:e",
        "r": "",
    }
    _MARKER = re.compile(r"\([^()]*\)$")  # where an adjective stands, as in "elect(ip)"

    def __init__(self, folder: Path) -> None:
        self._index: dict[str, dict[bytes, bytes]] = {}
        self._data: dict[str, bytes] = {}
        self._exceptions: dict[str, dict[str, list[str]]] = {}
        self._rules = {part: [rule.split(":") for rule in rules.split()] for part, rules in self._ENDINGS.items()}
        for part, name in self._FILES.items():
            lines = (folder / f"index.{name}").read_bytes().split(b"\n")
            lines = [line for line in lines if line[:1] not in (b" ", b"")]
            self._index[part] = {line[: line.index(b" ")]: line for line in lines}
            self._data[part] = (folder / f"data.{name}").read_bytes()
            # A form that is listed twice counts as it is listed last, as in nltk.
            exceptions = (folder / f"{name}.exc").read_text(encoding="utf-8").splitlines()
            self._exceptions[part] = {first: rest for first, *rest in map(str.split, exceptions)}
            for line in lines[:1] + lines[-1:]:  # other line ends, or the files of two versions, would show here
                self._synsets(part, line)

    def base_forms(self, word: str, part: str) -> list[str]:
        """The entries that a word may be a form of, the word itself first if it is one.

        Args:
            word: lower-case.
            part: of speech: n, v, a or r.
        """
        forms = self._exceptions[part].get(word)
        if forms is None:
            forms = [word[: len(word) - len(old)] + new for old, new in self._rules[part] if word.endswith(old)]
        index = self._index[part]
        return [form for form in dict.fromkeys([word, *forms]) if form.encode("utf-8", "surrogatepass") in index]

    def base_form(self, word: str, part: str) -> str | None:
        """The first of `base_forms`, if there is one."""
        return next(iter(self.base_forms(word, part)), None)

    def names(self, word: str, parts: str = "nvar") -> list[str]:
        """The words of all synsets of a word and of its base forms, in WordNet's order; phrases have `_` for spaces.

        Args:
            word: any case.
            parts: of speech: some of n, v, a and r.

        Raises:
            ValueError: if the files contradict each other.
        """
        found: list[str] = []
        for part in parts:
            for form in self.base_forms(word.lower(), part):
                for names in self._synsets(part, self._index[part][form.encode("utf-8", "surrogatepass")]):
                    found += names
        return found

    def _synsets(self, part: str, entry: bytes) -> list[list[str]]:
        """The words of each synset of a line of the index: word, part, synsets, ..., the place of each synset."""
        data, entries = self._data[part], entry.split()
        synsets = []
        for place in entries[len(entries) - int(entries[2]) :]:
            start = int(place)
            # place, file, type, words in hexadecimal, then each word and a number
            fields = data[start : data.index(b"|", start)].decode("utf-8").split()
            if fields[0] != place.decode():
                raise ValueError(f"data.{self._FILES[part]} has no synset at {place.decode()}")
            names = fields[4 : 4 + 2 * int(fields[3], 16) : 2]
            synsets.append([self._MARKER.sub("", name) if name[-1] == ")" else name for name in names])
        return synsets


class _NltkWordNet:
    """The same of nltk's reader."""

    def __init__(self, reader: Any) -> None:
        self._reader = reader

    def base_form(self, word: str, part: str) -> str | None:
        """See `WordNet`."""
        return self._reader.morphy(word, part)

    def names(self, word: str, parts: str = "nvar") -> list[str]:
        """See `WordNet`."""
        return [name for synset in self._reader.synsets(word, parts) for name in synset.lemma_names()]


def read_wordnet(*, otherwise: str = _OTHERWISE) -> WordNet | _NltkWordNet:
    """The words of the WordNet that is here, by the quick reader if it lies in a folder, else by nltk's.

    Args:
        otherwise: what to do without WordNet, for the message.

    Raises:
        UserError: if there is no WordNet, or no nltk to find or read it.
    """
    _nltk_reader(otherwise)
    root = _wordnet_root(otherwise)
    if isinstance(root, str):
        try:
            return WordNet(Path(root))
        except (OSError, ValueError, IndexError):
            pass  # nltk knows more kinds of files, or says what is wrong with these
    return _NltkWordNet(wordnet_reader(otherwise=otherwise))


def _nltk_reader(otherwise: str) -> Any:
    try:
        from nltk.corpus.reader.wordnet import WordNetCorpusReader
    except ImportError as error:
        raise UserError(f"WordNet is read with nltk: pip install hf_robustcse[wordnet], or {otherwise}") from error
    return WordNetCorpusReader


def wordnet_reader(*, otherwise: str = _OTHERWISE) -> Any:
    """nltk's reader of the WordNet that is here.

    Args:
        otherwise: what to do without WordNet, for the message.

    Raises:
        UserError: if there is no WordNet, or no nltk to read it.
    """

    class Reader(_nltk_reader(otherwise)):
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
    import nltk.data

    named = os.environ.get("WORDNET_DIR")
    folders = [Path(named), Path(named) / "dict"] if named else [Path("/usr/share/wordnet")]
    if not named:
        for resource in ("corpora/wordnet/", "corpora/wordnet.zip/wordnet/"):
            try:
                return nltk.data.find(resource)
            except LookupError:
                continue
    for folder in folders:
        if (folder / "data.noun").is_file():
            nltk.data.path.append(str(folder))  # nltk reads nothing outside of its path
            return str(folder)
    where = f"WORDNET_DIR={named} holds no data.noun" if named else "there is no WordNet here"
    raise UserError(
        f"{where}: set WORDNET_DIR to its folder, install it (apt install wordnet-base, or python -m nltk.downloader "
        f"wordnet), or {otherwise}"
    )
