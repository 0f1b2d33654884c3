"""The program's current step and phase, and whether it is being recorded: not while the recorder is inactive, not while its own code runs, and
not in threads that started before recording began.

Steps count from 0. A step ends with the step of the optimizer that stepped first in the program, even if a gradient scaler skips that; in a program
that updates its parameters without an optimizer, before updated ones are used again; in JAX, which has no optimizer that could be watched, before
the training function is called with its previous results; or at `determinism.step()`, which from then on is the only thing that counts.
"""

from __future__ import annotations

import threading
import time
import weakref
from array import array
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from determinism.errors import first_few
from determinism.trace.writer import ProcessWriter
from determinism.types import Phase

UPDATE = "update"
"""What ends steps if the program updates its parameters without an optimizer."""
_LEAST_SECONDS = 1.0
"""Minimum total time of steps for reporting their average: the time of a few short ones depends on what else runs on the machine."""
_PHASES = {int(phase): phase for phase in Phase}


class Progress:
    """The current step and phase of a process."""

    def __init__(self, step_ended: Callable[[str], None]) -> None:
        """Take a callback; it is called with what counted the step, before the step number is incremented."""
        self.place = array("q", (0, Phase.INIT, 0, -1))
        """Step, phase, `optimizer_depth` and `updates_from`, for native code that reads or sets them directly."""
        self.may_update_itself = True
        """Whether the program may update its parameters without an optimizer: none is known, and it has not called `determinism.step()`."""
        self.num_ended = 0
        """Number of steps that ended; `step` also counts those before the checkpoint from which a program was resumed."""
        self.optimizer_calls = 0
        self.steps_by: str | None = None
        self._first_optimizer: Callable[[], Any] = lambda: None
        self._step_ended = step_ended
        self._first_end: float | None = None
        self._last_end = 0.0
        self._num_later = 0
        self._has_begun_since = False
        """Whether an optimizer has begun to step since the last step ended."""

    @property
    def step(self) -> int:
        """Number of the current step."""
        return self.place[0]

    @step.setter
    def step(self, value: int) -> None:
        self.place[0] = value

    @property
    def phase(self) -> Phase:
        """What the program does outside of modules, backwards and optimizers."""
        return _PHASES[self.place[1]]

    @phase.setter
    def phase(self, value: Phase) -> None:
        self.place[1] = value

    @property
    def optimizer_depth(self) -> int:
        """How many nested optimizer steps are running."""
        return self.place[2]

    @property
    def updates_from(self) -> int:
        """Number of the record from which on a write to a parameter is an update by the program itself; -1 if none is."""
        return self.place[3]

    @property
    def step_seconds(self) -> float | None:
        """Average seconds per step, without the first one; None if the steps were too few or too short."""
        if self._first_end is None or not self._num_later:
            return None
        seconds = self._last_end - self._first_end
        return seconds / self._num_later if seconds >= _LEAST_SECONDS else None

    @contextmanager
    def in_phase(self, phase: Phase) -> Iterator[None]:
        """Set another phase within this context."""
        previous, self.phase = self.phase, phase
        try:
            yield
        finally:
            self.phase = previous

    def optimizer_begins(self, optimizer: Any) -> None:
        """Note that an optimizer's `step` was called."""
        self.place[2] += 1
        self.optimizer_calls += 1
        self._has_begun_since = True
        self.optimizer_found()
        self._take_as_first(optimizer)

    def _take_as_first(self, optimizer: Any) -> None:
        """Make this optimizer count steps, unless an earlier one does that still exists (it is gone when a second training begins)."""
        if self._first_optimizer() is None:
            self._first_optimizer = weakref.ref(optimizer)

    def optimizer_ends(self, optimizer: Any) -> None:
        """Note that an optimizer's `step` returned."""
        self.place[2] = max(0, self.place[2] - 1)
        self.phase = Phase.OTHER
        if self._first_optimizer() is optimizer and self.steps_by != "determinism.step":
            self._advance("optimizer")

    def optimizer_skipped(self, optimizer: Any) -> None:
        """Note that a gradient scaler skipped the `step` of an optimizer."""
        self.optimizer_found()
        self._take_as_first(optimizer)
        if self._first_optimizer() is optimizer and self.steps_by != "determinism.step":
            self._advance("optimizer")

    def trains_again(self, counted_by: str) -> None:
        """Note that the training function is about to be called with its previous results."""
        if self.steps_by != "determinism.step":
            self._advance(counted_by)

    def optimizer_found(self) -> None:
        """Note that the program has an optimizer, so nothing else is an update."""
        self.may_update_itself = False
        self.place[3] = -1

    def backward_begins(self, num_records: int) -> None:
        """Note that an outermost backward begins."""
        if self.may_update_itself and self.place[3] < 0:
            self.place[3] = num_records

    def updated(self) -> None:
        """Note that a parameter that the program itself updated after a backward is about to be used."""
        if self.may_update_itself:
            self._advance(UPDATE)

    def process_ends(self) -> None:
        """End the last step of a program that updates its parameters itself: no later use ends it."""
        if self.steps_by == UPDATE and self.place[3] >= 0:
            self._advance(UPDATE)

    def explicit(self) -> None:
        """Note that `determinism.step()` was called."""
        self.optimizer_found()
        if self.steps_by == "optimizer" and (self.num_ended == 1 or not self._has_begun_since):
            # The same boundary as the optimizer step just before; from now on only explicit ones count.
            self.steps_by = "determinism.step"
            return
        self._advance("determinism.step")

    def _advance(self, counted_by: str) -> None:
        self.steps_by = counted_by
        self._has_begun_since = False
        self.place[3] = -1
        try:
            self._step_ended(counted_by)
        finally:
            self.step += 1
            self.num_ended += 1
            self._note_time()

    def _note_time(self) -> None:
        self._last_end = time.perf_counter()
        if self._first_end is None:
            self._first_end = self._last_end
        else:
            self._num_later += 1


class ThreadProgress(Progress):
    """The progress of a thread other than the main one: in the step of its process, until it ends steps of its own."""

    def __init__(self, process: Progress, step_ended: Callable[[str], None]) -> None:
        """Take the main thread's progress, and a callback for the end of this thread's steps."""
        super().__init__(step_ended)
        self.process = process
        """Progress of the main thread."""
        self.place[0] = -1

    @property
    def step(self) -> int:
        """Number of the current step."""
        own = self.place[0]
        return self.process.step if own < 0 else own

    @step.setter
    def step(self, value: int) -> None:
        self.place[0] = value

    def _advance(self, counted_by: str) -> None:
        self.place[0] = max(0, self.place[0])
        super()._advance(counted_by)


# When a recorder records.


class RecordingGuard:
    """Decides whether what happens now belongs to the program and should be recorded."""

    writer: ProcessWriter

    def __init__(self) -> None:
        super().__init__()
        self.is_active = False
        self.on_first_op: Callable[[Any], None] | None = None
        """Called with the recorder at the first event to record; begins the recording."""
        self._is_busy = False
        """Whether our own code runs, whose ops are not the program's."""

    def is_ready(self) -> bool:
        """Whether what happens now should be recorded; begins the recording if it has not begun."""
        if self._is_busy or self.is_active:
            return not self._is_busy
        if self.on_first_op is not None:
            self._is_busy = True
            try:
                self.on_first_op(self)
            finally:
                self._is_busy = False
        return self.is_active

    def failed(self, what: str, error: Exception) -> None:
        """Turn an internal failure into a blind spot, so that it never reaches the program."""
        self.writer.blind_spot("handler-failed", what, f"{type(error).__name__}: {error}"[:300])

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Ignore ops within this context: they are not the program's."""
        previous, self._is_busy = self._is_busy, True
        try:
            yield
        finally:
            self._is_busy = previous

    def run_unrecorded(self, action: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        """Run our own code: its ops are not recorded, and its failure becomes a blind spot."""
        if not self.is_ready():
            return None
        self._is_busy = True
        try:
            return action(*arguments, **keywords)
        except Exception as error:
            self.failed(getattr(action, "__qualname__", repr(action)), error)
            return None
        finally:
            self._is_busy = False


_MOST_NAMED = 8
_SERVICES = frozenset(
    {"ipykernel", "IPython", "zmq", "jupyter_client", "tornado", "debugpy", "_pydevd_bundle", "ray", "tqdm", "wandb"}
)
"""Packages with threads that do not compute for the program: a notebook's kernel and its debugger, Ray, tqdm, wandb."""
_RUNS_CELLS = frozenset({"SubshellThread"})
"""Classes of kernel threads that run the user's code, from ipykernel 7 on."""


def program_threads(recorded: Container[int | None]) -> list[str]:
    """Names of the program's running threads that are not recorded; threads of services, such as a notebook's kernel, are not.

    Args:
        recorded: Identifiers of the threads that are recorded.
    """
    return [
        thread.name for thread in threading.enumerate() if thread.ident not in recorded and not _is_of_service(thread)
    ]


def _is_of_service(thread: threading.Thread) -> bool:
    if type(thread).__name__ in _RUNS_CELLS:
        return False
    # A thread that has ended no longer has its target.
    target = getattr(thread, "_target", None)
    modules = (type(thread).__module__, str(getattr(target, "__module__", "")))
    return any(module.partition(".")[0] in _SERVICES for module in modules)


def note_earlier_threads(writer: ProcessWriter, names: Sequence[str]) -> None:
    """Report threads that began before recording as one blind spot."""
    if not names:
        return
    began, ops = ("it began", "its ops are") if len(names) == 1 else ("they began", "their ops are")
    writer.blind_spot(
        "thread", first_few(names, _MOST_NAMED), f"{began} before the framework was imported, and {ops} not recorded"
    )


def thread_of_program() -> threading.Thread | None:
    """This thread; None for one of the framework, which runs the program's function as part of an op whose result is recorded."""
    # `current_thread` would make an object for such a thread.
    thread: threading.Thread | None = threading._active.get(threading.get_ident())  # type: ignore[attr-defined]
    return None if isinstance(thread, threading._DummyThread) else thread
