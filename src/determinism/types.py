"""The words of the project as types: phases, roles, kinds of divergence, verdicts, levels; and its version."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import Literal, Protocol

__version__ = "0.1.0"

NO_DIGEST = bytes(16)
"""Stands where bytes were not digested, because nobody wrote them or because they mean nothing."""


LevelName = Literal["op", "module", "step"]
"""The levels of recording as users write them."""
PrecisionName = Literal["highest", "high", "medium"]
PRECISIONS: tuple[PrecisionName, ...] = ("highest", "high", "medium")
"""How exact float32 matrix products can be asked to be."""


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
    """What a record stands for."""

    OP = 0
    ESCAPE = 1
    """A tensor's value left the framework."""
    BATCH = 2
    """A data loader yielded a batch."""
    LOSS = 3
    """A backward was started from these tensors."""
    STATE = 4
    """A step ended; the inputs are what parameters, gradients, buffers and optimizer state hold."""
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
    """The op wrote into this memory; bytes it did not write stay as they were."""


class Stream(StrEnum):
    """Whose records a stream holds, and with that whether they have an order of their own."""

    PROCESS = "process"
    """Of the main thread of a process: in the order of the program."""
    THREADS = "threads"
    """Of all other threads of a process, as they came."""
    POOL = "pool"
    """Of a process of a pool, which takes work as it comes."""
    WORKER = "worker"
    """Of a data loader's worker, which fetches ahead."""


class Level(StrEnum):
    """How much is recorded."""

    STEP = "step"
    MODULE = "module"
    OP = "op"


class Verdict(StrEnum):
    """What a comparison came to; the command's exit status follows from it."""

    SAME = "same"
    DIFFERENT = "different"
    INCONCLUSIVE = "inconclusive"

    @property
    def exit_status(self) -> int:
        """0 same, 1 different, 2 inconclusive, as `diff` has it."""
        return {"same": 0, "different": 1}.get(self.value, 2)


class Kind(StrEnum):
    """What made two runs differ at their first divergence; the first rule that holds, in this order."""

    STRUCTURE = "structure"
    RNG = "rng"
    DATA = "data"
    ARGUMENT = "argument"
    ORDER = "order"
    UNINITIALIZED = "uninitialized"
    MUTATION = "mutation"
    OP = "op"


class ProcessFolders(Protocol):
    """Gives every process of a run its place in the trace."""

    def claim(self, name: str | None) -> Path:
        """Make the folder of this process.

        Args:
            name: What the framework calls it among its siblings; None if it knows no name.

        Raises:
            OSError: It cannot be made.
        """

    def failed(self, reason: str) -> None:
        """This process could not be recorded."""


def _nothing() -> None:
    """There is nothing to put back."""


@dataclass(frozen=True)
class ReplacedOps:
    """The answer of a framework's `apply()`.

    Attributes:
        ops: What was replaced, in the words of the user.
        absent: What there is a replacement for, and what the installed version lacks.
        reason: Why nothing was replaced; None if something was, or was before.
        restore: Puts the stock ops back.
    """

    ops: list[str] = field(default_factory=list)
    absent: list[str] = field(default_factory=list)
    reason: str | None = None
    restore: Callable[[], None] = _nothing
