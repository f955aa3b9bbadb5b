"""Texts under attack: where their words are, and copies with some of the words replaced."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from functools import cached_property

# Letters, digits and marks of a word; the last group are characters that homoglyph attacks put for letters.
_RUN = re.compile(r"[\w'\-*@˗`×]+")
_ENDS = "'-_*@"


def words_of(text: str) -> list[tuple[int, int]]:
    """Where the words of a text are: runs of word characters and inner `'`, `-`, `_`, `*`, `@`, as TextAttack has them.

    Args:
        text: any.

    Returns:
        (start, end) of each word, in characters.
    """
    spans = []
    for match in _RUN.finditer(text):
        start = match.end() - len(match[0].lstrip(_ENDS))
        end = match.start() + len(match[0].rstrip(_ENDS))
        if start < end:
            spans.append((start, end))
    return spans


class Document:
    """An example before the attack: one text or several columns, and the words in them.

    Args:
        columns: name -> text, such as {"text": ...} or {"premise": ..., "hypothesis": ...}.
        frozen: columns that must stay as they are.

    Attributes:
        names: of the columns.
        texts: of the columns.
        words: all words, over all columns.
        column_of: the column of each word.
        spans: (start, end) of each word in the text of its column, in characters.
        frozen: columns that must stay as they are.
        free: the positions (indices into `words`) outside of frozen columns.
    """

    def __init__(self, columns: Mapping[str, str], frozen: Sequence[str] = ()) -> None:
        self.names = tuple(columns)
        self.texts = tuple(columns.values())
        self.frozen = tuple(frozen)
        self.words: list[str] = []
        self.column_of: list[int] = []
        self.spans: list[tuple[int, int]] = []
        for number, text in enumerate(self.texts):
            for start, end in words_of(text):
                self.words.append(text[start:end])
                self.column_of.append(number)
                self.spans.append((start, end))
        self.free = [at for at, column in enumerate(self.column_of) if self.names[column] not in frozen]


class Edited:
    """A document with some of its words replaced; positions are always those of the document.

    Args:
        document: the original.
        replaced: position -> what stands there now.
        position: what was replaced last, None if nothing was.
        parent: what it was made from by that last replacement.

    Attributes:
        similarity: to the original or to the parent, as the last constraint on sentences measured it; None if none did.
    """

    def __init__(
        self,
        document: Document,
        replaced: Mapping[int, str] | None = None,
        position: int | None = None,
        parent: Edited | None = None,
    ) -> None:
        self.document = document
        self.replaced = dict(replaced or {})
        self.position = position
        self.similarity: float | None = None
        self._parent = parent
        self._last: tuple[int, tuple[int, str, str]] | None = None

    def __len__(self) -> int:
        return len(self.document.words)

    def word(self, position: int) -> str:
        """The word at a position now."""
        return self.replaced.get(position, self.document.words[position])

    def span(self, position: int) -> tuple[int, int]:
        """Where a word is in `text` now, in characters."""
        return self._spans[position]

    @property
    def words(self) -> list[str]:
        """All words as they are now."""
        return [self.replaced.get(at, word) for at, word in enumerate(self.document.words)]

    @cached_property
    def texts(self) -> tuple[str, ...]:
        """The columns as they are now."""
        if self._parent is not None:
            return self._parent.with_word(self.position, self.replaced[self.position])
        document = self.document
        columns: list[list[str]] = [[] for _ in document.texts]
        ends = [0] * len(document.texts)
        for position in sorted(self.replaced):
            column = document.column_of[position]
            start, end = document.spans[position]
            columns[column] += [document.texts[column][ends[column] : start], self.replaced[position]]
            ends[column] = end
        rests = (text[end:] for text, end in zip(document.texts, ends, strict=True))
        return tuple("".join([*parts, rest]) for parts, rest in zip(columns, rests, strict=True))

    @property
    def text(self) -> str:
        """All columns, a line each."""
        return "\n".join(self.texts)

    @property
    def key(self) -> str | tuple[str, ...]:
        """What a victim is asked: the text, or the tuple of several columns."""
        return as_key(self.texts)

    @property
    def changed(self) -> dict[int, str]:
        """Position -> word, where the word is another than in the document."""
        return {at: word for at, word in sorted(self.replaced.items()) if word != self.document.words[at]}

    def replace(self, position: int, word: str) -> Edited:
        """A copy with another word at a position."""
        return Edited(self.document, {**self.replaced, position: word}, position, self)

    def with_word(self, position: int, word: str) -> tuple[str, ...]:
        """The columns with another word at a position: a question that is no candidate."""
        column, before, after = self._around(position)
        return self._joined(column, before + word + after)

    def without(self, position: int) -> tuple[str, ...]:
        """The columns without a word and without the space before it (after it, if the word is the first of all)."""
        column, before, after = self._around(position)
        if not after and column == len(self.texts) - 1:  # at the very end the space stays, as in TextAttack
            return self._joined(column, before)
        if position == 0:
            return self._joined(column, before + after.removeprefix(" "))
        return self._joined(column, before.removesuffix(" ") + after)

    def window(self, position: int, size: int | None) -> str:
        """The text from the first to the last of the `size` words around a position; None for all words.

        Near an end the window is moved inwards, as TextAttack does.
        """
        length = len(self)
        half = length if size is None else size // 2
        if position - half < 0:
            first, last = 0, length - 1 if size is None else min(size, length) - 1
        elif position + half >= length:
            first, last = max(0, length - size), length - 1
        else:
            first, last = position - half, position + half
        if self._parent is None:
            return self.text[self._spans[first][0] : self._spans[last][1]]
        # One word differs from the parent: the candidates of a position need not each look for all words.
        spans = self._parent._spans
        longer = len(self.replaced[self.position]) - len(self._parent.word(self.position))
        start, end = spans[first][0], spans[last][1]
        return self.text[
            start + (longer if first > self.position else 0) : end + (longer if last >= self.position else 0)
        ]

    @cached_property
    def _spans(self) -> list[tuple[int, int]]:
        """Where the words are in `text` now."""
        document, spans = self.document, []
        shift, column = 0, 0
        for position, (start, end) in enumerate(document.spans):
            while column < document.column_of[position]:
                shift = sum(len(text) + 1 for text in self.texts[: column + 1])
                column += 1
            length = len(self.word(position))
            spans.append((start + shift, start + shift + length))
            shift += length - (end - start)
        return spans

    def _around(self, position: int) -> tuple[int, str, str]:
        """The column of a word and what is before and after it there; kept for the next question about the word."""
        if self._last is None or self._last[0] != position:
            column = self.document.column_of[position]
            offset = sum(len(text) + 1 for text in self.texts[:column])
            start, end = self._spans[position]
            text = self.texts[column]
            self._last = (position, (column, text[: start - offset], text[end - offset :]))
        return self._last[1]

    def _joined(self, column: int, text: str) -> tuple[str, ...]:
        return (*self.texts[:column], text, *self.texts[column + 1 :])


def as_key(texts: tuple[str, ...]) -> str | tuple[str, ...]:
    """What a victim is asked: a text, or the tuple of several columns."""
    return texts[0] if len(texts) == 1 else texts


@functools.lru_cache(maxsize=1 << 16)
def is_one_word(text: str) -> bool:
    """Whether a text holds exactly one word."""
    return len(words_of(text)) == 1
