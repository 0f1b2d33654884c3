"""Run a program once and check what must agree within the run; the trace is kept if anything does not."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from determinism.comparison.recorded import recorded_by, summary_of
from determinism.errors import LaunchError, TraceError, exit_phrase
from determinism.invariants.findings import InvariantFindings, main_streams, verdict_of
from determinism.invariants.repeated import check_files, check_repeated, check_shards
from determinism.invariants.replicas import check_replicas
from determinism.launch.interpreter import check_interpreter
from determinism.launch.io import OutputFolder, StandardInput
from determinism.launch.program import Announce, unannounced
from determinism.launch.record import record_program, require_recorded
from determinism.launch.runs import CheckRequest
from determinism.trace.opening import open_trace
from determinism.types import Verdict

_RUN = "run-1"


@dataclass
class InvariantCheck:
    """A check of one run by itself."""

    request: CheckRequest
    announce: Announce = unannounced
    warn: Callable[[str], None] = lambda message: None

    def run(self) -> InvariantFindings:
        """Run the program and check its invariants.

        Raises:
            DeterminismError: It could not be run or recorded, or failed without a violation.
        """
        warning = check_interpreter(self.request.command, os.environ)
        if warning is not None:
            self.warn(warning)
        output = OutputFolder(self.request.output)
        folder = output.trace(_RUN)
        with StandardInput() as standard_input:
            self.announce("run 1 of 1", None)
            result = record_program(
                self.request.command,
                replace(self.request.spec, trace_folder=folder, invariants=True),
                stdin=standard_input,
            )
        require_recorded(folder, result.exit_status)
        findings = check_stored(folder)
        if result.exit_status and not findings.violations and not self.request.allow_failure:
            raise LaunchError(
                "invariants-run-failed",
                f"The program ended with {exit_phrase(result.exit_status)}. Its ranks agreed until then, but the rest "
                f"is unknown. The trace is kept in {folder}. Fix the program, or give --allow-failure.",
            )
        if verdict_of(findings) is Verdict.SAME and not self.request.keep:
            output.discard(_RUN)
            output.remove_if_empty()
            findings.trace = None
        return findings


def check_stored(folder: Path) -> InvariantFindings:
    """Check the invariants of a stored run.

    Raises:
        TraceError: The trace is damaged, or processes are missing from it.
    """
    trace = open_trace(folder)
    if trace.missing_processes:
        raise TraceError(
            "process-missing",
            f"{folder} lacks the records of {', '.join(trace.missing_processes[:4])}, so ranks cannot be compared. Record the run again.",
        )
    findings = InvariantFindings(run=summary_of(trace), recorded=recorded_by([trace]), trace=str(folder))
    check_replicas(trace, findings)
    check_shards(trace, findings)
    check_files(trace, findings)
    processes = list(main_streams(trace))
    for process in processes:
        check_repeated(process, findings)
        for _ in process.chunks():
            pass  # Missing records are known only at the end.
    if not findings.ranks:
        findings.steps = max((process.extent[1] for process in processes), default=0)
    findings.incomplete = [p.key for p in processes if p.truncated or p.stopped_by is not None]
    findings.violations.sort(key=lambda one: one.step)
    return findings
