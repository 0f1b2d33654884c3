"""Makes the runs of a check, one after the other, each from the same start."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from determinism.comparison.result import Leftover
from determinism.launch.check_request import CheckRequest
from determinism.launch.conditions import Conditions
from determinism.launch.fresh_copy import FreshCopy
from determinism.launch.leftovers import RunTimes
from determinism.launch.output_folder import OutputFolder
from determinism.launch.preparation import prepare
from determinism.launch.program import ProgressCallback, never
from determinism.launch.record import RunResult, record_program
from determinism.launch.standard_input import StandardInput


class RunSeries:
    """The runs of one check."""

    def __init__(
        self,
        request: CheckRequest,
        output: OutputFolder,
        standard_input: StandardInput,
        copy: FreshCopy | None,
        *,
        first_number: int,
    ) -> None:
        """Nothing is run yet.

        Args:
            request: What is to be run.
            output: Where traces and logs go.
            standard_input: What each run reads.
            copy: Where each run starts; None for the working directory itself.
            first_number: The number of the first run, as reports count.
        """
        self.leftovers: list[Leftover] = []
        self._request = request
        self._output = output
        self._standard_input = standard_input
        self._copy = copy
        self._times = RunTimes(first_number)

    @property
    def max_disk(self) -> int | None:
        """Bytes that a run may leave; None for as many as it likes."""
        return self._request.max_disk

    def make(
        self,
        name: str,
        title: str,
        on_progress: ProgressCallback | None,
        *,
        log: Path | None,
        is_decided: Callable[[], bool] = never,
        conditions: Conditions | None = None,
    ) -> RunResult:
        """Make one run.

        Args:
            name: Of its trace.
            title: What it is called when it cannot be made.
            on_progress: Gets records and step about ten times a second.
            log: File for its output; None passes it through.
            is_decided: Asked about ten times a second; the run is stopped when it says yes.
            conditions: What is changed about it in an experiment.

        Raises:
            LaunchError: It cannot be prepared or started, or the user ended it.
            TraceError: The trace cannot be written.
        """
        copied_to = self._prepare(name, title)
        changed = conditions or Conditions()
        trace = self._output.trace(name)
        with self._times.run():
            result = record_program(
                self._request.command,
                trace,
                level=self._request.level,
                steps=self._request.steps,
                max_disk=self._request.max_disk,
                log=log,
                on_progress=on_progress,
                stdin=self._standard_input,
                copied_to=copied_to,
                earlier_runs=tuple(self._times.ended),
                is_decided=is_decided,
                environment=changed.environment,
                before_start=changed.before_start,
            )
        self.leftovers += self._times.leftovers(trace, fresh_copy=self._copy is not None)
        return result

    def make_capturing(
        self,
        name: str,
        title: str,
        on_progress: ProgressCallback | None,
        *,
        log: Path,
        capture: dict[str, Any],
        seconds: float,
    ) -> None:
        """Make a run that looks at one record closely; it counts for nothing else.

        Args:
            name: Of its trace.
            title: What it is called when it cannot be made.
            on_progress: Gets records and step about ten times a second.
            log: File for its output.
            capture: Which record.
            seconds: After which it is stopped. The process that looked at the record ends at once, and others may wait
                for it for ever.

        Raises:
            LaunchError: It cannot be prepared or started, or the user ended it.
            TraceError: The trace cannot be written.
        """
        copied_to = self._prepare(name, title)
        until = time.monotonic() + seconds
        record_program(
            self._request.command,
            self._output.trace(name),
            capture=capture,
            log=log,
            on_progress=on_progress,
            stdin=self._standard_input,
            copied_to=copied_to,
            is_decided=lambda: time.monotonic() > until,
        )

    def _prepare(self, name: str, title: str) -> Path | None:
        """Bring about the start that every run has; returns the copy to run in."""
        folder = None
        if self._copy is not None:
            self._copy.renew()
            folder = self._copy.folder
        if self._request.before is not None:
            prepare(self._request.before, title, folder=folder, log=self._output.preparation_log(name))
        return folder
