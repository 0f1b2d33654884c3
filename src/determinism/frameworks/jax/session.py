"""Starts and stops recording of JAX in this process."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

import jax
from jax._src import pjit
from jax._src.array import ArrayImpl
from jax._src.interpreters import pxla

from determinism import environment, rng
from determinism.frameworks.array_capture import Capture
from determinism.frameworks.earlier_threads import note_earlier_threads, program_threads
from determinism.frameworks.jax.recorder import Recorder, array_of, as_array, digest
from determinism.frameworks.named_stream import Stream
from determinism.frameworks.tracebacks import hide_own_frames
from determinism.frameworks.unrecorded_threads import UnrecordedThreads
from determinism.frameworks.wrapping import Undo, wrap
from determinism.knowledge import settings
from determinism.process_name import world_size
from determinism.redaction import redacted
from determinism.run_spec import RunSpec
from determinism.trace.schema import END_OP, STEP_OP, Meaning
from determinism.trace.writer import ProcessWriter
from determinism.types import Level, ProcessFolders, Role

# Where values leave JAX: as NumPy arrays, as Python numbers, and in print.

_NAMES = {"__array__": "numpy", "_device_get": "numpy", "__reduce__": "pickle", "__repr__": "print", "__str__": "print", "__format__": "print"}  # fmt: skip


def watch_escapes(recorder: Recorder) -> list[Undo]:
    """Wrap the property through which an array gives its value to Python; returns what takes that off.

    What reads the memory itself, as `numpy.asarray` does, is not seen; see `Unread`.
    """
    original = vars(ArrayImpl)["_value"]

    def value(array: Any) -> Any:
        if recorder.is_active and recorder.is_own():
            way = sys._getframe(1).f_code.co_name
            recorder.quietly(_escaped, recorder, f"determinism::{_NAMES.get(way, way.strip('_'))}", array)
        return original.fget(array)

    wrapper = property(value, doc=original.__doc__)
    ArrayImpl._value = wrapper  # type: ignore[assignment]

    def take_off() -> None:
        if vars(ArrayImpl)["_value"] is wrapper:
            ArrayImpl._value = original

    return [take_off]


def _escaped(recorder: Recorder, name: str, array: Any) -> None:
    if array.is_deleted():
        return
    value = recorder.value(array)
    number = recorder.emit(Role.ESCAPE, name, [value], [(value.layout, value.digest)], frame=sys._getframe(2))
    if array.ndim == 0 and array.dtype.kind == "f":
        read = float(vars(type(array))["_value"].fget(array))
        recorder.writer.number(Meaning.READ, number, (value.record, value.output), read, recorder.progress.step)


# Lets a recorder see every execution of a compiled program.


def watch_executions(recorder: Recorder) -> list[Undo]:
    """Hand each execution to a recorder; returns what takes each wrapper off.

    JAX keeps a way through C++ for a function that was called before, on which no execution is seen. While a recorder is there no
    such way is made; the functions then run the same programs, some tens of microseconds later.

    Raises:
        AttributeError: This version of JAX has none of these places.
    """

    def no_shorter_way(original: Any, *args: Any, **kwargs: Any) -> None:
        return None

    # Of functions that were called before, such as in the time before a recording within a program.
    type(pjit._cpp_pjit_cache_fun_only).clear_all()
    return [
        wrap(pjit, "_get_fastpath_data", no_shorter_way),
        wrap(pxla.MeshExecutable, "create_cpp_call", no_shorter_way),
        wrap(pxla.ExecuteReplicated, "__call__", recorder.execute),
    ]


_SETTINGS = (
    "jax_enable_x64", "jax_default_matmul_precision", "jax_default_prng_impl", "jax_threefry_partitionable", "jax_disable_jit",
)  # fmt: skip
_ALL_LEVELS = "JAX is recorded execution by execution at every level"
_ELSEWHERE = "executions in threads other than the one that imported JAX are not recorded"
_FORKED = "A process that was forked after JAX was used did something with JAX, and was not recorded. Start it with the method spawn."


class Session:
    """One recording of this process, from the first execution after `start` to `close`.

    Libraries import JAX for programs that never use it, so nothing is made before something runs.
    """

    def __init__(self, folders: ProcessFolders, options: RunSpec) -> None:
        self.level = Level(options.level)
        self._folders = folders
        self._options = options
        self._process = os.getpid()
        self._racy: list[str] = []
        self._outermost: FrameType | None = None
        self._earlier_threads: list[str] = []
        self.recorder = Recorder(paranoid=options.paranoid)
        self.recorder.wake = self._begin
        self.recorder.step_ended = self._step_ended
        threads = UnrecordedThreads(_ELSEWHERE, lambda: self.writer if self.has_begun else None, self.note_racy)
        self.recorder.used_elsewhere = threads.used
        self._show_own_frames = hide_own_frames()
        self._undo: list[Callable[[], None]] = [*watch_executions(self.recorder), *watch_escapes(self.recorder)]

    @property
    def has_begun(self) -> bool:
        """Whether this process has a trace of what it does with JAX."""
        return self.recorder.is_active

    @property
    def num_records(self) -> int:
        """How many records this process has made."""
        return self.writer.num_records if self.has_begun else 0

    def _begin(self, recorder: Recorder) -> None:
        recorder.wake = None
        try:
            folder = self._folders.claim(None)
            self.writer = self._writer_in(folder)
        except OSError as error:
            self._folders.failed(f"What process {os.getpid()} does with JAX is not recorded: {error}")
            return
        self._note_what_is_left_out()
        recorder.begin(Stream(self.writer))
        request = self._options.capture
        if request is not None and request["process"] == folder.name:
            recorder.capture = Capture(request, folder, self.finish_program, as_array=as_array, digest=digest)
        if self._outermost is not None:
            self.begin_at(self._outermost)

    def _writer_in(self, folder: Path) -> ProcessWriter:
        return ProcessWriter(
            folder,
            description={
                "framework": "jax",
                "level": self.level.value,
                "stream": "process",
                "steps_by": None,
                "argv": redacted(sys.argv),
                "started": time.time(),
                "world_size": world_size(),
                "environment": environment.describe(),
                "settings": {name: str(getattr(jax.config, name)) for name in _SETTINGS},
            },
            max_bytes=self._options.max_disk,
        )

    def _note_what_is_left_out(self) -> None:
        if self.level is not Level.OP:
            self.writer.blind_spot("level", f"level {self.level.value}", _ALL_LEVELS)
        if self._options.values is not None:
            self.writer.blind_spot("values", "values of arrays", "they are kept of PyTorch's tensors only")
        note_earlier_threads(self.writer, self._earlier_threads)

    def note_racy(self, what: str) -> None:
        """The program does something whose order may vary, so that two equal runs say less."""
        if what not in self._racy:
            self._racy.append(what)
            self.writer.describe(racy=self._racy)

    def begin_at(self, frame: FrameType) -> None:
        """Stacks end with the frame that the recording was begun in, and that frame does not tell records apart."""
        self._outermost = frame
        if self.has_begun:
            self.recorder.stream.sites.outermost = frame
            self.writer.describe(begun_in=[os.path.abspath(frame.f_code.co_filename), frame.f_code.co_qualname])

    def note_earlier_threads(self) -> None:
        """Threads that the program started before it imported the framework are not recorded."""
        self._earlier_threads = program_threads({self.recorder.thread})

    def step(self) -> None:
        """`determinism.step()`: a step ends here."""
        if self.has_begun and self.recorder.is_own():
            self.recorder.quietly(self.recorder.progress.explicit)
            steps = self._options.steps
            if steps is not None and self.recorder.progress.step >= steps:
                self.finish_program("steps")

    def _step_ended(self, counted_by: str) -> None:
        if self.recorder.progress.step == 0:
            self.writer.describe(steps_by=counted_by)
        self._record_state(STEP_OP)
        self.writer.boundary()

    def _record_state(self, name: str) -> None:
        """Record what may have left JAX unseen, and the states of the generators that everything in this process shares."""
        recorder = self.recorder
        recorder.note_unread()
        recorder.emit(Role.STATE, name, [], arguments="[]", drawn=list(rng.state_digests().values()))

    def returned(self, value: Any) -> None:
        """A checked function returned: its arrays leave the framework."""
        arrays = [array for one in jax.tree_util.tree_leaves(value) if (array := array_of(one)) is not None]
        if arrays and self.has_begun:
            self.recorder.quietly(self._record_returned, arrays)

    def _record_returned(self, arrays: list[Any]) -> None:
        values = [self.recorder.value(array) for array in arrays]
        made = [(value.layout, value.digest) for value in values]
        self.recorder.emit(Role.ESCAPE, "determinism::return", values, made)

    def finish_program(self, reason: str) -> None:
        """End the trace and the program with it."""
        self.writer.describe(finished=reason)
        self.close()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)

    def forked(self) -> None:
        """This is a forked child: the files belong to the parent, and JAX, which has threads, does not work here."""
        if self._undo:
            was_active, self.recorder.is_active = self.recorder.is_active, False
            self.recorder.wake = self._used_in_child if was_active else self._begin

    def _used_in_child(self, recorder: Recorder) -> None:
        recorder.wake = None
        self._folders.failed(_FORKED)

    def close(self) -> None:
        """Stop recording and finish the files; the second call does nothing."""
        if self._process != os.getpid() or not self._undo:
            return
        if self.has_begun:
            self._finish_files()
        self.recorder.wake = None
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()

    def _finish_files(self) -> None:
        recorder = self.recorder
        recorder.quietly(self._record_state, END_OP)
        progress = recorder.progress
        self.writer.describe(
            records=self.writer.num_records,
            steps=progress.step,
            steps_by=progress.steps_by,
            step_seconds=progress.step_seconds,
            open_settings=settings.facts(),
        )
        recorder.is_active = False
        recorder.stream.sites.outermost = None
        self.writer.close()

    def leave(self) -> None:
        """Close, and show our frames again."""
        self.close()
        self._show_own_frames()


def start(folders: ProcessFolders, options: RunSpec) -> Session:
    """Begin to record this process as soon as it uses JAX.

    Args:
        folders: Make the place in the trace for this process.
        options: What to record.

    Raises:
        AttributeError: This version of JAX has not what executions are seen through.
    """
    return Session(folders, options)
