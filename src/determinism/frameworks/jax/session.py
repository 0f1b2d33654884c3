"""Starts and stops recording of JAX in this process, and gives each thread that uses JAX its recorder.

The main thread's records are in program order; all other threads share a stream, in the order of arrival. Arrays are immutable, so a thread identifies
arrays from other threads by their digests.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from threading import get_ident
from typing import Any

import jax
from jax._src import pjit
from jax._src.array import ArrayImpl
from jax._src.interpreters import pxla

from determinism import rng
from determinism.batch.jax import Rows
from determinism.compile_caches import FACT, state_of_cache
from determinism.frameworks.jax.arrays import array_of, as_array, digest
from determinism.frameworks.jax.recorder import Recorder
from determinism.frameworks.jax.training import STEPS_BY, Called
from determinism.frameworks.made_values import EXTERNAL, Value
from determinism.frameworks.named_stream import NamedLedger, Stream
from determinism.frameworks.progress import Progress, ThreadProgress, thread_of_program
from determinism.frameworks.session import AdapterSession
from determinism.frameworks.wrapping import Undo, hide_own_frames, wrap
from determinism.run_spec import RunSpec
from determinism.trace.schema import RESULTS_OP, Meaning
from determinism.trace.writer import ProcessWriter
from determinism.types import Level, ProcessFolders, Role

_MOST_NAMES = 64


class ThreadRecorder(Recorder):
    """Records the executions of a thread other than the main one; it ends no steps."""

    def attach(self, stream: Stream, number: int, process: Progress) -> None:
        """Record into the shared stream of threads from now on.

        Args:
            stream: The stream.
            number: Number of this thread.
            process: Progress of the main thread.
        """
        self.begin(stream)
        self.number = number
        self.progress = ThreadProgress(process, lambda counted_by: None)
        self.progress.phase = process.phase

    def note_unread(self) -> None:
        """Record unread values, each by itself and without a line: the work of each thread in a pool differs from run to run."""
        for value in self.values.unread.take():
            self.emit(Role.ESCAPE, RESULTS_OP, [value], has_place=False)

    def _read(self, function: Called | None, execution: Any, args: Sequence[Any]) -> list[Value]:
        return list(self.inputs(execution, args).values())


class Threads:
    """Finds the recorder of every thread."""

    def __init__(self, main: Recorder, open_stream: Callable[[], Stream | None], *, paranoid: bool) -> None:
        """Take the recorder of the main thread, and a function that opens the stream of all others.

        Args:
            main: Recorder of the thread that calls this.
            open_stream: Returns the stream; None if it cannot be written.
            paranoid: Whether to digest every input of every execution.
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
        """The recorder of this thread, ready to record; None if recording is not active now."""
        if get_ident() == self.main.thread:
            if self.main.is_active:
                return self.main if self.main.is_ready() else None
            # Another thread may be about to begin the recording; wait for it, to miss nothing of this one.
            with self._lock:
                return self.main if self.main.is_ready() else None
        thread = thread_of_program()
        if thread is None or self._is_closed:
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
        """Finish the recorder of each thread when the thread ends; return a function that stops it."""

        def around(original: Callable[[threading.Thread], None], thread: threading.Thread) -> None:
            try:
                original(thread)
            finally:
                recorder = self._others.pop(thread, None)
                if recorder is not None:
                    # No record of this thread read what it passed to others.
                    recorder.run_unrecorded(recorder.note_unread)
                    recorder.is_active = False

        return wrap(threading.Thread, "_bootstrap_inner", around)

    def call(self, original: Callable[..., Any], *args: Any, **known: Any) -> Any:
        """Call a compiled function, which may execute it."""
        recorder = self.recorder()
        return original(*args, **known) if recorder is None else recorder.call(original, *args, **known)

    def execute(self, original: Callable[..., Any], execution: Any, *args: Any) -> Any:
        """Run a compiled program, and record it."""
        recorder = self.recorder()
        if recorder is None:
            return original(execution, *args)
        return recorder.execute(original, execution, *args, frame=sys._getframe(2))

    def escaped(self, name: str, array: Any) -> None:
        """Record that a JAX value is about to be passed to Python."""
        recorder = self.recorder()
        if recorder is not None:
            recorder.run_unrecorded(_escaped, recorder, name, array, sys._getframe(1))

    def placed(
        self, original: Callable[..., Any], aval: Any, sharding: Any, given: Any, *args: Any, **known: Any
    ) -> Any:
        """Make a JAX array, and note whether it shares the memory of a NumPy array."""
        array = original(aval, sharding, given, *args, **known)
        recorder = self.recorder()
        if recorder is not None and len(given) == 1:
            recorder.run_unrecorded(recorder.shared_memory.made, array, given[0])
        return array

    def waited(self, original: Callable[..., Any], *args: Any, **known: Any) -> Any:
        """Wait until results are computed."""
        result = original(*args, **known)
        recorder = self.recorder()
        if recorder is not None:
            recorder.shared_memory.waited()
        return result

    def close(self, ending: Mapping[str, Any]) -> None:
        """Finish the stream of the threads, which record nothing more.

        Args:
            ending: Final facts for its description, in addition to the number of its records.
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
    if value.record != EXTERNAL:
        recorder.shared_memory.waited()
    number = recorder.emit(Role.ESCAPE, name, [value], [(value.layout, value.digest)], frame=frame)
    if array.ndim == 0 and array.dtype.kind == "f":
        read = float(vars(type(array))["_value"].fget(array))
        recorder.writer.number(Meaning.READ, number, (value.record, value.output), read, recorder.progress.step)


# Where values leave JAX: as NumPy arrays, as Python numbers, and as printed text.

_NAMES = {"__array__": "numpy", "_device_get": "numpy", "__reduce__": "pickle", "__repr__": "print", "__str__": "print", "__format__": "print"}  # fmt: skip


def watch_escapes(threads: Threads) -> list[Undo]:
    """Wrap the property that returns an array's value to Python; return a function that removes the wrapper.

    Direct reads of the memory, as by `numpy.asarray`, are not seen; see `Unread`.
    """
    original = vars(ArrayImpl)["_value"]

    def value(array: Any) -> Any:
        way = sys._getframe(1).f_code.co_name
        threads.escaped(f"determinism::{_NAMES.get(way, way.strip('_'))}", array)
        return original.fget(array)

    wrapper = property(value, doc=original.__doc__)
    ArrayImpl._value = wrapper  # type: ignore[assignment]

    def take_off() -> None:
        if vars(ArrayImpl)["_value"] is wrapper:
            ArrayImpl._value = original

    return [take_off]


# Makes the recorders see every execution of a compiled program.


def watch_executions(threads: Threads) -> list[Undo]:
    """Pass each execution to the recorder of its thread; return functions that remove the wrappers.

    JAX caches a C++ fast path for a function that was called before, on which executions are not seen. While a recorder exists, no
    such path is made; the functions then run the same programs, with some tens of microseconds of overhead.

    Raises:
        AttributeError: This version of JAX does not have one of these functions.
    """

    def no_shorter_way(original: Any, *args: Any, **kwargs: Any) -> None:
        return None

    # Discard the fast paths of functions that were called before, for instance before a recording within a program.
    type(pjit._cpp_pjit_cache_fun_only).clear_all()
    return [
        wrap(pjit, "_get_fastpath_data", no_shorter_way),
        wrap(pxla.MeshExecutable, "create_cpp_call", no_shorter_way),
        wrap(pjit, "_pjit_call_impl_python", threads.call),
        wrap(pxla.ExecuteReplicated, "__call__", threads.execute),
        wrap(pxla, "batched_device_put", threads.placed),
        wrap(jax, "block_until_ready", threads.waited),
        _watch_waits(threads),
    ]


def _watch_waits(threads: Threads) -> Undo:
    """Watch the method that waits for an array; a method in C++ lacks the names that other wrappers take over."""
    original = ArrayImpl.block_until_ready

    def block_until_ready(array: Any) -> Any:
        return threads.waited(original, array)

    ArrayImpl.block_until_ready = block_until_ready  # type: ignore[method-assign]

    def take_off() -> None:
        if ArrayImpl.block_until_ready is block_until_ready:
            ArrayImpl.block_until_ready = original  # type: ignore[method-assign]

    return take_off


_SETTINGS = (
    "jax_enable_x64", "jax_default_matmul_precision", "jax_default_prng_impl", "jax_threefry_partitionable", "jax_disable_jit",
)  # fmt: skip
_ALL_LEVELS = "JAX is recorded execution by execution at every level"
_FORKED = (
    "A process that was forked after JAX had been used also used JAX, and was not recorded. Use the start method spawn."
)


def _compile_cache() -> dict[str, str]:
    """State of XLA's persistent compilation cache, if the environment or the program sets one."""
    folder = getattr(jax.config, "jax_compilation_cache_dir", None)
    return {f"{FACT}JAX": state_of_cache(Path(folder))} if folder and "://" not in folder else {}


class Session(AdapterSession):
    """One recording of this process, from the first execution after its creation to `close`.

    Libraries import JAX in programs that never use it, so no trace is created before the first execution.
    """

    framework = "jax"
    tensors = "arrays"
    _used_after_fork = _FORKED

    def __init__(self, folders: ProcessFolders, spec: RunSpec) -> None:
        super().__init__(folders, spec)
        self.recorder = Recorder(paranoid=spec.paranoid)
        self._rows: Rows | None = None
        self.recorder.on_first_op = self._begin
        self.recorder.step_ended = self._end_step
        self.recorder.step_passed = self._end_if_asked
        self.threads = Threads(self.recorder, self._open_thread_stream, paranoid=spec.paranoid)
        self._show_own_frames = hide_own_frames()
        self._undo += [*watch_executions(self.threads), *watch_escapes(self.threads), self.threads.install()]

    @property
    def has_begun(self) -> bool:
        """Whether this process has a trace of its use of JAX."""
        return bool(self.recorder.is_active)

    def _begin(self, recorder: Recorder) -> None:
        recorder.on_first_op = None
        try:
            self._open(_compile_cache(), {name: str(getattr(jax.config, name)) for name in _SETTINGS})
        except OSError as error:
            self._folders.failed(f"The use of JAX in process {os.getpid()} is not recorded: {error}")
            return
        if self.level is not Level.OP:
            self.writer.blind_spot("level", f"level {self.level.value}", _ALL_LEVELS)
        recorder.begin(Stream(self.writer))
        if self._keeps_ledger:
            recorder.ledger = NamedLedger(self.writer.folder, recorder.stream)
        recorder.capture = self._capture(as_array, digest)
        if self._spec.rows is not None:
            self._rows = Rows(self._spec.rows, self.writer.folder, self._rows_are_cut)
            recorder.rows = self._rows
        if self._outermost is not None:
            self.begin_at(self._outermost)

    def _open_thread_stream(self) -> Stream | None:
        def make(folder: Path) -> Stream:
            description = {**self.describe("threads", {}, {}), "part_of": self.writer.folder.name}
            return Stream(ProcessWriter(folder, description=description, max_bytes=self._spec.max_disk))

        return self._thread_stream("executions of threads", make)

    def _rows_are_cut(self, reason: str) -> None:
        self.writer.blind_spot("rows-cut", "rows of executions", reason)

    def _record_state(self, op: str) -> None:
        """Record values that may have left JAX unseen, the training state, and the process-wide generators."""
        self.recorder.note_unread()
        self.recorder.note_held(op, list(rng.state_digests().values()))

    def _finish_trace(self) -> None:
        progress, steps = self.recorder.progress, self._spec.steps
        if progress.steps_by == STEPS_BY and (steps is None or progress.step < steps):
            # No other call of the training function follows the last one, to end its step.
            self.recorder.run_unrecorded(progress.trains_again, STEPS_BY)
        self.threads.close({"steps": 0})
        super()._finish_trace()
        if self._rows is not None:
            self._rows.close()

    def note_earlier_threads(self) -> None:
        """Do nothing: threads that started before JAX was imported are recorded like all others."""

    def _tensors_in(self, value: Any) -> list[Any]:
        return [array for leaf in jax.tree_util.tree_leaves(value) if (array := array_of(leaf)) is not None]

    def forked(self) -> None:
        """Adjust to being a forked child, which can use JAX, and is recorded, if JAX was not used before."""
        was_active = self.has_begun
        super().forked()
        if self._undo and not was_active:
            self.recorder.on_first_op = self._begin
