"""What is known about one op: statuses, each with the versions it holds for and the sources it rests on."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from determinism.knowledge.versions import VersionRange


class OpVerdict(StrEnum):
    """Whether an op gives the same bits again, from equal inputs on the same software and hardware."""

    DETERMINISTIC = "deterministic"
    NONDETERMINISTIC = "nondeterministic"
    RAISES = "raises"
    """It refuses: calling it is an error."""
    DEPENDS = "depends"
    """On something that no column here says; the condition or the note does."""
    UNKNOWN = "unknown"
    """There is a reason to suspect it, and nobody has shown whether it varies."""


class Direction(StrEnum):
    """Which way through an op a status is about."""

    FORWARD = "forward"
    BACKWARD = "backward"
    BOTH = "both"


class Device(StrEnum):
    """Where an op runs."""

    CPU = "cpu"
    CUDA = "cuda"
    ROCM = "rocm"
    XPU = "xpu"
    MPS = "mps"
    TPU = "tpu"
    META = "meta"
    GPU = "gpu"
    """Whichever GPUs the framework supports; facts about TensorFlow and JAX rarely say more."""
    ANY = "any"


class Basis(StrEnum):
    """Where a status comes from. Where the two differ, both are kept."""

    DOCUMENTED = "documented"
    """The framework's documentation, or that of its vendor, says so."""
    OBSERVED = "observed"
    """Source code, a discussion among its developers, or a measurement shows it."""


class SourceKind(StrEnum):
    """What kind of thing a source is."""

    DOCUMENTATION = "documentation"
    ISSUE = "issue"
    PULL_REQUEST = "pull request"
    COMMIT = "commit"
    SOURCE = "source"
    """Source code or a binary that was read."""
    MEASUREMENT = "measurement"
    """It was run."""


@dataclass(frozen=True, slots=True)
class Source:
    """What a status rests on.

    Attributes:
        kind: What kind of thing it is.
        reference: Where to find it, such as `pytorch/pytorch#101115` or the address of a page.
        date: When it was written or read, as `2023-05` or `2023-05-10`; None if that is not known.
    """

    kind: SourceKind
    reference: str
    date: str | None


@dataclass(frozen=True, slots=True)
class Status:
    """One statement about an op.

    Attributes:
        identifier: Unique, and stable from version to version of this tool.
        framework: Whose versions `versions` are.
        versions: For which releases it holds.
        device: Where the op runs.
        direction: Forward, backward, or both.
        dtype: For which dtypes; None for all it accepts.
        condition: What else must hold, such as an argument's value; None if nothing.
        basis: Whether documentation says so or something that was looked at.
        default: The verdict without the framework's deterministic mode; None if nothing is said about it.
        deterministic: The verdict with it; None if nothing is said about it.
        solution: What to do; None if there is nothing to do or nothing known.
        note: What else there is to know.
        sources: What it rests on, at least one.
    """

    identifier: str
    framework: str
    versions: VersionRange
    device: Device
    direction: Direction
    dtype: str | None
    condition: str | None
    basis: Basis
    default: OpVerdict | None
    deterministic: OpVerdict | None
    solution: str | None
    note: str | None
    sources: tuple[Source, ...]

    @property
    def verdicts(self) -> tuple[OpVerdict, ...]:
        """The verdicts that are given, without and with deterministic mode."""
        return tuple(verdict for verdict in (self.default, self.deterministic) if verdict is not None)


@dataclass(frozen=True, slots=True)
class Op:
    """An op, or another thing that makes runs differ, with everything that is known about it.

    Attributes:
        name: The name it is listed under.
        framework: Whose op it is.
        names: Other public names: functions, methods, layers that are built on it, overloads.
        kernels: Names that alerts and stack traces show.
        alerts: Texts of error messages about it.
        patches: Identities of the replacements of `determinism.patch` that make it deterministic.
        summary: One sentence on what makes it vary.
        statuses: All statuses, of all versions.
    """

    name: str
    framework: str
    names: tuple[str, ...]
    kernels: tuple[str, ...]
    alerts: tuple[str, ...]
    patches: tuple[str, ...]
    summary: str
    statuses: tuple[Status, ...]
