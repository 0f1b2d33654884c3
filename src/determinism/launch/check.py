"""Runs a program twice or more and compares the runs."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from determinism.comparison.result import Comparison, RunSummary
from determinism.comparison.runs import compare_runs
from determinism.diagnose.confirm import capture_request, confirm, needs_confirmation, read_capture
from determinism.errors import LaunchError, TraceError, UsageError
from determinism.launch.interpreter import check_interpreter
from determinism.launch.program import Interrupted, ProgressCallback
from determinism.launch.record import RunResult, record_program
from determinism.launch.standard_input import StandardInput
from determinism.launch.unrecorded import unrecorded_reason
from determinism.trace.reader import Trace, open_trace
from determinism.types import Verdict

DEFAULT_FOLDER = Path(".determinism")
_SECONDS_THAT_EXPLAIN_ITSELF = 60.0


@dataclass(frozen=True)
class CheckRequest:
    """What is to be checked, and how."""

    command: Sequence[str]
    num_runs: int = 2
    level: str = "op"
    steps: int | None = None
    output: Path | None = None
    keep: bool = False
    max_disk: int | None = None
    strict: bool = False
    allow_failure: bool = False
    runs_from: Path | None = None
    explain: bool | None = None
    """None: if a run took less than a minute."""


@dataclass
class Check:
    """One check as it goes on; after an error it still tells which runs were made."""

    request: CheckRequest
    announce: Callable[[str], ProgressCallback | None] = lambda title: None
    """Called with what comes next; gives what is told the progress."""
    warn: Callable[[str], None] = lambda message: None
    runs: list[RunSummary] = field(default_factory=list)
    folder: Path | None = None

    def run(self) -> Comparison:
        """Make the runs, compare them, and confirm what was found.

        Raises:
            DeterminismError: Something kept the check from coming to a verdict.
        """
        request = self.request
        if request.num_runs < 2 and request.runs_from is None:
            raise UsageError(
                "too-few-runs", f"-n {request.num_runs} leaves nothing to compare. Ask for 2 runs or more."
            )
        stored = [] if request.runs_from is None else _stored_runs(request.runs_from)
        warning = check_interpreter(request.command, os.environ)
        if warning is not None:
            self.warn(warning)
        self.folder = folder = _new_folder(request.output)
        with StandardInput() as standard_input:
            new_runs = 1 if stored else request.num_runs
            for number in range(new_runs):
                title = f"run {number + 1} of {new_runs}"
                self._record(folder / f"run-{number + 1}", title, standard_input, is_first=number == 0)
            traces = [*stored, *(open_trace(folder / f"run-{number + 1}") for number in range(new_runs))]
            comparison = compare_runs(traces, strict=request.strict, allow_failure=request.allow_failure)
            self._confirm(comparison, traces, standard_input)
        self._tidy(comparison)
        return comparison

    def _record(self, trace: Path, title: str, standard_input: StandardInput, *, is_first: bool) -> RunResult:
        request = self.request
        try:
            result = record_program(
                request.command,
                trace,
                level=request.level,
                steps=request.steps,
                max_disk=request.max_disk,
                log=None if is_first else trace.with_suffix(".log"),
                on_progress=self.announce(title),
                stdin=standard_input,
            )
        except Interrupted as interrupted:
            ended = interrupted.program_exit
            self.runs.append(
                RunSummary(list(request.command), ended.exit_status, "interrupt", ended.seconds, str(trace))
            )
            raise
        self.runs.append(
            RunSummary(list(request.command), result.exit_status, result.stopped_by, result.seconds, str(trace))
        )
        reason = unrecorded_reason(trace)
        if reason is not None:
            raise LaunchError("nothing-recorded", f"{reason} The program ended with exit status {result.exit_status}.")
        return result

    def _confirm(self, comparison: Comparison, traces: list[Trace], standard_input: StandardInput) -> None:
        divergence = comparison.first_divergence
        if divergence is None or not needs_confirmation(divergence) or not self._explains():
            return
        process = next(p for p in traces[divergence.records_of].processes if p.key == divergence.process)
        assert self.folder is not None
        trace = self.folder / "confirming-run"
        record_program(
            self.request.command,
            trace,
            capture=capture_request(process, divergence),
            log=trace.with_suffix(".log"),
            on_progress=self.announce("confirming run"),
            stdin=standard_input,
        )
        confirm(comparison, read_capture(trace, divergence.process))
        shutil.rmtree(trace, ignore_errors=True)

    def _explains(self) -> bool:
        if self.request.explain is not None:
            return self.request.explain
        return max(run.seconds for run in self.runs) < _SECONDS_THAT_EXPLAIN_ITSELF

    def _tidy(self, comparison: Comparison) -> None:
        """Remove the traces of equal runs, unless they are to be kept."""
        if comparison.verdict is not Verdict.SAME or self.request.keep or self.folder is None:
            return
        shutil.rmtree(self.folder, ignore_errors=True)
        for run in comparison.runs:
            if run.trace is not None and Path(run.trace).is_relative_to(self.folder):
                run.trace = None
        if self.request.output is None:
            try:
                self.folder.parent.rmdir()
            except OSError:
                # Traces of other checks are still there.
                return


def _new_folder(output: Path | None) -> Path:
    """A folder for the traces of one check.

    Raises:
        TraceError: It is already there, or cannot be made.
    """
    folder = output if output is not None else DEFAULT_FOLDER / time.strftime("%Y-%m-%d-%H%M%S")
    folder = folder.absolute()
    if output is not None and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise TraceError(
            "output-exists",
            f"{output} already exists and is not empty, so nothing was run. Give another folder with --output.",
        )
    number = 1
    unique = folder
    while output is None and unique.exists():
        number += 1
        unique = folder.with_name(f"{folder.name}-{number}")
    try:
        unique.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TraceError(
            "output-unwritable", f"{unique} cannot be made ({error}). Give another folder with --output."
        ) from None
    return unique


def _stored_runs(folder: Path) -> list[Trace]:
    """The traces in a folder that `record`, or `check --keep`, wrote.

    Raises:
        TraceError: There is none.
    """
    runs = sorted(folder.glob("run-*/manifest.json"))
    return [open_trace(run.parent) for run in runs[:1]] if runs else [open_trace(folder)]
