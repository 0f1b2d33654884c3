"""Runs the program once, under recording."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from determinism.comparison.endings import FAIL_FAST
from determinism.errors import LaunchError
from determinism.exit_status import exit_phrase, signal_name
from determinism.launch.child_environment import child_environment
from determinism.launch.configuration import RecordingConfiguration
from determinism.launch.hidden_processes import HiddenProcesses
from determinism.launch.interruption import Interruption, caught_signals, send
from determinism.launch.output_log import OutputLog
from determinism.launch.progress import Progress
from determinism.launch.standard_input import StandardInput

ProgressCallback = Callable[[int, int], None]
"""Gets the number of records so far and the last step, or -1 before there is one."""

_PROGRESS_SECONDS = 0.1


@dataclass(frozen=True)
class ProgramExit:
    """How a program ended."""

    exit_status: int
    """As `Popen.returncode`: minus the signal's number if a signal ended it."""
    stopped_by: str | None
    """Name of the signal that ended it, or that the user interrupted it with; `fail-fast` if we stopped it."""
    seconds: float
    hidden: Sequence[tuple[str, str]] = ()
    """Command of each process that recording could not reach, and why."""


class Interrupted(LaunchError):
    """The user ended the run; the program has ended."""

    def __init__(self, program_exit: ProgramExit) -> None:
        """Make the message.

        Args:
            program_exit: How the program ended then.
        """
        super().__init__(
            "interrupted",
            f"{program_exit.stopped_by} came in, so the program was stopped after {program_exit.seconds:.1f} s "
            f"({exit_phrase(program_exit.exit_status)}). What it had recorded can be read; run the command again.",
        )
        self.program_exit = program_exit


def never() -> bool:
    """Let a program go on to its own end."""
    return False


def run_program(
    command: Sequence[str],
    *,
    configuration: RecordingConfiguration,
    log: Path | None = None,
    cwd: Path | None = None,
    on_progress: ProgressCallback | None = None,
    environment: Mapping[str, str] | None = None,
    stdin: StandardInput | None = None,
    is_decided: Callable[[], bool] = never,
    before_start: Callable[[], None] | None = None,
) -> ProgramExit:
    """Run a command with nothing changed but that its Python processes record themselves.

    Args:
        command: The program and its arguments.
        configuration: What to record, and where.
        log: File for the program's output; None passes it through.
        cwd: Working folder; None for the current one.
        on_progress: Called about ten times a second.
        environment: The environment it would have without recording; None for the current one.
        stdin: What it reads; None for this process's own standard input.
        is_decided: Asked about ten times a second; the program is stopped when it says yes.
        before_start: What its process does before it becomes the program.

    Raises:
        LaunchError: It cannot be started.
        Interrupted: The user ended it with Ctrl-C or a signal.
        OSError: The log cannot be written.
    """
    own = os.environ if environment is None else environment
    environ = child_environment(own if cwd is None else {**own, "PWD": str(cwd)}, configuration)
    with ExitStack() as stack:
        run_input = stack.enter_context(stdin.for_run()) if stdin is not None else None
        output = stack.enter_context(OutputLog(log))
        received = stack.enter_context(caught_signals())
        hidden = HiddenProcesses(configuration.trace_folder)
        started = time.monotonic()
        process = _start(command, environ, cwd, run_input.descriptor if run_input else None, output, before_start)
        stack.callback(_end, process)
        output.started()
        if run_input is not None:
            run_input.started()
        progress = Progress(configuration.trace_folder)

        def each_moment() -> None:
            hidden.look(process.pid)
            if on_progress is not None:
                on_progress(*progress.read())

        was_stopped = _watch(process, received, each_moment, is_decided)
        seconds = time.monotonic() - started
    stopped_by = signal_name(-process.returncode) if process.returncode < 0 else None
    unseen = tuple(hidden.found.values())
    if received:
        raise Interrupted(ProgramExit(process.returncode, signal_name(received[0]), seconds, unseen))
    return ProgramExit(process.returncode, FAIL_FAST if was_stopped else stopped_by, seconds, unseen)


def _start(
    command: Sequence[str],
    environ: dict[str, str],
    cwd: Path | None,
    stdin: int | None,
    output: OutputLog,
    before_start: Callable[[], None] | None,
) -> subprocess.Popen[bytes]:
    try:
        # Descriptors that the shell opened for the program beyond the first three pass through.
        return subprocess.Popen(
            list(command),
            env=environ,
            cwd=cwd,
            stdin=stdin,
            stdout=output.stdout,
            stderr=output.stderr,
            close_fds=False,
            preexec_fn=before_start,
        )
    except (OSError, ValueError) as error:
        raise LaunchError(
            "command-unstartable",
            f"{command[0]!r} could not be started ({error}), so nothing was recorded. Check that the same command "
            f"starts without `determinism`; a script needs a `#!` line or its interpreter in front.",
        ) from None


def _watch(
    process: subprocess.Popen[bytes],
    received: list[int],
    each_moment: Callable[[], None],
    is_decided: Callable[[], bool],
) -> bool:
    """Wait for the end of the program; whether it was stopped because nothing more is to be learned from it."""
    interruption = Interruption(process)
    sent: list[int] = []
    ended = False
    while not ended:
        try:
            process.wait(_PROGRESS_SECONDS)
            ended = True
        except subprocess.TimeoutExpired:
            if not received and not sent and is_decided():
                sent.append(signal.SIGTERM)
            interruption.advance(received or sent)
        each_moment()
    return bool(sent) and not received


def _end(process: subprocess.Popen[bytes]) -> None:
    """Leave no program behind if watching it broke off."""
    if process.poll() is None:
        send(process, signal.SIGKILL)
        process.wait()
