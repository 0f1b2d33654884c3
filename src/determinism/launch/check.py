"""Runs a program twice or more and compares the runs."""

from __future__ import annotations

import itertools
import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from determinism.comparison.result import Comparison, RunSummary
from determinism.comparison.runs import compare_runs
from determinism.diagnose.confirm import capture_request, confirm, needs_confirmation, read_capture
from determinism.errors import DeterminismError, LaunchError, TraceError, UsageError
from determinism.launch.interpreter import check_interpreter
from determinism.launch.program import Interrupted, ProgramExit, ProgressCallback
from determinism.launch.record import RunResult, Unfinished, record_program
from determinism.launch.standard_input import StandardInput
from determinism.launch.unrecorded import require_recorded
from determinism.trace.reader import Trace, open_trace
from determinism.trace.schema import MANIFEST_FILE
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
    announce: Callable[[str, Path | None], ProgressCallback | None] = lambda title, log: None
    """Called with what comes next and the log of its output; gives what is told the progress."""
    warn: Callable[[str], None] = lambda message: None
    runs: list[RunSummary] = field(default_factory=list)
    folder: Path | None = None

    def run(self) -> Comparison:
        """Make the runs, compare them, and confirm what was found.

        Raises:
            DeterminismError: Something kept the check from coming to a verdict.
        """
        request = self.request
        if request.num_runs < 2:
            raise UsageError(
                "too-few-runs", f"-n {request.num_runs} leaves nothing to compare. Ask for 2 runs or more."
            )
        stored = [] if request.runs_from is None else [_stored_run(request.runs_from, request)]
        warning = check_interpreter(request.command, os.environ)
        if warning is not None:
            self.warn(warning)
        self.folder = folder = _new_folder(request.output)
        with StandardInput() as standard_input:
            new_runs = request.num_runs - len(stored)
            traces = [folder / f"run-{number + 1}" for number in range(new_runs)]
            for number, trace in enumerate(traces):
                self._record(trace, f"run {number + 1} of {new_runs}", standard_input, is_first=number == 0)
            opened = [*stored, *(open_trace(trace) for trace in traces)]
            comparison = compare_runs(opened, strict=request.strict, allow_failure=request.allow_failure)
            self.runs = comparison.runs
            self._confirm(comparison, opened, standard_input)
        self._tidy(comparison)
        return comparison

    def _record(self, trace: Path, title: str, standard_input: StandardInput, *, is_first: bool) -> None:
        request = self.request
        log = None if is_first else trace.with_suffix(".log")
        try:
            result = record_program(
                request.command,
                trace,
                level=request.level,
                steps=request.steps,
                max_disk=request.max_disk,
                log=log,
                on_progress=self.announce(title, log),
                stdin=standard_input,
            )
        except Interrupted as interrupted:
            self._add_run(trace, replace(interrupted.program_exit, stopped_by="interrupt"))
            raise
        except Unfinished as unfinished:
            self._add_run(trace, unfinished.program_exit)
            raise
        self._add_run(trace, result)
        try:
            require_recorded(trace, result.exit_status)
        except LaunchError:
            self._discard(trace)
            raise

    def _add_run(self, trace: Path, ended: RunResult | ProgramExit) -> None:
        self.runs.append(
            RunSummary(list(self.request.command), ended.exit_status, ended.stopped_by, ended.seconds, str(trace))
        )

    def _discard(self, trace: Path) -> None:
        """Remove a trace of nothing, and the folder if nothing else is in it."""
        self.runs[-1].trace = None
        shutil.rmtree(trace, ignore_errors=True)
        self._remove_empty_folders()

    def _confirm(self, comparison: Comparison, traces: list[Trace], standard_input: StandardInput) -> None:
        divergence = comparison.first_divergence
        if divergence is None or not needs_confirmation(divergence) or not self._explains():
            return
        process = next(p for p in traces[divergence.records_of].processes if p.key == divergence.process)
        assert self.folder is not None
        trace = self.folder / "confirming-run"
        log = trace.with_suffix(".log")
        try:
            record_program(
                self.request.command,
                trace,
                capture=capture_request(process, divergence),
                log=log,
                on_progress=self.announce("confirming run", log),
                stdin=standard_input,
            )
            confirm(comparison, read_capture(trace, divergence.process))
        except DeterminismError as error:
            # What the runs have shown stands without it.
            self.warn(f"The confirming run was not finished, so its evidence is missing. {error.message}")
        shutil.rmtree(trace, ignore_errors=True)

    def _explains(self) -> bool:
        if self.request.explain is not None:
            return self.request.explain
        return max(run.seconds for run in self.runs) < _SECONDS_THAT_EXPLAIN_ITSELF

    def _tidy(self, comparison: Comparison) -> None:
        """Remove the traces of equal runs, unless they are to be kept."""
        if comparison.verdict is not Verdict.SAME or self.request.keep or self.folder is None:
            return
        for run in comparison.runs:
            if run.trace is not None and Path(run.trace).parent == self.folder:
                # Only what this check made: the program may have written into the folder as well.
                shutil.rmtree(run.trace, ignore_errors=True)
                Path(run.trace).with_suffix(".log").unlink(missing_ok=True)
                run.trace = None
        self._remove_empty_folders()

    def _remove_empty_folders(self) -> None:
        assert self.folder is not None
        folders = [self.folder] if self.request.output is not None else [self.folder, self.folder.parent]
        for folder in folders:
            try:
                folder.rmdir()
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
    try:
        if output is not None:
            folder.mkdir(parents=True, exist_ok=True)
            return folder
        folder.parent.mkdir(parents=True, exist_ok=True)
        for unique in itertools.chain([folder], (folder.with_name(f"{folder.name}-{n}") for n in itertools.count(2))):
            try:
                unique.mkdir()
            except FileExistsError:
                continue
            return unique
    except OSError as error:
        raise TraceError(
            "output-unwritable",
            f"{folder} cannot be made ({error.strerror}), so nothing was run. Give another folder with --output.",
        ) from None
    raise AssertionError("the count of folders has no end")


def _stored_run(folder: Path, request: CheckRequest) -> Trace:
    """The trace in a folder that `record`, or `check --keep`, wrote.

    Raises:
        TraceError: There is none.
        UsageError: It was recorded in another way than the new run would be.
    """
    runs = sorted(folder.glob(f"run-*/{MANIFEST_FILE}"))
    trace = open_trace(runs[0].parent if runs else folder)
    levels = {str(process.description["level"]) for process in trace.processes}
    if levels and levels != {request.level}:
        level = min(levels)
        raise UsageError(
            "levels-differ",
            f"{trace.folder} was recorded at level {level}, the new run would be at level {request.level}, so nothing was "
            f"run. Give --level {level}.",
        )
    steps = trace.manifest.get("steps")
    if steps != request.steps:
        wanted = "Leave --steps out" if steps is None else f"Give --steps {steps}"
        raise UsageError(
            "steps-differ",
            f"{trace.folder} was recorded {_extent(steps)}, the new run would be recorded {_extent(request.steps)}, so "
            f"nothing was run. {wanted}.",
        )
    return trace


def _extent(steps: int | None) -> str:
    return "to its end" if steps is None else f"for {steps} step{'' if steps == 1 else 's'}"
