"""Where two runs part, how they went on, and why: what comparing and diagnosing find."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from determinism.op_semantics import Op, OpSemantics
from determinism.redaction import redacted_text
from determinism.trace.schema import Frame
from determinism.types import Kind

# How two runs went on, step by step: how many records differed, and what the losses were.

MOST_ENTRIES = 1000
"""Of steps in a report; more cannot be told apart in a picture."""


class StepSpan(NamedTuple):
    """One step, or several that follow each other where a run has very many."""

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
    """None where it is not known or not a number."""
    second: float | None


@dataclass(frozen=True)
class StepHistory:
    """How two runs went on."""

    runs: tuple[int, int]
    """Which runs these are, counted from 1."""
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


# One difference: where it is, of what kind, and how far the values are apart.


def what_op_does(op: str) -> OpSemantics:
    """What an op of a divergence does, as its trace says; nothing in particular of what no trace names."""
    return op.semantics if isinstance(op, Op) else OpSemantics.NONE


def is_repeatable(op: str) -> bool:
    """Whether a record with this op is one op, which can be run again by itself."""
    return OpSemantics.NOT_ONE_OP not in what_op_does(op)


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
class InputDifference:
    """One input of the diverging record that held something else.

    `elements_different`, `max_ulp`, `max_abs`, `max_relative`, `examples` and `extent` are of two further runs, and None without them.
    """

    position: int
    """Which input of the record it is, from 0."""
    path: str | None
    """Where it is among the arguments, such as `batch['x']`; None where that is not known."""
    dtype: str
    shape: tuple[int, ...]
    device: str
    elements: int
    other: str | None = None
    """Dtype, shape and device in the run that it was compared with, where they differ."""
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
class Inside:
    """What varies within a compiled function, as far as repeating it has shown."""

    op: str
    site: Frame | None
    functions: tuple[str, ...]
    """The functions and loops of the compiled one that it is in, the outermost first."""


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
    received_at: Frame | None = None
    """Where what the op read was received from whichever process sent first."""
    shares_memory: bool = False
    """Whether it read memory that several processes write."""
    inputs: tuple[InputDifference, ...] = ()
    """Those that differ, where what they held was looked at in both runs."""
    saved_at: Frame | None = None
    """Where a thread saved what was read back, while others may have changed it."""
    inside: Inside | None = None
    """What varies within the op, where that is a compiled function; None where that was not found."""
    hint: str = ""
    """What the author may not have meant, where the runs show it; empty where they do not."""


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


@dataclass(frozen=True)
class PrintedDifference:
    """Two lines that runs printed, which are alike but for numbers, although no tensor differs.

    Lines that show times, memory or addresses do not count, nor does the order of lines.
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


# What diagnosing finds: causes of a divergence, the experiments that show them, and fixes.


class Status(StrEnum):
    """How well a cause is established."""

    CONFIRMED = "confirmed"
    """An experiment showed it: the divergence goes with the cause, or comes with it."""
    LIKELY = "likely"
    """What was recorded points to it, and nothing was tried that would show it."""
    POSSIBLE = "possible"
    """Nothing that was seen excludes it."""


@dataclass(frozen=True)
class Experiment:
    """Runs of the program in which something was fixed or perturbed."""

    factor: str
    """What it was done to: the name of a factor, or a source at a line."""
    action: str
    """`fixed` or `perturbed`."""
    runs: int
    equal: bool | None
    """Whether all of them were bit-identical; None where that could not be told."""
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
    """The lines at fault, the most telling one first."""


@dataclass(frozen=True)
class Fix:
    """What removes a cause."""

    identifier: str
    """That of the cause."""
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
    """How long a step takes with it, divided by how long it takes without."""
    patch: str | None = None
    """The change of the user's file as a unified diff; None where it is not a change of one file."""
    steps: int | None = None
    """After how many steps the runs that showed it ended; None if they went to the end of the program."""
    side_effect: str | None = None
    """What else it changes, in a sentence."""


@dataclass(frozen=True)
class Diagnosis:
    """What further runs of the program showed of a difference."""

    causes: Sequence[Cause] = ()
    fixes: Sequence[Fix] = ()
    experiments: Sequence[Experiment] = ()
    """Every experiment that was made, in order, those that a cause rests on as well."""
    limit: str | None = None
    """What limits the causes that are named: the time was used up, or no experiment explained the difference."""
    varied: Sequence[str] = ()
    """The factors that were perturbed on purpose, because the runs without that were equal."""
    evidence: Evidence | None = None
    """What was kept of the first divergence; None if no further run looked at it."""
    missed_in_confirming_run: bool = False
    """Whether a confirming run was made and did not come to the first divergence."""


NO_DIAGNOSIS = Diagnosis()
"""That of runs whose differences nobody looked into."""


# How far the values of two stored runs are apart: where they part, where that grows, and step by step.


class Likeness(StrEnum):
    """What a difference looks like; evidence, and no proof."""

    ROUNDING = "rounding"
    """Only the last bits differ."""
    COARSER = "coarser"
    """The leading digits agree, and more than the last bits differ."""
    OTHER = "other"
    """These are other numbers."""


_LAST_BIT = {"float64": 2.0**-52, "float32": 2.0**-23, "float16": 2.0**-10, "bfloat16": 2.0**-7}
_ROUNDED = {"float64": 64, "float32": 64, "float16": 8, "bfloat16": 4}
"""How many units in the last place of the largest element rounding makes at most, for what a report says: sums in another
order differ by a few, products of long vectors by some tens. Where a type has few bits, a unit is much of the value."""
_COARSEST = 1e-2
"""Of the largest element. TF32 and bfloat16 have 11 and 8 bits: products computed with them agree to two digits or more."""
_PARTS = {"complex64": "float32", "complex128": "float64"}


def likeness(outputs: Iterable[OutputDifference]) -> Likeness | None:
    """What the outputs of a record look like that differ most; None where none of them are floats that were compared."""
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
