"""The engine: questions of many computations share calls, and what comes out does not depend on how."""

from __future__ import annotations

import pytest

from hf_robustcse.attacks.engine import Ask, ask, run, together


class Service:
    def __init__(self):
        self.calls: list[list[int]] = []

    def __call__(self, items):
        self.calls.append(items)
        return [item * item for item in items]


def summed(service, numbers):
    total = 0
    for number in numbers:
        (square,) = yield from ask(service, [number])
        total += square
    return total


def test_computations_share_calls():
    service = Service()
    found = dict(run((n, lambda n=n: summed(service, range(n))) for n in range(1, 5)))
    assert found == {1: 0, 2: 1, 3: 5, 4: 14}
    assert service.calls == [[0], [1], [2], [3]]  # a question that all of them ask is asked once


def test_a_question_is_not_asked_twice():
    service = Service()
    assert dict(run([("x", lambda: summed(service, [3, 3, 3]))])) == {"x": 27}
    assert service.calls == [[3]]


def test_questions_of_different_types_are_different():
    service = lambda items: [type(item).__name__ for item in items]  # noqa: E731
    assert dict(run([("x", lambda: ask(service, ["1", 1, ("1",), (1,)]))])) == {"x": ["str", "int", "tuple", "tuple"]}


@pytest.mark.parametrize(("width", "share"), [(1, 1), (2, 3), (64, 1000)])
def test_width_and_share_change_nothing(width, share):
    service = Service()

    def computation(n):
        squares = yield from ask(service, list(range(n)))
        more = yield from together(summed(service, [square, n]) for square in squares)
        return sum(more)

    found = dict(run(((n, lambda n=n: computation(n)) for n in range(8)), width=width, share=share))
    assert found == {n: sum(k**4 + n * n for k in range(n)) for n in range(8)}


def test_a_large_computation_does_not_hold_up_the_rest():
    service = Service()
    order = [
        name
        for name, _ in run(
            [("large", lambda: ask(service, list(range(100)))), ("small", lambda: ask(service, [1]))], share=10
        )
    ]
    assert order == ["small", "large"]
    assert max(map(len, service.calls)) <= 11


def test_computations_are_made_when_there_is_room():
    service, made = Service(), []

    def make(n):
        made.append(n)
        return summed(service, [n])

    results = run(((n, lambda n=n: make(n)) for n in range(10)), width=2)
    next(results)
    assert made == [0, 1]
    assert len(list(results)) == 9


def test_together_asks_two_services_in_one_round():
    first, second = Service(), Service()

    def both():
        return (yield from together([ask(first, [1, 2]), ask(second, [3]), ask(first, [])]))

    steps = both()
    questions = next(steps)
    assert [(question.service, list(question.items)) for question in questions] == [(first, [1, 2]), (second, [3])]
    assert isinstance(questions[0], Ask)
    with pytest.raises(StopIteration) as stop:
        steps.send([[1, 4], [9]])
    assert stop.value.value == [[1, 4], [9], []]


def test_a_service_that_loses_answers_is_told():
    with pytest.raises(ValueError, match="1 answers to 2 questions"):
        list(run([("x", lambda: ask(lambda items: items[:1], [1, 2]))]))
