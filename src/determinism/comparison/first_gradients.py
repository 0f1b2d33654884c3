"""Finds what only the full run does to gradients because it has some already: it sets them to zero, and adds to them.

With `zero_grad(set_to_none=False)` the full run adds the first gradient of a step to zeros, and a resumed run, which has no gradients yet,
keeps that gradient itself. Both hold the same then. What follows is compared by value, so gradients that were lost still show.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from determinism.comparison.align import join, keys_of
from determinism.comparison.canonical import Canonical
from determinism.comparison.first_step import in_forward, of_step
from determinism.trace.chunk import Array, Chunk
from determinism.trace.reader import ProcessTrace
from determinism.trace.schema import NONE, Table
from determinism.types import Phase

_ADDS = "aten::add_.Tensor"
"""How backward adds to a gradient that is there."""
_CLEARS = frozenset(
    {
        "aten::zero_", "aten::_foreach_zero_", "aten::fill_.Scalar",
        "aten::mul_.Tensor", "aten::mul_.Scalar", "aten::_foreach_mul_.Scalar",
    }
)  # fmt: skip
_ZEROS = ("=0", "=0.0")
_KEEPS = frozenset(
    {
        "aten::clone", "aten::copy_", "aten::_to_copy", "aten::detach", "aten::empty_strided",
        "aten::new_empty_strided", "aten::empty_like", "aten::contiguous",
    }
)  # fmt: skip
"""How backward keeps a gradient that is the first one."""
_MOST_STEPS = 64
"""A module that is called now and then gets its first gradient late."""


class Alone(NamedTuple):
    """Numbers of records that only one of two runs has."""

    full: list[int]
    resumed: list[int]


def alone_with_gradients(full: ProcessTrace, resumed: ProcessTrace, steps: int, starts: tuple[int, int]) -> Alone:
    """What only one run does because one has gradients and the other has none yet.

    Args:
        full: The run that was not stopped.
        resumed: The run that went on.
        steps: How many steps of the full run went before.
        starts: The records with which the first step after the checkpoint begins in both.

    Returns:
        Of the full run what clears gradients and adds to them, of the resumed one what keeps them; and in its first step whatever it does
        alone: what a program makes when it is first needed, such as the scale of a gradient scaler, it makes once more.

    Raises:
        TraceError: A trace is damaged.
    """
    canonical = Canonical(full, resumed)
    found = Alone([], [])
    for step in _steps_to_look_at(full, resumed, steps):
        chunks = [
            of_step(process, number, start)
            for process, number, start in ((full, step, starts[0]), (resumed, step - steps, starts[1]))
        ]
        if chunks[0] is None or chunks[1] is None:
            continue
        sides = [
            _Side(process, in_forward(chunk) if step == steps else chunk)
            for process, chunk in zip((full, resumed), chunks, strict=True)
            if chunk is not None
        ]
        alone = _alone(sides, canonical)
        found.full.extend(sides[0].chunk.first + int(row) for row in alone[0] if sides[0].touches_gradients(int(row)))
        found.resumed.extend(
            sides[1].chunk.first + int(row) for row in alone[1] if step == steps or sides[1].keeps(int(row))
        )
    return found


class _Side:
    """The records of a step of one run."""

    def __init__(self, process: ProcessTrace, chunk: Chunk) -> None:
        self._ops = process.names.texts(Table.OP)
        self._arguments = process.names.texts(Table.ARGUMENTS)
        self.chunk = chunk
        is_backward = chunk.columns["phase"] == Phase.BACKWARD
        adds = self._ops.index(_ADDS) if _ADDS in self._ops else NONE - 1
        self.adds: Array = np.flatnonzero(is_backward & (chunk.columns["op"] == adds))
        self.others: Array = np.setdiff1d(np.arange(chunk.rows), self.adds)

    def added(self, row: int) -> tuple[int, int]:
        """What an addition adds: row of its producer, below 0 for one from before, and its output."""
        inputs = self.chunk.children["inputs"]
        at = int(inputs.starts[row + 1]) - 1
        if at < int(inputs.starts[row]):
            return -1, 0
        distance = int(inputs.columns["producer"][at])
        return (row - distance if distance else -1), int(inputs.columns["output"][at])

    def touches_gradients(self, row: int) -> bool:
        """Whether a record adds to a gradient, or sets one to zero."""
        op = self._ops[int(self.chunk.columns["op"][row])]
        if op not in _CLEARS:
            return op == _ADDS
        number = int(self.chunk.columns["arguments"][row])
        return "zero" in op or (number >= 0 and self._arguments[number].endswith(_ZEROS))

    def keeps(self, row: int) -> bool:
        """Whether a record may keep a first gradient."""
        op = self._ops[int(self.chunk.columns["op"][row])].partition(".")[0]
        return int(self.chunk.columns["phase"][row]) == Phase.BACKWARD and op in _KEEPS


def _alone(sides: Sequence[_Side], canonical: Canonical) -> tuple[Array, Array]:
    """Rows without a partner. Additions are partners if they add what is the same in both runs."""
    keys = [keys_of(side.chunk, canonical, number)[side.others] for number, side in enumerate(sides)]
    paired = join(*keys)
    rows = [side.others[at] for side, at in zip(sides, paired, strict=True)]
    names: list[dict[int, object]] = [{int(row): pair for pair, row in enumerate(of_side)} for of_side in rows]
    added = [_named(side, known) for side, known in zip(sides, names, strict=True)]
    first, second = (
        np.array(
            [
                *np.setdiff1d(side.others, of_side),
                *(row for name, row in additions.items() if name not in other),
            ],
            dtype=np.int64,
        )
        for side, of_side, additions, other in zip(sides, rows, added, reversed(added), strict=True)
    )
    return np.sort(first), np.sort(second)


def _named(side: _Side, names: dict[int, object]) -> dict[object, int]:
    """The additions by what they add, and by which of several that add it they are."""
    found: dict[object, int] = {}
    times: Counter[object] = Counter()
    for row in side.adds.tolist():
        producer, output = side.added(row)
        adds = names.get(producer, "from before" if producer < 0 else "of its own"), output
        found[adds, times[adds]] = row
        # Backward adds up what comes to one place, and adds that to the gradient.
        names[row] = adds, times[adds]
        times[adds] += 1
    return found


def _steps_to_look_at(full: ProcessTrace, resumed: ProcessTrace, steps: int) -> Iterator[int]:
    """The first step, and those that follow in which one run adds more often than the other."""
    counts = [_additions(process, before) for process, before in ((full, 0), (resumed, steps))]
    yield steps
    unlike = sorted(step for step in counts[0].keys() | counts[1].keys() if counts[0][step] != counts[1][step])
    yield from [step for step in unlike if step > steps][:_MOST_STEPS]


def _additions(process: ProcessTrace, steps_before: int) -> Counter[int]:
    """How often backward adds, and gradients may be cleared, in each step."""
    ops = [number for number, op in enumerate(process.names.texts(Table.OP)) if op == _ADDS or op in _CLEARS]
    found: Counter[int] = Counter()
    for chunk in process.chunks():
        rows = np.isin(chunk.columns["op"], ops) & (chunk.columns["phase"] != Phase.OPTIMIZER)
        for step, count in zip(*np.unique(chunk.columns["step"][rows], return_counts=True), strict=True):
            found[int(step) + steps_before] += int(count)
    return found
