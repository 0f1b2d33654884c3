"""Where two runs part, what followed, and why: the findings of comparison and diagnosis."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from determinism.op_semantics import Op, OpSemantics
from determinism.redaction import redacted_text
from determinism.trace.schema import Frame
from determinism.types import Kind

# How two runs differed, step by step: how many records differed, and what the losses were.

MOST_ENTRIES = 1000
"""The most steps in a report; more are indistinguishable in a chart."""


class StepSpan(NamedTuple):
    """One step, or several consecutive ones if a run has very many."""

    step: int
    last_step: int
    records: int
    """How many records were compared."""
    different: int
    """How many of them differ, or are in one run only."""


class Loss(NamedTuple):
    """The loss of one step in both runs."""

    step: int
    first: float | None
    """None where it is unknown or not a number."""
    second: float | None


@dataclass(frozen=True)
class StepHistory:
    """How two runs differed over time."""

    runs: tuple[int, int]
    """The numbers of these runs, counted from 1."""
    steps: list[StepSpan] | None = None
    """None where steps were not counted, as in runs that are equal."""
    losses: list[Loss] | None = None
    """None where no loss is known."""


# The records around a divergence, as a report shows them.


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
    """Whether its outputs differ between the runs; None where unknown."""
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
    """How many more records are as near and are not shown."""


# One difference: where it is, its kind, and how far apart the values are.


def what_op_does(op: str) -> OpSemantics:
    """Return what an op of a divergence does, according to its trace; nothing in particular if no trace names it."""
    return op.semantics if isinstance(op, Op) else OpSemantics.NONE


def is_repeatable(op: str) -> bool:
    """Whether a record with this op is one op, which can be run again by itself."""
    return OpSemantics.NOT_ONE_OP not in what_op_does(op)


@dataclass(frozen=True)
class OutputDifference:
    """One output of the diverging record.

    `elements_different`, `max_ulp`, `max_abs`, `max_relative`, `examples` and `extent` need the values of two executions; without them they
    are None. `repeats` counts executions on equal inputs, `distinct` the different results among them. The other counts are from further
    series of as many repeats, each run only where it can distinguish causes.
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
    """Its position among the record's outputs, from 0."""
    distinct_one_thread: int | None = None
    """With one thread."""
    distinct_filled_memory: int | None = None
    """With one thread, and memory that always holds the same bytes when it is allocated."""
    distinct_alignments: int | None = None
    """Like the one before, with the inputs at differently aligned addresses in each repeat."""
    examples: tuple[ValueExample, ...] | None = None
    """The first elements that differ."""
    extent: tuple[tuple[int, int], ...] | None = None
    """The lowest and the highest index at which elements differ, per dimension."""
    max_relative: float | None = None
    """The largest difference in value, as a fraction of the largest element."""
    elements_sampled: int | None = None
    """How many elements were compared, if not all; then `elements_different` counts among them."""


@dataclass(frozen=True)
class InputDifference:
    """One input of the diverging record whose content differed.

    `elements_different`, `max_ulp`, `max_abs`, `max_relative`, `examples` and `extent` are from two further runs, and None without them.
    """

    position: int
    """Its position among the record's inputs, from 0."""
    path: str | None
    """Its path within the arguments, such as `batch['x']`; None where that is unknown."""
    dtype: str
    shape: tuple[int, ...]
    device: str
    elements: int
    other: str | None = None
    """Dtype, shape and device in the other run, where they differ."""
    elements_different: int | None = None
    max_ulp: int | None = None
    max_abs: float | None = None
    max_relative: float | None = None
    examples: tuple[ValueExample, ...] | None = None
    extent: tuple[tuple[int, int], ...] | None = None
    elements_sampled: None = None
    """Values of inputs are never sampled."""


@dataclass(frozen=True)
class ValueExample:
    """One element that differs, with both values as text precise enough to distinguish all values of the type."""

    index: tuple[int, ...]
    first: str
    second: str


@dataclass(frozen=True)
class Evidence:
    """What further runs kept of the record at which the runs diverge."""

    source: str
    """`repeats`: the values that `outputs` compares are from repeats in one run; `runs`: from two further runs."""
    folder: str | None
    """Where the tensors are; None if they were not kept."""
    note: str
    """What could not be observed or kept, and why; empty if there is nothing to say."""
    reproducer: str | None = None
    """A standalone script that shows that the op varies."""


@dataclass(frozen=True)
class Inside:
    """What varies within a compiled function, as shown by repeating it."""

    op: str
    site: Frame | None
    functions: tuple[str, ...]
    """The functions and loops within the compiled function that contain it, the outermost first."""


@dataclass(frozen=True)
class Divergence:
    """The first record of a process that differs."""

    kind: Kind | None
    """None where the recording level does not show it."""
    process: str
    record: int
    """Number of the record in the run `records_of`."""
    records_of: int
    """Index of the run that holds the record; not 0 only where the first run has no such record."""
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
    """Name of the thread, if it is not the main thread of the process."""
    received_from: str | None = None
    """Key of the process whose divergence explains this one."""
    allocated_at: Frame | None = None
    """Where the unwritten memory that the op read was allocated."""
    received_at: Frame | None = None
    """Where the op's input was received from whichever process sent first."""
    shares_memory: bool = False
    """Whether it read memory that several processes write."""
    inputs: tuple[InputDifference, ...] = ()
    """Those that differ, where both runs digested their content."""
    saved_at: Frame | None = None
    """Where a thread saved what was read back, while others may have changed it."""
    inside: Inside | None = None
    """What varies within the op, if that is a compiled function; None where that was not found."""
    hint: str = ""
    """A likely mistake of the author that the runs show; empty if there is none."""


@dataclass(frozen=True)
class Visible:
    """The first difference that a person would see."""

    step: int
    what: str
    """For example `loss`, `parameter 0.weight`, `value read by item()`."""
    site: Frame | None = None
    """The line that read or printed it; None for values that the program keeps."""


@dataclass(frozen=True)
class DeadDifference:
    """A difference that nothing read."""

    step: int
    phase: str
    op: str
    site: Frame | None


@dataclass(frozen=True)
class PrintedDifference:
    """Two printed lines that differ only in numbers, in runs where no tensor differs.

    Lines that show times, memory or addresses do not count, and neither does the order of lines.
    """

    runs: tuple[int, int]
    """Counted from 1."""
    first: str
    """The line that only the first of these runs printed."""
    second: str

    def __post_init__(self) -> None:
        """Hide secrets."""
        object.__setattr__(self, "first", redacted_text(self.first))
        object.__setattr__(self, "second", redacted_text(self.second))


# Findings of the diagnosis: causes of a divergence, the experiments that show them, and fixes.


class Status(StrEnum):
    """How well a cause is established."""

    CONFIRMED = "confirmed"
    """An experiment showed it: the divergence disappears without the cause, or appears with it."""
    LIKELY = "likely"
    """The records point to it, but no experiment has tested it."""
    POSSIBLE = "possible"
    """Nothing observed rules it out."""


@dataclass(frozen=True)
class Experiment:
    """Runs of the program in which something was fixed or perturbed."""

    factor: str
    """What was fixed or perturbed: the name of a factor, or a source at a line."""
    action: str
    """`fixed` or `perturbed`."""
    runs: int
    equal: bool | None
    """Whether all of them were bit-identical; None where that could not be determined."""
    outcome: str
    """A sentence."""
    seconds: float | None = None
    """How long its runs took together."""


@dataclass(frozen=True)
class Cause:
    """Why the runs differ."""

    identifier: str
    title: str
    status: Status
    evidence: tuple[str, ...]
    experiments: tuple[Experiment, ...]
    sites: tuple[Frame, ...]
    """The lines at fault, the most informative one first."""


@dataclass(frozen=True)
class Fix:
    """What removes a cause."""

    identifier: str
    """The identifier of the cause."""
    title: str
    code: str | None = None
    """The code to write."""
    environment: tuple[tuple[str, str], ...] | None = None
    """Environment variables to set, with their values."""
    verified: bool = False
    """Whether the program was run with it (and with the other fixes) and was bit-identical."""
    runs: int = 0
    """How many runs showed that."""
    step_time_ratio: float | None = None
    """The duration of a step with it, divided by the duration without it."""
    patch: str | None = None
    """The change to the user's file as a unified diff; None where it does not change exactly one file."""
    steps: int | None = None
    """After how many steps the runs that showed it ended; None if they ran to the end of the program."""
    side_effect: str | None = None
    """What else it changes, in a sentence."""


@dataclass(frozen=True)
class Diagnosis:
    """What further runs of the program showed about a difference."""

    causes: Sequence[Cause] = ()
    fixes: Sequence[Fix] = ()
    experiments: Sequence[Experiment] = ()
    """Every experiment that was made, in order, including those that support a cause."""
    limit: str | None = None
    """Why the causes may be incomplete: the time was used up, or no experiment explained the difference."""
    varied: Sequence[str] = ()
    """The factors that were perturbed on purpose, because the runs were equal without that."""
    evidence: Evidence | None = None
    """What was kept of the first divergence; None if no further run looked at it."""
    missed_in_confirming_run: bool = False
    """Whether a confirming run was made and did not reach the first divergence."""


NO_DIAGNOSIS = Diagnosis()
"""The diagnosis of runs whose differences were not investigated."""


# How far apart the values of two stored runs are: where they part, where that grows, and step by step.


class Likeness(StrEnum):
    """What a difference looks like; this is evidence, not proof."""

    ROUNDING = "rounding"
    """Only the last bits differ."""
    COARSER = "coarser"
    """The leading digits agree, and more than the last bits differ."""
    OTHER = "other"
    """The numbers are unrelated."""


_LAST_BIT = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
_ROUNDED = {"float64": 64, "float32": 64, "float16": 8, "bfloat16": 4}
"""The most units in the last place of the largest element that a report attributes to rounding: reordered sums differ by
a few, products of long vectors by some tens. Where a type has few bits, a unit is a large part of the value."""
_COARSEST = 1e-2
"""As a fraction of the largest element. TF32 and bfloat16 have 11 and 8 bits: products computed with them agree to two digits or more."""
_PARTS = {"complex64": "float32", "complex128": "float64"}


def likeness(outputs: Iterable[OutputDifference]) -> Likeness | None:
    """Return what the output of a record that differs most looks like; None if none of them are floats that were compared."""
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


# The order of divergences in a program.


def is_later(one: Divergence, other: Divergence) -> bool:
    """Whether a divergence is later in the program than another, as far as is known."""
    if one.process != other.process or one.stream is not None or other.stream is not None:
        return one.step > other.step
    return (one.step, one.record) > (other.step, other.record) and not is_same_place(one, other)


def is_before(one: Divergence, other: Divergence) -> bool:
    """Whether a divergence is certainly earlier in the program than another, and at another line."""
    has_order = one.process == other.process and one.stream is None and other.stream is None
    return has_order and is_later(other, one) and not is_same_line(one, other)


def is_same_line(one: Divergence, other: Divergence) -> bool:
    """Whether two divergences are at the same op and line, in any step."""
    return _identity(one)[1:] == _identity(other)[1:]


def is_same_place(one: Divergence, other: Divergence) -> bool:
    """Whether two divergences are at the same point of the program."""
    return one.process == other.process and _identity(one) == _identity(other)


def _identity(one: Divergence) -> tuple[object, ...]:
    site = one.site
    return one.step, one.op, one.module, None if site is None else (site.file, site.line)
