"""The whole result of a comparison, which reports use: facts about the runs, how much was compared, and what was found."""

from __future__ import annotations

import enum
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from importlib import import_module
from typing import Any, NamedTuple

from determinism.comparison.divergence import (
    NO_DIAGNOSIS,
    Cause,
    Dataflow,
    DeadDifference,
    Diagnosis,
    Divergence,
    Evidence,
    Experiment,
    Fix,
    Likeness,
    OutputDifference,
    PrintedDifference,
    StepHistory,
    Visible,
)
from determinism.errors import DeterminismError, DifferenceError
from determinism.redaction import redacted
from determinism.trace.schema import Frame
from determinism.types import Verdict

# Facts about whole runs, besides their records: how they went, what they left on disk and printed, how they were narrowed.


@dataclass(frozen=True)
class RunSummary:
    """How one run went."""

    command: Sequence[str]
    exit_status: int | None
    stopped_by: str | None
    """Signal name, `steps`, `fail-fast`, `interrupt`, `max-disk` …; None for a run that ended by itself."""
    seconds: float
    trace: str | None
    waited: float = 0.0
    """For how many of these seconds it was ready to run but had no processor, as on a busy machine."""

    @property
    def idle_seconds(self) -> float:
        """About how long it takes on an idle machine: limits and budgets are based on this."""
        return max(0.0, self.seconds - self.waited)

    def __post_init__(self) -> None:
        """Hide secrets in the command line, including those that an older version stored."""
        object.__setattr__(self, "command", redacted(list(self.command)))


class FileChange(enum.StrEnum):
    """How a file changed during a run."""

    CREATED = "created"
    """A process of the run was seen to create it: removing it restores what that run started from."""
    OVERWRITTEN = "overwritten"
    """A process of the run was seen to write it, and it existed before any run did so."""
    UNSEEN = "unseen"
    """No process of the run was seen to write it, so something else may have changed it."""


@dataclass(frozen=True)
class Leftover:
    """A file that changed during one run and that a later one read before writing to it: the runs started from different files.

    Runs are counted from 1.
    """

    file: str
    changed_in: int
    read_in: int
    is_copied: bool
    """Whether a fresh copy of the working directory would have hidden it."""
    site: Frame | None = None
    """The line of the program that opened it for reading."""
    # Danger: only CREATED files may be suggested for removal; all others may be the user's own data.
    change: FileChange = FileChange.UNSEEN
    cache: str | None = None
    """The owner of the compile cache that it is in; None if it is in none."""
    is_folder: bool = False
    """Whether it was a folder at the end of the run that read it."""


class Window(NamedTuple):
    """A range of steps whose ops were recorded, in some runs."""

    first: int
    last: int
    runs: int
    differs: bool
    """Whether these runs differed."""
    parted_at: int | None
    """The step at which their ledgers part; None if they do not."""


@dataclass(frozen=True)
class Narrowing:
    """How a divergence of long runs was narrowed to a few steps."""

    process: str
    step: int
    """The first step at which the ledgers of two whole runs part."""
    groups: Sequence[str]
    """The groups that differ there, such as `parameters`; empty if one run did not get that far."""
    steps: tuple[int, int]
    """How many steps each of these runs made."""
    losses: tuple[float | None, float | None]
    """The losses at that step."""
    windows: Sequence[Window]
    checkpoint: int
    """After how many steps the runs of the windows were resumed; 0 if they began from scratch."""
    seconds: float
    """How long all of it took."""
    run_seconds: float
    """How long one whole run took."""
    repeats_itself: bool = False
    """Whether all new runs are equal, so that only the stored one differs from them."""

    @property
    def is_pinned(self) -> bool:
        """Whether the difference recurred in a window, so that its ops are known."""
        return any(window.differs and window.first <= (window.parted_at or 0) <= window.last for window in self.windows)


# Findings of a comparison of batches of different sizes, in addition to those of every comparison.


class BatchKind(StrEnum):
    """Why a row's result differed in a batch of a different size."""

    OP = "op"
    """An op that processes each row on its own computed it differently."""
    MIXING = "mixing"
    """An op combines the rows of a batch."""
    RNG = "rng"
    """A random op drew different numbers for it."""
    PADDING = "padding"
    """It was padded to a different length."""


@dataclass(frozen=True)
class RowDifference:
    """How equal rows got different results at the first divergence."""

    kind: BatchKind | None
    """None where it is only known that the model as a whole made the difference."""
    sizes: tuple[int, int]
    """Two batch sizes in which an equal row got different results."""
    rows: int | None
    """How many distinct rows got different results; None where rows went in and none came out."""
    rows_compared: int | None
    is_training: bool
    """Whether the module that called the op was in training mode."""


@dataclass(frozen=True)
class TrainingModule:
    """A module in training mode, so that its results depend on the rest of the batch or on random numbers."""

    module: str
    name: str
    """The name of its class."""


@dataclass(frozen=True)
class BatchFindings:
    """How rows fared in batches of different sizes."""

    sizes: tuple[int, ...]
    rows: Mapping[int, int] = field(default_factory=dict)
    """How many distinct rows went into the model, per batch size."""
    rows_matched: int = 0
    """How many of them went into it in batches of two sizes or more."""
    places: int = 0
    """At how many places in the program, ops or models, rows were compared."""
    difference: RowDifference | None = None
    results_differ: bool | None = None
    """Whether equal rows got different results from the whole model; None if no model returned its results row by row."""
    training: Sequence[TrainingModule] = ()
    draws: bool = False
    """Whether a model drew random numbers."""
    tried: Sequence[Fix] = ()
    """What was tried in further runs, whether it helped or not."""
    not_told: str | None = None
    """Why the first op could not be identified; None if it was."""


def size_pair(sizes: tuple[int, int]) -> str:
    """Put two sizes into words; equal sizes are those of two different batches."""
    return (
        f"{sizes[0]} and {sizes[1]}"
        if sizes[0] != sizes[1]
        else f"{sizes[0]}, and of {sizes[0]} with other rows or random numbers"
    )


_COUNTED_IN_OPS = frozenset({"cuda-graph", "formula-changed", "fused-kernels", "handler-failed"})
"""Blind spots that count calls, as records do."""
_RECORDED_FROM_OUTSIDE = frozenset({"formula-changed", "fused-kernels"})
"""Those of them whose calls are recorded, too."""


@dataclass(frozen=True)
class BlindSpot:
    """A part of the computation that was not recorded."""

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
    """A part of the state that a checkpoint lacks, so that a resumed run does not continue like the full one."""

    identifier: str
    """`optimizer`, `scheduler`, `rng-torch` …"""
    site: Frame | None
    """The line that saved the checkpoint; None if unknown."""
    fix: str
    is_saved: bool = False
    """Whether it was read from the file, or the saving code includes it, but the run did not continue with it."""
    is_put_back: bool = False
    """Whether it is a generator whose state at the time of the checkpoint was restored, but was different again later."""
    is_tried_in_vain: bool = False
    """Whether it was restored from outside, and the resumed run still differed."""


@dataclass(frozen=True)
class ResumeFindings:
    """Findings about a resumed run compared with a full one, beyond the comparison itself."""

    missing: Sequence[Missing] = ()
    """What the checkpoint is known to lack."""
    only_reads_differ: bool = False
    """Whether the resumed run certainly trained and saved the same, and only numbers that the program reads differ."""
    still_read: Visible | None = None
    """The first number that was still read differently when what is missing was restored; nothing trained or saved differed then."""


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
    """The frameworks that computed what was recorded."""
    recorders: Sequence[tuple[str, str]] = ()
    """Which recorder was used where there is a choice, and why not the other one; the reason is empty for the preferred one."""

    def share(self, spot: BlindSpot) -> float | None:
        """Return the fraction of the program's ops in a blind spot, from 0 to 1; None if unknown."""
        if spot.identifier not in _COUNTED_IN_OPS:
            return None
        unrecorded = 0 if spot.identifier in _RECORDED_FROM_OUTSIDE else spot.count
        return min(1.0, spot.count / max(1, self.records + unrecorded))


ORDER_OF_SETS = "the order of sets"
"""In `Comparison.racy`: the salt of hashes decides, not timing."""


@dataclass(frozen=True, repr=False)
class Comparison:
    """The whole result of comparing two or more runs.

    It is made once, from the traces, and never changed. Findings of further runs, and those of `check-resume` and
    `check-batch` beyond a comparison, are separate parts; code that finds more returns a copy with the new part.
    """

    verdict: Verdict
    runs: Sequence[RunSummary]
    recorded: Recorded
    trouble: Sequence[Trouble] = ()
    first_divergence: Divergence | None = None
    divergences: Sequence[Divergence] = ()
    first_visible: Visible | None = None
    infected: Sequence[Visible] = ()
    """The first step at which each kind of value differed: loss, gradient, parameter, buffer, optimizer state, checkpoint."""
    absorbed: bool = False
    dead_differences: int = 0
    dead_first: Sequence[DeadDifference] = ()
    environment: Sequence[tuple[str, str, str]] = ()
    """Name and both values of each difference between the environments of two runs, the most influential on numbers first."""
    ran_on: Sequence[tuple[str, str]] = ()
    """Name and value of each known fact about the first run's environment: versions, processor, settings."""
    environment_run: int = 2
    """Which run, from 1, `environment` compares with the first one."""
    level: str = "op"
    leftovers: Sequence[Leftover] = ()
    printed: PrintedDifference | None = None
    """Numbers that two runs printed and that differ; looked for where no tensor differs."""
    extra_runs: int = 0
    """How many more runs than requested were made, because two equal runs of such a program prove little."""
    racy: Sequence[str] = ()
    """Activities of the program whose outcome depends on timing or chance, such as `threads`."""
    open_settings: Sequence[tuple[str, str]] = ()
    """Name of each setting that could not be made in the first run, and the reason."""
    step_history: StepHistory | None = None
    """How the runs differed, step by step."""
    dataflow: Dataflow | None = None
    """What the first divergence read, and what read its results."""
    values: ValuesApart | None = None
    """How far apart the values of stored runs are; None where that was not requested."""
    diagnosis: Diagnosis = NO_DIAGNOSIS
    resume: ResumeFindings | None = None
    """None where no resumed run was compared."""
    batch: BatchFindings | None = None
    """None where batches of different sizes were not compared."""
    narrowing: Narrowing | None = None
    """None where runs were recorded from their beginning."""

    @property
    def causes(self) -> Sequence[Cause]:
        """Why the runs differ, according to the diagnosis."""
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
        """Return the report as text, as `determinism check` prints it.

        Args:
            verbose: Whether to include every detail, as with `-v`.
        """
        text: str = _reporting().text(self, verbose=verbose)
        return text

    def to_html(self, path: str | os.PathLike[str]) -> None:
        """Write the report as one HTML file; an existing file is replaced.

        Args:
            path: The file.

        Raises:
            UsageError: It cannot be written.
        """
        _reporting().write_page(self, path)

    def to_json(self, path: str | os.PathLike[str]) -> None:
        """Write the report as a JSON document; an existing file is replaced.

        Args:
            path: The file.

        Raises:
            UsageError: It cannot be written.
        """
        _reporting().write_json(self, path)

    def _repr_html_(self) -> str:
        """Return the summary at the top of the page, for notebooks."""
        text: str = _reporting().fragment(self)
        return text

    def __str__(self) -> str:
        """Return the verdict and the first difference in one line; `determinism.report` has the full report."""
        first = self.first_divergence
        if first is None:
            notes = "; ".join(trouble.message for trouble in self.trouble)
            return f"{self.verdict}: {notes}" if notes else f"{self.verdict}: {self.recorded.records:,} records"
        where = "" if first.site is None else f" at {first.site.file}:{first.site.line} ({first.site.code})"
        return f"{self.verdict}: {first.kind or 'not known why'}, step {first.step}, {first.phase}, {first.op}{where}"


def _reporting() -> Any:
    """Import the layer above, which makes reports of comparisons, by name: import statements may only refer to lower layers."""
    return import_module("determinism.report.terminal")


@dataclass(frozen=True)
class Parting:
    """A record that both runs have and whose values differ."""

    record: int
    """Its number in the first run."""
    step: int
    phase: str
    op: str
    module: str | None
    site: Frame | None
    outputs: tuple[OutputDifference, ...]
    """The outputs that differ."""
    looks_like: Likeness | None


class ValueStep(NamedTuple):
    """How far apart the runs were at one step; 0 where equal, None where unknown."""

    step: int
    loss_ulp: int | None
    loss_relative: float | None
    parameters_ulp: int | None
    """For the parameters at the end of the step, like the fields below."""
    parameters_relative: float | None
    """For the parameter that differs most: the difference as a fraction of its largest element."""
    parameter: str | None
    """The name of that parameter."""


@dataclass(frozen=True)
class ValuesApart:
    """How far apart the values of two runs are."""

    kept: tuple[int | None, int | None]
    """The most elements of a tensor that were kept in each run; None where none were."""
    note: str
    """Why nothing more is known; empty if there is a result."""
    first: Parting | None = None
    """The first record, from the first divergence on, that both runs have and whose values differ."""
    beyond_rounding: Parting | None = None
    """The first that differs by more than rounding; None if `first` already does, or none does."""
    steps: tuple[ValueStep, ...] = ()
    alone: tuple[int, int] = (0, 0)
    """How many records each run has, from the first divergence on, that the other one lacks."""
