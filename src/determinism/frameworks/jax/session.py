"""Starts and stops recording of JAX in this process."""

from __future__ import annotations

import os
import sys
from typing import Any

import jax
from jax._src import pjit
from jax._src.array import ArrayImpl
from jax._src.interpreters import pxla

from determinism import rng
from determinism.batch.jax import Rows
from determinism.frameworks.jax.arrays import array_of, as_array, digest
from determinism.frameworks.jax.recorder import Recorder
from determinism.frameworks.jax.training import STEPS_BY
from determinism.frameworks.named_stream import Stream
from determinism.frameworks.session import AdapterSession
from determinism.frameworks.tracebacks import hide_own_frames
from determinism.frameworks.unrecorded_threads import UnrecordedThreads, note_earlier_threads
from determinism.frameworks.wrapping import Undo, wrap
from determinism.run_spec import RunSpec
from determinism.trace.schema import Meaning
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
            recorder.run_unrecorded(_escaped, recorder, f"determinism::{_NAMES.get(way, way.strip('_'))}", array)
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
        wrap(pjit, "_pjit_call_impl_python", recorder.call),
        wrap(pxla.ExecuteReplicated, "__call__", recorder.execute),
    ]


_SETTINGS = (
    "jax_enable_x64", "jax_default_matmul_precision", "jax_default_prng_impl", "jax_threefry_partitionable", "jax_disable_jit",
)  # fmt: skip
_ALL_LEVELS = "JAX is recorded execution by execution at every level"
_ELSEWHERE = "executions in threads other than the one that imported JAX are not recorded"
_FORKED = "A process that was forked after JAX was used used JAX, and was not recorded. Use the start method spawn."


class Session(AdapterSession):
    """One recording of this process, from the first execution after it was made to `close`.

    Libraries import JAX for programs that never use it, so nothing is made before something runs.
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
        threads = UnrecordedThreads(_ELSEWHERE, lambda: self.writer if self.has_begun else None, self.note_racy)
        self.recorder.used_elsewhere = threads.used
        self._show_own_frames = hide_own_frames()
        self._undo += [*watch_executions(self.recorder), *watch_escapes(self.recorder)]

    @property
    def has_begun(self) -> bool:
        """Whether this process has a trace of what it does with JAX."""
        return bool(self.recorder.is_active)

    def _begin(self, recorder: Recorder) -> None:
        recorder.on_first_op = None
        try:
            self._open({}, {name: str(getattr(jax.config, name)) for name in _SETTINGS})
        except OSError as error:
            self._folders.failed(f"What process {os.getpid()} does with JAX is not recorded: {error}")
            return
        if self.level is not Level.OP:
            self.writer.blind_spot("level", f"level {self.level.value}", _ALL_LEVELS)
        note_earlier_threads(self.writer, self._earlier_threads)
        recorder.begin(Stream(self.writer))
        recorder.capture = self._capture(as_array, digest)
        if self._spec.rows is not None:
            self._rows = Rows(self._spec.rows, self.writer.folder, self._rows_are_cut)
            recorder.rows = self._rows
        if self._outermost is not None:
            self.begin_at(self._outermost)

    def _rows_are_cut(self, reason: str) -> None:
        self.writer.blind_spot("rows-cut", "rows of executions", reason)

    def _record_state(self, op: str) -> None:
        """Record what may have left JAX unseen, and the states of the generators that everything in this process shares."""
        self.recorder.note_unread()
        self.recorder.note_held(op, list(rng.state_digests().values()))

    def _finish_trace(self) -> None:
        progress, steps = self.recorder.progress, self._spec.steps
        if progress.steps_by == STEPS_BY and (steps is None or progress.step < steps):
            # The last call of the function that trains is followed by no other that would end its step.
            self.recorder.run_unrecorded(progress.trains_again, STEPS_BY)
        super()._finish_trace()
        if self._rows is not None:
            self._rows.close()

    def _tensors_in(self, value: Any) -> list[Any]:
        return [array for leaf in jax.tree_util.tree_leaves(value) if (array := array_of(leaf)) is not None]

    def forked(self) -> None:
        """This is a forked child; where JAX was not used before, it works and is recorded."""
        was_active = self.has_begun
        super().forked()
        if self._undo and not was_active:
            self.recorder.on_first_op = self._begin
