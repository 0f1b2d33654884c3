"""Which of two paired records differ, and in what: column by column, for many records at once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from determinism.comparison.canonical import Canonical, Numbers, are_same_cells
from determinism.trace.chunk import Array, Children, Chunk

_COMPARED = ("step", "phase", "role", "thread", "op", "module", "stack", "arguments")
"""Columns of numbers per record; what `forward` leads to shows in the stack, and is no part of what was computed."""


@dataclass(frozen=True)
class Flags:
    """One bool per pair and aspect; True where the two records differ."""

    outputs: Array
    edges: Array
    """Another producer, output, access or view of an input."""
    digests: Array
    """What an input held that nobody recorded producing, or that others can write."""
    arguments: Array
    generators: Array

    @classmethod
    def none(cls, rows: int) -> Flags:
        """For pairs that do not differ."""
        nothing = np.zeros(rows, dtype=bool)
        return cls(nothing, nothing, nothing, nothing, nothing)

    def any(self) -> Array:
        """Whether anything differs."""
        return self.outputs | self.edges | self.digests | self.arguments | self.generators


def ragged_differs(
    first: Children, second: Children, rows_first: Array, rows_second: Array, columns: list[tuple[Array, Array]]
) -> Array:
    """For each pair of rows, whether the list entries differ in number or in any of the given columns."""
    counts = first.starts[rows_first + 1] - first.starts[rows_first]
    other = second.starts[rows_second + 1] - second.starts[rows_second]
    differs = counts != other
    usable = np.where(differs, 0, counts)
    total = int(usable.sum())
    if not total:
        return np.asarray(differs)
    owner = np.repeat(np.arange(len(usable)), usable)
    within = np.arange(total) - np.repeat(np.cumsum(usable) - usable, usable)
    at_first = first.starts[rows_first][owner] + within
    at_second = second.starts[rows_second][owner] + within
    entry_differs = np.zeros(total, dtype=bool)
    for left, right in columns:
        unequal = left[at_first] != right[at_second]
        entry_differs |= unequal.any(axis=1) if unequal.ndim == 2 else unequal
    differs[owner[entry_differs]] = True
    return np.asarray(differs)


def producers(chunk: Chunk) -> Array:
    """Per input entry the number of the record that produced it; -1 where nobody recorded did."""
    inputs = chunk.children["inputs"]
    distance = inputs.columns["producer"].astype(np.int64)
    owner = np.repeat(np.arange(chunk.rows, dtype=np.int64), np.diff(inputs.starts))
    return np.where(distance == 0, -1, chunk.first + owner - distance)


def compare_rows(
    first: Chunk,
    second: Chunk,
    rows_first: Array,
    rows_second: Array,
    canonical: Canonical,
    producers_first: Array,
    producers_second: Array,
) -> Flags:
    """Compare pairs of records.

    Args:
        first: Records of the first process.
        second: Records of the second process.
        rows_first: Positions in `first`, one per pair.
        rows_second: Positions in `second`, one per pair.
        canonical: Numbers for names.
        producers_first: Per input entry of `first` who produced it, in numbers that both sides share.
        producers_second: The same for `second`.
    """

    def children(group: str, columns: list[tuple[Array, Array]]) -> Array:
        return ragged_differs(first.children[group], second.children[group], rows_first, rows_second, columns)

    def both(group: str, name: str, numbers: Numbers | None = None) -> tuple[Array, Array]:
        left, right = first.children[group].columns[name], second.children[group].columns[name]
        return (left, right) if numbers is None else (numbers.first[left], numbers.second[right])

    arguments = (
        canonical.arguments.first[first.columns["arguments"][rows_first]]
        != canonical.arguments.second[second.columns["arguments"][rows_second]]
    )
    return Flags(
        outputs=children("outputs", [both("outputs", "layout", canonical.layouts), both("outputs", "digest")]),
        edges=children(
            "inputs",
            [
                (producers_first, producers_second),
                both("inputs", "output"),
                both("inputs", "access"),
                both("inputs", "layout", canonical.layouts),
            ],
        ),
        digests=_digests_differ(first, second, rows_first, rows_second),
        arguments=arguments,
        generators=children("generators", [both("generators", "digest")]),
    )


def outputs_differ(first: Chunk, second: Chunk, pairing: tuple[Array, Array], canonical: Canonical) -> Array:
    """For each entry of a pairing, whether it is a pair with other outputs; False for records without a partner.

    Args:
        first: Records of the first process.
        second: Records of the second process.
        pairing: Positions in both; -1 where there is none.
        canonical: Numbers for names.
    """
    paired = np.flatnonzero((pairing[0] >= 0) & (pairing[1] >= 0))
    left, right = first.children["outputs"], second.children["outputs"]
    layouts = canonical.layouts.first[left.columns["layout"]], canonical.layouts.second[right.columns["layout"]]
    columns = [layouts, (left.columns["digest"], right.columns["digest"])]
    found = np.zeros(len(pairing[0]), dtype=bool)
    found[paired] = ragged_differs(left, right, pairing[0][paired], pairing[1][paired], columns)
    return found


def _digests_differ(first: Chunk, second: Chunk, rows_first: Array, rows_second: Array) -> Array:
    """Whether an input that both runs digested differs.

    A digest that only one run has says nothing: there the memory had been handed out, for logging say, and in the other
    run it had not. If it was changed as well, repeating the op shows that.
    """
    left, right = first.children["input_digests"], second.children["input_digests"]
    columns = [(left.columns[name], right.columns[name]) for name in ("position", "digest")]
    differs = ragged_differs(left, right, rows_first, rows_second, columns)
    for at in np.flatnonzero(differs):
        held = [
            {
                int(side.columns["position"][i]): side.columns["digest"][i].tobytes()
                for i in range(int(side.starts[rows[at]]), int(side.starts[rows[at] + 1]))
            }
            for side, rows in ((left, rows_first), (right, rows_second))
        ]
        differs[at] = any(held[0][position] != held[1][position] for position in held[0].keys() & held[1].keys())
    return differs


def same_structure(first: Chunk, second: Chunk, canonical: Canonical) -> Array:
    """For chunks of equal length, whether record i of both is the same op at the same place."""
    same = first.columns["step"] == second.columns["step"]
    for name in ("phase", "role", "thread"):
        same &= first.columns[name] == second.columns[name]
    for name, numbers in (("op", canonical.ops), ("module", canonical.modules), ("stack", canonical.stacks)):
        same &= numbers.first[first.columns[name]] == numbers.second[second.columns[name]]
    return np.asarray(same)


def are_same(first: Chunk, second: Chunk, canonical: Canonical) -> bool:
    """Whether chunks of equal length hold the same throughout, whoever produced it; told from whole columns at once.

    False says nothing yet: what only one run digested is no difference (see `compare_rows`).
    """
    names = {"op": canonical.ops, "module": canonical.modules, "stack": canonical.stacks}
    names |= {"arguments": canonical.arguments, "layout": canonical.layouts}

    def hold_same(left: dict[str, Array], right: dict[str, Array], columns: Iterable[str]) -> bool:
        return all(
            names[name].all_equal(left[name], right[name]) if name in names else are_same_cells(left[name], right[name])
            for name in columns
        )

    def lists_same(left: Children, right: Children) -> bool:
        columns = left.columns.keys() - {"producer"}
        return are_same_cells(left.starts, right.starts) and hold_same(left.columns, right.columns, columns)

    return hold_same(first.columns, second.columns, _COMPARED) and all(
        lists_same(first.children[group], second.children[group]) for group in first.children
    )
