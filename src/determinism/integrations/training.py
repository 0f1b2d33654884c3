"""Shared by the integrations with trainers: settings and seeds in time, steps counted as the trainer counts them, the
state of a run, and its ledger, which is written as a golden at the end of the run or compared with an existing one.
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
    "it has not trained on yet, and a resumed run would skip that batch. Save at the end of an epoch, or give the data set a length.",
    "trainer-loader-restarts": "A checkpoint is saved in the middle of an epoch, and {loader} does not report its position, so a resumed run "
    "gets different batches than this one. Wrap it where it is made: determinism.state.resumable(loader).",
    "trainer-overrides": "These settings were changed after {name} had applied them: {changes}. What {trainer} or the program "
    "sets later takes effect; leave it out there, or create {name} afterwards.",
    "trainer-ranks": "{ranks} processes train together. Lightning saves the state of callbacks in rank 0 only, so no state is saved, and a resumed run "
    "draws different numbers; and it divides only a plain DataLoader among the ranks. Give a resumable loader a sampler that does: "
    "determinism.seed(1).sampler(data, ranks={ranks}).",
    "trainer-ranks-unsaved": "{ranks} processes train together, and trainer_state.json is one file for all, so no state is saved in it, and a resumed run "
    "may draw different numbers. Save it next to the checkpoint in each process: determinism.state.capture(...).",
    "trainer-stream": "A checkpoint is saved, and the data set is an IterableDataset, whose batches the Trainer loads again when it resumes, so if it or "
    "the collator draws random numbers, a resumed run draws different ones. Use a data set with indices, or draw in the model.",
    "trainer-seeded-late": "The model was built before {name} was created, from random numbers that had not been seeded, so its weights "
    "differ in each run. Create {name} first, or call determinism.enable(seed=1) before the model is built.",
    "trainer-unseeded": "The generators have not been seeded, so each run draws different numbers. Give {name} a seed, seed=1, and create it "
    "before the model is built.",
}
"""The warnings during a training, by identifier."""


def warn(identifier: str, **values: object) -> None:
    """Warn of a reason why a training may not be the same each time.

    Args:
        identifier: The identifier of the message.
        **values: The values for its placeholders.
    """
    message = WARNING_MESSAGES[identifier].format(**values)
    warnings.warn(f"{message} ({identifier})", TrainingWarning, stacklevel=2)


# Detects whether the framework was seeded before a model drew its weights.


_MOST_SEEDED = 2**53
"""Seeds that people choose are below; of those that PyTorch draws from 64 bits of the system's entropy, one in 2,000 is."""


def is_seeded(framework: str) -> bool:
    """Whether the generator from which a framework draws weights was seeded, with `determinism` or in any other way.

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
    # The recorder's own digest, which reads without an op that a recording would attribute to the program.
    state_digest = import_module("determinism.frameworks.torch.ops").state_digest
    fresh = generators().manual_seed(generator.initial_seed())
    return bool(state_digest(fresh) != state_digest(generator))


class UnseededModels:
    """The modules or layers that were built from random numbers that had not been seeded."""

    def __init__(self, framework: str) -> None:
        """Note those that exist; searched only if the framework has not been seeded and may have drawn.

        Args:
            framework: `torch` or `tensorflow`.
        """
        found: list[Any] = []
        if not is_seeded(framework) and (framework != "torch" or has_drawn()):
            kind = sys.modules["torch"].nn.Module if framework == "torch" else import_module("keras").layers.Layer
            # Not `isinstance`, which asks objects for their class: some then load a module.
            found = [weakref.ref(thing) for thing in gc.get_objects() if issubclass(type(thing), kind)]
        self._references = found

    def has_any(self, modules: Iterable[Any]) -> bool:
        """Whether one of these modules is among them and has its own parameters."""
        known = {id(module) for reference in self._references if (module := reference()) is not None}
        own = ("_parameters", "_trainable_variables")
        return any(id(module) in known and any(getattr(module, name, ()) for name in own) for module in modules)


# One training, as the callback or handler of its trainer sees it.


class Training:
    """What a callback or handler does in the hooks of its trainer."""

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
        """Apply the settings and set the seeds at once: everything made after the callback is covered, above all the model.

        Args:
            name: The name of the callback in messages.
            seed: As for `determinism.enable`.
            warn_only: As for `determinism.enable`.
            threads: As for `determinism.enable`.
            precision: As for `determinism.enable`.
            allow: As for `determinism.state.restore`.
            parts: Further parts of the state, by name: objects with `state_dict` and `load_state_dict`, and generators.
            framework: The framework from which the model draws its weights: `torch` or `tensorflow`.
            ledger: The golden that the steps are written to or compared with.
            update_ledger: Replace an existing golden.

        Raises:
            TraceError: The golden is damaged.
            UsageError: The state of a part cannot be restored, or the golden's folder does not exist; nothing was set.
        """
        self.parts = dict(parts or {})
        for part, thing in self.parts.items():
            if not is_stateful(thing) and state_of(thing) is None:
                raise UsageError(
                    "trainer-part-unfit",
                    f"{part}={thing!r} was passed to {name}, and has neither state_dict() and load_state_dict() nor the state of a "
                    "generator, so it could not be restored when the run is resumed. Nothing was set. Pass an object that has them, or leave it to the "
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
        """Warn of seeds that came too late, and of settings that were changed since.

        Args:
            trainer: The name of the trainer in messages.
            modules: The model and all modules within it.
        """
        if self._unseeded.has_any(modules):
            warn("trainer-seeded-late", name=self.name)
        elif not is_seeded(self._framework):
            warn("trainer-unseeded", name=self.name)
        changes = [f"{one.name} ({one.detail})" for one in self.settings.open if one.effect is Effect.OVERRIDDEN]
        if changes:
            warn("trainer-overrides", name=self.name, trainer=trainer, changes="; ".join(changes))

    def begin_steps(self, num_done: int) -> None:
        """Begin the training, with the trainer's count of steps, which is not 0 in a resumed run."""
        self._num_counted = num_done
        if self.ledger is not None:
            self.ledger.begin(num_done)

    def end_steps(self, *, is_complete: bool = True) -> None:
        """End the training.

        Args:
            is_complete: Whether it reached its regular end.
        """
        if self.ledger is not None and is_complete:
            self.ledger.end()
        elif self.ledger is not None:
            self.ledger.abandon()

    def count_step(self) -> None:
        """End one step of the trainer."""
        self._num_counted += 1
        if is_recording():
            step()

    def count_to(self, num_done: int) -> None:
        """End the steps that the trainer has counted since."""
        while self._num_counted < num_done:
            self.count_step()

    def capture(self, *, epoch: int | None = None, step: int | None = None) -> State:
        """The state of the run as it is now."""
        return capture(epoch=epoch, step=step, **self.parts)

    def restore(self, state: State) -> None:
        """Put the state of a run back.

        Args:
            state: A result of `capture`.

        Raises:
            StateError: The state does not fit here.
        """
        restore(state, allow=self.allow, **self.parts)


class TrainingCallback:
    """What the callbacks and handlers of all trainers tell of their training."""

    _training: Training

    @property
    def settings(self) -> Settings:
        """Each setting and its outcome, as `determinism.enable` returns them; `settings.open` has those that are left to do."""
        return self._training.settings

    @property
    def ledger(self) -> TrainingLedger | None:
        """The ledger, with `comparison`, and `raise_if_different` for scripts that should fail; None if none was requested."""
        return self._training.ledger


class TrainingWarning(UserWarning):
    """Warns that a training, which continues, may not have the same results each time."""


LEDGER_MESSAGES = {
    "trainer-ledger-differs": "The training differs from its golden {path}:\n{report}\nIf the change is intended, update the golden: "
    "{update}. If it is not, `determinism check` shows whether the program repeats itself. raise_if_different() of the ledger makes this an error.",
    "trainer-ledger-failed": "The ledger of the training was neither written to {path} nor compared with it, and the training is not affected: {reason}",
    "trainer-ledger-lost": "The training that was recorded for {path} did not end before another one began, so nothing was written "
    "or compared. Pass the ledger to only one callback of a trainer.",
    "trainer-ledger-ranks": "{ranks} processes train together, so no ledger was written to {path} or compared with it: it would have the steps of "
    "only one. Record all of them: determinism golden create {quoted} -- COMMAND.",
    "trainer-ledger-recorded": "The program is being recorded already, so no ledger was written to {path} or compared with it. Run it without "
    "`determinism` or `record` around it for that.",
    "trainer-ledger-resumed": "The training resumes from step {first}, and a golden begins with the first step, so no ledger was written to {path} or "
    "compared with it. Train from the beginning for that.",
}
"""The warnings about a ledger during a training, by identifier."""

_open: list[TrainingLedger] = []
"""The ledger that is being recorded, if there is one."""


class TrainingLedger:
    """Records the steps of a training, and writes or checks their golden when it ends.

    If the file does not exist, it is written. An existing one is compared with, and replaced only with `update`. A difference
    never ends the training: it is a `TrainingWarning`, and is kept in `comparison`.
    """

    def __init__(self, path: str | os.PathLike[str], *, update: bool = False, update_hint: str = "update=True") -> None:
        """Check the file before the training begins.

        Args:
            path: The path of the golden.
            update: Replace an existing golden.
            update_hint: How the user requests `update`, for messages.

        Raises:
            TraceError: The file exists, but is not a golden, or is damaged.
            UsageError: Its folder does not exist.
        """
        self.path = Path(path).absolute()
        """The path of the golden."""
        self.comparison: GoldenComparison | None = None
        """The comparison of the last training; None if there was nothing to compare with."""
        self._update = update
        self._update_hint = update_hint
        self._shown = str(path)
        self._folder: Path | None = None
        self._process = 0
        self._recording = ExitStack()
        if not self.path.parent.is_dir():
            raise UsageError(
                "trainer-ledger-folder",
                f"The ledger of the training is to be written to {path}, but there is no folder {self.path.parent}, so nothing was trained or set. Create the "
                "folder, or choose a file in one that exists.",
            )
        self._read()

    def _read(self) -> None:
        """Make sure that an existing file is a golden, even if it will be replaced."""
        if self.path.exists():
            try:
                read_golden(self.path)
            except TraceError as error:
                if not self._update or error.identifier in ("golden-foreign", "golden-unreadable"):
                    raise

    def begin(self, first_step: int = 0) -> None:
        """Begin recording, or warn why the ledger would not be that of the whole training.

        Args:
            first_step: How many steps of the training were done before, in a resumed run.
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
        # Few trainers tell their callbacks that a training ended with an error.
        atexit.register(self.abandon)
        # A JAX program holds no state that could be examined after a step.
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
        # Only the command notes the program's commit.
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
        """Raise an error if the last training differed, for scripts that should then fail.

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
    """How many processes train together, as far as the imported frameworks know."""
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

    If the file does not exist, it is written; an existing one is compared with. If the block raises, nothing is written.

    Args:
        path: The path of the golden.
        update: Replace an existing golden.
        first_step: How many steps were done before, in a resumed run: if any, nothing is written or compared.

    Raises:
        TraceError: The file exists, but is not a golden, or is damaged.
        UsageError: Its folder does not exist.

    Yields:
        The ledger; after the block, its `raise_if_different` raises an error if the steps differ.

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
