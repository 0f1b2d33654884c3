"""Runs a program twice or more and compares the runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path

from determinism.comparison.endings import FAIL_FAST
from determinism.comparison.result import Comparison, RunSummary
from determinism.comparison.runs import compare_runs
from determinism.diagnose.intervention import Intervention
from determinism.errors import LaunchError, UsageError
from determinism.exit_status import exit_phrase
from determinism.launch.check_request import CheckRequest
from determinism.launch.conditions import Conditions, conditions_of
from determinism.launch.evidence import EvidenceRuns
from determinism.launch.explaining import VARIED_RUNS, explain, possible_factors
from determinism.launch.fail_fast import FailFast
from determinism.launch.fresh_copy import FreshCopy
from determinism.launch.further_runs import may_run_further
from determinism.launch.interpreter import check_interpreter
from determinism.launch.output_folder import OutputFolder
from determinism.launch.program import Interrupted, ProgramExit, ProgressCallback, never
from determinism.launch.record import RunResult, Unfinished
from determinism.launch.run_series import RunSeries
from determinism.launch.standard_input import StandardInput
from determinism.launch.standard_output import is_unread
from determinism.launch.stored_run import open_stored_run
from determinism.launch.unrecorded import require_recorded
from determinism.trace.opening import open_trace
from determinism.trace.reader import Trace
from determinism.types import Verdict

_MOST_EXTRA_RUNS = 3


@dataclass
class Check:
    """One check as it goes on; after an error it still tells which runs were made."""

    request: CheckRequest
    announce: Callable[[str, Path | None], ProgressCallback | None] = lambda title, log: None
    """Called with what comes next and the log of its output; gives what is told the progress."""
    warn: Callable[[str], None] = lambda message: None
    runs: list[RunSummary] = field(default_factory=list)
    _was_interrupted: bool = field(default=False, init=False)

    def run(self) -> Comparison:
        """Make the runs, compare them, and confirm what was found.

        Raises:
            DeterminismError: Something kept the check from coming to a verdict.
        """
        request = self.request
        num_runs = 2 if request.num_runs is None else request.num_runs
        if num_runs < 2:
            raise UsageError("too-few-runs", f"-n {num_runs} leaves nothing to compare. Ask for 2 runs or more.")
        traces: list[Trace] = []
        if request.runs_from is not None:
            traces.append(open_stored_run(request.runs_from, level=request.level, steps=request.steps))
        warning = check_interpreter(request.command, os.environ)
        if warning is not None:
            self.warn(warning)
        self._output = output = OutputFolder(request.output)
        first_number = len(traces) + 1
        with ExitStack() as stack:
            standard_input = stack.enter_context(StandardInput())
            copy = stack.enter_context(FreshCopy(Path.cwd(), output.path)) if request.fresh_copy else None
            self._series = RunSeries(request, output, standard_input, copy, first_number=first_number)
            new_runs = num_runs - len(traces)
            for number in range(1, new_runs + 1):
                self._make(traces, f"run-{number}", f"run {number} of {new_runs}")
                if self.runs[-1].stopped_by == FAIL_FAST:
                    break
            comparison = self._run_again(self._compare(traces), traces)
            if request.vary and comparison.verdict is Verdict.SAME:
                comparison = self._vary(comparison)
            self._confirm(comparison, traces)
            self._explain(comparison, standard_input, traces)
        self._tidy(comparison)
        return comparison

    def _make(self, traces: list[Trace], name: str, title: str, conditions: Conditions | None = None) -> None:
        """Make one more run and open its trace."""
        trace = self._output.trace(name)
        log = self._output.log(name) if self.runs else None
        with ExitStack() as stack:
            is_decided: Callable[[], bool] = never
            if self.request.fail_fast and traces:
                is_decided = stack.enter_context(FailFast(traces[0], trace)).is_decided
            try:
                result = self._series.make(
                    name, title, self.announce(title, log), log=log, is_decided=is_decided, conditions=conditions
                )
            except Interrupted as interrupted:
                self._add_run(trace, replace(interrupted.program_exit, stopped_by="interrupt"))
                raise
            except Unfinished as unfinished:
                self._add_run(trace, unfinished.program_exit)
                raise
        self._add_run(trace, result)
        if log is None and result.exit_status and is_unread():
            raise LaunchError(
                "output-unread",
                f"The program ended with {exit_phrase(result.exit_status)}, and nobody reads what it prints any more, as after "
                "`| head`: it may have failed for that alone, so no more runs were made. Send its output to a file.",
            )
        try:
            require_recorded(trace, result.exit_status)
        except LaunchError:
            self.runs[-1].trace = None
            self._output.discard(name, with_log=False)
            self._output.remove_if_empty()
            raise
        traces.append(open_trace(trace))

    def _add_run(self, trace: Path, ended: RunResult | ProgramExit) -> None:
        self.runs.append(
            RunSummary(list(self.request.command), ended.exit_status, ended.stopped_by, ended.seconds, str(trace))
        )

    def _compare(self, traces: Sequence[Trace]) -> Comparison:
        request = self.request
        comparison = compare_runs(traces, strict=request.strict, allow_failure=request.allow_failure)
        comparison.leftovers = self._series.leftovers
        comparison.racy = sorted({word for trace in traces for word in _racy(trace)})
        return comparison

    def _run_again(self, comparison: Comparison, traces: list[Trace]) -> Comparison:
        """Make more runs while they are equal, if the program does what may come out differently at another time."""
        extra = 0
        while (
            comparison.verdict is Verdict.SAME
            and comparison.racy
            and self.request.num_runs is None
            and extra < _MOST_EXTRA_RUNS
            and may_run_further(self.request.explain, self.runs)
        ):
            extra += 1
            self._make(traces, f"run-{len(self.runs) + 1}", f"extra run {extra} of up to {_MOST_EXTRA_RUNS}")
            comparison = self._compare(traces)
        comparison.extra_runs = extra
        return comparison

    def _vary(self, plain: Comparison) -> Comparison:
        """Make runs in which factors are stirred on purpose; gives their comparison if they differ."""
        factors = possible_factors(self.request.vary, self.warn)
        if not factors:
            return plain
        made, self.runs = self.runs, list(self.runs)
        traces: list[Trace] = []
        for number in range(1, VARIED_RUNS + 1):
            title = f"run {number} with {', '.join(factors)} stirred"
            conditions = conditions_of(Intervention.stir(*factors), number)
            self._make(traces, f"varied-run-{number}", title, conditions)
            if len(traces) > 1:
                comparison = self._compare([traces[0], traces[-1]])
                comparison.varied = factors
                if comparison.verdict is not Verdict.SAME:
                    return comparison
        plain.varied = factors
        self.runs = made
        for trace in traces:
            self._output.discard(trace.folder.name)
        return plain

    def _explain(self, comparison: Comparison, standard_input: StandardInput, traces: Sequence[Trace]) -> None:
        is_wanted = (
            may_run_further(self.request.explain, self.runs) and not self.request.fail_fast and self.request.budget != 0
        )
        if is_wanted and not self._was_interrupted:
            explain(
                comparison, self.request, self._output, standard_input, self.announce, self.warn,
                traces=traces, varied=comparison.varied,
            )  # fmt: skip

    def _confirm(self, comparison: Comparison, traces: list[Trace]) -> None:
        self.runs = comparison.runs
        # With factors stirred the further runs would not be like those that differ.
        if (
            comparison.first_divergence is not None
            and may_run_further(self.request.explain, self.runs)
            and not comparison.varied
        ):
            runs = EvidenceRuns(self._series, self._output, self.announce, self.warn)
            runs.gather(comparison, traces, with_values=self.request.budget != 0)
            self._was_interrupted = runs.was_interrupted

    def _tidy(self, comparison: Comparison) -> None:
        """Remove the traces of equal runs, unless they are to be kept."""
        if comparison.verdict is not Verdict.SAME or self.request.keep:
            return
        for run in comparison.runs:
            if run.trace is not None and Path(run.trace).parent == self._output.path:
                self._output.discard(Path(run.trace).name)
                run.trace = None
        self._output.remove_if_empty()


def _racy(trace: Trace) -> list[str]:
    """What the processes of a run did whose outcome depends on timing."""
    return [str(word) for process in trace.processes for word in process.description.get("racy") or []]
