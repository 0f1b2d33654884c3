"""Records a part of the running program: `with determinism.record(path)`."""

from __future__ import annotations

import itertools
import os
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from determinism.errors import UsageError
from determinism.frameworks.registry import RECORDERS
from determinism.session import active
from determinism.sites import innermost_user_frame
from determinism.trace.manifest import create_trace, write_manifest
from determinism.trace.schema import PROCESSES_FOLDER
from determinism.types import Level


@dataclass(frozen=True)
class Options:
    """What is to be recorded."""

    level: str = Level.OP.value
    steps: int | None = None
    max_disk: int | None = None
    paranoid: bool = False
    values: int | None = None
    capture: dict[str, Any] | None = None
    rows: dict[str, Any] | None = None
    generators: dict[str, Any] | None = None


class _Folders:
    """The folders of this process and of those that it forks while it is recorded."""

    def __init__(self, trace_folder: Path) -> None:
        self._parent = trace_folder / PROCESSES_FOLDER
        self._key: str | None = None

    def claim(self, name: str | None) -> Path:
        """Make the folder of this process; children without a name count in the order in which they begin.

        Raises:
            OSError: The folder cannot be made.
        """
        for index in itertools.count(1):
            if self._key is None:
                key = "main"
            elif name is None:
                key = f"{self._key}.{index}"
            else:
                key = f"{self._key}.{name}" if index == 1 else f"{self._key}.{name}-{index}"
            try:
                (self._parent / key).mkdir()
            except FileExistsError:
                if self._key is None:
                    raise
                continue
            self._key = key
            return self._parent / key
        raise AssertionError("the count of keys has no end")

    def failed(self, reason: str) -> None:
        """A child could not be recorded: say so on its error stream, which is the only place left."""
        warnings.warn(reason, RuntimeWarning, stacklevel=2)


@contextmanager
def record(
    path: str | os.PathLike[str],
    *,
    level: str = "op",
    max_disk: int | None = None,
    paranoid: bool = False,
    values: int | None = None,
) -> Iterator[active.RecordingSession]:
    """Record every op that this thread runs inside the `with` block.

    Args:
        path: The trace to make; a folder that does not exist or is empty.
        level: `op`, `module` or `step`.
        max_disk: Bytes that the trace never grows past.
        paranoid: Digest every input of every op, also those whose producer was recorded.
        values: Keep up to so many elements of each tensor that an op gave, so that `compare` can say how far apart two are.

    Raises:
        UsageError: No supported framework is imported, the level does not exist, `values` is below 1, or a recording is
            running.
        TraceError: The folder cannot be used.
    """
    if level not in set(Level):
        raise UsageError("unknown-level", f"There is no level {level!r}; give one of {', '.join(Level)}.")
    if values is not None and values < 1:
        raise UsageError(
            "no-values", f"`values` is {values}, so nothing would be kept. Give a number from 1 on, or None."
        )
    with recording(path, Options(level=level, max_disk=max_disk, paranoid=paranoid, values=values)) as session:
        yield session


@contextmanager
def recording(path: str | os.PathLike[str], options: Options) -> Iterator[active.RecordingSession]:
    """Record what this thread does inside the `with` block.

    Args:
        path: The trace to make.
        options: What is to be recorded.

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
    if active.is_recording():
        raise UsageError(
            "already-recording", "This process is being recorded already; a second recording cannot begin."
        )
    folder = Path(path).absolute()
    facts = {"created": time.time(), "command": [sys.executable, *sys.argv], "cwd": os.getcwd(), "level": options.level}
    create_trace(folder, **facts)
    recorder: active.Recorder = import_module(RECORDERS[framework])
    session = recorder.start(_Folders(folder), options)
    process = os.getpid()
    frame = innermost_user_frame()
    if frame is not None:
        session.begin_at(frame)
    del frame
    active.add(session)
    try:
        yield session
    finally:
        active.remove(session)
        session.leave()
        # A forked child comes to the end of the block too; the trace belongs to its parent.
        if os.getpid() == process:
            seconds = time.time() - float(str(facts["created"]))
            # On a full disk the trace stays as it is, and says so when it is read; the program goes on.
            with suppress(OSError):
                write_manifest(
                    folder, {**facts, "exit_status": None, "stopped_by": None, "seconds": seconds, "complete": True}
                )
