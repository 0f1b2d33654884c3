"""Every case of the project: the ops that something is known about, as far as they run on any device."""

from __future__ import annotations

from collections.abc import Iterator

from determinism.frameworks.jax.op_audit import layer_cases, reducing_cases, sampling_cases, writing_cases
from determinism.frameworks.jax.op_audit.case import Case

_FAMILIES = (writing_cases, reducing_cases, layer_cases, sampling_cases)


def all_cases() -> Iterator[Case]:
    """The cases of all families of ops."""
    for family in _FAMILIES:
        yield from family.cases()
