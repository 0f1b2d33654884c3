"""Answers in parts: in an experiment the parts have a fixed order, and an endless answer takes limited memory."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from determinism.probes import runtime
from determinism.probes.runtime import Answers


class Lines:
    """The output of another program, line by line."""

    def __init__(self, lines: Iterator[str]) -> None:
        self._lines = lines

    def __iter__(self) -> Iterator[str]:
        return self._lines


def parts(lines: Iterator[str], *, is_fixed: bool) -> Iterator[Any]:
    answers, giver = Answers(), Lines(lines)
    use: Any = SimpleNamespace(is_fixed=is_fixed, note=lambda text, **details: text())
    answers.expect(giver, use, {})
    return answers.parts(giver)


def test_parts_have_a_fixed_order_in_an_experiment_and_their_own_otherwise() -> None:
    first, second = (list(parts(iter(order), is_fixed=True)) for order in ("cabd", "dbca"))
    assert first == second and sorted(first) == ["a", "b", "c", "d"]
    assert list(parts(iter("cabd"), is_fixed=False)) == ["c", "a", "b", "d"]


def test_no_more_of_an_endless_answer_is_taken_than_is_sorted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "_MOST_SORTED", 4)
    taken = []

    def endless() -> Iterator[str]:
        for number in itertools.count():
            taken.append(number)
            yield str(9 - number % 10)

    found = list(itertools.islice(parts(endless(), is_fixed=True), 6))
    assert sorted(found[:4]) == ["6", "7", "8", "9"] and set(found[4:]) < {"2", "3", "4", "5"}
    assert len(taken) == 8
