"""What comparing batches of different sizes finds, beside what every comparison does."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from determinism.comparison.findings import Fix


class BatchKind(StrEnum):
    """Why a row came out otherwise in another batch."""

    OP = "op"
    """An op that treats each row by itself computed it in another way."""
    MIXING = "mixing"
    """An op takes the rows of a batch together."""
    RNG = "rng"
    """A random op drew other numbers for it."""
    PADDING = "padding"
    """It was padded to another length."""


@dataclass(frozen=True)
class RowDifference:
    """How equal rows came out in two ways at the first divergence."""

    kind: BatchKind | None
    """None where it is known only that the model as a whole made the difference."""
    sizes: tuple[int, int]
    """Two sizes of batches in which an equal row came out in two ways."""
    rows: int | None
    """How many different rows did; None where rows went in and none came out."""
    rows_compared: int | None
    is_training: bool
    """Whether the module that called the op was in training mode."""


@dataclass(frozen=True)
class TrainingModule:
    """A module that was in training mode, and computes otherwise because of it."""

    module: str
    name: str
    """Its class."""


@dataclass
class BatchRows:
    """What was found of the rows."""

    sizes: tuple[int, ...]
    rows: dict[int, int] = field(default_factory=dict)
    """Per size of batches how many different rows went into the model."""
    rows_matched: int = 0
    """How many of them went into it in batches of two sizes or more."""
    places: int = 0
    """At how many places of the program, ops or models, rows were compared."""
    difference: RowDifference | None = None
    results_differ: bool | None = None
    """Whether equal rows had different results of the whole model; None if no model gave its results row by row."""
    training: list[TrainingModule] = field(default_factory=list)
    draws: bool = False
    """Whether a model drew random numbers."""
    tried: list[Fix] = field(default_factory=list)
    """What was tried in further runs, whether it helped or not."""
    not_told: str | None = None
    """Why the first op cannot be told, where that is so."""
