"""The common part of all frameworks' recordings: an adapter's `Session` adds how its framework is observed."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from determinism import environment
from determinism.frameworks.progress import note_earlier_threads, program_threads
from determinism.knowledge import settings
from determinism.process_name import world_size
from determinism.redaction import redacted
from determinism.run_spec import RunSpec
from determinism.trace.schema import END_OP, STEP_OP
from determinism.trace.writer import ProcessWriter
from determinism.types import Level, Phase, ProcessFolders, Role

if TYPE_CHECKING:
    from determinism.frameworks.array_capture import Capture


class AdapterSession:
    """One recording of this process, from its creation to `close`.

    An adapter names its framework, opens the trace with `_open`, and implements `_record_state` and `_tensors_in`.
    """

    framework: str
    """The framework's name in `process.json`."""
    recorder: Any
    """The recorder of the main thread."""
    writer: ProcessWriter
    """The writer of this process; exists once the recording has begun."""
    tensors = "tensors"
    """The framework's word for tensors."""
    _used_after_fork: str
    """Message that a forked child used the framework unrecorded."""
    _show_own_frames: Callable[[], None]

    def __init__(self, folders: ProcessFolders, spec: RunSpec) -> None:
        """Prepare; nothing is recorded yet.

        Args:
            folders: Creates the folder of this process in the trace.
            spec: What to record.
        """
        self.level = Level(spec.level)
        self._folders = folders
        self._spec = spec
        self._process = os.getpid()
        self._num_batches = 0
        self._racy: list[str] = []
        self._earlier_threads: list[str] = []
        self._outermost: FrameType | None = None
        self._undo: list[Callable[[], None]] = []
        """Functions that remove all wrappers; empty once the recording has ended."""
        self.on_early_end: Callable[[], None] = lambda: None
        """Called when the program is ended after the requested steps, or once a record was examined."""
        self.ends_program = True
        """Whether the program ends with the recording, after the requested steps; if not, it continues unrecorded."""

    @property
    def has_begun(self) -> bool:
        """Whether this process has a trace of its use of the framework; some adapters create it at first use."""
        return True

    @property
    def num_records(self) -> int:
        """Number of records that this process has made."""
        return self.writer.num_records if self.recorder.is_active else 0

    @property
    def _keeps_ledger(self) -> bool:
        """Whether a ledger of the steps is kept."""
        return self.level is Level.STEP or self._spec.window is not None or self._spec.keeps_newest

    # Filled in by adapters.

    def _record_state(self, op: str) -> None:
        """Record the program's state at the end of a step, or of the program.

        Args:
            op: Name of the record.
        """
        raise NotImplementedError

    def _tensors_in(self, value: Any) -> list[Any]:
        """The framework's tensors in what a checked function returned."""
        raise NotImplementedError

    def _has_optimizer(self) -> bool:
        """Whether the program has an optimizer, whose steps will count once it steps."""
        return False

    # The trace.

    def describe(self, stream: str, environ: dict[str, Any], set_to: dict[str, Any]) -> dict[str, Any]:
        """The facts in `process.json` from the start.

        Args:
            stream: Kind of stream: `process`, `threads`, `worker`, `pool`.
            environ: Facts about the environment of the process.
            set_to: Values of the framework's settings.
        """
        return {
            "framework": self.framework,
            "level": self.level.value,
            "stream": stream,
            "steps_by": None,
            "argv": redacted(sys.argv),
            "started": time.time(),
            "environment": environ,
            "settings": set_to,
        }

    def _open(self, libraries: dict[str, Any], set_to: dict[str, Any]) -> None:
        """Open the trace of this process.

        Raises:
            OSError: It cannot be written.
        """
        folder = self._folders.claim(None)
        description = self.describe("process", {**environment.describe(), **libraries}, set_to)
        self.writer = ProcessWriter(
            folder,
            description={**description, "world_size": world_size()},
            max_bytes=self._spec.max_disk,
            keeps_newest=self._spec.keeps_newest,
        )
        if self._spec.window is not None:
            # More than requested is recorded; the runs can still be compared.
            self.writer.blind_spot(
                "window",
                "--from-step",
                "ops are recorded from the beginning: only PyTorch's ops can be recorded from a later step on",
            )
        if self._spec.values is not None:
            self.writer.blind_spot("values", f"values of {self.tensors}", "they are kept only for PyTorch tensors")

    def _thread_stream(self, what: str, make: Callable[[Path], Any]) -> Any:
        """The stream that all threads but the main one share; None if it cannot be written.

        Args:
            what: What of these threads it records.
            make: Makes the stream in a folder.
        """
        folder = self.writer.folder.with_name(f"{self.writer.folder.name}.threads")
        try:
            folder.mkdir(mode=0o700)
            stream = make(folder)
        except OSError as error:
            self.writer.blind_spot("thread", what, f"their trace cannot be written: {error}")
            return None
        stream.sites.outermost = self._outermost
        self.note_racy("threads")
        return stream

    def _capture(self, as_array: Callable[[Any], Any], digest: Callable[[Any], bytes]) -> Capture | None:
        """The object that examines a record of this process; None if no record of it is requested.

        Args:
            as_array: Converts a tensor to a NumPy array.
            digest: Returns the digest of such an array.
        """
        request = self._spec.capture
        if request is None or request["process"] != self.writer.folder.name:
            return None
        # Only runs that examine a record need this module.
        from determinism.frameworks.array_capture import Capture

        return Capture(request, self.writer.folder, self._captured, as_array=as_array, digest=digest)

    def _captured(self, reason: str) -> None:
        """End the program after a record was examined, if the request says so."""
        if self._spec.capture is not None and self._spec.capture["ends"]:
            self.finish_program(reason)

    def note_racy(self, what: str) -> None:
        """Note that the program does something whose order may vary, so that two equal runs prove less."""
        if what not in self._racy:
            self._racy.append(what)
            self.writer.describe(racy=self._racy)

    def begin_at(self, frame: FrameType) -> None:
        """End stacks at the frame in which the recording was begun; that frame's line does not distinguish records."""
        self._outermost = frame
        if self.has_begun:
            self.recorder.stream.sites.outermost = frame
            self.writer.describe(begun_in=[os.path.abspath(frame.f_code.co_filename), frame.f_code.co_qualname])

    def note_earlier_threads(self) -> None:
        """Report the threads that the program started before it imported the framework: they are not recorded."""
        self._earlier_threads = self._find_earlier_threads()
        if self.recorder.is_active:
            note_earlier_threads(self.writer, self._earlier_threads)

    def _find_earlier_threads(self) -> list[str]:
        return program_threads({self.recorder.thread})

    # Steps.

    def step(self) -> None:
        """End a step, for `determinism.step()`."""
        if self.has_begun and self.recorder.is_own():
            self.recorder.run_unrecorded(self.recorder.progress.explicit)
            self._end_if_asked()

    def _batch_arrived(self) -> None:
        """Note that the program got a batch of data; if no optimizer counts steps, batches do."""
        self._num_batches += 1
        progress = self.recorder.progress
        if progress.phase in (Phase.INIT, Phase.DATA):
            progress.phase = Phase.FORWARD
        steps = self._spec.steps
        if steps is not None and progress.steps_by is None and self._num_batches > steps and not self._has_optimizer():
            self.finish_program("steps")

    def _end_step(self, counted_by: str) -> None:
        if self.recorder.progress.num_ended == 0:
            self.writer.describe(steps_by=counted_by)
        self._record_state(STEP_OP)
        self.writer.boundary()

    def _end_if_asked(self) -> None:
        steps = self._spec.steps
        if steps is not None and self.recorder.progress.step >= steps:
            self.finish_program("steps")

    # What a checked function returned.

    def returned(self, value: Any) -> None:
        """Record that a checked function returned: its tensors leave the framework."""
        tensors = self._tensors_in(value)
        if tensors and self.has_begun:
            self.recorder.run_unrecorded(self._record_returned, tensors)

    def _record_returned(self, tensors: Sequence[Any]) -> None:
        values = [self.recorder.value(tensor) for tensor in tensors]
        made = [(value.layout, value.digest) for value in values]
        self.recorder.emit(Role.ESCAPE, "determinism::return", values, made)

    # The end.

    def forked(self) -> None:
        """Stop recording in a forked child: the files belong to the parent, and the framework does not work here."""
        if self._undo:
            self.recorder.is_active = False
            self.recorder.on_first_op = self._used_in_child

    def _used_in_child(self, recorder: Any) -> None:
        recorder.on_first_op = None
        self._folders.failed(self._used_after_fork)

    def finish_program(self, reason: str) -> None:
        """End the trace, and the program with it unless it should continue."""
        self.writer.describe(finished=reason)
        if not self.ends_program:
            # Our frames stay hidden until `leave`, at the end of the recorded block.
            self.close()
            return
        if threading.current_thread() is threading.main_thread():
            # Other threads must not undo what the main thread's stack still uses; the records are on the disk anyway.
            self.close()
        self.on_early_end()
        sys.stdout.flush()
        sys.stderr.flush()
        try:
            _end_children()
        finally:
            os._exit(0)

    def close(self) -> None:
        """Stop recording and finish the files; the second call does nothing."""
        if self._process != os.getpid() or not self._undo:
            return
        if self.recorder.is_active:
            if ends_interrupted():
                self.writer.interrupted()
            self._finish_trace()
        self._stop_recorder()
        for undo in reversed(self._undo):
            undo()
        self._undo.clear()

    def _stop_recorder(self) -> None:
        """Keep the recorder from beginning again."""
        self.recorder.on_first_op = None

    def _finish_trace(self) -> None:
        self.recorder.run_unrecorded(self._record_state, END_OP)
        self.writer.describe(**self._ending())
        self.recorder.is_active = False
        if self.recorder.ledger is not None:
            self.recorder.ledger.close()
        self.recorder.stream.sites.outermost = None
        self.writer.close()

    def _ending(self) -> dict[str, Any]:
        """The facts added to `process.json` at the end."""
        progress = self.recorder.progress
        recorded = progress.step - max(self._spec.first_step, self._spec.window or 0)
        return {
            "records": self.writer.num_records,
            "steps": max(recorded, 0) if progress.steps_by is not None else self._num_batches,
            "steps_by": progress.steps_by,
            "step_seconds": progress.step_seconds,
            "open_settings": settings.facts(),
        }

    def leave(self) -> None:
        """Close, and show our frames again."""
        self.close()
        self._show_own_frames()


def ends_interrupted() -> bool:
    """Whether Python is ending because of a `KeyboardInterrupt` that the program did not catch."""
    # `last_exc` is new in Python 3.12.
    newest = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    return isinstance(newest, KeyboardInterrupt)


_PATIENCE_SECONDS = 10.0
"""How long a process may keep working that the program itself would have ended."""


def _end_children() -> None:
    """End processes that `multiprocessing` started: daemonic ones at once, as it does itself, others once they are idle."""
    processes = sys.modules.get("multiprocessing.process")
    if processes is None:
        return
    from determinism.factors.turns import wait_until_idle

    # A process made by `os.fork` inherits the list of its parent's children.
    own = [child for child in processes.active_children() if child._parent_pid == os.getpid()]
    for child in sorted(own, key=lambda one: not one.daemon):
        if not child.daemon:
            # It may still be writing files that the program needs.
            wait_until_idle(child, _PATIENCE_SECONDS)
        child.terminate()
