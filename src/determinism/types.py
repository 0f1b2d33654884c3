"""The vocabulary of the project as types: phases, roles, kinds of divergence, verdicts, levels; and its version."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import Literal, Protocol

__version__ = "0.1.0"

NO_DIGEST = bytes(16)
"""Placeholder for bytes that were not digested, because they were never written or have no meaning."""


LevelName = Literal["op", "module", "step"]
"""Names of the recording levels."""
PrecisionName = Literal["highest", "high", "medium"]
PRECISIONS: tuple[PrecisionName, ...] = ("highest", "high", "medium")
"""Selectable precisions of float32 matrix products."""


class Phase(IntEnum):
    """What a program was doing when a record was made."""

    INIT = 0
    DATA = 1
    FORWARD = 2
    BACKWARD = 3
    OPTIMIZER = 4
    COMMUNICATION = 5
    CHECKPOINT = 6
    OTHER = 7

    @property
    def label(self) -> str:
        """The word that reports use."""
        return self.name.lower()


class Role(IntEnum):
    """What a record represents."""

    OP = 0
    ESCAPE = 1
    """A tensor's value left the framework."""
    BATCH = 2
    """A data loader yielded a batch."""
    LOSS = 3
    """A backward pass was started from these tensors."""
    STATE = 4
    """A step ended; the inputs are the values of parameters, gradients, buffers and optimizer state."""
    CHECKPOINT = 5
    """Tensors were saved."""
    MODULE = 6
    """A module was called (level `module`)."""
    HELD = 7
    """One parameter, gradient, buffer or optimizer tensor at the end of a step (levels `step` and `module`)."""


class Access(IntEnum):
    """How an op used the memory of an input."""

    READ = 0
    CARRY = 1
    """The op wrote into this memory; bytes that it did not write kept their values."""


class Stream(StrEnum):
    """The origin of a stream's records, which determines whether their order is meaningful."""

    PROCESS = "process"
    """The main thread of a process: in program order."""
    THREADS = "threads"
    """All other threads of a process, in order of arrival."""
    POOL = "pool"
    """A pool process, which takes work as it arrives."""
    WORKER = "worker"
    """A data loader's worker, which fetches ahead."""


class Level(StrEnum):
    """How much is recorded."""

    STEP = "step"
    MODULE = "module"
    OP = "op"


class Verdict(StrEnum):
    """The result of a comparison, which determines the command's exit status."""

    SAME = "same"
    DIFFERENT = "different"
    INCONCLUSIVE = "inconclusive"

    @property
    def exit_status(self) -> int:
        """0 same, 1 different, 2 inconclusive, as for `diff`."""
        return {"same": 0, "different": 1}.get(self.value, 2)


class Kind(StrEnum):
    """What made two runs differ at their first divergence: the first of these rules, in this order, that holds."""

    STRUCTURE = "structure"
    RNG = "rng"
    DATA = "data"
    ARGUMENT = "argument"
    ORDER = "order"
    UNINITIALIZED = "uninitialized"
    MUTATION = "mutation"
    OP = "op"


class ProcessFolders(Protocol):
    """Assigns every process of a run its folder in the trace."""

    def claim(self, name: str | None) -> Path:
        """Make the folder of this process.

        Args:
            name: The framework's name for it among its siblings; None if there is none.

        Raises:
            OSError: The folder cannot be made.
        """

    def failed(self, reason: str) -> None:
        """Note that this process could not be recorded."""


def _nothing() -> None:
    """Do nothing, as there is nothing to restore."""


@dataclass(frozen=True)
class ReplacedOps:
    """The result of a framework's `apply()`.

    Attributes:
        ops: The ops that were replaced, by their public names.
        absent: The ops that have a replacement but do not exist in the installed version.
        reason: Why nothing was replaced; None if ops were replaced now or before.
        restore: Restores the stock ops.
    """

    ops: list[str] = field(default_factory=list)
    absent: list[str] = field(default_factory=list)
    reason: str | None = None
    restore: Callable[[], None] = _nothing
