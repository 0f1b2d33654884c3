"""How far the values of two stored runs are apart: where they part, where that grows, and step by step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from determinism.comparison.divergence import OutputDifference
from determinism.trace.names import Frame


class Likeness(StrEnum):
    """What a difference looks like; evidence, and no proof."""

    ROUNDING = "rounding"
    """Only the last bits differ."""
    COARSER = "coarser"
    """The leading digits agree, and more than the last bits differ."""
    OTHER = "other"
    """These are other numbers."""


_LAST_BIT = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
_ROUNDED = {"float64": 64, "float32": 64, "float16": 8, "bfloat16": 4}
"""How many units in the last place of the largest element rounding makes at most, for what a report says: sums in another
order differ by a few, products of long vectors by some tens. Where a type has few bits, a unit is much of the value."""
_COARSEST = 1e-2
"""Of the largest element. TF32 and bfloat16 have 11 and 8 bits: products computed with them agree to two digits or more."""
_PARTS = {"complex64": "float32", "complex128": "float64"}


def likeness(outputs: Iterable[OutputDifference]) -> Likeness | None:
    """What the outputs of a record look like that differ most; None where none of them are floats that were compared."""
    found = [one for output in outputs if (one := _likeness(output)) is not None]
    return max(found, key=list(Likeness).index) if found else None


def _likeness(output: OutputDifference) -> Likeness | None:
    dtype = _PARTS.get(output.dtype, output.dtype)
    if not output.elements_different or dtype not in _LAST_BIT:
        return None
    if output.max_relative is None:
        return Likeness.OTHER
    if output.max_relative <= _ROUNDED[dtype] * _LAST_BIT[dtype]:
        return Likeness.ROUNDING
    return Likeness.COARSER if output.max_relative <= _COARSEST else Likeness.OTHER


@dataclass(frozen=True)
class Parting:
    """A record that both runs have and that gave different values."""

    record: int
    """Its number in the first run."""
    step: int
    phase: str
    op: str
    module: str | None
    site: Frame | None
    outputs: tuple[OutputDifference, ...]
    """Those that differ."""
    looks_like: Likeness | None


class ValueStep(NamedTuple):
    """How far the runs were apart at one step; 0 where equal, None where that is not known."""

    step: int
    loss_ulp: int | None
    loss_relative: float | None
    parameters_ulp: int | None
    """Of the parameters at the end of the step, as those after it."""
    parameters_relative: float | None
    """Of the parameter that differs most: the difference as a part of its largest element."""
    parameter: str | None
    """Its name."""


@dataclass(frozen=True)
class ValuesApart:
    """How far the values of two runs are apart."""

    kept: tuple[int | None, int | None]
    """Of each run, how many elements of a tensor were kept at most; None where none were."""
    note: str
    """Why nothing more is known; empty if something is."""
    first: Parting | None = None
    """The first record, from the first divergence on, that both runs have and whose values differ."""
    beyond_rounding: Parting | None = None
    """The first that differs by more than rounding; None if `first` does, or none."""
    steps: tuple[ValueStep, ...] = ()
    alone: tuple[int, int] = (0, 0)
    """How many records each run has, from the first divergence on, that the other one lacks."""
