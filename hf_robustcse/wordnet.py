"""WordNet's words, read from the files of its database: index.*, data.* and *.exc (wndb(5WN), morphy(7WN)).

nltk's reader knows the same and much more; it takes seconds to load and a millisecond a word, which would be most of
the time of an attack by synonyms.
"""

from __future__ import annotations

import re
from collections.abc import Callable

_FILES = {"n": "noun", "v": "verb", "a": "adj", "r": "adv"}
_ENDINGS = {
    "n": "s: ses:s ves:f xes:x zes:z ches:ch shes:sh men:man ies:y",
    "v": "s: ies:y es:e es: ed:e ed: ing:e ing:",
    "a": "er: est: er:e est:e",
    "r": "",
}
_MARKER = re.compile(r"\(\w+\)$")  # where an adjective stands, as in "elect(ip)"


class WordNet:
    """Words -> the words of their synsets.

    Args:
        read: name of a file -> its bytes.

    Raises:
        ValueError: if a file is no part of WordNet.
    """

    def __init__(self, read: Callable[[str], bytes]) -> None:
        self._index: dict[str, dict[bytes, bytes]] = {}
        self._data: dict[str, bytes] = {}
        self._exceptions: dict[str, dict[str, list[str]]] = {}
        for part, name in _FILES.items():
            lines = [line for line in read(f"index.{name}").split(b"\n") if line[:1] not in (b" ", b"")]
            self._index[part] = {line[: line.index(b" ")]: line for line in lines}
            self._data[part] = read(f"data.{name}")
            # A form that is listed twice counts as it is listed last, as in nltk.
            exceptions = read(f"{name}.exc").decode("utf-8").splitlines()
            self._exceptions[part] = {first: rest for first, *rest in map(str.split, exceptions)}

    def base_forms(self, word: str, part: str) -> list[str]:
        """The entries that a lower-case word may be a form of, the word itself first if it is one.

        Args:
            word: lower-case.
            part: of speech: n, v, a or r.
        """
        forms = self._exceptions[part].get(word)
        if forms is None:
            rules = (rule.split(":") for rule in _ENDINGS[part].split())
            forms = [word.removesuffix(old) + new for old, new in rules if word.endswith(old)]
        return [form for form in dict.fromkeys([word, *forms]) if form.encode() in self._index[part]]

    def synonyms(self, word: str, parts: str = "nvar") -> list[str]:
        """The words of all synsets of a word and of its base forms, in WordNet's order; phrases have `_` for spaces.

        Args:
            word: any case.
            parts: of speech: some of n, v, a and r.
        """
        names = []
        for part in parts:
            data = self._data[part]
            offsets = []
            for form in self.base_forms(word.lower(), part):
                fields = self._index[part][form.encode()].split()
                offsets += map(int, fields[len(fields) - int(fields[2]) :])
            for start in offsets:
                # offset, file, type, words in hexadecimal, then each word and its number
                fields = data[start : data.index(b"|", start)].split()
                names += [_MARKER.sub("", name.decode()) for name in fields[4 : 4 + 2 * int(fields[3], 16) : 2]]
        return names
