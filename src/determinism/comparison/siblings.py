"""Pairs programs that a run started beside each other, whichever of them began to record first.

They have no name, so their keys count them in the order in which they began. Programs that start at the same time begin
in another order in each run; which is which shows in their arguments, and in what they did.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

from determinism.comparison.canonical import Canonical
from determinism.comparison.streams import ordered
from determinism.comparison.unmatched import total
from determinism.trace.reader import ProcessTrace, Trace

_COUNTED = re.compile(r"(?P<part>.+/)?main(?:-\d+)?|(?P<of>.+)\.\d+")
"""Keys that are made by counting: `main`, `main-2`; `main.1`, `main.2`; in a run of several parts also `node-1/main`."""

_Pairs = list[tuple[ProcessTrace, ProcessTrace]]


def pair_siblings(first: Trace, second: Trace) -> None:
    """Give programs of the second run that were counted in another order the keys that they have in the first.

    Args:
        first: Keeps its keys.
        second: Its processes, and what belongs to them, may get other keys.

    Raises:
        TraceError: A trace is damaged.
    """
    groups = _groups(first), _groups(second)
    renamed: dict[str, str] = {}
    for parent in groups[0].keys() & groups[1].keys():
        mine, others = groups[0][parent], groups[1][parent]
        if max(len(mine), len(others)) > 1:
            renamed.update(_renamed(_pairs(mine, others), [process.key for process in others]))
    if any(old != new for old, new in renamed.items()):
        _rename(second, renamed)


def alone(trace: Trace) -> list[ProcessTrace]:
    """The processes of a run that have the same key in each: neither they nor who started them was counted among others."""
    mistakable = {process.key for group in _groups(trace).values() if len(group) > 1 for process in group}
    return [process for process in ordered(trace) if not any(_is_of(process.key, key) for key in mistakable)]


def _is_of(key: str, ancestor: str) -> bool:
    return key == ancestor or key.startswith(f"{ancestor}.")


def _groups(trace: Trace) -> dict[str, list[ProcessTrace]]:
    found: dict[str, list[ProcessTrace]] = {}
    for process in ordered(trace):
        counted = _COUNTED.fullmatch(process.key)
        if counted is not None:
            found.setdefault(counted["of"] or counted["part"] or "", []).append(process)
    return found


def _pairs(mine: Sequence[ProcessTrace], others: Sequence[ProcessTrace]) -> _Pairs:
    """The same program with the same arguments; of several, what did the same; then those with the same key."""
    left, right = list(mine), list(others)
    pairs: _Pairs = []

    def pair(is_partner: Callable[[ProcessTrace, ProcessTrace], bool]) -> None:
        for process in list(left):
            likeliest_first = sorted(right, key=lambda other: other.key != process.key)
            partner = next((other for other in likeliest_first if is_partner(process, other)), None)
            if partner is not None:
                pairs.append((process, partner))
                left.remove(process)
                right.remove(partner)

    commands = [tuple(map(_command, side)) for side in (mine, others)]
    if any(len(set(side)) < len(side) for side in commands):
        pair(lambda one, other: _command(one) == _command(other) and _did_the_same(one, other))
    pair(lambda one, other: _command(one) == _command(other) and one.key == other.key)
    pair(lambda one, other: _command(one) == _command(other))
    pair(lambda one, other: one.key == other.key)
    pair(lambda one, other: True)
    return pairs


def _command(process: ProcessTrace) -> str:
    return str(process.description.get("argv"))


def _did_the_same(first: ProcessTrace, second: ProcessTrace) -> bool:
    canonical = Canonical(first, second)
    return total(first, canonical, 0) == total(second, canonical, 1)


def _renamed(pairs: _Pairs, keys: Sequence[str]) -> dict[str, str]:
    """The key of the partner for each old key; what has no partner takes a key that is left."""
    renamed = {other.key: process.key for process, other in pairs}
    free = [key for key in keys if key not in renamed.values()]
    for key in keys:
        if key not in renamed:
            renamed[key] = key if key in free else free[0]
            free.remove(renamed[key])
    return renamed


def _rename(trace: Trace, renamed: dict[str, str]) -> None:
    """Rename processes, and what was started by them or is part of them."""

    def new(key: str) -> str:
        parts = key.split(".")
        for end in range(len(parts), 0, -1):
            found = renamed.get(".".join(parts[:end]))
            if found is not None:
                return ".".join([found, *parts[end:]])
        return key

    for process in trace.processes:
        process.key = new(process.key)
        part_of = process.description.get("part_of")
        if part_of is not None:
            process.description["part_of"] = new(str(part_of))
    trace.processes.sort(key=lambda process: process.key)
