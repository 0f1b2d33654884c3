"""Finds what only one of two runs is known to hold at the end of a step.

Modules are known from their first call, and optimizers from their first step. So the full run knows an averaged model that it evaluated
in an earlier epoch, and the second optimizer of a GAN, while a resumed run in its first steps does not yet: no difference of what is held.
"""

from __future__ import annotations

import json

import numpy as np

from determinism.trace.chunk import Array
from determinism.trace.reader import ProcessTrace
from determinism.trace.schema import Table
from determinism.types import Role

Alone = dict[int, Array]
"""By the number of a record the positions of the inputs that only its run has."""


def held_by_one(full: ProcessTrace, resumed: ProcessTrace, steps_before: int) -> tuple[Alone, Alone]:
    """What only one of two runs names at the end of a step, or of the process.

    Args:
        full: The one run.
        resumed: The other one.
        steps_before: How many steps of the full run went before the first step of the other.

    Raises:
        TraceError: A trace is damaged.
    """
    mine, other = _ends(full, 0), _ends(resumed, steps_before)
    alone: tuple[Alone, Alone] = ({}, {})
    compared: dict[tuple[str, str], tuple[Array, Array]] = {}
    for key in mine.keys() & other.keys():
        (number, text), (its_number, its_text) = mine[key], other[key]
        if text == its_text or not (text.startswith("[[") and its_text.startswith("[[")):
            continue
        if (text, its_text) not in compared:
            compared[text, its_text] = _apart(json.loads(text), json.loads(its_text))
        alone[0][number], alone[1][its_number] = compared[text, its_text]
    return alone


def _ends(process: ProcessTrace, steps_before: int) -> dict[tuple[str, int], tuple[int, str]]:
    """Number and names of each record of what is held, by its op and step."""
    found = {}
    for chunk in process.chunks():
        for row in np.flatnonzero(chunk.columns["role"] == Role.STATE):
            op = process.names.text(Table.OP, int(chunk.columns["op"][row])) or ""
            text = process.names.text(Table.ARGUMENTS, int(chunk.columns["arguments"][row])) or ""
            found[op, int(chunk.columns["step"][row]) + steps_before] = chunk.first + int(row), text
    return found


def _apart(mine: list[list[str]], other: list[list[str]]) -> tuple[Array, Array]:
    """The positions of the names that the other list lacks."""
    lists = [[tuple(name) for name in names] for names in (mine, other)]
    known = set(lists[0]) & set(lists[1])
    first, second = (np.array([at for at, name in enumerate(names) if name not in known], int) for names in lists)
    return first, second
