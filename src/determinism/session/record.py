"""Record a part of the running program: `with determinism.record(path)`."""

from __future__ import annotations

import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from determinism.errors import UsageError
from determinism.frameworks.registry import RECORDERS
from determinism.process_name import own_name, possible_keys
from determinism.redaction import redacted
from determinism.run_spec import PROCESS_VARIABLE, RUN_VARIABLE, STATE_EVERY, RunSpec
from determinism.sites import innermost_user_frame
from determinism.trace.files import create_trace, not_begun, write_manifest
from determinism.trace.schema import PROCESSES_FOLDER
from determinism.types import Level, LevelName

if TYPE_CHECKING:
    from determinism.frameworks.session import AdapterSession

# The active recordings of this process, whoever began them.


_sessions: list[AdapterSession] = []
_failed: Callable[[str], None] = warnings.warn
"""Called with a message when a forked process cannot be recorded."""


def _forked() -> None:
    for session in _sessions:
        try:
            session.forked()
        except Exception as error:
            _failed(f"Recording failed in the forked process {os.getpid()}: {type(error).__name__}: {error}")


os.register_at_fork(after_in_child=_forked)


def add(session: AdapterSession, failed: Callable[[str], None] = warnings.warn) -> None:
    """Register a recording that has begun.

    Args:
        session: The recording.
        failed: Called with a message when a forked process cannot be recorded.
    """
    global _failed
    _failed = failed
    _sessions.append(session)


def remove(session: AdapterSession) -> None:
    """Unregister a recording that has ended."""
    if session in _sessions:
        _sessions.remove(session)


def has_begun() -> bool:
    """Whether this process has a trace."""
    return any(session.has_begun for session in _sessions)


def is_recording() -> bool:
    """Whether this process is being recorded."""
    return bool(_sessions)


_NO_RECORDING = (
    "determinism.step() was called outside of a recording, so it did nothing. It counts steps under `determinism "
    "check` and `determinism record`, and inside `with determinism.record(path):`. This message is shown once."
)


def step() -> None:
    """Mark the end of a step of the program.

    From the first call on, only these calls end steps; calls of optimizers no longer do. Outside of a recording, this
    does nothing except warn once.

    Example:
        >>> import torch
        >>> with determinism.record("trace of steps"):
        ...     for _ in range(3):
        ...         total = torch.ones(2).sum()
        ...         determinism.step()
    """
    for session in _sessions:
        session.step()
    if not _sessions and RUN_VARIABLE not in os.environ:
        _warn_of_no_recording()


@cache
def _warn_of_no_recording() -> None:
    # Once per process: Python's own filter forgets shown warnings whenever a library leaves `warnings.catch_warnings`.
    warnings.warn(_NO_RECORDING, stacklevel=3)


# Names for the processes of a run, so that each process has the same name in every run.


class Folders:
    """The folders of the processes of one run."""

    _claimed_in: int | None = None
    """The process for which a folder was made last: a second framework in it gets another folder."""

    def __init__(self, trace_folder: Path, framework: str, failed: Callable[[str], None]) -> None:
        """Take the trace folder, the framework, and a function to call when a process cannot be recorded."""
        self._trace_folder = trace_folder
        self._framework = framework
        self.failed = failed

    def claim(self, name: str | None) -> Path:
        """Make the folder of this process, and pass its key to its children.

        Args:
            name: The framework's name for it among its siblings; None if there is none.

        Raises:
            OSError: The folder cannot be made.
        """
        own_key = os.environ.get(PROCESS_VARIABLE)
        if Folders._claimed_in == os.getpid():
            return claim_process_folder(self._trace_folder, own_key, self._framework)
        Folders._claimed_in = os.getpid()
        folder = claim_process_folder(self._trace_folder, own_key, name)
        os.environ[PROCESS_VARIABLE] = folder.name
        return folder


def claim_process_folder(trace_folder: Path, parent_key: str | None, name: str | None = None) -> Path:
    """Make the folder of this process; its name is the process's key.

    Keys are `main`, then `main-2`, `main-3` … for processes that no recorded process started, and `<parent>.<name>` for
    the others. The name distinguishes siblings in every run: their rank, their name in `multiprocessing`, or their
    number among forked children. Only other programs are numbered in the order in which they begin to record.

    Args:
        trace_folder: Trace folder of the run.
        parent_key: Key of the recorded process that started this one; None if none did.
        name: The framework's name for this process among its siblings, if it has one.

    Raises:
        OSError: The folder cannot be made.
    """
    return _first_free(trace_folder, possible_keys(parent_key, name or own_name(parent_key or "")))


def _first_free(trace_folder: Path, keys: Iterator[str]) -> Path:
    """Make the folder of the first key that no other process has."""
    while True:
        folder = trace_folder / PROCESSES_FOLDER / next(keys)
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
            return folder


class _Folders:
    """The folders of this process and of the processes that it forks while it is recorded."""

    def __init__(self, trace_folder: Path) -> None:
        self._trace_folder = trace_folder
        self._key: str | None = None

    def claim(self, name: str | None) -> Path:
        """Make the folder of this process; children without a name are numbered in the order in which they begin.

        Raises:
            OSError: The folder cannot be made.
        """
        if self._key is None:
            folder = self._trace_folder / PROCESSES_FOLDER / "main"
            folder.mkdir(mode=0o700)
        else:
            folder = _first_free(self._trace_folder, possible_keys(self._key, name))
        self._key = folder.name
        return folder

    def failed(self, reason: str) -> None:
        """Warn, on the only channel left, that a child could not be recorded."""
        warnings.warn(reason, RuntimeWarning, stacklevel=2)


@contextmanager
def record(
    path: str | os.PathLike[str],
    *,
    level: LevelName | Level = "op",
    max_disk: int | None = None,
    paranoid: bool = False,
    values: int | None = None,
    state_every: int = STATE_EVERY,
) -> Iterator[AdapterSession]:
    """Record every op that this thread runs inside the `with` block.

    Args:
        path: The trace to write; a folder that does not exist or is empty.
        level: `op`, `module` or `step`.
        max_disk: Maximum size of a process's trace, in bytes. The oldest records are removed, and a ledger covers every
            step; with `values`, recording ends at the limit.
        paranoid: Whether to digest every input of every op, including those whose producer was recorded.
        values: Maximum number of elements to keep of each output of an op, so that `compare` can measure differences.
        state_every: At level `step`, the number of steps between digests of parameters, buffers and optimizer state, with
            others at the first step and the end; batches, losses and gradients are digested at each step. PyTorch only.

    Raises:
        UsageError: No supported framework is imported, the level does not exist, `values` or `state_every` is below 1, or a
            recording is running.
        TraceError: The folder cannot be used.

    Yields:
        The recording. Values passed to its `returned` count as read.

    Example:
        >>> import torch
        >>> with determinism.record("trace", level="op") as recording:
        ...     for _ in range(3):
        ...         total = torch.ones(2).sum()
        ...         determinism.step()
    """
    if level not in set(Level):
        raise UsageError("unknown-level", f"There is no level {level!r}; choose from {', '.join(Level)}.")
    if values is not None and values < 1:
        raise UsageError(
            "no-values", f"`values` is {values}, so nothing would be kept. Give a number of at least 1, or None."
        )
    if state_every < 1:
        raise UsageError(
            "no-state",
            f"`state_every` is {state_every}, but it counts steps. Give a number of at least 1: 1 digests the state "
            "at each step.",
        )
    keeps_newest = max_disk is not None and values is None
    spec = RunSpec(
        Path(path),
        level=level,
        max_disk=max_disk,
        keeps_newest=keeps_newest,
        paranoid=paranoid,
        values=values,
        state_every=state_every,
    )
    with recording(spec) as session:
        yield session


@contextmanager
def recording(spec: RunSpec) -> Iterator[AdapterSession]:
    """Record what this thread does inside the `with` block.

    Args:
        spec: What to record, and where.

    Raises:
        UsageError: No supported framework is imported, or a recording is running.
        TraceError: The folder cannot be used.
    """
    framework = next((name for name in RECORDERS if name in sys.modules), None)
    if framework is None:
        raise UsageError(
            "no-framework",
            f"None of {', '.join(RECORDERS)} is imported, so there is nothing to record. Import the framework first.",
        )
    if is_recording():
        raise UsageError(
            "already-recording", "This process is already being recorded, so a second recording cannot begin."
        )
    assert spec.trace_folder is not None
    folder = spec.trace_folder.absolute()
    facts = {
        "created": time.time(),
        "command": redacted([sys.executable, *sys.argv]),
        "cwd": os.getcwd(),
        "level": spec.level,
    }
    create_trace(folder, **facts)
    session = _started(replace(spec, trace_folder=folder), RECORDERS[framework])
    if isinstance(session, OSError):
        raise not_begun(folder, session)
    process = os.getpid()
    session.ends_program = False
    frame = innermost_user_frame()
    if frame is not None:
        session.begin_at(frame)
    del frame
    add(session)
    try:
        yield session
    finally:
        remove(session)
        session.leave()
        # A forked child also reaches the end of the block, but the trace belongs to its parent.
        if os.getpid() == process:
            seconds = time.time() - float(str(facts["created"]))
            # On a full disk the trace stays incomplete, as its readers will say, and the program continues.
            with suppress(OSError):
                write_manifest(
                    folder, {**facts, "exit_status": None, "stopped_by": None, "seconds": seconds, "complete": True}
                )


def _started(spec: RunSpec, module: str) -> AdapterSession | OSError:
    """Return the recording, or the error that kept it from beginning.

    The error is returned without the frames in which it was raised, which would keep new files open.
    """
    try:
        assert spec.trace_folder is not None
        session: AdapterSession = import_module(module).Session(_Folders(spec.trace_folder), spec)
        return session
    except OSError as error:
        error.__context__ = None
        return error.with_traceback(None)
