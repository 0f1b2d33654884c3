"""What a comparison finds: the data that diagnosing and reporting work on."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from determinism.comparison.batch_result import BatchRows
from determinism.comparison.course import Course
from determinism.comparison.dataflow import Dataflow
from determinism.comparison.findings import Cause, Experiment, Fix
from determinism.trace.names import Frame
from determinism.types import Kind, Verdict

if TYPE_CHECKING:
    from determinism.comparison.values_result import ValuesApart

_NO_OPS = frozenset({"determinism", "inductor", "autograd"})
"""Namespaces of records that stand for something else than one op."""


def is_repeatable(op: str) -> bool:
    """Whether a record with this op is one op, which can be run again by itself."""
    return op.partition("::")[0] not in _NO_OPS


@dataclass(frozen=True)
class OutputDifference:
    """One output of the diverging record.

    `elements_different`, `max_ulp`, `max_abs`, `max_relative`, `examples` and `extent` need the values of two executions; without them they
    are None. `repeats` counts executions on equal inputs, `distinct` the different results among them. The other counts are of further
    series of as many repeats, each made only where it can tell causes apart.
    """

    dtype: str
    shape: tuple[int, ...]
    device: str
    elements: int
    elements_different: int | None = None
    max_ulp: int | None = None
    max_abs: float | None = None
    repeats: int | None = None
    distinct: int | None = None
    position: int = 0
    """Which output of the record it is, from 0."""
    distinct_one_thread: int | None = None
    """With one thread."""
    distinct_filled_memory: int | None = None
    """With one thread and with memory that always holds the same bytes when it is handed out."""
    distinct_alignments: int | None = None
    """As the one before, with the inputs at addresses of other alignments in each repeat."""
    examples: tuple[ValueExample, ...] | None = None
    """The first elements that differ."""
    extent: tuple[tuple[int, int], ...] | None = None
    """Per dimension the lowest and the highest index at which elements differ."""
    max_relative: float | None = None
    """The largest difference in value, as a part of the largest element."""
    elements_sampled: int | None = None
    """How many elements the values are of, where not of all; then `elements_different` counts among them."""


@dataclass(frozen=True)
class ValueExample:
    """One element that differs, with both values as texts that tell all values of the type apart."""

    index: tuple[int, ...]
    first: str
    second: str


@dataclass(frozen=True)
class Evidence:
    """What further runs kept of the record at which the runs diverge."""

    source: str
    """`repeats`: the values that `outputs` compares are of repeats in one run; `runs`: of two further runs."""
    folder: str | None
    """Where the tensors are; None if they were not kept."""
    note: str
    """What could not be seen or kept, and why; empty if there is nothing to say."""
    reproducer: str | None = None
    """A script that shows by itself that the op varies."""


@dataclass(frozen=True)
class Divergence:
    """The first record of a process that differs."""

    kind: Kind | None
    """None where the level of recording does not show it."""
    process: str
    record: int
    """Number of the record in the run `records_of`."""
    records_of: int
    """Which run, by position, holds the record; differs from 0 where the first run has no such record."""
    step: int
    phase: str
    op: str
    module: str | None
    site: Frame | None
    forward_site: Frame | None
    stack: tuple[Frame, ...]
    inputs_equal: bool | None
    outputs: tuple[OutputDifference, ...]
    detail: str
    """One or two sentences: what exactly differs, with the values of both runs."""
    stream: str | None = None
    """Key of the stream that holds the record, where its records have no order of their own."""
    thread: str | None = None
    """Name of the thread, where that is not the main thread of the process."""
    received_from: str | None = None
    """Key of the process whose divergence explains this one."""
    allocated_at: Frame | None = None
    """Where the memory was allocated that the op read and nobody had written."""
    shares_memory: bool = False
    """Whether it read memory that several processes write."""
    saved_at: Frame | None = None
    """Where a thread saved what was read back, while others may have changed it."""


@dataclass(frozen=True)
class Visible:
    """The first difference that a person would see."""

    step: int
    what: str
    """For example `loss`, `parameter 0.weight`, `value read by item()`."""
    site: Frame | None = None
    """The line that read or printed it; None for what is kept."""


@dataclass(frozen=True)
class DeadDifference:
    """A difference that nothing read."""

    step: int
    phase: str
    op: str
    site: Frame | None


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


@dataclass(frozen=True)
class Leftover:
    """A file that one run changed and a later one read before it wrote to it: the runs did not start alike.

    Runs count from 1.
    """

    file: str
    changed_in: int
    read_in: int
    is_copied: bool
    """Whether a fresh copy of the working directory would have hidden it."""
    site: Frame | None = None
    """The line of the program that opened it to read."""


@dataclass(frozen=True)
class Missing:
    """Something that a checkpoint lacks, so that a resumed run does not go on as the full one."""

    identifier: str
    """`optimizer`, `scheduler`, `rng-torch` …"""
    site: Frame | None
    """The line that saved; None if none is known to have."""
    fix: str


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


@dataclass
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

    def __str__(self) -> str:
        """The verdict, and what differs first, in one line; `determinism.report` has the whole story."""
        first = self.first_divergence
        if first is None:
            notes = "; ".join(trouble.message for trouble in self.trouble)
            return f"{self.verdict}: {notes}" if notes else f"{self.verdict}: {self.recorded.records:,} records"
        where = "" if first.site is None else f" at {first.site.file}:{first.site.line} ({first.site.code})"
        return f"{self.verdict}: {first.kind or 'not known why'}, step {first.step}, {first.phase}, {first.op}{where}"
