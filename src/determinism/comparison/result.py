"""What a comparison finds: the data that diagnosis and reports use."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from importlib import import_module
from typing import Any, NamedTuple

from determinism.comparison.run_facts import Leftover, Narrowing, PrintedDifference, RunSummary
from determinism.errors import DeterminismError, DifferenceError
from determinism.op_semantics import Op, OpSemantics
from determinism.trace.schema import Frame
from determinism.types import Kind, Verdict

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


# What comparing batches of different sizes finds, beside what every comparison does.


class BatchKind(StrEnum):
    """Why a row's result differed in a batch of another size."""

    OP = "op"
    """An op that treats each row by itself computed it in another way."""
    MIXING = "mixing"
    """An op takes the rows of a batch together."""
    RNG = "rng"
    """A random op drew other numbers for it."""
    PADDING = "padding"
    """It was padded to another length."""


@dataclass(frozen=True)
class RowDifference:
    """How equal rows came out in two ways at the first divergence."""

    kind: BatchKind | None
    """None where it is known only that the model as a whole made the difference."""
    sizes: tuple[int, int]
    """Two sizes of batches in which an equal row came out in two ways."""
    rows: int | None
    """How many different rows did; None where rows went in and none came out."""
    rows_compared: int | None
    is_training: bool
    """Whether the module that called the op was in training mode."""


@dataclass(frozen=True)
class TrainingModule:
    """A module that was in training mode, which makes its results depend on the rest of the batch or on random numbers."""

    module: str
    name: str
    """Its class."""


@dataclass(frozen=True)
class BatchFindings:
    """How rows fared in batches of different sizes."""

    sizes: tuple[int, ...]
    rows: Mapping[int, int] = field(default_factory=dict)
    """Per size of batches how many different rows went into the model."""
    rows_matched: int = 0
    """How many of them went into it in batches of two sizes or more."""
    places: int = 0
    """At how many places of the program, ops or models, rows were compared."""
    difference: RowDifference | None = None
    results_differ: bool | None = None
    """Whether equal rows had different results of the whole model; None if no model gave its results row by row."""
    training: Sequence[TrainingModule] = ()
    draws: bool = False
    """Whether a model drew random numbers."""
    tried: Sequence[Fix] = ()
    """What was tried in further runs, whether it helped or not."""
    not_told: str | None = None
    """Why the first op cannot be told, where that is so."""


def size_pair(sizes: tuple[int, int]) -> str:
    """Two sizes in words; equal ones are of two different batches."""
    return (
        f"{sizes[0]} and {sizes[1]}"
        if sizes[0] != sizes[1]
        else f"{sizes[0]}, and of {sizes[0]} with other rows or random numbers"
    )


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
class Missing:
    """Something that a checkpoint lacks, so that a resumed run does not go on as the full one."""

    identifier: str
    """`optimizer`, `scheduler`, `rng-torch` …"""
    site: Frame | None
    """The line that saved; None if none is known to have."""
    fix: str
    is_saved: bool = False
    """Whether it was read from the file, or the code that saves takes it, but the run did not continue with it."""
    is_put_back: bool = False
    """Whether it is a generator that was put into the state in which the checkpoint was made, and was in another one all the same."""
    is_tried_in_vain: bool = False
    """Whether it was put back from outside, and the resumed run differed all the same."""


@dataclass(frozen=True)
class ResumeFindings:
    """What comparing a resumed run with a full one found beyond the comparison itself."""

    missing: Sequence[Missing] = ()
    """What the checkpoint lacks, as far as that is known."""


@dataclass(frozen=True)
class Recorded:
    """How much was compared."""

    records: int = 0
    steps: int = 0
    steps_by: str | None = None
    """What counted as a step: `optimizer`, `determinism.step`, `batches`; None where there were none."""
    processes: int = 0
    blind_spots: Sequence[BlindSpot] = ()
    frameworks: frozenset[str] = frozenset({"torch"})
    """Those that computed what was recorded."""
    recorders: Sequence[tuple[str, str]] = ()
    """What recorded ops where there is a choice, and why it was not the other one; empty for the one that was preferred."""

    def share(self, spot: BlindSpot) -> float | None:
        """What part of the program's ops a blind spot is, from 0 to 1; None if that cannot be known."""
        if spot.identifier not in _COUNTED_IN_OPS:
            return None
        unrecorded = 0 if spot.identifier in _RECORDED_FROM_OUTSIDE else spot.count
        return min(1.0, spot.count / max(1, self.records + unrecorded))


@dataclass(frozen=True, repr=False)
class Comparison:
    """The whole result of comparing two or more runs.

    It is made once, from the traces, and never changed. What further runs show, and what `check-resume` and `check-batch`
    find beyond a comparison, are parts of their own; whoever finds more returns a copy with the new part.
    """

    verdict: Verdict
    runs: Sequence[RunSummary]
    recorded: Recorded
    trouble: Sequence[Trouble] = ()
    first_divergence: Divergence | None = None
    divergences: Sequence[Divergence] = ()
    first_visible: Visible | None = None
    infected: Sequence[Visible] = ()
    """The first step at which each sort of value differed: loss, gradient, parameter, buffer, optimizer state, checkpoint."""
    absorbed: bool = False
    dead_differences: int = 0
    dead_first: Sequence[DeadDifference] = ()
    environment: Sequence[tuple[str, str, str]] = ()
    """Name and both values of what differs between the environments of two runs, what decides most about numbers first."""
    ran_on: Sequence[tuple[str, str]] = ()
    """Name and value of each fact known of what the first run ran on: versions, processor, settings."""
    environment_run: int = 2
    """Which run, from 1, is compared with the first one there."""
    level: str = "op"
    leftovers: Sequence[Leftover] = ()
    printed: PrintedDifference | None = None
    """Numbers that two runs printed and that differ; looked for where no tensor differs."""
    extra_runs: int = 0
    """How many of the runs were made beyond what was asked for, because two equal runs of such a program prove little."""
    racy: Sequence[str] = ()
    """What the program did whose outcome depends on timing, such as `threads`."""
    open_settings: Sequence[tuple[str, str]] = ()
    """Name of each setting that was to be made in the first run and could not be, and the reason."""
    step_history: StepHistory | None = None
    """How the runs went on, step by step."""
    dataflow: Dataflow | None = None
    """What the first divergence read, and what read it."""
    values: ValuesApart | None = None
    """How far the values of stored runs are apart; None where that was not asked."""
    diagnosis: Diagnosis = Diagnosis()
    resume: ResumeFindings | None = None
    """None where no resumed run was compared."""
    batch: BatchFindings | None = None
    """None where batches of different sizes were not compared."""
    narrowing: Narrowing | None = None
    """None where runs were recorded from their beginning."""

    @property
    def causes(self) -> Sequence[Cause]:
        """Why the runs differ, as far as the diagnosis came."""
        return self.diagnosis.causes

    @property
    def fixes(self) -> Sequence[Fix]:
        """What removes the causes."""
        return self.diagnosis.fixes

    @property
    def experiments(self) -> Sequence[Experiment]:
        """Every experiment of the diagnosis, in order."""
        return self.diagnosis.experiments

    @property
    def varied(self) -> Sequence[str]:
        """The factors that were perturbed on purpose."""
        return self.diagnosis.varied

    @property
    def evidence(self) -> Evidence | None:
        """What further runs kept of the first divergence."""
        return self.diagnosis.evidence

    @property
    def missing(self) -> Sequence[Missing] | None:
        """What a checkpoint lacks; None where no resumed run was compared."""
        return None if self.resume is None else self.resume.missing

    def __repr__(self) -> str:
        return f"<Comparison {' '.join(str(self).split())}>"

    def __bool__(self) -> bool:
        """Whether the runs are the same.

        Raises:
            DeterminismError: The comparison came to no verdict, so neither answer would be true.
        """
        if self.verdict is Verdict.INCONCLUSIVE:
            raise DeterminismError("no-verdict", f"There is no verdict. {_reporting().headline(self)}")
        return self.verdict is Verdict.SAME

    def raise_if_different(self) -> None:
        """Do nothing if the runs are the same.

        Raises:
            DifferenceError: The runs differ; the message is the report. It is an `AssertionError` too.
            DeterminismError: The comparison came to no verdict.
        """
        if not self:
            raise DifferenceError("runs-differ", *self.report().rstrip("\n").split("\n"))

    def report(self, *, verbose: bool = False) -> str:
        """Write the report as text, as `determinism check` prints it.

        Args:
            verbose: Whether every detail is part of it, as with `-v`.
        """
        text: str = _reporting().text(self, verbose=verbose)
        return text

    def to_html(self, path: str | os.PathLike[str]) -> None:
        """Write the report as one HTML file; one that is there is replaced.

        Args:
            path: The file.

        Raises:
            UsageError: It cannot be written.
        """
        _reporting().write_page(self, path)

    def to_json(self, path: str | os.PathLike[str]) -> None:
        """Write the report as a JSON document; a file that is there is replaced.

        Args:
            path: The file.

        Raises:
            UsageError: It cannot be written.
        """
        _reporting().write_json(self, path)

    def _repr_html_(self) -> str:
        """Give a notebook the summary that the page begins with."""
        text: str = _reporting().fragment(self)
        return text

    def __str__(self) -> str:
        """The verdict, and what differs first, in one line; `determinism.report` has the whole story."""
        first = self.first_divergence
        if first is None:
            notes = "; ".join(trouble.message for trouble in self.trouble)
            return f"{self.verdict}: {notes}" if notes else f"{self.verdict}: {self.recorded.records:,} records"
        where = "" if first.site is None else f" at {first.site.file}:{first.site.line} ({first.site.code})"
        return f"{self.verdict}: {first.kind or 'not known why'}, step {first.step}, {first.phase}, {first.op}{where}"


def _reporting() -> Any:
    """The layer above, which makes reports of comparisons; by its name, since imports go downwards only."""
    return import_module("determinism.report.terminal")


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


@dataclass(frozen=True)
class Parting:
    """A record that both runs have and that gave different values."""

    record: int
    """Its number in the first run."""
    step: int
    phase: str
    op: str
    module: str | None
    site: Frame | None
    outputs: tuple[OutputDifference, ...]
    """Those that differ."""
    looks_like: Likeness | None


class ValueStep(NamedTuple):
    """How far the runs were apart at one step; 0 where equal, None where that is not known."""

    step: int
    loss_ulp: int | None
    loss_relative: float | None
    parameters_ulp: int | None
    """Of the parameters at the end of the step, as those after it."""
    parameters_relative: float | None
    """Of the parameter that differs most: the difference as a part of its largest element."""
    parameter: str | None
    """Its name."""


@dataclass(frozen=True)
class ValuesApart:
    """How far the values of two runs are apart."""

    kept: tuple[int | None, int | None]
    """Of each run, how many elements of a tensor were kept at most; None where none were."""
    note: str
    """Why nothing more is known; empty if something is."""
    first: Parting | None = None
    """The first record, from the first divergence on, that both runs have and whose values differ."""
    beyond_rounding: Parting | None = None
    """The first that differs by more than rounding; None if `first` does, or none."""
    steps: tuple[ValueStep, ...] = ()
    alone: tuple[int, int] = (0, 0)
    """How many records each run has, from the first divergence on, that the other one lacks."""
