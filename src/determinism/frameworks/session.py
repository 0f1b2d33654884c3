"""What the recordings of all frameworks have in common: an adapter's `Session` adds how its framework is seen."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Callable, Sequence
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
    """One recording of this process, from its making to `close`.

    An adapter says what its framework is called, opens the trace with `_open`, and fills in `_record_state` and `_tensors_in`.
    """

    framework: str
    """As `process.json` names it."""
    recorder: Any
    """That of the main thread."""
    writer: ProcessWriter
    """Of this process; there is one once the recording has begun."""
    tensors = "tensors"
    """What the framework calls them."""
    _used_after_fork: str
    """Why nothing is recorded of what a forked child does with the framework."""
    _show_own_frames: Callable[[], None]

    def __init__(self, folders: ProcessFolders, spec: RunSpec) -> None:
        """Nothing is recorded yet.

        Args:
            folders: Make the place in the trace for this process.
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
        """What takes off everything that was wrapped; empty once the recording has ended."""
        self.on_early_end: Callable[[], None] = lambda: None
        """Called when the program is ended after the steps that were asked for, or once a record was looked at."""
        self.ends_program = True
        """Whether the program ends with the recording, after as many steps as were asked for; if not, it goes on unrecorded."""

    @property
    def has_begun(self) -> bool:
        """Whether this process has a trace of what it does with the framework; some wait until it is used."""
        return True

    @property
    def num_records(self) -> int:
        """How many records this process has made."""
        return self.writer.num_records if self.recorder.is_active else 0

    @property
    def _keeps_ledger(self) -> bool:
        """Whether a ledger of the steps is kept."""
        return self.level is Level.STEP or self._spec.window is not None or self._spec.keeps_newest

    # Filled in by adapters.

    def _record_state(self, op: str) -> None:
        """Record what is held at the end of a step, or of the program.

        Args:
            op: Name of the record.
        """
        raise NotImplementedError

    def _tensors_in(self, value: Any) -> list[Any]:
        """The framework's tensors in what a checked function returned."""
        raise NotImplementedError

    def _has_optimizer(self) -> bool:
        """Whether the program has an optimizer, whose steps will count as soon as it makes one."""
        return False

    # The trace.

    def describe(self, stream: str, environ: dict[str, Any], set_to: dict[str, Any]) -> dict[str, Any]:
        """What `process.json` says from the start.

        Args:
            stream: What records it: `process`, `threads`, `worker`, `pool`.
            environ: What the process runs in.
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
        """Open the trace of a process that has only one stream.

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
            # What is not asked for is recorded, too: the runs can be compared all the same.
            self.writer.blind_spot(
                "window",
                "--from-step",
                "ops are recorded from the beginning: only PyTorch's ops can be recorded from a later step on",
            )
        if self._spec.values is not None:
            self.writer.blind_spot("values", f"values of {self.tensors}", "they are kept only for PyTorch tensors")

    def _capture(self, as_array: Callable[[Any], Any], digest: Callable[[Any], bytes]) -> Capture | None:
        """What looks closely at a record of this process; None if none is asked for.

        Args:
            as_array: Gives a tensor as a NumPy array.
            digest: Gives the digest of such an array.
        """
        request = self._spec.capture
        if request is None or request["process"] != self.writer.folder.name:
            return None
        # Runs that look at no record need not load what compares values.
        from determinism.frameworks.array_capture import Capture

        return Capture(request, self.writer.folder, self._captured, as_array=as_array, digest=digest)

    def _captured(self, reason: str) -> None:
        """A record was looked at: the program ends, unless it would leave something behind."""
        if self._spec.capture is not None and self._spec.capture["ends"]:
            self.finish_program(reason)

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
        self._earlier_threads = self._find_earlier_threads()
        if self.recorder.is_active:
            note_earlier_threads(self.writer, self._earlier_threads)

    def _find_earlier_threads(self) -> list[str]:
        return program_threads({self.recorder.thread})

    # Steps.

    def step(self) -> None:
        """`determinism.step()`: a step ends here."""
        if self.has_begun and self.recorder.is_own():
            self.recorder.run_unrecorded(self.recorder.progress.explicit)
            self._end_if_asked()

    def _batch_arrived(self) -> None:
        """The program has got a batch of data; where no optimizer counts steps, batches do."""
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
        """A checked function returned: its tensors leave the framework."""
        tensors = self._tensors_in(value)
        if tensors and self.has_begun:
            self.recorder.run_unrecorded(self._record_returned, tensors)

    def _record_returned(self, tensors: Sequence[Any]) -> None:
        values = [self.recorder.value(tensor) for tensor in tensors]
        made = [(value.layout, value.digest) for value in values]
        self.recorder.emit(Role.ESCAPE, "determinism::return", values, made)

    # The end.

    def forked(self) -> None:
        """This is a forked child: the files belong to the parent, and the framework does not work here."""
        if self._undo:
            self.recorder.is_active = False
            self.recorder.on_first_op = self._used_in_child

    def _used_in_child(self, recorder: Any) -> None:
        recorder.on_first_op = None
        self._folders.failed(self._used_after_fork)

    def finish_program(self, reason: str) -> None:
        """End the trace, and the program with it unless it is to go on."""
        self.writer.describe(finished=reason)
        if not self.ends_program:
            # Its frames are hidden until the block is left.
            self.close()
            return
        if threading.current_thread() is threading.main_thread():
            # In another thread, what is on this thread's stacks is not to be undone here; what was recorded is on the disk.
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
        """Let the recorder begin no more."""
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
        """What `process.json` says at the end."""
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
    # `last_exc` came with Python 3.12.
    newest = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    return isinstance(newest, KeyboardInterrupt)


_PATIENCE_SECONDS = 10.0
"""How long a process may go on working that the program would have ended itself."""


def _end_children() -> None:
    """End what `multiprocessing` started: daemonic processes at once, as it does itself, and others when they only wait."""
    processes = sys.modules.get("multiprocessing.process")
    if processes is None:
        return
    from determinism.factors.turns import wait_until_idle

    # A process that was made by `os.fork` knows those of its parent.
    own = [child for child in processes.active_children() if child._parent_pid == os.getpid()]
    for child in sorted(own, key=lambda one: not one.daemon):
        if not child.daemon:
            # It may be writing what the program is to keep.
            wait_until_idle(child, _PATIENCE_SECONDS)
        child.terminate()
