"""The ledger of a training: its steps are recorded, and at its end written as a golden, or compared with the one that is there."""

from __future__ import annotations

import atexit
import os
import shlex
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

from determinism.errors import DeterminismError, TraceError, UsageError
from determinism.frameworks.registry import RECORDERS
from determinism.golden.compare import compare_ledgers
from determinism.golden.ledger import ledger_of, read_golden, text_of, write_golden
from determinism.golden.result import GoldenComparison, answer
from determinism.run_spec import RUN_VARIABLE, RunSpec
from determinism.session.record import is_recording, recording
from determinism.trace.opening import open_trace
from determinism.types import Level, Verdict


class TrainingWarning(UserWarning):
    """A training goes on, and its results may not be the same each time."""


LEDGER_MESSAGES = {
    "trainer-ledger-differs": "The training differs from its golden {path}:\n{report}\nIf the change is intended, update the golden: "
    "{update}. If it is not, `determinism check` says whether the program repeats itself. raise_if_different() of the ledger makes this an error.",
    "trainer-ledger-failed": "The ledger of the training was neither written to {path} nor compared with it, and the training is not affected: {reason}",
    "trainer-ledger-lost": "The training that would have been in {path} did not come to its end before another one began, so nothing was written "
    "or compared. Give the ledger to one callback of a trainer.",
    "trainer-ledger-ranks": "{ranks} processes train together, so no ledger was written to {path} or compared with it: it would have the steps of "
    "one. Record all of them: determinism golden create {quoted} -- COMMAND.",
    "trainer-ledger-recorded": "The program is being recorded already, so no ledger was written to {path} or compared with it. Run it without "
    "`determinism` or `record` around it for that.",
    "trainer-ledger-resumed": "The training goes on from step {first}, and a golden begins with the first step, so no ledger was written to {path} or "
    "compared with it. Train from the beginning for that.",
}
"""What is said of a ledger while a training goes on, by identifier."""

_open: list[TrainingLedger] = []
"""The ledger that is being recorded, if there is one."""


class TrainingLedger:
    """Records the steps of a training, and writes or checks their golden when it ends.

    Where there is no file, it is written. One that is there is compared with, and replaced only with `update`. The training is never
    ended by it: what differs is a `TrainingWarning`, and is kept in `comparison`.
    """

    def __init__(self, path: str | os.PathLike[str], *, update: bool = False, update_hint: str = "update=True") -> None:
        """Look at the file before anything is trained.

        Args:
            path: Of the golden.
            update: Replace a golden that is there.
            update_hint: How the user asks for `update`, for messages.

        Raises:
            TraceError: There is a file, and it is no golden, or damaged.
            UsageError: Its folder does not exist.
        """
        self.path = Path(path).absolute()
        """The golden."""
        self.comparison: GoldenComparison | None = None
        """What came of comparing the last training; None if there was nothing to compare with."""
        self._update = update
        self._update_hint = update_hint
        self._shown = str(path)
        self._folder: Path | None = None
        self._process = 0
        self._recording = ExitStack()
        if not self.path.parent.is_dir():
            raise UsageError(
                "trainer-ledger-folder",
                f"The ledger of the training shall be {path}, and there is no folder {self.path.parent}, so nothing was trained or set. Make the "
                "folder, or give a file in one that exists.",
            )
        self._read()

    def _read(self) -> None:
        """Make sure that what is there is a golden, also if it will be replaced."""
        if self.path.exists():
            try:
                read_golden(self.path)
            except TraceError as error:
                if not self._update or error.identifier in ("golden-foreign", "golden-unreadable"):
                    raise

    def begin(self, first_step: int = 0) -> None:
        """Begin to record, unless a ledger would not be that of the training; then say why.

        Args:
            first_step: How many steps of the training were done before, in a run that is resumed.
        """
        self.abandon()
        while _open:
            other = _open[-1]
            other.abandon()
            other._warn("trainer-ledger-lost")
        self.comparison = None
        ranks = _num_ranks()
        if is_recording() or RUN_VARIABLE in os.environ:
            self._warn("trainer-ledger-recorded")
        elif ranks > 1:
            self._warn("trainer-ledger-ranks", ranks=ranks)
        elif first_step:
            self._warn("trainer-ledger-resumed", first=first_step)
        else:
            self._record()

    def _record(self) -> None:
        self._folder, self._process = Path(tempfile.mkdtemp(prefix="determinism-")), os.getpid()
        _open.append(self)
        # One that ends with an error tells few trainers' callbacks so.
        atexit.register(self.abandon)
        # A program of JAX holds no state that could be looked at after a step.
        is_jax = next((name for name in RECORDERS if name in sys.modules), None) == "jax"
        level = Level.OP if is_jax else Level.STEP
        try:
            self._recording.enter_context(recording(RunSpec(self._folder / "run", level=level.value)))
        except DeterminismError as error:
            self.abandon()
            self._warn("trainer-ledger-failed", reason=error)

    def end(self) -> None:
        """End recording; write the golden, or compare with it."""
        if self._folder is None or os.getpid() != self._process:
            return
        try:
            self._recording.close()
            self._finish(self._folder / "run")
        except DeterminismError as error:
            self._warn("trainer-ledger-failed", reason=error)
        finally:
            self.abandon()

    def _finish(self, trace: Path) -> None:
        found = ledger_of(open_trace(trace))
        steps = max(len(process.rows) for process in found.processes)
        if self._update or not self.path.exists():
            write_golden(self.path, text_of(found), update=self._update)
            self._say(f"Golden written: {self._shown}, {steps} step{'s' if steps > 1 else ''}")
            return
        # Where the program comes from is noted by the command alone.
        comparison = replace(compare_ledgers(read_golden(self.path), found), commits=("-", "-"))
        self.comparison = comparison
        if comparison.verdict is Verdict.SAME:
            self._say("\n".join(answer(comparison)) + f" {self._shown}")
        else:
            report = "\n".join(answer(comparison))
            self._warn("trainer-ledger-differs", report=report, update=self._update_hint)

    def abandon(self) -> None:
        """End recording without writing or comparing anything."""
        if self._folder is None or os.getpid() != self._process:
            return
        self._recording.close()
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder = None
        atexit.unregister(self.abandon)
        if self in _open:
            _open.remove(self)

    def raise_if_different(self) -> None:
        """Raise what differs as an error, for scripts that shall fail then.

        Raises:
            DifferenceError: The last training differs from its golden.
        """
        if self.comparison is not None:
            self.comparison.raise_if_different()

    def _say(self, text: str) -> None:
        print(f"determinism: {text}", file=sys.stderr, flush=True)

    def _warn(self, identifier: str, **values: object) -> None:
        shown = {"path": self._shown, "quoted": shlex.quote(self._shown), **values}
        message = LEDGER_MESSAGES[identifier].format(**shown)
        warnings.warn(f"{message} ({identifier})", TrainingWarning, stacklevel=2)


def _num_ranks() -> int:
    """How many processes train together, as far as the frameworks that are imported know."""
    ranks = 1
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        ranks = int(distributed.get_world_size())
    jax = sys.modules.get("jax")
    if jax is not None and jax.distributed.is_initialized():
        ranks = max(ranks, int(jax.process_count()))
    return ranks


@contextmanager
def ledger(path: str | os.PathLike[str], *, update: bool = False, first_step: int = 0) -> Iterator[TrainingLedger]:
    """Record the steps of a training loop, the `with` block, and write or check their golden when it ends.

    Where there is no file, it is written; one that is there is compared with. If the block raises, nothing is written.

    Args:
        path: Of the golden.
        update: Replace a golden that is there.
        first_step: How many steps were done before, in a run that is resumed: then nothing is written or compared.

    Raises:
        TraceError: There is a file, and it is no golden, or damaged.
        UsageError: Its folder does not exist.

    Yields:
        The ledger; after the block, `raise_if_different` makes an error of what differs.

    Example:
        with ledger("train.golden") as steps:
            for batch in loader:
                ...
        steps.raise_if_different()
    """
    found = TrainingLedger(path, update=update)
    found.begin(first_step)
    try:
        yield found
    except BaseException:
        found.abandon()
        raise
    found.end()
