"""Switches recording on in this process, and off again."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Any

import tensorflow as tf
from tensorflow.python.eager import context, execute
from tensorflow.python.eager.polymorphic_function import atomic_function

from determinism import environment
from determinism.frameworks.earlier_threads import note_earlier_threads
from determinism.frameworks.tensorflow import escapes
from determinism.frameworks.tensorflow.capture import Capture
from determinism.frameworks.tensorflow.earlier import earlier_functions
from determinism.frameworks.tensorflow.function_probes import Probe
from determinism.frameworks.tensorflow.held import HeldVariables, generator_states, record_held
from determinism.frameworks.tensorflow.optimization import Optimization
from determinism.frameworks.tensorflow.recorder import Recorder
from determinism.frameworks.tensorflow.settings_recorded import libraries, settings
from determinism.frameworks.tensorflow.stream import Stream
from determinism.frameworks.tensorflow.threads import OtherThreads
from determinism.frameworks.tracebacks import hide_own_frames
from determinism.frameworks.wrapping import wrap
from determinism.process_name import world_size
from determinism.settings import left_open
from determinism.trace.schema import END_OP, STEP_OP
from determinism.trace.writer import ProcessWriter
from determinism.types import Level, Phase, ProcessFolders, RecordingOptions, Role

_NO_LAYERS = "they are not recorded; what is held at the ends of steps is, and --level op records every op"
_FORKED = "A process that was forked after TensorFlow was imported used TensorFlow, and was not recorded. Start it with the method spawn."


class Session:
    """One recording of this process, from `start` to `close`."""

    def __init__(self, folders: ProcessFolders, options: RecordingOptions) -> None:
        self.level = Level(options.level)
        self._folders = folders
        self._options = options
        self._process = os.getpid()
        self._num_batches = 0
        self._racy: list[str] = []
        self._held = HeldVariables()
        self._undo: list[Callable[[], None]] = []
        self.recorder = Recorder(tracks_ops=self.level is Level.OP, paranoid=options.paranoid)
        self._threads = OtherThreads(self.recorder, self.note_racy)
        self._show_own_frames = hide_own_frames()
        self._begin()
        self._install()

    @property
    def num_records(self) -> int:
        """How many records this process has made."""
        return self.writer.num_records

    def _begin(self) -> None:
        folder = self._folders.claim(None)
        self.writer = ProcessWriter(
            folder,
            description={
                "framework": "tensorflow",
                "level": self.level.value,
                "stream": "process",
                "steps_by": None,
                "argv": sys.argv,
                "started": time.time(),
                "world_size": world_size(),
                "environment": {**environment.describe(), **libraries()},
                "settings": settings(),
            },
            max_bytes=self._options.max_disk,
        )
        if self._options.values is not None:
            self.writer.blind_spot("values", "values of tensors", "they are kept of PyTorch's tensors only")
        self.recorder.step_ended = self._step_ended
        self.recorder.arrived = self._batch_arrived
        self.recorder.note_racy = self.note_racy
        self.recorder.begin(Stream(self.writer))
        request = self._options.capture
        if request is not None and request["process"] == folder.name:
            self.recorder.capture = Capture(request, folder, self.finish_program)
            Probe.keeps_arrays = True

    def _install(self) -> None:
        recorder = self.recorder
        self._undo += Optimization(recorder, self._held, self._end_if_asked).install()
        for name, graph in earlier_functions():
            recorder.calls.library.made(name, graph)
        self._undo.append(wrap(atomic_function, "from_func_graph", self._function_made))
        self._undo.append(wrap(context.Context, "call_function", self._function_called))
        if self.level is not Level.OP:
            if self.level is Level.MODULE:
                self.writer.blind_spot("level", "calls of layers", _NO_LAYERS)
            return
        self._undo.append(self._threads.install())
        self._undo += escapes.install(recorder)
        self._undo += recorder.keras_seeds.install()
        callbacks = context.context()._thread_local_data.op_callbacks
        callbacks.append(recorder.op_ran)
        self._undo.append(lambda: callbacks.remove(recorder.op_ran) if recorder.op_ran in callbacks else None)
        if execute.execute is execute.quick_execute:
            execute.execute = execute.execute_with_callbacks
            self._undo.append(lambda: setattr(execute, "execute", execute.quick_execute))

    def _function_made(self, original: Callable[..., Any], name: Any, graph: Any, *args: Any, **kwargs: Any) -> Any:
        function = original(name, graph, *args, **kwargs)
        try:
            self.recorder.calls.library.made(function.name.decode(), graph)
        except Exception as error:
            self.recorder.failed("functions", error)
        return function

    def _function_called(
        self, original: Callable[..., Any], held: Any, name: bytes, inputs: list[Any], num_outputs: int
    ) -> Any:
        recorder = self.recorder
        if not recorder.is_own():
            self._threads.used()
            return original(held, name, inputs, num_outputs)
        if self.level is Level.OP:
            return recorder.calls.call(original, held, name, inputs, num_outputs)
        outputs = original(held, name, inputs, num_outputs)
        recorder.calls.returned(recorder.calls.library.graphs.get(name.decode()))
        return outputs

    def note_racy(self, what: str) -> None:
        """The program does something whose order may vary, so that two equal runs say less."""
        if what not in self._racy:
            self._racy.append(what)
            self.writer.describe(racy=self._racy)

    def begin_at(self, frame: FrameType) -> None:
        """Stacks end with the frame that the recording was begun in, and that frame does not tell records apart."""
        self.recorder.stream.sites.outermost = frame
        self.writer.describe(begun_in=[os.path.abspath(frame.f_code.co_filename), frame.f_code.co_qualname])

    def note_earlier_threads(self) -> None:
        """Threads that the program started before it imported the framework are not recorded."""
        names = [thread.name for thread in threading.enumerate() if thread.ident != self.recorder.thread]
        note_earlier_threads(self.writer, names)

    def step(self) -> None:
        """`determinism.step()`: a step ends here."""
        if self.recorder.is_own():
            self.recorder.quietly(self.recorder.progress.explicit)
            self._end_if_asked()

    def _batch_arrived(self) -> None:
        self._num_batches += 1
        progress = self.recorder.progress
        if progress.phase in (Phase.INIT, Phase.DATA):
            progress.phase = Phase.FORWARD
        steps = self._options.steps
        if steps is not None and progress.steps_by is None and self._num_batches > steps and not self._held.has_any:
            self.finish_program("steps")

    def _step_ended(self, counted_by: str) -> None:
        recorder = self.recorder
        if recorder.progress.step == 0:
            recorder.writer.describe(steps_by=counted_by)
        record_held(recorder, self._held, STEP_OP, generator_states())
        recorder.writer.boundary()

    def _end_if_asked(self) -> None:
        steps = self._options.steps
        if steps is not None and self.recorder.progress.step >= steps:
            self.finish_program("steps")

    def returned(self, value: Any) -> None:
        """A checked function returned: its tensors leave the framework."""
        tensors = [one for one in tf.nest.flatten(value) if tf.is_tensor(one) and hasattr(one, "_id")]
        if tensors:
            self.recorder.quietly(self._record_returned, tensors)

    def _record_returned(self, tensors: list[Any]) -> None:
        values = [self.recorder.value(tensor) for tensor in tensors]
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
        """This is a forked child: the files belong to the parent, and TensorFlow does not work here."""
        if self._undo:
            self.recorder.is_active = False
            self.recorder.wake = self._used_in_child

    def _used_in_child(self, recorder: Recorder) -> None:
        recorder.wake = None
        self._folders.failed(_FORKED)

    def close(self) -> None:
        """Stop recording and finish the files; the second call does nothing."""
        if self._process != os.getpid() or not self._undo:
            return
        recorder = self.recorder
        recorder.quietly(record_held, recorder, self._held, END_OP, generator_states())
        progress = recorder.progress
        self.writer.describe(
            records=self.writer.num_records,
            steps=progress.step if progress.steps_by is not None else self._num_batches,
            steps_by=progress.steps_by,
            step_seconds=progress.step_seconds,
            open_settings=left_open.facts(),
        )
        recorder.is_active = False
        recorder.stream.sites.outermost = None
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()
        self.writer.close()

    def leave(self) -> None:
        """Close, and show our frames again."""
        self.close()
        self._show_own_frames()


def start(folders: ProcessFolders, options: RecordingOptions) -> Session:
    """Begin to record this process.

    Args:
        folders: Make the place in the trace for this process.
        options: What to record.

    Raises:
        OSError: The trace cannot be written.
    """
    return Session(folders, options)
