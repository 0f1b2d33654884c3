"""Where the program is, its step and its phase, and whether it is recorded there: not while the recorder sleeps, not while something of its own runs, and
not in threads from before recording began.

Step k counts from 0. It ends with the step of the optimizer that stepped first in the program, also when a gradient scaler skips that; in a program
that updates what it trains without an optimizer, before what was updated is used again; in JAX, which has no optimizer that could be watched, before
the function that trains is called with what it gave before; or at `determinism.step()`, which from then on alone counts.
"""

from __future__ import annotations

import threading
import time
import weakref
from array import array
from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from determinism.trace.writer import ProcessWriter
from determinism.types import Phase

UPDATE = "update"
"""What ends steps where the program updates what it trains without an optimizer."""
_LEAST_SECONDS = 1.0
"""What steps must have taken together for their time to be told: what else runs on the machine decides how long a few short ones take."""
_PHASES = {int(phase): phase for phase in Phase}


class Progress:
    """The current step and phase of a process."""

    def __init__(self, step_ended: Callable[[str], None]) -> None:
        """Take what is to be called, with what counted the step, before the number of the step goes up."""
        self.place = array("q", (0, Phase.INIT, 0, -1))
        """Step, phase, how many optimizers step within each other, and `updates_from`, for who reads or sets them without asking Python."""
        self.may_update_itself = True
        """Whether the program may update what it trains without an optimizer: none is known, and it has not called `determinism.step()`."""
        self.num_ended = 0
        """How many steps ended; `step` counts also those before the checkpoint that a program was resumed from."""
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
        """Number of the step."""
        return self.place[0]

    @step.setter
    def step(self, value: int) -> None:
        self.place[0] = value

    @property
    def phase(self) -> Phase:
        """What the program does outside modules, backwards and optimizers."""
        return _PHASES[self.place[1]]

    @phase.setter
    def phase(self, value: Phase) -> None:
        self.place[1] = value

    @property
    def optimizer_depth(self) -> int:
        """How many optimizers step within each other."""
        return self.place[2]

    @property
    def updates_from(self) -> int:
        """Number of the record from which on a write to what is trained is an update by the program itself; -1 if none would be."""
        return self.place[3]

    @property
    def step_seconds(self) -> float | None:
        """How long a step took on average, without the first one; None if there were too few, or too short ones, to tell."""
        if self._first_end is None or not self._num_later:
            return None
        seconds = self._last_end - self._first_end
        return seconds / self._num_later if seconds >= _LEAST_SECONDS else None

    @contextmanager
    def in_phase(self, phase: Phase) -> Iterator[None]:
        """Let another phase hold for a while."""
        previous, self.phase = self.phase, phase
        try:
            yield
        finally:
            self.phase = previous

    def optimizer_begins(self, optimizer: Any) -> None:
        """An optimizer's `step` was called."""
        self.place[2] += 1
        self.optimizer_calls += 1
        self._has_begun_since = True
        self.optimizer_found()
        self._take_as_first(optimizer)

    def _take_as_first(self, optimizer: Any) -> None:
        """The first optimizer counts steps; when it is gone (a second training begins), the next one does."""
        if self._first_optimizer() is None:
            self._first_optimizer = weakref.ref(optimizer)

    def optimizer_ends(self, optimizer: Any) -> None:
        """An optimizer's `step` returned."""
        self.place[2] = max(0, self.place[2] - 1)
        self.phase = Phase.OTHER
        if self._first_optimizer() is optimizer and self.steps_by != "determinism.step":
            self._advance("optimizer")

    def optimizer_skipped(self, optimizer: Any) -> None:
        """A gradient scaler left out the `step` of an optimizer."""
        self.optimizer_found()
        self._take_as_first(optimizer)
        if self._first_optimizer() is optimizer and self.steps_by != "determinism.step":
            self._advance("optimizer")

    def trains_again(self, counted_by: str) -> None:
        """The function that trains is about to be called with what it gave before."""
        if self.steps_by != "determinism.step":
            self._advance(counted_by)

    def optimizer_found(self) -> None:
        """The program has an optimizer, so nothing else is an update."""
        self.may_update_itself = False
        self.place[3] = -1

    def backward_begins(self, num_records: int) -> None:
        """A backward within no other begins.

        Args:
            num_records: How many records there are.
        """
        if self.may_update_itself and self.place[3] < 0:
            self.place[3] = num_records

    def updated(self) -> None:
        """What the program has updated itself since a backward is about to be used."""
        if self.may_update_itself:
            self._advance(UPDATE)

    def process_ends(self) -> None:
        """The program makes no further step: its own last update is used no more."""
        if self.steps_by == UPDATE and self.place[3] >= 0:
            self._advance(UPDATE)

    def explicit(self) -> None:
        """`determinism.step()` was called."""
        self.optimizer_found()
        if self.steps_by == "optimizer" and (self.num_ended == 1 or not self._has_begun_since):
            # The same boundary as the optimizer step just before; from here on only explicit ones count.
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
    """Where a thread other than the main one is: in the step of its process, until it ends steps of its own."""

    def __init__(self, process: Progress, step_ended: Callable[[str], None]) -> None:
        """Take where the main thread is, and what is to be called at the end of a step of this thread."""
        super().__init__(step_ended)
        self.process = process
        """Where the main thread is."""
        self.place[0] = -1

    @property
    def step(self) -> int:
        """Number of the step."""
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
    """Whether what happens now belongs to the program and is to be recorded."""

    writer: ProcessWriter

    def __init__(self) -> None:
        super().__init__()
        self.is_active = False
        self.on_first_op: Callable[[Any], None] | None = None
        """Called with the recorder when the first thing happens that is to be recorded; it begins."""
        self._is_busy = False
        """Something of ours runs outside an op; its ops are not the program's."""

    def is_ready(self) -> bool:
        """Whether what happens now is to be recorded; one that sleeps wakes up."""
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
        """A failure of ours never reaches the program: it becomes a blind spot."""
        self.writer.blind_spot("handler-failed", what, f"{type(error).__name__}: {error}"[:300])

    @contextmanager
    def suspended(self) -> Iterator[None]:
        """Let ops run that are not the program's."""
        previous, self._is_busy = self._is_busy, True
        try:
            yield
        finally:
            self._is_busy = previous

    def run_unrecorded(self, action: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
        """Do something of ours outside an op: its own ops are not recorded, its failure becomes a blind spot."""
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
_KERNEL_PACKAGES = frozenset({"ipykernel", "IPython", "zmq", "jupyter_client", "tornado", "debugpy", "_pydevd_bundle"})
"""What a notebook's kernel, and the debugger in it, run in threads."""
_RUNS_CELLS = frozenset({"SubshellThread"})
"""Threads of the kernel in which code of the user runs, from ipykernel 7 on."""


def program_threads(recorded: Container[int | None]) -> list[str]:
    """Name the running threads of the program that are not recorded; those that serve a notebook are none of its.

    Args:
        recorded: Identifiers of the threads that are recorded.
    """
    return [
        thread.name for thread in threading.enumerate() if thread.ident not in recorded and not _serves_notebook(thread)
    ]


def _serves_notebook(thread: threading.Thread) -> bool:
    if type(thread).__name__ in _RUNS_CELLS:
        return False
    # What a thread runs is forgotten when it ends.
    target = getattr(thread, "_target", None)
    modules = (type(thread).__module__, str(getattr(target, "__module__", "")))
    return any(module.partition(".")[0] in _KERNEL_PACKAGES for module in modules)


def note_earlier_threads(writer: ProcessWriter, names: Sequence[str]) -> None:
    """Tell of them as one blind spot: what is true of one is of all.

    Args:
        writer: Of this process.
        names: Those of the threads.
    """
    if not names:
        return
    named = ", ".join(names[:_MOST_NAMED]) + (
        f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
    )
    began, ops = ("it began", "its ops are") if len(names) == 1 else ("they began", "their ops are")
    writer.blind_spot("thread", named, f"{began} before the framework was imported, and {ops} not recorded")


class UnrecordedThreads:
    """Notes each of them once, as a blind spot."""

    def __init__(
        self, reason: str, writer: Callable[[], ProcessWriter | None], note_racy: Callable[[str], None]
    ) -> None:
        """Nothing is noted yet.

        Args:
            reason: Why they are not recorded.
            writer: Gives what keeps blind spots; None while nothing is recorded.
            note_racy: Told that threads take part.
        """
        self._reason = reason
        self._writer = writer
        self._note_racy = note_racy
        self._noted: set[int] = set()

    def used(self) -> None:
        """This thread, which is not the recorded one, uses the framework."""
        ident = threading.get_ident()
        writer = None if ident in self._noted else self._writer()
        if writer is None:
            return
        self._noted.add(ident)
        thread = threading._active.get(ident)  # type: ignore[attr-defined]
        if thread is None or isinstance(thread, threading._DummyThread):
            # A thread of the framework runs the program's function within something whose result is recorded.
            return
        writer.blind_spot("thread", thread.name, self._reason)
        self._note_racy("threads")
