"""Pairing the records of one step, and finding how paired records differ."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from determinism.comparison.columns import (
    Canonical,
    Flags,
    RunPair,
    align,
    compare_rows,
    lists_differ,
    producers,
    same_structure,
)
from determinism.comparison.lockstep import Lockstep, Translation
from determinism.trace.chunks import Children
from determinism.types import Access, Phase, Role
from tests.traces import Ref, TraceBuilder, layout, opened, process_of

Pairs = list[tuple[int, int]]


def make(folder: Path, ops: str) -> Path:
    """A run with one record per letter; a capital letter is the same op on another line."""
    builder = TraceBuilder(folder)
    for letter in ops:
        builder.add(f"op::{letter.lower()}", site=("/work/train.py", 2 if letter.isupper() else 1))
    return builder.close()


def pairs_of(tmp_path: Path, first: str, second: str) -> Pairs:
    _, _, left, right, canonical = opened(make(tmp_path / "1", first), make(tmp_path / "2", second))
    pairing = align(left, right, canonical)
    return list(zip(pairing.first.tolist(), pairing.second.tolist(), strict=True))


def letters(pairs: Pairs, first: str, second: str) -> list[str]:
    """Each pair as two letters, with a dot for a missing record and without the record of the end."""
    texts = [(first + "$")[a] if a >= 0 else "." for a, _ in pairs]
    others = [(second + "$")[b] if b >= 0 else "." for _, b in pairs]
    return [a + b for a, b in zip(texts, others, strict=True) if "$" not in a + b]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [
        ("abc", "abc", "aa bb cc"),
        ("abc", "axbc", "aa .x bb cc"),
        ("axbc", "abc", "aa x. bb cc"),
        ("abc", "abcxy", "aa bb cc .x .y"),
        ("abc", "xabc", ".x aa bb cc"),
        ("aaa", "aa", "aa aa a."),
        ("ab", "ba", None),
        ("", "ab", ".a .b"),
        ("ab", "", "a. b."),
        ("aBc", "abc", "aa .b B. cc"),
        ("abxab", "abyab", "aa bb .y x. aa bb"),
    ],
)
def test_records_of_equal_ops_are_paired(tmp_path: Path, first: str, second: str, expected: str | None) -> None:
    found = letters(pairs_of(tmp_path, first, second), first, second)
    if expected is None:
        assert sorted(found) == ["aa", "bb"]
    else:
        assert found == expected.split()


def test_every_record_is_in_exactly_one_pair(tmp_path: Path) -> None:
    own = np.random.default_rng(5)
    for number in range(12):
        first, second = ("".join(own.choice(list("abcD"), size=own.integers(0, 30))) for _ in range(2))
        pairs = pairs_of(tmp_path / str(number), first, second)
        assert sorted(a for a, _ in pairs if a >= 0) == list(range(len(first) + 1))
        assert sorted(b for _, b in pairs if b >= 0) == list(range(len(second) + 1))
        assert [a for a, _ in pairs if a >= 0] == list(range(len(first) + 1))
        assert all(a + b in ("..", a + a) or "." in a + b for a, b in letters(pairs, first, second))


def test_module_phase_and_thread_keep_records_apart(tmp_path: Path) -> None:
    for name, changes in {
        "module": {"module": "0"},
        "phase": {"phase": Phase.BACKWARD},
        "thread": {"thread": 1},
    }.items():
        folders = []
        for side in range(2):
            builder = TraceBuilder(tmp_path / name / str(side))
            builder.add("op::a", **(changes if side else {}))
            folders.append(builder.close())
        _, _, left, right, canonical = opened(*folders)
        pairing = align(left, right, canonical)
        assert list(zip(pairing.first.tolist(), pairing.second.tolist(), strict=True)) == [(-1, 0), (0, -1), (1, 1)], (
            name
        )


def flags_of(tmp_path: Path, *changes: dict) -> Flags:
    """The differences between record 2 of two runs; records 0 and 1 are its possible producers."""
    folders = []
    for side, change in enumerate(changes):
        builder = TraceBuilder(tmp_path / str(side))
        builder.add("op::zero")
        builder.add("op::one")
        builder.add(**{"op": "op::two", "inputs": [0, 1], **change})
        folders.append(builder.close())
    _, _, left, right, canonical = opened(*folders)
    rows = np.arange(left.rows)
    assert same_structure(left, right, canonical).all()
    flags = compare_rows(
        RunPair(left, right), RunPair(rows, rows), canonical, RunPair(producers(left), producers(right))
    )
    others = [
        array[[0, 1, 3]] for array in (flags.outputs, flags.edges, flags.digests, flags.arguments, flags.generators)
    ]
    assert not np.any(others)
    return flags


@pytest.mark.parametrize(
    ("aspect", "first", "second"),
    [
        ("outputs", {"outputs": ["value"]}, {"outputs": ["other"]}),
        ("outputs", {"outputs": ["value"]}, {"outputs": [None]}),
        ("outputs", {"outputs": ["value"]}, {"outputs": ["value", "value"]}),
        ("outputs", {"layouts": [layout(4)]}, {"layouts": [layout(2, 2)]}),
        ("outputs", {"layouts": [layout(4)]}, {"layouts": [layout(4, dtype="int64")]}),
        ("edges", {"inputs": [0, 1]}, {"inputs": [1, 0]}),
        ("edges", {"inputs": [0, 1]}, {"inputs": [0]}),
        ("edges", {"inputs": [0]}, {"inputs": [Ref(-1)]}),
        ("edges", {"inputs": [Ref(0)]}, {"inputs": [Ref(0, 1)]}),
        ("edges", {"inputs": [Ref(0)]}, {"inputs": [Ref(0, access=Access.CARRY)]}),
        ("edges", {"inputs": [Ref(0)]}, {"inputs": [Ref(0, layout=layout(2, elements=4))]}),
        ("digests", {"inputs": [Ref(-1, digest="a")]}, {"inputs": [Ref(-1, digest="b")]}),
        ("arguments", {"arguments": "alpha=1"}, {"arguments": "alpha=2"}),
        ("arguments", {"arguments": "alpha=1"}, {}),
        ("generators", {"generators": ["a"]}, {"generators": ["b"]}),
        ("generators", {"generators": ["a"]}, {}),
    ],
)
def test_only_the_aspect_in_which_records_differ_is_flagged(
    tmp_path: Path, aspect: str, first: dict, second: dict
) -> None:
    flags = flags_of(tmp_path, first, second)
    found = [name for name in ("outputs", "edges", "digests", "arguments", "generators") if getattr(flags, name)[2]]
    assert found == [aspect]
    assert flags.any()[2]


def test_equal_records_have_no_flags(tmp_path: Path) -> None:
    same = {"inputs": [0, Ref(-1, digest="x")], "arguments": "a=1", "generators": ["s"], "outputs": ["v", None]}
    assert not flags_of(tmp_path, same, same).any().any()


def test_lists_are_compared_entry_by_entry() -> None:
    first = Children(np.array([0, 2, 2, 3]), {"x": np.array([1, 2, 3])})
    second = Children(np.array([0, 2, 3, 4]), {"x": np.array([1, 9, 5, 3])})
    rows = np.arange(3)
    lists, columns = RunPair(first, second), [(first.columns["x"], second.columns["x"])]
    assert lists_differ(lists, RunPair(rows, rows), columns).tolist() == [True, True, False]
    assert lists_differ(lists, RunPair(rows[:0], rows[:0]), columns).tolist() == []
    assert lists_differ(lists, RunPair(np.array([2]), np.array([2])), columns).tolist() == [False]


def test_record_numbers_are_translated_to_keys() -> None:
    translation = Translation(10)
    translation.add(10, np.array([10, 11, 12]))
    translation.add(13, np.array([14, 15]))
    translation.add(15, np.array([-17, 16, 30]))
    translation.add(18, np.array([], dtype=np.int64))
    numbers = np.array([-1, 0, 9, 10, 12, 13, 14, 15, 16, 17])
    expected = [-1, 0, 9, 10, 12, 14, 15, -17, 16, 30]
    assert translation.keys(numbers).tolist() == expected
    assert [translation.key(number) for number in numbers.tolist()] == expected


def groups_of(first: Path, second: Path) -> list:
    processes = (process_of(first), process_of(second))
    lockstep = Lockstep(*processes, Canonical(*processes))
    return [lockstep.num_equal, *lockstep.groups(), lockstep.num_equal]


def test_equal_runs_have_no_groups(tmp_path: Path) -> None:
    assert groups_of(make(tmp_path / "1", "abcab"), make(tmp_path / "2", "abcab")) == [0, 6]


def test_groups_begin_at_the_first_difference_and_end_with_the_step(tmp_path: Path) -> None:
    folders = []
    for side in range(2):
        builder = TraceBuilder(tmp_path / str(side))
        for step in range(3):
            last = builder.add("op::a", outputs=["other" if side and step == 1 else "value"])
            builder.add("op::b", [last])
            builder.step({"weight": last})
        folders.append(builder.close())
    _, *groups, equal = groups_of(*folders)
    assert equal == 3
    assert [(group.first.first, group.first.rows) for group in groups] == [(3, 3), (6, 3), (9, 1)]
    assert groups[0].flags.outputs.tolist() == [True, False, False]
    assert not groups[1].flags.any().any()
    assert groups[1].producers.first.tolist() == groups[1].producers.second.tolist() == [6, 6]


def test_extra_records_shift_numbers_but_not_keys(tmp_path: Path) -> None:
    folders = []
    for side in range(2):
        builder = TraceBuilder(tmp_path / str(side))
        for step in range(3):
            if side and step == 0:
                builder.add("op::extra")
            last = builder.add("op::a")
            builder.add("op::b", [last])
            builder.step({"weight": last})
        folders.append(builder.close())
    _, *groups, _ = groups_of(*folders)
    assert groups[0].keys.tolist() == [-2, 0, 1, 2]
    for group in groups:
        assert not group.flags.any().any()
        assert group.producers.first.tolist() == group.producers.second.tolist()


def test_records_after_the_end_of_the_shorter_run_have_no_partner(tmp_path: Path) -> None:
    folders = []
    for side, steps in enumerate((3, 1)):
        builder = TraceBuilder(tmp_path / str(side))
        for _ in range(steps):
            builder.step({"weight": builder.add("op::a", role=Role.OP)})
        folders.append(builder.close())
    _, *groups, _ = groups_of(*folders)
    assert sum(int((group.pairing.second < 0).sum()) for group in groups) == 5
