"""What a comparison finds: the data that diagnosing and reporting work on."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from determinism.comparison.batch_result import BatchRows
from determinism.comparison.course import Course
from determinism.comparison.dataflow import Dataflow
from determinism.comparison.divergence import DeadDifference, Divergence, Evidence, Visible
from determinism.comparison.findings import Cause, Experiment, Fix
from determinism.trace.names import Frame
from determinism.types import Verdict

if TYPE_CHECKING:
    from determinism.comparison.values_result import ValuesApart

_COUNTED_IN_OPS = frozenset({"cuda-graph", "formula-changed", "fused-kernels", "handler-failed"})
"""Blind spots that count calls, as records do."""
_RECORDED_FROM_OUTSIDE = frozenset({"formula-changed", "fused-kernels"})
"""Of them, those whose calls are records too."""


@dataclass(frozen=True)
class BlindSpot:
    """Something that was not recorded."""

    identifier: str
    what: str
    reason: str
    count: int


@dataclass(frozen=True)
class Trouble:
    """Why a verdict is inconclusive."""

    identifier: str
    message: str


class FileChange(enum.StrEnum):
    """How a file came to change during a run."""

    CREATED = "created"
    """A process of the run was seen to create it: removing it restores what that run started from."""
    OVERWRITTEN = "overwritten"
    """A process of the run was seen to write it, and it existed before any run did so."""
    UNSEEN = "unseen"
    """No process of the run was seen to write it, so it may have been changed by somebody else."""


@dataclass(frozen=True)
class Leftover:
    """A file that changed during one run and that a later one read before it wrote to it: the runs did not start alike.

    Runs count from 1.
    """

    file: str
    changed_in: int
    read_in: int
    is_copied: bool
    """Whether a fresh copy of the working directory would have hidden it."""
    site: Frame | None = None
    """The line of the program that opened it to read."""
    # Danger: only what is CREATED may be suggested for removal; all else may be the user's own data.
    change: FileChange = FileChange.UNSEEN


@dataclass(frozen=True)
class Missing:
    """Something that a checkpoint lacks, so that a resumed run does not go on as the full one."""

    identifier: str
    """`optimizer`, `scheduler`, `rng-torch` …"""
    site: Frame | None
    """The line that saved; None if none is known to have."""
    fix: str
    is_saved: bool = False
    """Whether it was saved, and loaded from the file, but the run did not go on with it."""
    is_put_back: bool = False
    """Whether it is a generator that was put into the state in which the checkpoint was made, and was in another one all the same."""
    is_tried_in_vain: bool = False
    """Whether it was put back from outside, and the resumed run differed all the same."""


@dataclass
class RunSummary:
    """How one run went."""

    command: list[str]
    exit_status: int | None
    stopped_by: str | None
    """Signal name, `steps`, `fail-fast`, `interrupt`, `max-disk` …; None for a run that ended by itself."""
    seconds: float
    trace: str | None


@dataclass
class Recorded:
    """How much was compared."""

    records: int = 0
    steps: int = 0
    steps_by: str | None = None
    """What counted as a step: `optimizer`, `determinism.step`, `batches`; None where there were none."""
    processes: int = 0
    blind_spots: list[BlindSpot] = field(default_factory=list)

    def share(self, spot: BlindSpot) -> float | None:
        """What part of the program's ops a blind spot is, from 0 to 1; None if that cannot be known."""
        if spot.identifier not in _COUNTED_IN_OPS:
            return None
        unrecorded = 0 if spot.identifier in _RECORDED_FROM_OUTSIDE else spot.count
        return min(1.0, spot.count / max(1, self.records + unrecorded))


@dataclass(repr=False)
class Comparison:
    """The whole result of comparing two or more runs."""

    verdict: Verdict
    runs: list[RunSummary]
    recorded: Recorded
    trouble: list[Trouble] = field(default_factory=list)
    first_divergence: Divergence | None = None
    divergences: list[Divergence] = field(default_factory=list)
    first_visible: Visible | None = None
    infected: list[Visible] = field(default_factory=list)
    """The first step at which each sort of value differed: loss, gradient, parameter, buffer, optimizer state, checkpoint."""
    absorbed: bool = False
    dead_differences: int = 0
    dead_first: list[DeadDifference] = field(default_factory=list)
    environment: list[tuple[str, str, str]] = field(default_factory=list)
    """Name and both values of what differs between the environments of two runs, what decides most about numbers first."""
    environment_run: int = 2
    """Which run, from 1, is compared with the first one there."""
    level: str = "op"
    leftovers: list[Leftover] = field(default_factory=list)
    extra_runs: int = 0
    """How many of the runs were made beyond what was asked for, because two equal runs of such a program prove little."""
    open_settings: list[tuple[str, str]] = field(default_factory=list)
    """Name of each setting that was to be made in the first run and could not be, and the reason."""
    missed_in_confirming_run: bool = False
    """Whether a confirming run was made and did not come to the first divergence."""
    evidence: Evidence | None = None
    """What was kept of the first divergence; None if no further run looked at it."""
    racy: list[str] = field(default_factory=list)
    """What the program did whose outcome depends on timing, such as `threads`."""
    causes: list[Cause] = field(default_factory=list)
    fixes: list[Fix] = field(default_factory=list)
    experiments: list[Experiment] = field(default_factory=list)
    """Every experiment that was made, in order; those that a cause rests on stand there too."""
    diagnosis: str | None = None
    """What limits the causes that are named: the time was used up, or no experiment explained the difference."""
    varied: list[str] = field(default_factory=list)
    """The factors that were stirred on purpose, because the runs without that were equal."""
    missing: list[Missing] | None = None
    """What a checkpoint lacks; None where no resumed run was compared."""
    batch: BatchRows | None = None
    """How rows fared in batches of different sizes; None where these were not compared."""
    course: Course | None = None
    """How the runs went on, step by step."""
    dataflow: Dataflow | None = None
    """What the first divergence read, and what read it."""
    values: ValuesApart | None = None
    """How far the values of stored runs are apart; None where that was not asked."""

    def __repr__(self) -> str:
        return f"<Comparison {self}>"

    def __str__(self) -> str:
        """The verdict, and what differs first, in one line; `determinism.report` has the whole story."""
        first = self.first_divergence
        if first is None:
            notes = "; ".join(trouble.message for trouble in self.trouble)
            return f"{self.verdict}: {notes}" if notes else f"{self.verdict}: {self.recorded.records:,} records"
        where = "" if first.site is None else f" at {first.site.file}:{first.site.line} ({first.site.code})"
        return f"{self.verdict}: {first.kind or 'not known why'}, step {first.step}, {first.phase}, {first.op}{where}"
