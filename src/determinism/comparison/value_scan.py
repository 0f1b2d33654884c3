"""Reads two processes side by side once more, with the values that were kept of them."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from determinism.comparison.canonical import Canonical
from determinism.comparison.course import MOST_ENTRIES
from determinism.comparison.divergence import Divergence, OutputDifference
from determinism.comparison.group import Group
from determinism.comparison.lockstep import Lockstep
from determinism.comparison.sampled_difference import sampled_difference
from determinism.comparison.value_side import ValueSide
from determinism.comparison.values_result import Likeness, Parting, ValuesApart, ValueStep, likeness
from determinism.trace.chunk import Array
from determinism.trace.kept_values import Place
from determinism.trace.reader import ProcessTrace
from determinism.trace.schema import END_OP, Table
from determinism.types import Phase, Role

_PARAMETER = "determinism::parameter"


class _Gap(NamedTuple):
    """How far two tensors are apart that the runs know by the same name."""

    relative: float
    ulp: int | None
    name: str


class ValueScan:
    """Finds where the kept values of one process of two runs part, and how that grows."""

    def __init__(self, first: ProcessTrace, second: ProcessTrace, divergence: Divergence, most: int) -> None:
        """Take both processes.

        Args:
            first: Of the first run.
            second: Of the other one.
            divergence: Nothing before it counts.
            most: How many elements of a tensor were kept at most.
        """
        self._processes = (first, second)
        self._sides = (ValueSide(first), ValueSide(second))
        self._divergence = divergence
        self._most = most
        self._first: Parting | None = None
        self._beyond: Parting | None = None
        self._alone = [0, 0]
        self._has_come = False
        """Whether the divergence was passed."""
        self._losses: dict[int, _Gap] = {}
        self._parameters: dict[int, _Gap] = {}

    def result(self) -> ValuesApart:
        """Read everything, and say what was found."""
        lockstep = Lockstep(*self._processes, Canonical(*self._processes))
        # In which order equal work was done says nothing more here.
        lockstep.pairs_by_content = False
        for group in lockstep.groups():
            for side, chunk in zip(self._sides, (group.first, group.second), strict=True):
                side.load(chunk)
            self._add(group)
        note = (
            ""
            if self._first is not None
            else "Of records that both runs have, none of the values that were kept differ."
        )
        return ValuesApart(
            (self._most, self._most),
            note,
            self._first,
            self._beyond,
            tuple(self._steps()),
            (self._alone[0], self._alone[1]),
        )

    def _add(self, group: Group) -> None:
        first, second = group.pairing
        is_late = self._is_late(group)
        for run, (mine, other, chunk) in enumerate(((first, second, group.first), (second, first, group.second))):
            alone = mine[(mine >= 0) & (other < 0) & is_late]
            self._alone[run] += int((chunk.columns["role"][alone] != Role.STATE).sum())
        paired = (first >= 0) & (second >= 0)
        for at in np.flatnonzero(group.flags.outputs & paired & is_late).tolist():
            if self._first is not None and (self._beyond is not None or not self._is_rounding(self._first)):
                break
            self._look(group, int(first[at]), int(second[at]))
        roles = np.where(paired, group.first.columns["role"][first] if group.first.rows else -1, -1)
        for at in np.flatnonzero(np.isin(roles, (Role.LOSS, Role.STATE, Role.HELD))).tolist():
            self._measure(group, int(first[at]), int(second[at]), Role(int(roles[at])))

    def _is_late(self, group: Group) -> Array:
        """Which pairs stand at the first divergence or behind it."""
        side = self._divergence.records_of
        rows = group.pairing[side]
        numbers = (group.first, group.second)[side].first + rows
        come = np.where(rows >= 0, numbers >= self._divergence.record, False)
        late = np.logical_or.accumulate(come) | self._has_come
        self._has_come |= bool(come.any())
        return np.asarray(late)

    def _is_rounding(self, parting: Parting) -> bool:
        return parting.looks_like in (Likeness.ROUNDING, None)

    def _look(self, group: Group, first: int, second: int) -> None:
        """Compare the outputs of a pair of records."""
        numbers = (group.first.first + first, group.second.first + second)
        starts = group.first.children["outputs"].starts
        outputs = []
        for position in range(int(starts[first + 1] - starts[first])):
            found = self._difference((numbers[0], position), (numbers[1], position))
            if found is not None and found.elements_different:
                outputs.append(replace(found, position=position))
        if outputs:
            self._note(group, first, tuple(outputs))

    def _note(self, group: Group, row: int, outputs: tuple[OutputDifference, ...]) -> None:
        looks_like = likeness(outputs)
        is_beyond = looks_like not in (Likeness.ROUNDING, None)
        if self._first is not None and not is_beyond:
            return
        side, columns = self._sides[0], group.first.columns
        stack = side.names.stack(int(columns["stack"][row]))
        parting = Parting(
            record=group.first.first + row,
            step=int(columns["step"][row]),
            phase=Phase(int(columns["phase"][row])).label,
            op=side.text(Table.OP, "op", row),
            module=side.names.text(Table.MODULE, int(columns["module"][row])),
            site=stack[0] if stack else None,
            outputs=outputs,
            looks_like=looks_like,
        )
        if self._first is None:
            self._first = parting
        else:
            self._beyond = parting

    def _measure(self, group: Group, first: int, second: int, role: Role) -> None:
        """Take down how far apart the loss is, or what is held."""
        step = int(group.first.columns["step"][first])
        left, right = self._sides
        if role is Role.HELD:
            if left.text(Table.OP, "op", first) == _PARAMETER:
                name = left.text(Table.ARGUMENTS, "arguments", first)
                self._compare(
                    self._parameters, step, (group.first.first + first, 0), (group.second.first + second, 0), name
                )
            return
        read = (left.read_by(first), right.read_by(second))
        if role is Role.LOSS:
            if read[0] and read[1] and step not in self._losses:
                self._compare(self._losses, step, read[0][0], read[1][0], "loss")
            return
        if left.text(Table.OP, "op", first) == END_OP:
            # No step of its own: what was held after the last one stands there.
            return
        held = [
            dict(zip(_names(side.text(Table.ARGUMENTS, "arguments", row)), places, strict=False))
            for side, row, places in zip(self._sides, (first, second), read, strict=True)
        ]
        for (sort, name), place in held[0].items():
            if sort == "parameter" and (sort, name) in held[1]:
                self._compare(self._parameters, step, place, held[1][sort, name], name)
        for side, places in zip(self._sides, read, strict=True):
            side.hold(places)

    def _compare(self, gaps: dict[int, _Gap], step: int, first: Place, second: Place, name: str) -> None:
        found = self._difference(first, second)
        if found is None:
            return
        relative = 0.0 if not found.elements_different else found.max_relative
        gap = _Gap(math.inf if relative is None else relative, found.max_ulp if found.elements_different else 0, name)
        if step not in gaps or gap.relative > gaps[step].relative:
            gaps[step] = gap

    def _difference(self, first: Place, second: Place) -> OutputDifference | None:
        return sampled_difference(self._sides[0].sample(first), self._sides[1].sample(second), self._most)

    def _steps(self) -> Iterator[ValueStep]:
        steps = sorted(self._losses.keys() | self._parameters.keys())
        width = math.ceil(len(steps) / MOST_ENTRIES) or 1
        for start in range(0, len(steps), width):
            step = max(steps[start : start + width], key=self._width_at)
            loss, parameters = self._losses.get(step), self._parameters.get(step)
            yield ValueStep(
                step,
                loss.ulp if loss else None,
                _finite(loss),
                parameters.ulp if parameters else None,
                _finite(parameters),
                parameters.name if parameters else None,
            )

    def _width_at(self, step: int) -> float:
        gaps = (self._losses.get(step), self._parameters.get(step))
        return max((gap.relative for gap in gaps if gap is not None), default=0.0)


def _finite(gap: _Gap | None) -> float | None:
    return gap.relative if gap is not None and math.isfinite(gap.relative) else None


def _names(text: str) -> list[tuple[str, str]]:
    """Sort and name of everything that is held at the end of a step."""
    return [(str(sort), str(name)) for sort, name in json.loads(text)] if text.startswith("[[") else []
