"""Pairs the rows of one place by what went in, and sees whether the same came out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from determinism.comparison.row_places import SHARED, Axes, Place, PlacedCall, rows_along
from determinism.digest import digest_many, digest_text


@dataclass(frozen=True)
class Conflict:
    """An equal row came out in two ways."""

    earlier: PlacedCall
    later: PlacedCall
    output: int
    """Which output shows it first."""


@dataclass
class Matches:
    """The rows of one place."""

    place: Place
    axes: Axes
    rows: dict[int, int] = field(default_factory=dict)
    """Per run how many different rows there were."""
    matched: int = 0
    """How many different rows came in two runs or more."""
    conflicts: list[Conflict] = field(default_factory=list)
    """The first of each row that came out in two ways."""


def match(place: Place, axes: Axes, *, with_state: bool = True, without_padding: bool = False) -> Matches:
    """Compare the rows of a place.

    Args:
        place: Rows go in and come out there.
        axes: Where they lie.
        with_state: Rows count as equal only if the parameters of the module were equal, too.
        without_padding: Rows that differ in the zeros at their ends count as equal.
    """
    found = Matches(place, axes)
    counts_arguments = _arguments_are_the_same(place)
    first: dict[bytes, tuple[PlacedCall, tuple[bytes, ...]]] = {}
    runs: dict[bytes, set[int]] = {}
    conflicting: set[bytes] = set()
    for placed in place.calls:
        context = _context(placed, axes, counts_arguments, with_state, without_padding)
        for key, made in _rows(placed, axes, context, without_padding):
            known = first.setdefault(key, (placed, made))
            runs.setdefault(key, set()).add(placed.run)
            if known[1] == made or key in conflicting:
                continue
            if known[0].run == placed.run and not counts_arguments:
                # Something that was not compared may have been different.
                continue
            conflicting.add(key)
            output = next(at for at, (a, b) in enumerate(zip(known[1], made, strict=True)) if a != b)
            found.conflicts.append(Conflict(known[0], placed, output))
    found.matched = sum(len(one) > 1 for one in runs.values())
    found.rows = {run: sum(run in one for one in runs.values()) for run in sorted(place.runs)}
    return found


def _arguments_are_the_same(place: Place) -> bool:
    """Whether the plain arguments of the calls do not depend on the size of the batch."""
    by_run: dict[int, set[str]] = {}
    for placed in place.calls:
        by_run.setdefault(placed.run, set()).add(placed.arguments)
    texts = list(by_run.values())
    return all(one == texts[0] for one in texts)


def _context(placed: PlacedCall, axes: Axes, arguments: bool, with_state: bool, without_padding: bool) -> bytes:
    """What all rows of a call have in common."""
    call = placed.call
    parts = [digest_text(placed.arguments if arguments else "")]
    if with_state:
        parts.append(digest_text(str(call.facts.get("state", ""))))
    for tensor, axis in zip(call.inputs, axes.inputs, strict=True):
        if axis == SHARED and not (without_padding and tensor.unpadded):
            parts.append(tensor.whole)
    return digest_many(parts)


def _rows(
    placed: PlacedCall, axes: Axes, context: bytes, without_padding: bool
) -> Iterator[tuple[bytes, tuple[bytes, ...]]]:
    """What went in and what came out, row by row."""
    call = placed.call
    if without_padding:
        given: list[list[bytes]] | None = [one.without_padding() for one in call.inputs if one.unpadded]
    else:
        given = rows_along(call.inputs, axes.inputs, call.batch)
    made = rows_along(call.outputs, axes.outputs, call.batch)
    if not given or not made:
        return
    count = min(len(rows) for rows in (*given, *made))
    if any(len(rows) % count for rows in (*given, *made)):
        return
    given, made = ([_folded(rows, count) for rows in group] for group in (given, made))
    for row in range(count):
        yield context + b"".join(rows[row] for rows in given), tuple(rows[row] for rows in made)


def _folded(rows: list[bytes], count: int) -> list[bytes]:
    """So many rows, each of which stands for several."""
    each = len(rows) // count
    return rows if each == 1 else [digest_many(rows[at : at + each]) for at in range(0, len(rows), each)]
