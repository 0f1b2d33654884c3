"""Makes the runs of a check of resuming: in full, up to the checkpoint, and on from it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from determinism.comparison.result import RunSummary
from determinism.errors import LaunchError
from determinism.exit_status import exit_phrase
from determinism.launch.output_folder import OutputFolder
from determinism.launch.program import Interrupted, ProgramExit, ProgressCallback
from determinism.launch.record import RunResult, Unfinished, record_program
from determinism.launch.standard_input import StandardInput
from determinism.launch.unrecorded import require_recorded
from determinism.trace.opening import open_trace
from determinism.trace.reader import Trace

TITLES = {"full": "full run", "first": "run up to the checkpoint", "resumed": "resumed run"}


@dataclass
class ResumeRuns:
    """Makes one run after the other, and knows which were made."""

    output: OutputFolder
    standard_input: StandardInput
    announce: Callable[[str, Path | None], ProgressCallback | None]
    allow_failure: bool
    made: list[RunSummary]
    """Summaries of the runs that count."""
    trials: list[str] = field(default_factory=list)
    """Names of the traces of those that only try something."""

    def make(
        self,
        name: str,
        command: Sequence[str],
        *,
        generators: dict[str, Any] | None = None,
        environment: Mapping[str, str] | None = None,
        trial: str = "",
    ) -> Trace:
        """Make one run.

        Args:
            name: `full`, `first` or `resumed`.
            command: Its words.
            generators: Whether states of generators are kept, or put back.
            environment: Variables besides the current ones.
            trial: What is tried with it, in words; empty for a run that counts.

        Raises:
            LaunchError: It cannot be started, it failed, or nothing was recorded.
            TraceError: The trace cannot be written.
        """
        title = f"{TITLES[name]}, {trial}" if trial else TITLES[name]
        folder = f"trial-{len(self.trials) + 1}-{name}" if trial else name
        trace, log = self.output.trace(folder), self.output.log(folder) if self.made else None
        if trial:
            self.trials.append(folder)
        try:
            result = record_program(
                command,
                trace,
                generators=generators,
                environment={**os.environ, **(environment or {})},
                log=log,
                on_progress=self.announce(title, log),
                stdin=self.standard_input,
            )
        except Interrupted as interrupted:
            self._add(command, trace, replace(interrupted.program_exit, stopped_by="interrupt"), trial)
            raise
        except Unfinished as unfinished:
            self._add(command, trace, unfinished.program_exit, trial)
            raise
        self._add(command, trace, result, trial)
        if result.exit_status and not self.allow_failure:
            raise LaunchError(
                "resume-run-failed",
                f"The {title} ended with {exit_phrase(result.exit_status)}, so there is nothing whole to compare. Its output is "
                f"{'above' if log is None else f'in {log}'}. Mend it, or accept the failure with --allow-failure.",
            )
        require_recorded(trace, result.exit_status)
        return open_trace(trace)

    def _add(self, command: Sequence[str], trace: Path, ended: RunResult | ProgramExit, trial: str) -> None:
        if not trial:
            self.made.append(RunSummary(list(command), ended.exit_status, ended.stopped_by, ended.seconds, str(trace)))

    def discard_trials(self) -> None:
        """Remove the traces of what was tried; their logs stay."""
        for name in self.trials:
            self.output.discard(name, with_log=False)
