"""Finds the first step at which two runs of a long program part, and examines only the ops of a few steps around it.

Two runs keep a ledger: digests of each step, which cost little. Where they part, a window of steps is recorded op by op in
further runs, compared, and searched for the cause. These runs start from a checkpoint if the command says how, else from
the beginning, and record no ops until the window begins.
"""

from __future__ import annotations

import os
import shlex
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from determinism.comparison.result import Comparison, Narrowing, RunSummary, Window
from determinism.comparison.runs import compare_runs
from determinism.errors import DeterminismError, LaunchError, TraceError, UsageError
from determinism.launch.further_runs import default_budget
from determinism.launch.interpreter import check_interpreter
from determinism.launch.io import OutputFolder, StandardInput
from determinism.launch.program import (
    Announce,
    Interrupted,
    ProgramExit,
    ProgressCallback,
    failed_run_text,
    unannounced,
)
from determinism.launch.record import RunResult, require_recorded
from determinism.launch.runs import (
    CheckRequest,
    FreshCopy,
    RunningCheck,
    RunSeries,
    end_search_early,
    open_stored_run,
    recorded_like,
    without_traces,
)
from determinism.redaction import redacted
from determinism.trace.files import make_private_folder
from determinism.trace.ledger import (
    STATE_GROUPS,
    LedgerParting,
    StoredLedger,
    earliest,
    first_parting,
    has_ledger,
    read_ledger,
)
from determinism.trace.opening import open_trace
from determinism.trace.process import Trace
from determinism.types import Level, Verdict

STEPS_BEFORE = 2
"""Steps of a window before the one at which the runs part, so that it is known what that one read."""
STEPS_AFTER = 2
MOST_WINDOWS = 2
_PLACES = ("{steps}", "{save}", "{load}")
_LEAST_RESUMED = 20
"""The fewest steps that a checkpoint must save to be worth a run of its own."""
_RESULTS = frozenset({"loss", "optimizer", "parameters", "buffers"})
"""Groups that must be equal in the first step after a checkpoint; if they are, other differences there do not matter."""
_BUDGET_RUNS = 10
_LONG = 1800.0
"""Runs that take longer than this many seconds get only the ordinary budget for further runs."""


@dataclass(frozen=True)
class NarrowRequest:
    """What to narrow, and how to make the runs."""

    check: CheckRequest
    """The program. Its command may contain `{steps}`, `{save}` and `{load}`: then it can be resumed."""
    ledger: Path | None = None
    """An existing run to use as the first one; None to make one."""

    @property
    def is_resumable(self) -> bool:
        """Whether the command says how to save and how to resume.

        Raises:
            UsageError: It says only part of that, or the number of steps is missing.
        """
        found = [place for place in _PLACES if any(place in word for word in self.check.command)]
        if not found:
            return False
        lacking = [place for place in _PLACES if place not in found]
        if lacking or self.check.spec.steps is None:
            what = (
                f"The command contains {found[0]} but no {' and no '.join(lacking)}"
                if lacking
                else "--steps is missing"
            )
            raise UsageError(
                "narrow-command",
                f"{what}, so nothing was run. For a program that can resume, give all of {{steps}}, {{save}} and "
                f"{{load}}, and --steps: determinism narrow --steps 1000 -- python train.py --steps {{steps}} --save "
                f"{{save}} --load {{load}}. {{steps}} is the step to stop at, and {{load}} is empty in runs that "
                "start from scratch.",
            )
        return True


@dataclass
class NarrowCheck:
    """A narrowing in progress; after an error it still knows which runs were made."""

    request: NarrowRequest
    make_check: Callable[..., RunningCheck]
    """Returns the check that makes and compares the runs of a window: `Check`."""
    announce: Announce = unannounced
    """Called with what comes next and the log of its output; returns the callback for the progress."""
    warn: Callable[[str], None] = lambda message: None
    on_verdict: Callable[[Comparison], None] = lambda comparison: None
    """Called with what the runs of the window show, if further runs will look for more."""
    runs: list[RunSummary] = field(default_factory=list)
    interrupt_status: int = field(default=0, init=False)
    """Exit status if the user ended the search for causes after the verdict was known; else 0."""
    _windows: list[Window] = field(default_factory=list, init=False)
    _of_window: Comparison | None = field(default=None, init=False)
    """What the runs of the last window showed."""
    _repeats_itself: bool = field(default=False, init=False)
    """Whether the runs of a window equal the first new run, so that only the stored one differs."""
    _parted_since: int = field(default=0, init=False)
    """The first step that may have made the difference that the runs of the last window showed."""
    _checkpoint: int = field(default=0, init=False)
    """After how many steps the runs of windows begin; 0 means from scratch."""

    def run(self) -> Comparison:
        """Make the runs, find the step, and look at its ops.

        Raises:
            DeterminismError: It could not reach a verdict.
        """
        self._began = time.monotonic()
        # Checked first: the command may say only half of how it is resumed.
        _ = self.request.is_resumable
        stored = self._stored()
        warning = check_interpreter(self.request.check.command, os.environ)
        if warning is not None:
            self.warn(warning)
        self._output = OutputFolder(self.request.check.output)
        with StandardInput() as standard_input:
            self._standard_input = standard_input
            count = 2 if stored is None else 1
            traces = [] if stored is None else [stored]
            traces += [self._ledger_run(f"run-{number}", f"run {number} of {count}") for number in range(1, count + 1)]
            parting = parting_of(*traces)
            if parting is None:
                return self._without_window(traces)
            self.warn(f"The ledgers first differ {_where(parting)}; recording its ops.")
            return self._narrowed(traces, parting)

    @property
    def folder(self) -> Path:
        """The folder for traces, logs and reports."""
        return self._output.path

    def _stored(self) -> Trace | None:
        if self.request.ledger is None:
            return None
        steps = None if self.request.is_resumable else self.request.check.spec.steps
        stored = open_stored_run(self.request.ledger, level=Level.STEP.value, steps=steps)
        self.request = replace(self.request, check=recorded_like(self.request.check, stored))
        return stored

    # The runs that keep a ledger.

    def _ledger_run(self, name: str, title: str) -> Trace:
        spec = replace(self.request.check.spec, level=Level.STEP.value)
        if self.request.is_resumable:
            # The program ends by itself, after saving.
            spec = replace(spec, steps=None)
        return self._make(name, title, replace(self.request.check, command=self._command(), spec=spec))

    def _make(self, name: str, title: str, request: CheckRequest) -> Trace:
        log = self._output.log(name) if self.runs or self.request.ledger is not None else None
        on_progress = self.announce(title, log, seconds=max((run.seconds for run in self.runs), default=None))
        copy = FreshCopy(Path.cwd(), self._output.path) if request.fresh_copy else None
        trace = self._output.trace(name)
        try:
            with ExitStack() if copy is None else copy:
                result = self._run(name, title, request, copy, on_progress, log)
        except Interrupted as interrupted:
            self._add_run(trace, request, replace(interrupted.program_exit, stopped_by="interrupt"))
            raise
        self._add_run(trace, request, result)
        require_recorded(trace, result.exit_status)
        if result.exit_status and not request.allow_failure:
            raise LaunchError(
                "narrow-run-failed",
                f"{failed_run_text(title, result.exit_status, log)} Fix it, or accept the failure with --allow-failure.",
            )
        made = open_trace(trace)
        if not _ledgers(made):
            raise _without_ledger(made)
        return made

    def _add_run(self, trace: Path, request: CheckRequest, ended: RunResult | ProgramExit) -> None:
        command = list(request.command)
        self.runs.append(
            RunSummary(command, ended.exit_status, ended.stopped_by, ended.seconds, str(trace), ended.waited)
        )

    def _run(
        self,
        name: str,
        title: str,
        request: CheckRequest,
        copy: FreshCopy | None,
        on_progress: ProgressCallback | None,
        log: Path | None,
    ) -> RunResult:
        series = RunSeries(request, self._output, self._standard_input, copy, first_number=1)
        return series.make(name, title, on_progress, log=log)

    def _without_window(self, traces: Sequence[Trace]) -> Comparison:
        """Conclude when the ledgers do not part: the runs are the same, or differ outside their steps."""
        comparison = compare_runs(
            traces, strict=self.request.check.strict, allow_failure=self.request.check.allow_failure
        )
        self.runs = list(comparison.runs)
        if comparison.verdict is Verdict.SAME and not self.request.check.keep:
            shutil.rmtree(self._checkpoints, ignore_errors=True)
            return without_traces(comparison, self._output)
        if comparison.verdict is Verdict.DIFFERENT:
            limit = (
                "The runs differ, but no step of their ledgers does, so there is nothing to narrow. Use determinism "
                "check, or call determinism.step() at the end of each step if the program has no optimizer."
            )
            comparison = replace(comparison, diagnosis=replace(comparison.diagnosis, limit=limit))
        return comparison

    # The checkpoint near the step.

    @property
    def _checkpoints(self) -> Path:
        return self._output.path / "checkpoints"

    def _command(self, *, steps: int | None = None, save: str = "run", load: str = "") -> list[str]:
        """Return the command with the paths that it saves to and resumes from."""
        if not self.request.is_resumable:
            return list(self.request.check.command)
        make_private_folder(self._checkpoints, exist_ok=True)
        most = self.request.check.spec.steps if steps is None else steps
        values = (str(most), str(self._checkpoints / save), str(self._checkpoints / load) if load else "")
        words = []
        for word in self.request.check.command:
            for place, value in zip(_PLACES, values, strict=True):
                word = word.replace(place, value)
            words.append(word)
        return words

    def _save_checkpoint(self, step: int, second: Trace) -> None:
        """Make a run that ends with a checkpoint right before the window; it must equal the others up to there."""
        spec = replace(self.request.check.spec, level=Level.STEP.value, steps=None)
        command = self._command(steps=step, save="near")
        title = f"run up to a checkpoint after step {step - 1:,}"
        trace = self._make("checkpoint", title, replace(self.request.check, command=command, spec=spec))
        self.runs.pop()
        parting = parting_of(second, trace)
        if not (self._checkpoints / "near").exists():
            self.warn(f"The {title} saved nothing, so the runs of the window start from the beginning.")
        elif parting is not None and (parting.step < step or parting.groups):
            self.warn(
                f"The {title} already differs from the others at step {parting.step:,}, so the runs of the window "
                "start from the beginning."
            )
        else:
            self._checkpoint = step

    # The runs that record the ops of a window.

    def _narrowed(self, traces: Sequence[Trace], parting: LedgerParting) -> Comparison:
        self._run_seconds = max(run.idle_seconds for run in self.runs)
        comparison: Comparison | None = None
        ended: BaseException | None = None
        try:
            resumed = min(parting.since, parting.step) - STEPS_BEFORE
            if self.request.is_resumable and resumed >= _LEAST_RESUMED:
                self._save_checkpoint(resumed, traces[-1])
            comparison = self._in_windows(traces, parting)
        except (DeterminismError, KeyboardInterrupt) as error:
            ended = error
        shutil.rmtree(self._checkpoints, ignore_errors=True)
        if comparison is None:
            comparison = self._of_ledgers(traces)
        if ended is not None:
            # Even without a window, it is known that the runs differ, and where.
            comparison, status = end_search_early(comparison, ended, self.warn)
            self.interrupt_status = status if isinstance(ended, Interrupted | KeyboardInterrupt) else 0
        return replace(comparison, narrowing=self._narrowing(parting, self._windows))

    def _in_windows(self, traces: Sequence[Trace], parting: LedgerParting) -> Comparison | None:
        """Return what the runs of a window show, if the difference recurs in it."""
        place, since = parting.step, parting.since
        for number in range(1, MOST_WINDOWS + 1):
            self._windows.append(window := self._window(number, place, since, traces[-1], parting))
            if window.differs and (window.parted_at is None or window.first <= window.parted_at <= window.last):
                return self._of_window
            if self._repeats_itself:
                return None
            if window.parted_at is not None:
                # It recurred earlier than before: try once more, there.
                place, since = window.parted_at, self._parted_since
                self._checkpoint = 0 if place < self._checkpoint else self._checkpoint
        return None

    def _narrowing(self, parting: LedgerParting, windows: Sequence[Window]) -> Narrowing:
        return Narrowing(
            parting.process, parting.step, parting.groups, parting.steps, parting.losses, tuple(windows), self._checkpoint,
            round(time.monotonic() - self._began, 3), round(self._run_seconds, 3), self._repeats_itself,
        )  # fmt: skip

    def _window(self, number: int, step: int, since: int, like: Trace, parting: LedgerParting) -> Window:
        """Record a window in two runs and compare them; what they show is kept in `_of_window`."""
        if since < step:
            # One of these steps made the difference, none before or after.
            first, end = max(self._checkpoint, since), step + 1
        else:
            first, end = max(self._checkpoint, step - STEPS_BEFORE, 0), step + STEPS_AFTER + 1
        request = self._window_request(number, first, end)

        def show(comparison: Comparison) -> None:
            windows = [*self._windows, Window(first, end - 1, len(comparison.runs), True, step)]
            self.on_verdict(replace(comparison, narrowing=self._narrowing(parting, windows)))

        check = self._window_check(request, first, end, like, show)
        comparison = check.run()
        if comparison.diagnosis.limit is not None:
            limit = self._of_this_command(comparison.diagnosis.limit, request.command)
            comparison = replace(comparison, diagnosis=replace(comparison.diagnosis, limit=limit))
        self._of_window = comparison
        self.interrupt_status = check.interrupt_status
        traces = [open_trace(Path(run.trace)) for run in comparison.runs[:2] if run.trace is not None]
        if self._checkpoint and not self._continues(traces[0], like, step):
            self.warn(
                "The program does not continue bit-exactly from its checkpoint: determinism check-resume says what "
                "is missing. Further runs therefore start from the beginning."
            )
            self._checkpoint = 0
            return Window(first, end - 1, len(traces), False, None)
        differs = comparison.verdict is Verdict.DIFFERENT
        if self.request.ledger is not None and not differs:
            self._repeats_itself = self._continues(traces[0], like, end)
        again = parting_of(*traces) if differs else None
        self._parted_since = 0 if again is None else again.since
        return Window(first, end - 1, len(traces), differs, None if again is None else again.step)

    def _of_this_command(self, text: str, command: Sequence[str]) -> str:
        """Replace `check` by this command in a text, with the program as the user gave it."""
        given = shlex.join(redacted(list(self.request.check.command)))
        steps, ledger = self.request.check.spec.steps, self.request.ledger
        own = "determinism narrow" if steps is None else f"determinism narrow --steps {steps}"
        own += "" if ledger is None else f" --ledger {shlex.quote(str(ledger))}"
        return text.replace(shlex.join(redacted(list(command))), given).replace("determinism check --explain", own)

    def _continues(self, resumed: Trace, whole: Trace, step: int) -> bool:
        """Whether a resumed run equals the whole one up to the step at which runs part."""
        parting = parting_of(whole, resumed, begin=self._checkpoint)
        if parting is not None and parting.step == self._checkpoint and not _RESULTS.intersection(parting.groups):
            # A trainer that prefetches a batch did so in the step before, and gradients may be cleared at a different moment.
            parting = parting_of(whole, resumed, begin=self._checkpoint + 1)
        return parting is None or parting.step >= step or not parting.groups

    def _window_request(self, number: int, first: int, end: int) -> CheckRequest:
        request = self.request.check
        seconds = self._seconds_of(end)
        budget = request.budget
        if budget is None:
            budget = max(default_budget(seconds), _BUDGET_RUNS * seconds if seconds < _LONG else 0.0)
        load = "near" if self._checkpoint else ""
        spec = replace(
            request.spec, level=Level.OP.value, first_step=self._checkpoint, window=first, steps=end, max_disk=None
        )
        return replace(
            request, command=self._command(save="window", load=load), spec=spec, num_runs=2,
            explain=request.explain is not False, budget=budget, output=self._output.path / f"window-{number}", keep=True,
        )  # fmt: skip

    def _window_check(
        self, request: CheckRequest, first: int, end: int, like: Trace, show: Callable[[Comparison], None]
    ) -> RunningCheck:
        def announce(
            title: str, log: Path | None, *, part: str = "", seconds: float | None = None, is_limit: bool = False
        ) -> ProgressCallback | None:
            title = f"steps {first:,} to {end - 1:,}, {title}"
            return self.announce(title, log, part=part, seconds=seconds, is_limit=is_limit)

        def is_within(traces: Sequence[Trace]) -> bool:
            """Whether the runs part in the window: if they parted earlier, its ops show only consequences."""
            again = parting_of(*traces[:2])
            is_here = again is None or again.since >= first
            return is_here and (not self._checkpoint or self._continues(traces[0], like, first + STEPS_BEFORE))

        return self.make_check(request, announce, self.warn, show, hides_output=True, may_search=is_within)

    def _seconds_of(self, end: int) -> float:
        """Estimate how long a run takes that ends before this step."""
        whole = max(run.idle_seconds for run in self.runs)
        steps = max((len(ledger) for ledger in _ledgers(open_trace(Path(str(self.runs[0].trace)))).values()), default=1)
        return whole * min(1.0, (end - self._checkpoint) / max(steps, 1))

    def _of_ledgers(self, traces: Sequence[Trace]) -> Comparison:
        """Conclude when no window shows the difference: only where the ledgers part is known."""
        comparison = compare_runs(traces, strict=self.request.check.strict, allow_failure=True)
        self.runs = list(comparison.runs)
        limit = (
            "No cause was searched for: the program repeats itself, so no new run shows what the stored one did."
            if self._repeats_itself
            else "No cause was searched for: the difference did not recur while the ops were recorded."
        )
        return replace(comparison, diagnosis=replace(comparison.diagnosis, limit=limit))


def parting_of(first: Trace, second: Trace, *, begin: int = 0) -> LedgerParting | None:
    """Find where the ledgers of two runs part, from some step on; None if they do not.

    Raises:
        TraceError: A run has no ledger, or one is damaged.
    """
    mine, other = _ledgers(first), _ledgers(second)
    for trace, found in ((first, mine), (second, other)):
        if not found:
            raise _without_ledger(trace)
    partings = [
        first_parting(
            mine.get(key, StoredLedger.empty()).from_step(begin),
            other.get(key, StoredLedger.empty()).from_step(begin),
            key,
        )
        for key in sorted({*mine, *other})
    ]
    return earliest(partings)


def _where(parting: LedgerParting) -> str:
    if parting.since >= parting.step:
        return f"at step {parting.step:,}"
    state = " and ".join(group for group in parting.groups if group in STATE_GROUPS)
    return f"between step {parting.since:,} and step {parting.step:,}, which is the next one with a digest of {state}"


def _ledgers(trace: Trace) -> dict[str, StoredLedger]:
    return {process.key: read_ledger(process.folder) for process in trace.processes if has_ledger(process.folder)}


def _without_ledger(trace: Trace) -> TraceError:
    return TraceError(
        "ledger-missing",
        f"{trace.folder} has no ledger, so its steps cannot be compared. Ledgers are kept at level step: record with "
        "determinism record --level step.",
    )
