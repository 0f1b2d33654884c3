"""Runs a program once and leaves a whole trace of it."""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from determinism.errors import LaunchError, TraceError
from determinism.exit_status import exit_phrase
from determinism.launch.interpreter import find_executable, find_interpreter
from determinism.launch.io import StandardInput
from determinism.launch.program import Interrupted, ProgramExit, ProgressCallback, never, run_program
from determinism.launch.unrecorded import unrecorded_processes
from determinism.redaction import redacted
from determinism.run_spec import RunSpec, recorder_choice
from determinism.trace.manifest import create_trace, write_manifest
from determinism.trace.schema import PROCESS_FILE, PROCESSES_FOLDER
from determinism.types import Level


@dataclass(frozen=True)
class RunResult:
    """How a recorded run ended."""

    exit_status: int
    """Minus the signal's number if a signal ended it."""
    stopped_by: str | None
    """A signal's name, "steps" if the requested number of steps was reached, "interrupt" if the user ended it."""
    seconds: float
    folder: Path
    """The trace."""
    waited: float = 0.0
    """How many of the seconds it was ready to run and had no processor, as on a busy machine."""


class Unfinished(TraceError):
    """The program has ended, but how it ended could not be written into its trace."""

    def __init__(self, folder: Path, error: OSError, program_exit: ProgramExit) -> None:
        """Make the message.

        Args:
            folder: The trace.
            error: Why it could not be written.
            program_exit: How the program ended.
        """
        cause = _unwritable(folder, error)
        super().__init__(
            cause.identifier, f"{cause.message} The program ended with {exit_phrase(program_exit.exit_status)}."
        )
        self.program_exit = program_exit


def record_program(
    command: Sequence[str],
    spec: RunSpec,
    *,
    log: Path | None = None,
    on_progress: ProgressCallback | None = None,
    stdin: StandardInput | None = None,
    why_stop: Callable[[], str | None] = never,
    most_seconds: float = math.inf,
    environment: Mapping[str, str] | None = None,
) -> RunResult:
    """Run a command under recording.

    Args:
        command: The program and its arguments.
        spec: What is recorded, and where; in a copy of the working directory the program is run there.
        log: File for the program's output; None passes it through.
        on_progress: Gets records and step about ten times a second.
        stdin: What the program reads; None for this process's own standard input.
        why_stop: Asked about ten times a second; the program is stopped when it gives a reason, such as `fail-fast`.
        most_seconds: After which it is stopped, not counting those in which it waits for a processor.
        environment: The environment it would have without recording; None for the current one.

    Raises:
        TraceError: The trace cannot be written; `Unfinished` if the program was run.
        LaunchError: The program cannot be started.
        Interrupted: The user ended it; the trace is whole up to there.
    """
    assert spec.trace_folder is not None
    if spec.level == Level.OP.value:
        _build_native_recorder(command, os.environ if environment is None else environment)
    folder = spec.trace_folder.absolute()
    create_trace(folder, **(facts := _facts(command, spec)))
    run = partial(
        run_program, command, replace(spec, trace_folder=folder),
        log=log, on_progress=on_progress, environment=environment, stdin=stdin, why_stop=why_stop,
        most_seconds=most_seconds,
    )  # fmt: skip
    return _run_to_its_end(folder, facts, run)


_BUILDER = Path(__file__).with_name("inspection_child.py")
_BUILD_SECONDS = 1800.0
_built_with: set[str] = set()
"""Interpreters for which the native recorder was built, or could not be."""


def _build_native_recorder(command: Sequence[str], environ: Mapping[str, str]) -> None:
    """Build what records PyTorch below Python, if it is wanted and not there yet: here, and not inside the user's program."""
    if recorder_choice(environ) not in ("", "native"):
        return
    try:
        interpreter = find_interpreter(find_executable(command[0], environ), command[1:], environ)
    except LaunchError:
        return  # Starting the program says so.
    if interpreter is None or interpreter.path in _built_with:
        return
    _built_with.add(interpreter.path)
    # A failure is no reason not to run the program: it is recorded in Python then, and the trace says why.
    with suppress(OSError, subprocess.SubprocessError):
        subprocess.run([interpreter.path, str(_BUILDER), "--build"], env=dict(environ), stdin=subprocess.DEVNULL,
                       stdout=subprocess.DEVNULL, timeout=_BUILD_SECONDS, check=False)  # fmt: skip


def _facts(command: Sequence[str], spec: RunSpec) -> dict[str, Any]:
    """What the manifest says from the start."""
    return {
        "created": time.time(),
        "command": redacted(command),
        "cwd": str(Path.cwd()),
        "level": spec.level,
        "steps": spec.steps,
        "paranoid": spec.paranoid,
    }


def _run_to_its_end(folder: Path, facts: dict[str, Any], run: Callable[[], ProgramExit]) -> RunResult:
    """Run the program and finish its trace, however it ends."""
    try:
        program_exit = run()
    except Interrupted as interrupted:
        _finish(folder, facts, replace(interrupted.program_exit, stopped_by="interrupt"))
        raise
    except LaunchError:
        # Nothing was started; a trace of nothing would only be in the way of the next try.
        shutil.rmtree(folder, ignore_errors=True)
        raise
    except OSError as error:
        raise _unwritable(folder, error) from None
    return _finish(folder, facts, program_exit)


def _finish(folder: Path, facts: dict[str, Any], program_exit: ProgramExit) -> RunResult:
    processes = _descriptions(folder)
    stopped_by = program_exit.stopped_by
    if any(description.get("finished") == "steps" for description in processes.values()):
        stopped_by = "steps"
    ending = {
        "exit_status": program_exit.exit_status,
        "stopped_by": stopped_by,
        "seconds": program_exit.seconds,
        "waited": round(program_exit.waited, 3),
        "complete": True,
        "environment": {key: description.get("environment") for key, description in processes.items()},
        "blind_spots": unrecorded_processes(folder, program_exit.hidden),
    }
    try:
        write_manifest(folder, {**facts, **ending})
    except OSError as error:
        raise Unfinished(folder, error, program_exit) from None
    return RunResult(program_exit.exit_status, stopped_by, program_exit.seconds, folder, program_exit.waited)


def _descriptions(folder: Path) -> dict[str, dict[str, Any]]:
    """What each process said about itself, by key."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted((folder / PROCESSES_FOLDER).glob(f"*/{PROCESS_FILE}")):
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            # The reader says so, with the path, when the trace is opened.
            continue
        if isinstance(document, dict):
            found[path.parent.name] = document
    return found


def _unwritable(folder: Path, error: OSError) -> TraceError:
    is_full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    return TraceError(
        "disk-full" if is_full else "trace-unwritable",
        f"The trace {folder} could not be finished ({error}). Everything recorded by then can still be read. Free up "
        "space there, or give another folder with --output.",
    )
