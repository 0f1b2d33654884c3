"""Runs a program in full, up to a checkpoint and on from it, and compares the resumed steps with those of the full run."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from determinism.comparison.result import Comparison, RunSummary
from determinism.comparison.resumed import ResumedProcess, compare_resumed
from determinism.comparison.resumed_result import conclude_resumed
from determinism.diagnose.resume_trials import (
    ResumeTrial,
    after_trials,
    fix_of_trial,
    fixes_of,
    generator_trials,
    last_before_steps,
    whole_trials,
)
from determinism.diagnose.unsaved import unsaved
from determinism.errors import DeterminismError
from determinism.launch.further_runs import may_run_further
from determinism.launch.output_folder import OutputFolder
from determinism.launch.program import Interrupted, ProgressCallback
from determinism.launch.resume_request import ResumeRequest
from determinism.launch.resume_runs import ResumeRuns
from determinism.launch.standard_input import StandardInput
from determinism.trace.reader import Trace
from determinism.types import Verdict

_CHECKPOINTS = "checkpoints"
_RUN = (sys.executable, "-m", "determinism", "run", "--seed", "1", "--")


@dataclass
class ResumeCheck:
    """One check of resuming as it goes on; after an error it still tells which runs were made."""

    request: ResumeRequest
    announce: Callable[[str, Path | None], ProgressCallback | None] = lambda title, log: None
    """Called with what comes next and the log of its output; gives what is told the progress."""
    warn: Callable[[str], None] = lambda message: None
    runs: list[RunSummary] = field(default_factory=list)

    def run(self) -> Comparison:
        """Make the runs, compare them, name what the checkpoint lacks, and give from outside what can be given.

        Raises:
            DeterminismError: Something kept the check from coming to a verdict.
        """
        # Before anything is made: the commands may contradict each other.
        self.request.commands(Path())
        self._output = output = OutputFolder(self.request.output)
        with StandardInput() as standard_input:
            self._runs = ResumeRuns(output, standard_input, self.announce, self.request.allow_failure, self.runs)
            commands = self._commands()
            full = self._runs.make("full", commands["full"])
            # What generators hold at the checkpoint is needed if the program did not save it.
            first = self._runs.make("first", commands["first"], generators={"keep": True})
            resumed = self._runs.make("resumed", commands["resumed"], generators={"watch": True})
            comparison, processes = _compared(full, first, resumed)
            self.runs = comparison.runs
            self._explain(comparison, processes, full)
            self._runs.discard_trials()
        self._tidy(comparison)
        return comparison

    def _commands(self) -> dict[str, list[str]]:
        """The words of each command; the folder for checkpoints is there, and empty."""
        checkpoints = self._output.path / _CHECKPOINTS
        if self.request.program:
            shutil.rmtree(checkpoints, ignore_errors=True)
            checkpoints.mkdir(parents=True)
        return self.request.commands(checkpoints)

    def _explain(self, comparison: Comparison, processes: Sequence[ResumedProcess], full: Trace) -> None:
        """Try what can be set from outside; only what was equal then is called verified."""
        may_try = comparison.verdict is not Verdict.SAME and may_run_further(self.request.explain, self.runs)
        missing = comparison.missing or []
        trials = generator_trials(missing, last_before_steps(processes)) if may_try else []
        outcomes = list(self._outcomes(trials, full))
        if comparison.missing is not None:
            missing = comparison.missing = after_trials(missing, outcomes)
        comparison.fixes = fixes_of(missing, verified=True in outcomes)
        for trial in whole_trials(comparison, _RUN) if may_try else []:
            if self._is_cured(trial, None):
                comparison.fixes.append(fix_of_trial(trial))
                return

    def _outcomes(self, trials: Sequence[ResumeTrial], full: Trace) -> Iterator[bool | None]:
        """What came of each, until one makes the runs equal."""
        for trial in trials:
            outcome = self._is_cured(trial, full)
            yield outcome
            if outcome:
                return

    def _is_cured(self, trial: ResumeTrial, full: Trace | None) -> bool | None:
        """Whether the resumed run is equal to the full one with something set; None if that could not be tried.

        Args:
            trial: What is set.
            full: The full run; None for one of its own.
        """
        try:
            return self._try(trial, full).verdict is Verdict.SAME
        except Interrupted:
            raise
        except (DeterminismError, OSError) as error:
            message = error.message if isinstance(error, DeterminismError) else str(error)
            self.warn(f"What was to be tried ({trial.title}) could not be. {message}")
            return None

    def _try(self, trial: ResumeTrial, full: Trace | None) -> Comparison:
        commands = {name: [*trial.prefix, *words] for name, words in self._commands().items()}
        variables, title = trial.environment, trial.title
        if full is None:
            full = self._runs.make("full", commands["full"], environment=variables, trial=title)
        # Once more: the resumed run may have saved over what it was resumed from.
        first = self._runs.make(
            "first", commands["first"], generators={"keep": True}, environment=variables, trial=title
        )
        generators = None if trial.generators is None else {**trial.generators, "from": str(first.folder)}
        resumed = self._runs.make(
            "resumed", commands["resumed"], generators=generators, environment=variables, trial=title
        )
        return _compared(full, first, resumed)[0]

    def _tidy(self, comparison: Comparison) -> None:
        """Remove what equal runs left, unless it is to be kept."""
        if comparison.verdict is not Verdict.SAME or self.request.keep:
            return
        for run in comparison.runs:
            if run.trace is not None:
                self._output.discard(Path(run.trace).name)
                run.trace = None
        shutil.rmtree(self._output.path / _CHECKPOINTS, ignore_errors=True)
        self._output.remove_if_empty()


def _compared(full: Trace, first: Trace, resumed: Trace) -> tuple[Comparison, list[ResumedProcess]]:
    processes = compare_resumed(full, first, resumed)
    comparison = conclude_resumed(processes, full, first, resumed)
    if comparison.verdict is Verdict.DIFFERENT:
        found = [missing for process in processes for missing in unsaved(process)]
        comparison.missing = list({missing.identifier: missing for missing in found}.values())
    return comparison, processes
