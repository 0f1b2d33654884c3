"""The records around a divergence, as a report shows them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from determinism.trace.names import Frame


class FlowOutput(NamedTuple):
    """One output of a record."""

    dtype: str
    shape: tuple[int, ...]
    device: str


class FlowNode(NamedTuple):
    """One record."""

    identifier: int
    distance: int
    """0 for the first divergence, below 0 for what it read, above 0 for what read it."""
    op: str
    module: str | None
    step: int
    phase: str
    site: Frame | None
    differs: bool | None
    """Whether its outputs differ between the runs; None where that is not known."""
    outputs: tuple[FlowOutput, ...]


class FlowEdge(NamedTuple):
    """A value that one record made and another one read; both by their identifiers."""

    source: int
    target: int
    differs: bool | None


@dataclass(frozen=True)
class Dataflow:
    """The records around the first divergence."""

    nodes: list[FlowNode]
    edges: list[FlowEdge]
    left_out: int
    """How many more records lie as near and are not shown."""
