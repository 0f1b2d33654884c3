"""Run a program once and leave a complete trace; find out which of its processes recorded nothing, and why."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Unpack

from determinism.comparison.result import RunSummary
from determinism.errors import LaunchError, TraceError, exit_phrase
from determinism.launch.interpreter import find_executable, find_interpreter
from determinism.launch.io import StandardInput
from determinism.launch.notes import NOTE_PREFIX
from determinism.launch.program import Interrupted, ProgramExit, ProgressCallback, Watching, run_program
from determinism.redaction import redacted
from determinism.run_spec import RunSpec, recorder_choice
from determinism.trace.files import create_trace, require_unused, write_manifest
from determinism.trace.reader import read_manifest
from determinism.trace.schema import MANIFEST_FILE, PROCESS_FILE, PROCESSES_FOLDER


@dataclass(frozen=True)
class RunResult(ProgramExit):
    """How a recorded run ended; `stopped_by` is `steps` after the requested steps, `interrupt` if the user ended it."""

    folder: Path = field(kw_only=True)
    """The trace."""


class Unfinished(TraceError):
    """The program has ended, but how it ended could not be written into its trace."""

    def __init__(self, folder: Path, error: OSError, program_exit: ProgramExit) -> None:
        """Compose the message.

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
    on_progress: ProgressCallback | None = None,
    stdin: StandardInput | None = None,
    **watching: Unpack[Watching],
) -> RunResult:
    """Run a command under recording; the arguments are those of `run_program`.

    Raises:
        TraceError: The trace cannot be written; `Unfinished` if the program was run.
        LaunchError: The program cannot be started.
        Interrupted: The user ended it; the trace is complete up to that point.
    """
    assert spec.trace_folder is not None
    environment = watching.get("environment")
    folder = spec.trace_folder.absolute()
    require_unused(folder)
    _build_native_recorder(command, os.environ if environment is None else environment)
    create_trace(folder, **(facts := _facts(command, spec)))
    spec = replace(spec, trace_folder=folder)
    run = partial(run_program, command, spec, on_progress=on_progress, stdin=stdin, **watching)
    return _run_to_its_end(folder, facts, run)


def summarized_run(
    runs: list[RunSummary], command: Sequence[str], trace: Path, make: Callable[[], RunResult]
) -> RunResult:
    """Make a run, and add its summary to those of earlier ones, even if the user ends it or its trace cannot be finished."""

    def add(ended: ProgramExit) -> None:
        exit_status, stopped_by = ended.exit_status, ended.stopped_by
        runs.append(RunSummary(list(command), exit_status, stopped_by, ended.seconds, str(trace), ended.waited))

    try:
        result = make()
    except Interrupted as interrupted:
        add(replace(interrupted.program_exit, stopped_by="interrupt"))
        raise
    except Unfinished as unfinished:
        add(unfinished.program_exit)
        raise
    add(result)
    return result


_BUILDER = Path(__file__).with_name("inspection_child.py")
_BUILD_SECONDS = 1800.0
_built_with: set[str] = set()
"""Interpreters for which building the native recorder has been tried."""


def _build_native_recorder(command: Sequence[str], environ: Mapping[str, str]) -> None:
    """Build the native recorder of PyTorch, if it is wanted and missing: here rather than inside the user's program."""
    if recorder_choice(environ) not in ("", "native"):
        return
    try:
        interpreter = find_interpreter(find_executable(command[0], environ), command[1:], environ)
    except LaunchError:
        return  # Starting the program will report this.
    if interpreter is None or interpreter.path in _built_with:
        return
    _built_with.add(interpreter.path)
    # If building fails, the program is recorded in Python, and the trace says why.
    with suppress(OSError, subprocess.SubprocessError):
        subprocess.run([interpreter.path, str(_BUILDER), "--build"], env=dict(environ), stdin=subprocess.DEVNULL,
                       stdout=subprocess.DEVNULL, timeout=_BUILD_SECONDS, check=False)  # fmt: skip


def _facts(command: Sequence[str], spec: RunSpec) -> dict[str, Any]:
    """Return the initial contents of the manifest."""
    asked = {"level": spec.level, "steps": spec.steps, "paranoid": spec.paranoid}
    return {"created": time.time(), "command": redacted(command), "cwd": str(Path.cwd()), **asked}


def _run_to_its_end(folder: Path, facts: dict[str, Any], run: Callable[[], ProgramExit]) -> RunResult:
    """Run the program and finish its trace, however it ends."""
    try:
        program_exit = run()
    except Interrupted as interrupted:
        _finish(folder, facts, replace(interrupted.program_exit, stopped_by="interrupt"))
        raise
    except LaunchError:
        # Nothing was started, and an empty trace would only be in the way of the next attempt.
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
    return RunResult(**{**vars(program_exit), "stopped_by": stopped_by}, folder=folder)


def _descriptions(folder: Path) -> dict[str, dict[str, Any]]:
    """Return each process's description of itself, by key."""
    found: dict[str, dict[str, Any]] = {}
    for path in sorted((folder / PROCESSES_FOLDER).glob(f"*/{PROCESS_FILE}")):
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            # The reader reports this, with the path, when the trace is opened.
            continue
        if isinstance(document, dict):
            found[path.parent.name] = document
    return found


def _unwritable(folder: Path, error: OSError) -> TraceError:
    is_full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    said = f" ({error}). Everything recorded until then can still be read. Free up space there, or give another folder with --output."
    if not folder.is_dir():
        said = ": the folder was removed while the program ran. Give one with --output that the program leaves alone."
    return TraceError("disk-full" if is_full else "trace-unwritable", f"The trace {folder} could not be finished{said}")


# Processes that recorded nothing.


_LONGEST_COMMAND = 50

_NOT_REACHED = (
    "No process of the program recorded anything: no process that the recorder could reach imported torch or "
    "tensorflow, or used jax. If the program uses one of them, check that its Python runs without -I, -S and -E, "
    "keeps PYTHONPATH, and runs on this machine."
)
_LEAST_ROOM = 1 << 20
"""Bytes that a trace needs to be started."""


def not_recorded_reasons(folder: Path) -> list[str]:
    """Return the reasons that processes of a run gave for not being recorded, most frequent first."""
    return [reason for reason, _ in Counter(reason for _, reason in _notes(folder)).most_common()]


def _notes(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield the command and the reason of each process that left a note."""
    for path in sorted(folder.glob(f"{NOTE_PREFIX}*.json")):
        try:
            note = json.loads(path.read_text(encoding="utf-8"))
            yield " ".join(map(str, note["command"])), str(note["reason"])
        except (OSError, ValueError, KeyError, TypeError):
            continue


def unrecorded_processes(folder: Path, hidden: Iterable[tuple[str, str]]) -> list[dict[str, Any]]:
    """Return the processes of a run that used a framework without being recorded, as blind spots for its manifest.

    Args:
        folder: The trace, with the notes that processes left.
        hidden: Command and reason of each process that was seen only from outside.
    """
    found = Counter((_short(command), reason) for command, reason in [*_notes(folder), *hidden])
    return [blind_spot("unrecorded-process", *process, count) for process, count in sorted(found.items())]


def blind_spot(identifier: str, what: str, reason: str, count: int) -> dict[str, Any]:
    """Return a blind spot in the form that the manifest uses."""
    return {"id": identifier, "what": what, "reason": reason, "count": count}


def _short(command: str) -> str:
    """Return the first words of a command, without the folders of its executable."""
    first, *others = command.split() or [""]
    text = " ".join([first.rpartition("/")[2], *others])
    return text if len(text) <= _LONGEST_COMMAND else f"{text[: _LONGEST_COMMAND - 3]}..."


def require_recorded(folder: Path, exit_status: int) -> None:
    """Check that a run recorded something.

    Raises:
        LaunchError: It recorded nothing.
    """
    reason = unrecorded_reason(folder)
    if reason is None:
        return
    ended = f"The program ended with {exit_phrase(exit_status)}."
    try:
        room = shutil.disk_usage(folder).free
    except OSError:
        room = _LEAST_ROOM
    if room < _LEAST_ROOM:
        raise LaunchError(
            "disk-full",
            f"No process of the program recorded anything: the disk with {folder} has {room:,} bytes left. {ended} Free up "
            "space, or give another folder with --output.",
        )
    if exit_status and reason == _NOT_REACHED:
        raise LaunchError(
            "nothing-recorded",
            f"{ended} By then, none of its processes had imported torch or tensorflow, or used jax, so nothing was "
            "recorded. Check its output.",
        )
    raise LaunchError("nothing-recorded", f"{reason} {ended}")


def unrecorded_reason(folder: Path) -> str | None:
    """Return why no process of a run recorded anything, and what to do; None if one did."""
    if any((folder / PROCESSES_FOLDER).glob(f"*/{PROCESS_FILE}")):
        return None
    reasons = not_recorded_reasons(folder) or _reasons_of_hidden(folder)
    if reasons:
        return "No process of the program recorded anything. " + " ".join(reasons)
    return _NOT_REACHED


def _reasons_of_hidden(folder: Path) -> list[str]:
    """Return the reasons found from outside for processes that could not leave a note."""
    if not (folder / MANIFEST_FILE).exists():
        return []
    spots = read_manifest(folder).get("blind_spots") or []
    return [f"{spot['what']} imported a framework, but {spot['reason']}." for spot in spots]
