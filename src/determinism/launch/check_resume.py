"""Runs a program in full, up to a checkpoint and on from it, and compares the resumed steps with those of the full run."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from determinism.comparison.result import Comparison, RunSummary
from determinism.comparison.resumed import compare_resumed
from determinism.comparison.resumed_result import conclude_resumed
from determinism.diagnose.unsaved import unsaved
from determinism.errors import LaunchError
from determinism.launch.output_folder import OutputFolder
from determinism.launch.program import Interrupted, ProgramExit, ProgressCallback
from determinism.launch.record import RunResult, Unfinished, record_program
from determinism.launch.resume_request import ResumeRequest
from determinism.launch.standard_input import StandardInput
from determinism.launch.unrecorded import require_recorded
from determinism.trace.reader import Trace, open_trace
from determinism.types import Verdict

_CHECKPOINTS = "checkpoints"
_TITLES = {"full": "full run", "first": "run up to the checkpoint", "resumed": "resumed run"}


@dataclass
class ResumeCheck:
    """One check of resuming as it goes on; after an error it still tells which runs were made."""

    request: ResumeRequest
    announce: Callable[[str, Path | None], ProgressCallback | None] = lambda title, log: None
    """Called with what comes next and the log of its output; gives what is told the progress."""
    runs: list[RunSummary] = field(default_factory=list)

    def run(self) -> Comparison:
        """Make the runs, compare them, and name what the checkpoint lacks.

        Raises:
            DeterminismError: Something kept the check from coming to a verdict.
        """
        # Before anything is made: the commands may contradict each other.
        self.request.commands(Path())
        self._output = output = OutputFolder(self.request.output)
        checkpoints = output.path / _CHECKPOINTS
        if self.request.program:
            checkpoints.mkdir(parents=True)
        commands = self.request.commands(checkpoints)
        with StandardInput() as standard_input:
            traces = [self._make(name, command, standard_input) for name, command in commands.items()]
        full, first, resumed = traces
        processes = compare_resumed(full, first, resumed)
        comparison = conclude_resumed(processes, full, first, resumed)
        self.runs = comparison.runs
        if comparison.verdict is Verdict.DIFFERENT:
            found = [missing for process in processes for missing in unsaved(process)]
            comparison.missing = list({missing.identifier: missing for missing in found}.values())
        self._tidy(comparison)
        return comparison

    def _make(self, name: str, command: list[str], standard_input: StandardInput) -> Trace:
        trace, log = self._output.trace(name), self._output.log(name) if self.runs else None
        try:
            result = record_program(
                command, trace, log=log, on_progress=self.announce(_TITLES[name], log), stdin=standard_input
            )
        except Interrupted as interrupted:
            self._add_run(command, trace, replace(interrupted.program_exit, stopped_by="interrupt"))
            raise
        except Unfinished as unfinished:
            self._add_run(command, trace, unfinished.program_exit)
            raise
        self._add_run(command, trace, result)
        if result.exit_status and not self.request.allow_failure:
            raise LaunchError(
                "resume-run-failed",
                f"The {_TITLES[name]} ended with exit status {result.exit_status}, so there is nothing whole to compare. Its output is "
                f"{'above' if log is None else f'in {log}'}. Mend it, or accept the failure with --allow-failure.",
            )
        require_recorded(trace, result.exit_status)
        return open_trace(trace)

    def _add_run(self, command: list[str], trace: Path, ended: RunResult | ProgramExit) -> None:
        self.runs.append(RunSummary(command, ended.exit_status, ended.stopped_by, ended.seconds, str(trace)))

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
