"""Texts that are the same in every run, and the order that they give to the elements of a set."""

from __future__ import annotations

import enum
from collections import OrderedDict, namedtuple
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import numpy as np
import pytest

from determinism.probes.runtime import (
    FIRST_USES,
    Elements,
    FirstUses,
    elements_of,
    in_order,
    is_set_type,
    order_text,
    partial_text,
    stable_text,
)

Point = namedtuple("Point", "x y")


class Colour(enum.Enum):
    RED = 1


@dataclass(frozen=True)
class Name:
    first: str


class Thing:
    pass


@pytest.mark.parametrize(
    "value",
    [1, "a", b"a", 1.5, None, True, (1, "a"), [1, [2]], {1: {2: 3}}, frozenset({"b", "a"}), Point(1, 2), Colour.RED,
     Name("a"), PurePosixPath("a/b"), len, Name, np.float32(1.5)],
)  # fmt: skip
def test_value_has_a_text_without_addresses(value: Any) -> None:
    text = stable_text(value)

    assert text is not None and " at 0x" not in text


def test_equal_sets_have_equal_texts() -> None:
    assert stable_text({"a", "b", "c"}) == stable_text({"c", "b", "a"})


@pytest.mark.parametrize("value", [Thing(), [Thing()], {"a": object()}, np.zeros(2)])
def test_an_object_with_only_an_identity_has_no_text(value: Any) -> None:
    assert stable_text(value) is None


def test_part_of_a_value_may_have_a_text() -> None:
    assert partial_text((1, Thing())) == ("int:1|?", False)
    assert partial_text((1, 2)) == ("tuple(int:1,int:2)", True)
    assert partial_text(Thing()) == (None, False)


def test_objects_are_numbered_in_the_order_of_first_use_while_they_live() -> None:
    uses, first, second = FirstUses(), Thing(), Thing()

    assert [uses.use(first), uses.use(second), uses.use(first), uses.number(second)] == [0, 1, 0, 1]
    assert uses.use([]) is None
    del first
    assert uses.number(Thing()) is None


@pytest.mark.parametrize(
    ("values", "elements", "expected"),
    [
        ({"b", "a", "c"}, Elements.SORTABLE, ["a", "b", "c"]),
        ({3, 1.5, True}, Elements.SORTABLE, [True, 1.5, 3]),
        ({("b", 1), ("a", 2)}, Elements.SORTABLE, [("a", 2), ("b", 1)]),
        ({"a", 1, None}, Elements.TEXT, [1, None, "a"]),
        ({Name("b"), Name("a")}, Elements.HASHED, [Name("a"), Name("b")]),
    ],
)
def test_the_order_follows_values_or_texts(values: set[Any], elements: Elements, expected: list[Any]) -> None:
    assert elements_of(values) is elements
    if elements is Elements.TEXT:
        expected = sorted(expected, key=str)
    assert in_order(values) == expected


def test_a_set_with_an_object_hashed_by_its_address_is_a_set_of_objects() -> None:
    assert elements_of({Thing(), Name("a")}) is Elements.OBJECTS


def test_objects_are_ordered_by_their_first_use() -> None:
    things = [Thing() for _ in range(20)]
    assert order_text(set(things)) is None
    for thing in things:
        FIRST_USES.use(thing)

    assert in_order(set(things)) == things
    assert order_text(things) != order_text(things[::-1])


def test_only_types_iterated_by_hash_are_sets() -> None:
    class Own(set[int]):
        pass

    class Ordered(set[int]):
        def __iter__(self) -> Any:
            return iter(sorted(set(self)))

    assert [is_set_type(kind) for kind in (set, frozenset, Own, Ordered, dict, OrderedDict, list, str)] == [
        True, True, True, False, False, False, False, False,
    ]  # fmt: skip
