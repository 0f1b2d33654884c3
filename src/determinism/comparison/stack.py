"""What two runs ran on, and which part of that decides what numbers come out."""

from __future__ import annotations

from enum import StrEnum

from determinism.trace.reader import Trace

EnvironmentDifference = tuple[str, str, str]
"""Name and both values."""


class Part(StrEnum):
    """A part of what a run ran on, in the order of how much it decides."""

    HARDWARE = "hardware"
    THREADS = "threads"
    LIBRARIES = "libraries"
    SETTINGS = "settings"
    SYSTEM = "system"
    OTHER = "other"
    """What does not decide how numbers are computed, as far as is known."""


_ORDER = list(Part)
_BY_NAME = {
    "processor": Part.HARDWARE,
    "instruction sets": Part.HARDWARE,
    "machine": Part.HARDWARE,
    "variable CUDA_VISIBLE_DEVICES": Part.HARDWARE,
    "driver of gpus": Part.LIBRARIES,
    "processors": Part.THREADS,
    "python": Part.SYSTEM,
    "platform": Part.SYSTEM,
    "variable LD_PRELOAD": Part.SYSTEM,
    "variable GLIBC_TUNABLES": Part.SYSTEM,
    "package determinism": Part.OTHER,
}
_BY_START = (
    ("gpu", Part.HARDWARE),
    ("package ", Part.LIBRARIES),
    ("library ", Part.LIBRARIES),
    ("variable PYTHON", Part.OTHER),
    ("variable TF_CLI_", Part.OTHER),
    ("variable TF_CPP_", Part.OTHER),
    ("variable MALLOC_", Part.OTHER),
    ("variable ", Part.SETTINGS),
    ("torch.", Part.SETTINGS),
    ("tf.", Part.SETTINGS),
)
_TELLING = (
    "processor",
    "package torch",
    "package tensorflow",
    "package jax",
    "package numpy",
    "library CUDA",
    "library cuDNN",
)
"""How those names begin that say most of their part."""
_MAY_LACK = ("variable ", "package ", "gpu ")
"""What one run may have and another lack. Other facts are always recorded, if not by every version."""
_THREADS = (
    "NUM_THREADS",
    "num_threads",
    "num_interop_threads",
    "parallelism_threads",
    "variable OMP_",
    "variable KMP_",
)


def part_of(name: str) -> Part:
    """The part of the environment that a recorded fact belongs to.

    Args:
        name: Of the fact, as `determinism.environment` and the frameworks' settings name it.
    """
    if name in _BY_NAME:
        return _BY_NAME[name]
    if any(word in name for word in _THREADS):
        return Part.THREADS
    return next((part for start, part in _BY_START if name.startswith(start)), Part.OTHER)


def environment_differences(one: Trace, other: Trace) -> list[EnvironmentDifference]:
    """What differs between what two runs ran on, what decides most about numbers first."""
    first, second = (_facts(trace) for trace in (one, other))
    names = [
        name
        for name in first.keys() | second.keys()
        if first.get(name) != second.get(name) and (name.startswith(_MAY_LACK) or (name in first and name in second))
    ]
    names.sort(key=lambda name: (_ORDER.index(part_of(name)), not name.startswith(_TELLING), name))
    return [(name, first.get(name, "not set"), second.get(name, "not set")) for name in names]


def _facts(trace: Trace) -> dict[str, str]:
    """Name and value of what the first process of a run ran on."""
    if not trace.processes:
        return {}
    description = trace.processes[0].description
    return {**(description.get("environment") or {}), **(description.get("settings") or {})}


def stack_differences(differences: list[EnvironmentDifference]) -> list[EnvironmentDifference]:
    """Those of the differences that may change numbers."""
    return [difference for difference in differences if part_of(difference[0]) is not Part.OTHER]
