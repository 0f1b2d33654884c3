"""What the integrations with trainers have in common: settings and seeds in time, steps counted as the trainer counts them, the state of a run, and its
ledger, which is written as a golden at its end or compared with the one that is there.
"""

from __future__ import annotations

import atexit
import gc
import os
import shlex
import shutil
import sys
import tempfile
import warnings
import weakref
from collections.abc import Collection, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from determinism.errors import DeterminismError, TraceError, UsageError
from determinism.frameworks.registry import RECORDERS
from determinism.golden.ledger import ledger_of, read_golden, text_of, write_golden
from determinism.golden.result import GoldenComparison, answer, compare_ledgers
from determinism.knowledge.settings import Effect
from determinism.run_spec import RUN_VARIABLE, RunSpec
from determinism.session import seeding
from determinism.session.enable import Settings, enable
from determinism.session.record import is_recording, recording, step
from determinism.state import State, capture, restore
from determinism.state.capturing import is_stateful, state_of
from determinism.trace.opening import open_trace
from determinism.types import Level, PrecisionName, Verdict

WARNING_MESSAGES = {
    "trainer-loader-ahead": "A checkpoint is saved in the middle of an epoch, and the loader has no length, so Lightning has fetched a batch that "
    "it did not train on yet, and a resumed run would leave that batch out. Save at the end of an epoch, or give the data set a length.",
    "trainer-loader-restarts": "A checkpoint is saved in the middle of an epoch, and {loader} does not tell how far it has come, so a resumed run "
    "gets other batches than this one. Wrap it where it is made: determinism.state.resumable(loader).",
    "trainer-overrides": "These settings were changed after {name} had made them: {changes}. What {trainer} or the program "
    "sets later holds; leave it out there, or make {name} afterwards.",
    "trainer-ranks": "{ranks} processes train together. Lightning saves what callbacks know in rank 0 alone, so no state is saved, and a resumed run "
    "draws other numbers; and it divides only a plain DataLoader among the ranks. Give a resumable loader a sampler that does: "
    "determinism.seed(1).sampler(data, ranks={ranks}).",
    "trainer-ranks-unsaved": "{ranks} processes train together, and trainer_state.json is one file for all, so no state is saved in it, and a resumed run "
    "may draw other numbers. Save it beside the checkpoint in each process: determinism.state.capture(...).",
    "trainer-stream": "A checkpoint is saved, and the data set is an IterableDataset, whose batches the Trainer loads again when it resumes, so if it or "
    "the collator draws random numbers, a resumed run draws others. Use a data set with indices, or draw in the model.",
    "trainer-seeded-late": "The model was built before {name} was made, from random numbers that nobody had seeded, so its weights "
    "differ in each run. Make {name} first, or call determinism.enable(seed=1) before the model is built.",
    "trainer-unseeded": "Nobody has seeded the generators, so each run draws different numbers. Give {name} a seed, seed=1, and make it "
    "before the model is built.",
}
"""What is said while a training goes on, by identifier."""


def warn(identifier: str, **values: object) -> None:
    """Warn of something that keeps a training from being the same each time.

    Args:
        identifier: Of the message.
        **values: What the message names.
    """
    message = WARNING_MESSAGES[identifier].format(**values)
    warnings.warn(f"{message} ({identifier})", TrainingWarning, stacklevel=2)


# Whether somebody had seeded the framework before a model drew its weights.


_MOST_SEEDED = 2**53
"""Seeds that people choose are below; of those that PyTorch draws itself, from 64 bits of the system's entropy, one in 2,000 is."""


def is_seeded(framework: str) -> bool:
    """Whether somebody has seeded the generator that a framework draws weights from, with `determinism` or otherwise.

    Args:
        framework: `torch` or `tensorflow`; True if it is not imported.
    """
    if framework not in sys.modules or seeding.active_seeds() is not None:
        return True
    if framework == "torch":
        return bool(sys.modules["torch"].default_generator.initial_seed() < _MOST_SEEDED)
    return import_module("tensorflow.python.eager.context").global_seed() is not None


def has_drawn() -> bool:
    """Whether PyTorch's generator has drawn since it was seeded."""
    generator, generators = sys.modules["torch"].default_generator, sys.modules["torch"].Generator
    # The recorder's own digest, which reads without an op that a recording would take for one of the program.
    state_digest = import_module("determinism.frameworks.torch.ops").state_digest
    fresh = generators().manual_seed(generator.initial_seed())
    return bool(state_digest(fresh) != state_digest(generator))


class UnseededModels:
    """The modules or layers that were built from random numbers nobody had seeded."""

    def __init__(self, framework: str) -> None:
        """Note those that there are; looked for only if nobody has seeded the framework and it may have drawn.

        Args:
            framework: `torch` or `tensorflow`.
        """
        found: list[Any] = []
        if not is_seeded(framework) and (framework != "torch" or has_drawn()):
            kind = sys.modules["torch"].nn.Module if framework == "torch" else import_module("keras").layers.Layer
            # Not `isinstance`, which asks objects for their class: some load a module then.
            found = [weakref.ref(thing) for thing in gc.get_objects() if issubclass(type(thing), kind)]
        self._references = found

    def has_any(self, modules: Iterable[Any]) -> bool:
        """Whether one of these modules, which has parameters of its own, is among them."""
        known = {id(module) for reference in self._references if (module := reference()) is not None}
        own = ("_parameters", "_trainable_variables")
        return any(id(module) in known and any(getattr(module, name, ()) for name in own) for module in modules)


# One training, as seen by what is plugged into its trainer.


class Training:
    """What a callback or handler does at the moments that its trainer offers."""

    def __init__(
        self,
        name: str,
        seed: int | None = None,
        *,
        warn_only: bool = False,
        threads: int | None = None,
        precision: PrecisionName | None = None,
        allow: Collection[str] = (),
        parts: dict[str, Any] | None = None,
        framework: str = "torch",
        ledger: str | os.PathLike[str] | None = None,
        update_ledger: bool = False,
    ) -> None:
        """Make the settings and give the seeds at once: what is made after the callback is covered, the model above all.

        Args:
            name: What messages call the callback.
            seed: As for `determinism.enable`.
            warn_only: As for `determinism.enable`.
            threads: As for `determinism.enable`.
            precision: As for `determinism.enable`.
            allow: As for `determinism.state.restore`.
            parts: What else belongs to the state, by name: what has `state_dict` and `load_state_dict`, and generators.
            framework: `torch` or `tensorflow`: what the model draws its weights from.
            ledger: The golden that the steps are written to or compared with.
            update_ledger: Replace one that is there.

        Raises:
            TraceError: The golden is damaged.
            UsageError: A part cannot take its state back, or there is no folder for the golden; nothing was set.
        """
        self.parts = dict(parts or {})
        for part, thing in self.parts.items():
            if not is_stateful(thing) and state_of(thing) is None:
                raise UsageError(
                    "trainer-part-unfit",
                    f"{part}={thing!r} is given to {name}, and has neither state_dict() and load_state_dict() nor the state of a "
                    "generator, so it could not be put back when the run is resumed. Nothing was set. Give what has them, or leave it to the "
                    "trainer.",
                )
        self.name = name
        self.allow = allow
        self.ledger: TrainingLedger | None = None
        if ledger is not None:
            self.ledger = TrainingLedger(ledger, update=update_ledger, update_hint=f"{name}(update_ledger=True)")
        self._framework = framework
        self._unseeded = UnseededModels(framework)
        self.settings: Settings = enable(seed, warn_only=warn_only, threads=threads, precision=precision)
        self._num_counted = 0

    def check(self, trainer: str, modules: Iterable[Any] = ()) -> None:
        """Warn of what came too late, and of settings that were changed since.

        Args:
            trainer: What messages call the trainer.
            modules: The model and all within.
        """
        if self._unseeded.has_any(modules):
            warn("trainer-seeded-late", name=self.name)
        elif not is_seeded(self._framework):
            warn("trainer-unseeded", name=self.name)
        changes = [f"{one.name} ({one.detail})" for one in self.settings.open if one.effect is Effect.OVERRIDDEN]
        if changes:
            warn("trainer-overrides", name=self.name, trainer=trainer, changes="; ".join(changes))

    def begin_steps(self, num_done: int) -> None:
        """The training begins: take what the trainer's count of steps begins with, in a resumed run too.

        Args:
            num_done: Its count.
        """
        self._num_counted = num_done
        if self.ledger is not None:
            self.ledger.begin(num_done)

    def end_steps(self, *, is_complete: bool = True) -> None:
        """The training ended.

        Args:
            is_complete: Whether it came to its own end.
        """
        if self.ledger is not None and is_complete:
            self.ledger.end()
        elif self.ledger is not None:
            self.ledger.abandon()

    def count_step(self) -> None:
        """A step of the trainer ended."""
        self._num_counted += 1
        if is_recording():
            step()

    def count_to(self, num_done: int) -> None:
        """End the steps that the trainer has counted meanwhile.

        Args:
            num_done: Its count.
        """
        while self._num_counted < num_done:
            self.count_step()

    def capture(self, *, epoch: int | None = None, step: int | None = None) -> State:
        """The state of the run as it is now."""
        return capture(epoch=epoch, step=step, **self.parts)

    def restore(self, state: State) -> None:
        """Put the state of a run back.

        Args:
            state: What `capture` gave.

        Raises:
            StateError: It does not fit here.
        """
        restore(state, allow=self.allow, **self.parts)


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
                f"The ledger of the training is to be written to {path}, but there is no folder {self.path.parent}, so nothing was trained or set. Make the "
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
