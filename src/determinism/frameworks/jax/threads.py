"""The recorder of each thread that uses JAX: the main one's records have an order; those of all others share a stream, as they come.

Arrays never change, so what a thread hands to another is known there by its digest.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from threading import get_ident
from typing import Any

from determinism.frameworks.jax.recorder import Recorder
from determinism.frameworks.jax.training import Called
from determinism.frameworks.made_values import Value
from determinism.frameworks.named_stream import Stream
from determinism.frameworks.progress import Progress, ThreadProgress
from determinism.frameworks.wrapping import Undo, wrap
from determinism.trace.schema import RESULTS_OP, Meaning
from determinism.types import Role

_MOST_NAMES = 64


class ThreadRecorder(Recorder):
    """Records the executions of a thread other than the main one; it ends no steps."""

    def attach(self, stream: Stream, number: int, process: Progress) -> None:
        """Record into the stream of all threads from now on.

        Args:
            stream: It.
            number: Of this thread.
            process: Where the main thread is.
        """
        self.begin(stream)
        self.number = number
        self.progress = ThreadProgress(process, lambda counted_by: None)
        self.progress.phase = process.phase

    def note_unread(self) -> None:
        """Record what was not read, each value by itself and of no line: which thread of a pool does what differs from run to run."""
        for value in self.values.unread.take():
            self.emit(Role.ESCAPE, RESULTS_OP, [value], has_place=False)

    def _read(self, function: Called | None, execution: Any, args: Sequence[Any]) -> list[Value]:
        return list(self.inputs(execution, args).values())


class Threads:
    """Knows the recorder of every thread."""

    def __init__(self, main: Recorder, open_stream: Callable[[], Stream | None], *, paranoid: bool) -> None:
        """Take the recorder of the main thread, and what makes the stream of all others.

        Args:
            main: Recorder of the thread that calls this.
            open_stream: Gives the stream; None if it cannot be written.
            paranoid: Digest every input of every execution.
        """
        self.main = main
        self._open_stream = open_stream
        self._paranoid = paranoid
        self._stream: Stream | None = None
        self._is_closed = False
        self._names: list[str] = []
        self._others: dict[threading.Thread, ThreadRecorder] = {}
        self._lock = threading.RLock()

    def recorder(self) -> Recorder | None:
        """The recorder of this thread, ready to record; None if nothing is to be recorded now."""
        if get_ident() == self.main.thread:
            if self.main.is_active:
                return self.main if self.main.is_ready() else None
            # Another thread may be about to begin the recording; what this one does meanwhile is not to be missed.
            with self._lock:
                return self.main if self.main.is_ready() else None
        thread = threading._active.get(get_ident())  # type: ignore[attr-defined]
        if thread is None or isinstance(thread, threading._DummyThread) or self._is_closed:
            # A thread of the framework runs the program's function within something whose result is recorded.
            return None
        known = self._others.get(thread)
        if known is None:
            known = self._begun(thread)
        return known if known is not None and known.is_ready() else None

    def _begun(self, thread: threading.Thread) -> ThreadRecorder | None:
        with self._lock:
            if not self.main.is_active and not self.main.is_ready():
                return None
            if self._stream is None:
                self._stream = self._open_stream()
            stream = self._stream
            if stream is None:
                self._is_closed = True
                return None
            recorder = self._others[thread] = ThreadRecorder(paranoid=self._paranoid)
            self._names.append(thread.name)
            recorder.attach(stream, len(self._names), self.main.progress)
            recorder.capture = self.main.capture
            if len(self._names) <= _MOST_NAMES:
                stream.writer.describe(threads=self._names)
        return recorder

    def install(self) -> Undo:
        """Finish with each thread when it ends; returns what ends that."""

        def around(original: Callable[[threading.Thread], None], thread: threading.Thread) -> None:
            try:
                original(thread)
            finally:
                recorder = self._others.pop(thread, None)
                if recorder is not None:
                    # What the thread gave to others was read by no record of its own.
                    recorder.run_unrecorded(recorder.note_unread)
                    recorder.is_active = False

        return wrap(threading.Thread, "_bootstrap_inner", around)

    def call(self, original: Callable[..., Any], *args: Any, **known: Any) -> Any:
        """Call a function that was compiled, which may execute it."""
        recorder = self.recorder()
        return original(*args, **known) if recorder is None else recorder.call(original, *args, **known)

    def execute(self, original: Callable[..., Any], execution: Any, *args: Any) -> Any:
        """Run a compiled program, and record it."""
        recorder = self.recorder()
        if recorder is None:
            return original(execution, *args)
        return recorder.execute(original, execution, *args, frame=sys._getframe(2))

    def escaped(self, name: str, array: Any) -> None:
        """A value of JAX is about to be given to Python."""
        recorder = self.recorder()
        if recorder is not None:
            recorder.run_unrecorded(_escaped, recorder, name, array, sys._getframe(1))

    def close(self, ending: Mapping[str, Any]) -> None:
        """Finish the stream of the threads, which record nothing more.

        Args:
            ending: What its description says at the end, besides the number of its records.
        """
        self._is_closed = True
        if self._stream is None:
            return
        for recorder in list(self._others.values()):
            recorder.run_unrecorded(recorder.note_unread)
            recorder.is_active = False
        writer = self._stream.writer
        writer.describe(records=writer.num_records, **ending)
        writer.close()


def _escaped(recorder: Recorder, name: str, array: Any, frame: Any) -> None:
    if array.is_deleted():
        return
    value = recorder.value(array)
    number = recorder.emit(Role.ESCAPE, name, [value], [(value.layout, value.digest)], frame=frame)
    if array.ndim == 0 and array.dtype.kind == "f":
        read = float(vars(type(array))["_value"].fget(array))
        recorder.writer.number(Meaning.READ, number, (value.record, value.output), read, recorder.progress.step)
