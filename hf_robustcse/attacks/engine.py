"""Many attacks at once: each is a generator of questions, and the questions of all of them share batches.

A search, a transformation or a constraint is a generator (`Steps`) that yields lists of `Ask` and is sent back the
answers. `run` drives many such generators. In each round it gathers the questions of all of them, answers what was
asked before from a cache, and gives each service (the victim, the masked language model, the sentence encoder) all new
questions in one call, so that the service can sort them by length and fill its batches.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Generator, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

T = TypeVar("T")

Service = Callable[[list[Any]], Sequence[Any]]
"""Questions -> answers, one each, in order. It must give a question the same answer whatever else is asked with it."""

_SHARE = 1024
_SHARE_CHARACTERS = 1 << 19


@dataclass(frozen=True)
class Ask:
    """Questions to one service.

    Attributes:
        service: that answers them.
        items: hashable questions.
    """

    service: Service
    items: Sequence[Hashable]


Steps = Generator[list[Ask], list[list[Any]], T]
"""A computation that yields questions, is sent their answers, and returns a T."""


def ask(service: Service, items: Sequence[Hashable]) -> Steps[list[Any]]:
    """The answers of a service: `answers = yield from ask(service, items)`."""
    if not items:
        return []
    (answers,) = yield [Ask(service, items)]
    return answers


def together(steps: Iterable[Steps[T]]) -> Steps[list[T]]:
    """Several computations side by side: their questions are asked together.

    Args:
        steps: n computations.

    Returns:
        What they return, in order.
    """
    running = list(steps)
    results: list[Any] = [None] * len(running)
    waiting: dict[int, list[Ask]] = {}
    for number, one in enumerate(running):
        _advance(one, None, number, waiting, results)
    while waiting:
        asked = [(number, question) for number, questions in waiting.items() for question in questions]
        answers = yield [question for _, question in asked]
        given: dict[int, list[list[Any]]] = {number: [] for number in waiting}
        for (number, _), answer in zip(asked, answers, strict=True):
            given[number].append(answer)
        waiting = {}
        for number, answer in given.items():
            _advance(running[number], answer, number, waiting, results)
    return results


def _advance(steps: Steps[Any], answers: Any, number: int, waiting: dict[int, list[Ask]], results: list[Any]) -> None:
    try:
        waiting[number] = steps.send(answers)
    except StopIteration as stop:
        results[number] = stop.value


@dataclass
class _Running:
    """A computation, the questions it waits for, and what it was told before."""

    steps: Steps[Any]
    asked: list[Ask] = field(default_factory=list)
    flat: list[tuple[Service, Hashable]] = field(default_factory=list)
    answers: list[Any] = field(default_factory=list)
    known: dict[tuple[int, bytes], Any] = field(default_factory=dict)

    def advance(self, answers: Any) -> bool:
        """Send answers; whether it waits for more. Raises StopIteration with the result at its end."""
        self.asked = self.steps.send(answers)
        self.flat = [(question.service, item) for question in self.asked for item in question.items]
        self.answers = []
        return True

    def complete(self) -> list[list[Any]]:
        """The answers, as they were asked for."""
        out, at = [], 0
        for question in self.asked:
            out.append(self.answers[at : at + len(question.items)])
            at += len(question.items)
        return out


def run(
    computations: Iterable[tuple[Hashable, Callable[[], Steps[T]]]], *, width: int = 64, share: int = _SHARE
) -> Iterator[tuple[Hashable, T]]:
    """Run computations side by side.

    The results do not depend on `width` and `share` as long as the services keep their promise (`Service`).

    Args:
        computations: name and maker of each; made when there is room.
        width: how many run at a time.
        share: questions of one computation that are answered in one round, so that a large one does not hold up the
            rest; fewer if they are long.

    Yields:
        (name, result) of each, as it ends.
    """
    if width < 1 or share < 1:
        raise ValueError(f"width and share must be at least 1, not {width} and {share}")
    source = iter(computations)
    running: dict[Hashable, _Running] = {}
    exhausted = False
    while True:
        while not exhausted and len(running) < width:
            try:
                name, make = next(source)
            except StopIteration:
                exhausted = True
                break
            one = _Running(make())
            try:
                one.advance(None)
            except StopIteration as stop:
                yield name, stop.value
            else:
                running[name] = one
        if not running:
            return
        _answer(running.values(), share, _SHARE_CHARACTERS if len(running) > 1 else None)
        for name, one in list(running.items()):
            while len(one.answers) == len(one.flat):
                try:
                    one.advance(one.complete())
                except StopIteration as stop:
                    del running[name]
                    yield name, stop.value
                    break


def _answer(running: Iterable[_Running], share: int, characters: int | None) -> None:
    """One round: the next questions of each computation, each distinct one asked once."""
    wanted: list[tuple[_Running, list[tuple[int, bytes]]]] = []
    new: dict[int, dict[bytes, Hashable]] = {}
    services: dict[int, Service] = {}
    for one in running:
        keys, size = [], 0
        for service, item in one.flat[len(one.answers) : len(one.answers) + share]:
            size += _length(item)
            if keys and characters is not None and size > characters:
                break
            key = (id(service), _digest(item))
            keys.append(key)
            if key not in one.known:
                services[id(service)] = service
                new.setdefault(id(service), {}).setdefault(key[1], item)
        wanted.append((one, keys))
    found = {}
    for number, items in new.items():
        answers = services[number](list(items.values()))
        if len(answers) != len(items):
            raise ValueError(f"a service gave {len(answers)} answers to {len(items)} questions")
        for digest, answer in zip(items, answers, strict=True):
            found[number, digest] = answer
    for one, keys in wanted:
        for key in keys:
            if key not in one.known:
                one.known[key] = found[key]
            one.answers.append(one.known[key])


def _length(item: Hashable) -> int:
    """The characters of a question: a text, or a tuple with texts in it."""
    return len(item) if isinstance(item, str) else sum(map(_length, item)) if isinstance(item, tuple) else 1


def _digest(item: Hashable) -> bytes:
    """A short name for a question: texts are too long to be kept."""
    text = item if isinstance(item, str) else repr(item)
    return hashlib.blake2b(
        text.encode("utf-8", "surrogatepass"), digest_size=16, key=type(item).__name__[:60].encode()
    ).digest()
