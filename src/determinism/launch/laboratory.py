"""Makes the runs of experiments, within a budget of time."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from determinism.comparison.endings import FAIL_FAST
from determinism.comparison.result import Comparison
from determinism.comparison.runs import compare_runs
from determinism.diagnose.intervention import Intervention
from determinism.diagnose.source_notes import unprobed_modules
from determinism.diagnose.sources import differing_sources, seeding_calls
from determinism.diagnose.trial import SEEDED_LIBRARIES, BudgetSpent, Trial
from determinism.errors import DeterminismError, LaunchError
from determinism.exit_status import exit_phrase
from determinism.factors.surroundings import obstacle
from determinism.launch.check_request import CheckRequest
from determinism.launch.conditions import conditions_of
from determinism.launch.fresh_copy import FreshCopy
from determinism.launch.output_folder import OutputFolder
from determinism.launch.program import ProgressCallback
from determinism.launch.run_series import RunSeries
from determinism.launch.standard_input import StandardInput
from determinism.trace.opening import open_trace
from determinism.trace.reader import Trace
from determinism.types import Verdict

_NOTES = "notes"
_PROBING = "looking at what the program takes from outside"
_PATIENCE = 3.0
_LEAST_PATIENCE = 10.0
"""What is held still may keep a program from its end; then it is stopped after so many times a plain run, and seconds."""
_SLACK = 1.5
"""A run of an experiment may take so much longer than a plain one."""


class Laboratory:
    """Makes runs of one program with something changed about them, and compares them; a context that cleans up."""

    def __init__(
        self,
        request: CheckRequest,
        output: OutputFolder,
        standard_input: StandardInput,
        announce: Callable[[str, Path | None], ProgressCallback | None],
        *,
        budget: float,
        run_seconds: float,
        exit_statuses: frozenset[int | None],
    ) -> None:
        """Take what is run, and for how long.

        Args:
            request: The program, and how it is recorded.
            output: Where traces and logs go while they are needed.
            standard_input: What each run reads.
            announce: Called with what comes next and the log of its output.
            budget: Seconds that all runs together may take.
            run_seconds: How long a plain run takes.
            exit_statuses: With which plain runs ended. A run that ends otherwise says nothing of what it was to show.
        """
        self._exit_statuses = exit_statuses
        self._request = request
        self._output = output
        self._standard_input = standard_input
        self._announce = announce
        self._until = time.monotonic() + budget
        self._run_seconds = run_seconds
        self._number = 0
        self._experiments = 0
        self._stack = ExitStack()
        self._copy: FreshCopy | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def compare(self, intervention: Intervention, *, runs: int) -> Trial:
        """Run the program until two runs differ, at most so many times.

        Args:
            intervention: What is changed about each run.
            runs: How many; fewer if two of them differ.

        Raises:
            BudgetSpent: There is no time left for it.
            LaunchError: The user ended it.
        """
        return self._trial(intervention, runs, probes=False)

    def probe(self, intervention: Intervention) -> Trial:
        """Run the program twice with its sources noted.

        Args:
            intervention: What is changed about each run.

        Raises:
            BudgetSpent: There is no time left for it.
            LaunchError: The user ended it.
        """
        return self._trial(intervention, 2, probes=True)

    def _trial(self, intervention: Intervention, runs: int, *, probes: bool) -> Trial:
        why_not = next((why for factor in sorted(intervention.factors) if (why := obstacle(*factor))), None)
        if why_not is not None:
            return Trial(intervention, 0, Verdict.INCONCLUSIVE, None, failure=why_not)
        self._number += 1
        self._experiments += not probes
        title = _PROBING if probes else f"experiment {self._experiments}: {intervention.title} {intervention.action}"
        names: list[str] = []
        traces: list[Trace] = []
        comparison: Comparison | None = None
        try:
            for number in range(1, runs + 1):
                names.append(f"experiment-{self._number}-run-{number}")
                on_progress = self._announce(title, None) if number == 1 else None
                traces.append(self._run(intervention, names[-1], title, number, on_progress, probes=probes))
                if len(traces) > 1:
                    comparison = compare_runs([traces[0], traces[-1]], allow_failure=True)
                    if comparison.verdict is not Verdict.SAME:
                        break
            assert comparison is not None
            trial = _result(intervention, traces, comparison)
            return self._with_sources(trial, names) if probes else trial
        except DeterminismError as error:
            if error.identifier == "interrupted":
                raise
            return Trial(intervention, len(traces), Verdict.INCONCLUSIVE, None, failure=error.message)
        finally:
            for name in names:
                self._output.discard(name)

    def _run(
        self,
        intervention: Intervention,
        name: str,
        title: str,
        number: int,
        on_progress: ProgressCallback | None,
        *,
        probes: bool,
    ) -> Trace:
        """Make one run.

        Raises:
            BudgetSpent: It would take more time than there is.
            LaunchError: It cannot be made, or the user ended it.
            TraceError: What it recorded cannot be written or read.
        """
        if time.monotonic() + self._run_seconds * _SLACK > self._until:
            raise BudgetSpent
        log = self._output.log(name)
        copy = self._copy_for(intervention)
        copied = None if copy is None else (str(copy.folder), str(copy.original))
        notes = self._notes(name) if probes else None
        conditions = conditions_of(
            intervention, number, notes=notes, copied=copied, temporary=self._temporary_for(intervention)
        )
        series = RunSeries(self._request, self._output, self._standard_input, copy, first_number=1)
        most_seconds = _LEAST_PATIENCE + _PATIENCE * self._run_seconds
        last = time.monotonic() + most_seconds
        result = series.make(
            name, title, on_progress, log=log, is_decided=lambda: time.monotonic() > last, conditions=conditions
        )
        if result.stopped_by == FAIL_FAST:
            raise LaunchError("run-too-long", f"a run did not end within {most_seconds:.0f} s and was stopped.")
        if result.exit_status not in self._exit_statuses:
            raise LaunchError("run-failed", f"the program ended with {exit_phrase(result.exit_status)}.")
        return open_trace(self._output.trace(name))

    def _temporary_for(self, intervention: Intervention) -> Path | None:
        """An empty folder where names of temporary files come out alike, since no earlier run has taken them."""
        if not intervention.fixes_entropy:
            return None
        folder = (self._output.path / "temporary").absolute()
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self._stack.callback(shutil.rmtree, folder, ignore_errors=True)
        return folder

    def _notes(self, name: str) -> Path:
        return self._output.trace(name).with_name(f"{name}.{_NOTES}")

    def _with_sources(self, trial: Trial, names: list[str]) -> Trial:
        folders = [self._notes(name) for name in names]
        try:
            seedings = {library: seeding_calls(folders[0], library) for library in SEEDED_LIBRARIES}
            sources = differing_sources(folders[0], folders[-1])
            return replace(trial, sources=sources, seedings=seedings, unprobed=unprobed_modules(folders[0]))
        finally:
            for folder in folders:
                shutil.rmtree(folder, ignore_errors=True)

    def _copy_for(self, intervention: Intervention) -> FreshCopy | None:
        """The copy of the working directory that a run starts in; None for the directory itself."""
        if not intervention.fresh_copy and not self._request.fresh_copy:
            return None
        if self._copy is None:
            self._copy = self._stack.enter_context(FreshCopy(Path.cwd(), self._output.path))
        return self._copy


def _result(intervention: Intervention, traces: list[Trace], comparison: Comparison) -> Trial:
    is_known = comparison.verdict is not Verdict.INCONCLUSIVE
    return Trial(
        intervention,
        len(traces),
        comparison.verdict,
        comparison.first_divergence,
        # Held still at their lines, sources cost time that a fix of the program would not.
        step_seconds=None if intervention.sources else least_step_seconds(traces),
        failure=None if is_known else "; ".join(trouble.message for trouble in comparison.trouble),
    )


def least_step_seconds(traces: Sequence[Trace]) -> float | None:
    """How long a step took on average in the fastest of some runs; None if none made two steps.

    Args:
        traces: Of the runs; the first process that counted steps stands for its run.
    """
    found = []
    for trace in traces:
        seconds = (process.description.get("step_seconds") for process in trace.processes)
        found += [float(one) for one in seconds if one is not None][:1]
    return min(found, default=None)
