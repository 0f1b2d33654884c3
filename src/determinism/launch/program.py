"""Run the program once under recording: its environment, its progress, its end."""

from __future__ import annotations

import math
import os
import re
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypedDict

from determinism.errors import LaunchError, exit_phrase, legible, signal_name
from determinism.factors.catalog import before_start, factor_environment
from determinism.launch.interpreter import BOOTSTRAP_FOLDER
from determinism.launch.io import OutputLog, StandardInput
from determinism.launch.processes import GroupWitness, HiddenProcesses, Interruption, caught_signals, send
from determinism.redaction import redacted_text
from determinism.run_spec import PROCESS_VARIABLE, RunSpec
from determinism.trace.schema import PROCESSES_FOLDER, SPOOL_FILE, TIME_LIMIT
from determinism.trace.spool import read_progress

# The environment in which a program is started.

HASH_SEED = "PYTHONHASHSEED"


def child_environment(environ: Mapping[str, str], spec: RunSpec) -> dict[str, str]:
    """Add the variables that make Python processes started in an environment follow the spec of a run."""
    result = with_bootstrap(spec.added_to(environ))
    if spec.trace_folder is not None:
        # Set if this command itself is being recorded; its program is the first process of a new run.
        result.pop(PROCESS_VARIABLE, None)
    if spec.enabling is not None and not re.fullmatch(r"\d+", environ.get(HASH_SEED, "")):
        # Python reads it at startup. Everything else is set inside the program, where the versions are known.
        result[HASH_SEED] = "0"
    if spec.factors is None:
        return result
    return factor_environment(result, spec.factors, spec.trace_folder or Path(tempfile.gettempdir()))


def with_bootstrap(environ: Mapping[str, str]) -> dict[str, str]:
    """Add the variable that makes each Python process in an environment run the bootstrap."""
    # An empty PYTHONPATH counts as unset, whereas an empty entry in it would put the working directory on `sys.path`.
    earlier = environ.get("PYTHONPATH")
    return {**environ, "PYTHONPATH": f"{BOOTSTRAP_FOLDER}{os.pathsep}{earlier}" if earlier else str(BOOTSTRAP_FOLDER)}


# The progress of a running program, from the traces that it is writing.


class Progress:
    """Records and last step over all processes of a run; for a process that has ended, the last values seen count."""

    def __init__(self, trace_folder: Path) -> None:
        self._folder = trace_folder / PROCESSES_FOLDER
        self._seen: dict[Path, tuple[int, int]] = {}

    def read(self) -> tuple[int, int]:
        """Return the number of records so far, and the last step or -1."""
        for spool in self._folder.glob(f"*/{SPOOL_FILE}"):
            progress = read_progress(spool)
            if progress is not None:
                self._seen[spool] = progress
        steps = [step for _, step in self._seen.values()]
        return sum(records for records, _ in self._seen.values()), max(steps, default=-1)


ProgressCallback = Callable[[int, int], None]
"""Called with the number of records so far and the last step, or -1 before the first."""


class Announce(Protocol):
    """Called when a run begins; returns a callback for its progress."""

    def __call__(
        self, title: str, log: Path | None, *, part: str = "", seconds: float | None = None, is_limit: bool = False
    ) -> ProgressCallback | None:
        """Show the next run.

        Args:
            title: Title of the run.
            log: Where its output goes; None if it passes through.
            part: Which of several runs with the same title it is; the logs of such runs are not kept.
            seconds: Approximate duration of the run; None if unknown.
            is_limit: Whether `seconds` is the maximum for this run and everything that may follow.
        """


def unannounced(
    title: str, log: Path | None, *, part: str = "", seconds: float | None = None, is_limit: bool = False
) -> ProgressCallback | None:
    """Show nothing."""
    return None


_PROGRESS_SECONDS = 0.1


@dataclass(frozen=True)
class ProgramExit:
    """How a program ended."""

    exit_status: int
    """Like `Popen.returncode`: minus the signal's number if a signal ended it."""
    stopped_by: str | None
    """Name of the signal that ended it or with which the user interrupted it; `fail-fast` or `time-limit` if we did."""
    seconds: float
    hidden: Sequence[tuple[str, str]] = ()
    """Command of each process that recording could not reach, and why."""
    waited: float = 0.0
    """How many of these seconds it was ready to run but had no processor, as on a busy machine."""


class Interrupted(LaunchError):
    """The user ended the run; the program has ended."""

    def __init__(self, program_exit: ProgramExit) -> None:
        """Compose the message."""
        super().__init__(
            "interrupted",
            f"The program was stopped by {program_exit.stopped_by} after {program_exit.seconds:.1f} s "
            f"({exit_phrase(program_exit.exit_status)}).",
        )
        self.program_exit = program_exit
        self.exit_status = 128 + getattr(signal, program_exit.stopped_by or "", signal.SIGINT)


INTERRUPTED = 128 + signal.SIGINT
"""Exit status, as in shells, of a command that the user ended with Ctrl-C."""


def interrupt_status(error: BaseException) -> int:
    """Return the exit status of a command that the user ended, by Ctrl-C or by another signal."""
    return int(getattr(error, "exit_status", INTERRUPTED))


_LOG_END_BYTES = 4_096
_QUOTED_CHARACTERS = 200


def failed_run_text(title: str, exit_status: int, log: Path | None) -> str:
    """Say that a run failed, with the last line that it printed: in Python, what it raised.

    Args:
        title: Title of the run.
        exit_status: See `ProgramExit`.
        log: Where its output went; None if it passed through.
    """
    where = "above" if log is None else f"in {log}"
    if log is not None:
        with suppress(OSError), log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _LOG_END_BYTES))
            lines = file.read().decode(errors="replace").split("\n")
            last = next((line.strip() for line in reversed(lines) if line.strip()), "nothing")
            where = f'{where}, and ends with "{redacted_text(legible(last[:_QUOTED_CHARACTERS]))}"'
    return f"The {title} ended with {exit_phrase(exit_status)}, so there is no complete run to compare. Its output is {where}."


def never() -> str | None:
    """Never stop the program."""
    return None


class Watching(TypedDict, total=False):
    """How a run is watched and limited; see `run_program`."""

    log: Path | None
    is_shown: bool
    environment: Mapping[str, str] | None
    why_stop: Callable[[], str | None]
    most_seconds: float


def run_program(
    command: Sequence[str],
    spec: RunSpec,
    *,
    log: Path | None = None,
    is_shown: bool = False,
    on_progress: ProgressCallback | None = None,
    environment: Mapping[str, str] | None = None,
    stdin: StandardInput | None = None,
    why_stop: Callable[[], str | None] = never,
    most_seconds: float = math.inf,
) -> ProgramExit:
    """Run a command, unchanged except for what the spec makes its Python processes do.

    Args:
        command: The program and its arguments.
        spec: What to record, and where; also the changes of an experiment.
        log: File for the program's output; None to pass the output through.
        is_shown: Whether to pass the output through as well.
        on_progress: Called with the number of records and the step about ten times a second.
        environment: Environment variables without recording; None for the current ones.
        stdin: Standard input of the program; None for this process's own.
        why_stop: Called about ten times a second; the program is stopped when it returns a reason, such as `fail-fast`.
        most_seconds: Time limit of the program, not counting time in which it waits for a processor.

    Raises:
        LaunchError: It cannot be started.
        Interrupted: The user ended it with Ctrl-C or a signal.
        OSError: The log cannot be written.
    """
    own, folder = os.environ if environment is None else environment, spec.trace_folder
    assert folder is not None, "only recorded programs are watched"
    with ExitStack() as stack:
        run_input = stack.enter_context(stdin.for_run()) if stdin is not None else None
        output = stack.enter_context(OutputLog(log, is_shown=is_shown))
        received = stack.enter_context(caught_signals())
        stack.callback((witness := GroupWitness()).end)
        hidden = HiddenProcesses(folder)
        started = time.monotonic()
        process = _start(command, spec, own, run_input.descriptor if run_input else None, output)
        stack.callback(_end, process)
        output.started()
        if run_input is not None:
            run_input.started()
        progress = Progress(folder)

        def why_stop_now() -> str | None:
            hidden.look(process.pid)
            if on_progress is not None:
                on_progress(*progress.read())
            return TIME_LIMIT if time.monotonic() - started - hidden.waited > most_seconds else why_stop()

        reason = _watch(process, Interruption(process, witness), received, why_stop_now)
        seconds = time.monotonic() - started
    reason = reason or _signal_that_ended(process.returncode, received)
    ended = ProgramExit(process.returncode, reason, seconds, tuple(hidden.found.values()), hidden.waited)
    if received:
        raise Interrupted(ended)
    return ended


def _signal_that_ended(status: int, received: Sequence[int]) -> str | None:
    if received:
        return signal_name(received[0])
    return signal_name(-status) if status < 0 else None


def _start(
    command: Sequence[str], spec: RunSpec, own: Mapping[str, str], stdin: int | None, output: OutputLog
) -> subprocess.Popen[bytes]:
    cwd = None if spec.copied is None else spec.copied[0]
    environ = child_environment(own if cwd is None else {**own, "PWD": cwd}, spec)
    prepare = None if spec.factors is None else before_start(spec.factors)
    try:
        # Further descriptors that the shell opened for the program are passed through.
        return subprocess.Popen(
            list(command),
            env=environ,
            cwd=cwd,
            stdin=stdin,
            stdout=output.stdout,
            stderr=output.stderr,
            close_fds=False,
            preexec_fn=prepare,
        )
    except (OSError, ValueError) as error:
        raise LaunchError(
            "command-unstartable",
            f"{command[0]!r} could not be started ({error}), so nothing was recorded. Check that the same command "
            f"starts without `determinism`; a script needs a `#!` line or its interpreter in front.",
        ) from None


def _watch(
    process: subprocess.Popen[bytes],
    interruption: Interruption,
    received: list[int],
    why_stop: Callable[[], str | None],
) -> str | None:
    """Wait for the program to end, calling `why_stop` ten times a second and at the end; return why it was stopped."""
    reason = None
    ended = False
    while not ended:
        try:
            process.wait(_PROGRESS_SECONDS)
            ended = True
        except subprocess.TimeoutExpired:
            pass
        why_now = why_stop()
        if not (ended or received or reason):
            reason = why_now
        if not ended and received:
            interruption.advance(received)
        elif not ended and reason is not None:
            interruption.stop()
    return None if received else reason


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the program if watching it was broken off."""
    if process.poll() is None:
        send(process, signal.SIGKILL)
        process.wait()
