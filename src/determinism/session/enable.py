"""`determinism.enable`: makes, inspects and undoes settings."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from types import ModuleType, TracebackType

from determinism.errors import StateError
from determinism.frameworks.registry import ENABLERS, PATCHERS, STATES
from determinism.import_hook import after_import
from determinism.knowledge import settings
from determinism.knowledge.settings import (
    GROUPS,
    Effect,
    Fact,
    Remaining,
    Request,
    Setting,
    condition_holds,
    facts_of,
    is_installed,
    is_loaded,
    is_within,
    remaining_of,
    version_of,
    xla_accepts,
)
from determinism.seeds import numpy_random
from determinism.session import seeding
from determinism.types import ReplacedOps

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Container, Iterator
    from typing import Any

    from determinism.knowledge.settings import Control
    from determinism.run_spec import FactorRequest
    from determinism.types import PrecisionName


# `determinism.patch`: deterministic replacements for ops without a deterministic implementation.

_NO_PATCHES = {
    "jax": "XLA either has deterministic implementations of its ops or refuses them; there are no patches for it yet",
}


class Patches:
    """What `determinism.patch` replaced.

    Attributes:
        replaced: For each framework, the ops that this call replaced, without those that were already replaced.
        absent: For each framework, the ops that have a replacement but do not exist in the installed version.
        skipped: For each framework, the reason why nothing was replaced.
        waiting: Frameworks that are not imported yet; their ops are replaced on import.
    """

    def __init__(self) -> None:
        self.replaced: dict[str, list[str]] = {}
        self.absent: dict[str, list[str]] = {}
        self.skipped: dict[str, str] = {}
        self.waiting: list[str] = []
        self._restorers: list[Callable[[], None]] = []
        self._restored = False

    def restore(self) -> None:
        """Restore the stock ops. Whatever was built with the replacements, such as traced functions, keeps them."""
        self._restored = True
        while self._restorers:
            self._restorers.pop()()

    def __enter__(self) -> Patches:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.restore()

    def __repr__(self) -> str:
        return f"<Patches\n{self}>" if str(self) else ("<Patches: no framework with replaceable ops is installed>")

    def __str__(self) -> str:
        lines = [f"{name}: {', '.join(ops) or 'replaced before'}" for name, ops in self.replaced.items()]
        lines += [f"{name}: not in this version: {', '.join(ops)}" for name, ops in self.absent.items()]
        lines += [f"{name}: nothing replaced: {reason}" for name, reason in self.skipped.items()]
        lines += [f"{name}: waits for the import" for name in self.waiting]
        return "\n".join(lines)

    def _begin(self) -> None:
        for name in _NO_PATCHES:
            after_import(name, self._leave, lambda words: None)
        for name in PATCHERS:
            if name not in sys.modules:
                self.waiting.append(name)
            after_import(name, self._apply, lambda words: None)

    def _leave(self, module: ModuleType) -> None:
        self.skipped[module.__name__] = _NO_PATCHES[module.__name__]

    def _apply(self, module: ModuleType) -> None:
        name = module.__name__
        if self._restored:
            return
        if name in self.waiting:
            self.waiting.remove(name)
        try:
            found: ReplacedOps = import_module(PATCHERS[name]).apply()
        except Exception as error:  # the import of a framework must not fail for this
            self.skipped[name] = f"replacing failed with {type(error).__name__}: {error}"
            return
        self._restorers.append(found.restore)
        if found.absent:
            self.absent[name] = found.absent
        if found.reason is None:
            self.replaced[name] = found.ops
        else:
            self.skipped[name] = found.reason


def patch() -> Patches:
    """Replace ops that have no deterministic implementation in the installed version with deterministic ones.

    For PyTorch with `torch.library.get_kernel`, kernels registered at its dispatcher replace the ops that
    `torch.use_deterministic_algorithms` refuses and those that vary silently. For TensorFlow 2.16 to 2.21: the ops that
    `tf.config.experimental.enable_op_determinism` refuses on a GPU, and those that vary on the CPU despite it. Call it
    before functions are traced and models are built, before or after importing TensorFlow. It may be combined with
    `determinism.enable`, in either order. A second call changes nothing. Nothing is printed; inspect the result.

    Returns:
        What was replaced. As a context manager (`with determinism.patch():`) it restores everything at the end.

    Example:
        >>> with determinism.patch() as patches:
        ...     print(patches.skipped.get("torch"))
        None
    """
    patches = Patches()
    patches._begin()
    return patches


def start_patches(request: FactorRequest) -> None:
    """Replace ops in a run of an experiment; see `factors/catalog.py`."""
    patch()


# The state of the seeds, as settings.

_SOURCE = "docs/seeds.md"
_WHY = "Its numbers differ in each run, unless it starts from the same seed."
_LINE = "determinism.enable(seed=1)"
_NAMES = {
    "python": "seed of random",
    "numpy": "seed of numpy.random",
    "torch": "seed of torch, on every device",
    "tensorflow": "seed of tf.random and Keras",
    "cupy": "seed of cupy.random, on every device",
}


def seed_settings(*, change: bool) -> list[Setting]:
    """Return the current state of the seeds.

    Args:
        change: Whether settings were to be made; if not, whatever is not seeded counts as missing.
    """
    seeds = seeding.active_seeds()
    if seeds is None:
        effect = Effect.KEPT if change else Effect.MISSING
        detail = "no seed was given" if change else "nothing was seeded by determinism"
        return [Setting("seed", "python", None, None, effect, _WHY, _SOURCE, detail, _LINE)]
    loaded = {"python": True, "numpy": numpy_random() is not None, **{name: is_loaded(name) for name in STATES}}
    after = f"{seeds.master} ({'drawn, ' if seeds.master_was_drawn else ''}rank {seeds.streams.rank})"
    found = []
    for group, name in _NAMES.items():
        if group == "python" or loaded[group] or is_installed(group):
            effect = Effect.NOW if loaded[group] else Effect.WAITING
            effect = Effect.ALREADY if loaded[group] and not change else effect
            failure = seeding.STATE.failures.get(group, "")
            effect = Effect.FAILED if failure else effect
            found.append(Setting(name, group, None, None if failure else after, effect, _WHY, _SOURCE, failure, _LINE))
    if loaded["numpy"]:
        found.append(_unseeded_numpy(change))
    return found


def _unseeded_numpy(change: bool) -> Setting:
    reason = seeding.STATE.unseeded_numpy_obstacle
    effect = Effect.FAILED if reason else Effect.NOW if change else Effect.ALREADY
    return Setting(
        "entropy of numpy.random.default_rng() without a seed",
        "numpy",
        "the system's",
        "the system's" if reason else "derived from the seed",
        effect,
        "Generators created without a seed use the system's entropy, which differs in each run.",
        "https://numpy.org/doc/stable/reference/random/bit_generators/generated/numpy.random.SeedSequence.html",
        reason or "",
        "numpy.random.default_rng(1)",
    )


_NUMERICAL = ("numpy", "scipy", "torch", "tensorflow", "jax")
"""Loading any of these loads the libraries that read the variables of numerical libraries."""

_CONDITIONS = {
    "nvidia": "there is no NVIDIA device",
    "mkl": "nothing here computes with oneMKL",
    "warn-only": "it matters only if ops warn instead of raising",
}


@dataclass(frozen=True)
class Change:
    """A setting, and the function that undoes its change."""

    setting: Setting
    undo: Callable[[], None] | None = None


def make(fact: Fact, version: str, request: Request) -> Change:
    """Make a setting, or only inspect it.

    Args:
        fact: The known facts about the setting.
        version: Version of its framework; empty for none.
        request: The request.
    """
    if version and not fact.exists_in(version):
        return _unchanged(fact, Effect.ABSENT, f"{fact.group} {version} is installed; it is for {fact.versions}")
    if fact.condition == "warn-only" and not request.warn_only:
        return _unchanged(fact, Effect.UNNEEDED, _CONDITIONS[fact.condition])
    if not condition_holds(fact.condition):
        package = fact.condition.removeprefix("package:")
        return _unchanged(fact, Effect.UNNEEDED, _CONDITIONS.get(fact.condition, f"{package} is not installed"))
    if fact.kind == "variable":
        return _make_variable(fact, request)
    if not is_loaded(fact.group) and not (fact.kind == "flag" and version):
        return _unchanged(fact, Effect.WAITING)
    return _make_flag(fact, request) if fact.kind == "flag" else _make_control(fact, request)


def wanted(fact: Fact, request: Request) -> Any:
    """Return the value that a setting should have; None if it is only inspected or a variable that should be unset."""
    if fact.option:
        value = getattr(request, fact.option)
        return str(value) if fact.kind == "variable" and value is not None else value
    if request.warn_only and fact.value_if_warning is not None:
        return fact.value_if_warning
    return fact.value


def _unchanged(fact: Fact, effect: Effect, detail: str = "", value: Any = None) -> Change:
    return Change(_setting(fact, value, value, effect, detail))


def _setting(fact: Fact, before: Any, after: Any, effect: Effect, detail: str = "") -> Setting:
    return Setting(fact.name, fact.group, before, after, effect, fact.why, fact.source, detail, fact.line)


def _make_variable(fact: Fact, request: Request) -> Change:
    before, value = os.environ.get(fact.name), wanted(fact, request)
    if fact.option and value is None:
        return _unchanged(fact, Effect.KEPT, value=before)
    in_force = settings.value_at_start(fact.name) if fact.moment == "start" else before
    if fact.accepts(in_force, value):
        return _unchanged(fact, Effect.ALREADY, value=in_force)
    if not request.change:
        return _unchanged(fact, Effect.MISSING, value=in_force)
    # Nothing needs to be written if child processes will already get the right value.
    if not fact.accepts(before, value):
        settings.write(fact.name, value)
    return _written(fact, before, os.environ.get(fact.name), lambda: settings.write(fact.name, before))


def _make_flag(fact: Fact, request: Request) -> Change:
    flags = os.environ.get(settings.XLA_FLAGS)
    before, value = settings.flag_value(flags or "", fact.name), wanted(fact, request)
    if not xla_accepts(fact.name):
        return _unchanged(
            fact, Effect.ABSENT, "the installed XLA does not know it, and would abort the process", before
        )
    if fact.accepts(before, value):
        return _unchanged(fact, Effect.ALREADY, value=before)
    if not request.change:
        return _unchanged(fact, Effect.MISSING, value=before)
    settings.write(settings.XLA_FLAGS, settings.with_flag(flags or "", fact.name, value))
    return _written(fact, before, value, lambda: settings.write(settings.XLA_FLAGS, flags))


def _written(fact: Fact, before: Any, after: Any, undo: Callable[[], None]) -> Change:
    """Describe a change of the environment, which may come too late for this process."""
    if not _has_passed(fact):
        return Change(_setting(fact, before, after, Effect.NOW), undo)
    detail = f"{_moment(fact)}; processes started from now on have it"
    return Change(_setting(fact, before, after, Effect.FRESH, detail), undo)


def _make_control(fact: Fact, request: Request) -> Change:
    value = wanted(fact, request)
    try:
        control: Control = import_module(ENABLERS[fact.group]).CONTROLS[fact.name]
    except Exception as error:
        # This version of the framework is organized differently.
        return _unchanged(fact, Effect.FAILED, f"its adapter cannot be loaded: {type(error).__name__}: {error}")
    try:
        before = control.read()
    except (AttributeError, ImportError) as error:
        return _unchanged(fact, Effect.ABSENT, f"{type(error).__name__}: {error}")
    except Exception as error:
        # Some settings cannot be read once the program has used another setting for the same purpose.
        detail = f"it cannot be read: {type(error).__name__}: {error}"
        return _unchanged(fact, Effect.KEPT if value is None else Effect.FAILED, detail)
    if value is None:
        return _unchanged(fact, Effect.KEPT, value=before)
    undo = _restorer(control, before)
    if fact.accepts(before, value):
        # Another setting may change this one too.
        return Change(_setting(fact, before, before, Effect.ALREADY), undo if request.change else None)
    if not request.change:
        return _unchanged(fact, Effect.MISSING, value=before)
    try:
        control.write(value)
        after = control.read()
    except Exception as error:
        return Change(_setting(fact, before, before, Effect.FAILED, f"{type(error).__name__}: {error}"), undo)
    if not fact.accepts(after, value):
        return Change(_setting(fact, before, after, Effect.FAILED, f"it was set to {value!r} and is {after!r}"), undo)
    return Change(_setting(fact, before, after, Effect.NOW), undo)


def _restorer(control: Control, before: Any) -> Callable[[], None]:
    def restore() -> None:
        if control.read() != before:
            control.write(before)

    return restore


def _has_passed(fact: Fact) -> bool:
    """Whether it is too late to make a setting."""
    if fact.moment == "any":
        return False
    if fact.moment == "start":
        return True
    if fact.moment == "import":
        return is_loaded(fact.condition.removeprefix("package:") or fact.group)
    if fact.moment == "libraries":
        return any(is_loaded(name) for name in _NUMERICAL)
    return any(import_module(module).has_begun(fact.moment) for name, module in ENABLERS.items() if is_loaded(name))


def _moment(fact: Fact) -> str:
    """Return the reason why it is too late to make a setting."""
    return {
        "start": "Python reads it at startup",
        "import": f"{fact.condition.removeprefix('package:') or fact.group} was imported before",
        "libraries": "the libraries that read it were loaded before",
        "device": "the device was in use before",
        "collectives": "processes were connected before",
    }[fact.moment]


# Makes or inspects the settings of one framework after another.


class SettingMaker:
    """Makes the settings of one framework after another, now or when it is imported."""

    def __init__(self, request: Request) -> None:
        """Take the request."""
        self.request = request

    def groups(self) -> list[str]:
        """Return the groups of settings: those of no framework, then the installed frameworks."""
        return [group for group in GROUPS if group not in ENABLERS or is_loaded(group) or version_of(group) is not None]

    def changes(self, group: str, names: Container[str] | None = None) -> list[Change]:
        """Make the settings of a framework, or only those with some names."""
        version = (version_of(group) or "") if group in ENABLERS else ""
        facts = [fact for fact in facts_of(group) if names is None or fact.name in names]
        return [make(fact, version, self.request) for fact in facts]

    def when_imported(self, group: str, callback: Callable[[], None], failed: Callable[[str], None]) -> None:
        """Call back when a framework has been imported; never if it was imported before."""

        def imported(_: ModuleType) -> None:
            try:
                if is_loaded(group):
                    callback()
            except Exception as error:
                failed(f"{type(error).__name__}: {error}")

        if group in ENABLERS and group not in sys.modules:
            after_import(group, imported, failed)

    def seeds(self) -> list[Setting]:
        """Return the state of the seeds."""
        return seed_settings(change=self.request.change)

    def remaining(self, groups: list[str]) -> list[Remaining]:
        """Return what remains nondeterministic in the installed versions."""
        found = []
        for group in groups:
            version = version_of(group) if group in ENABLERS else None
            if version is not None:
                found += [entry for entry in remaining_of(group) if is_within(version, entry.versions)]
        return found


# The result of `determinism.enable`.


class Settings:
    """All settings: the old and new value of each, its reason and source, and whether it took effect.

    Iterate over the settings, or get one with `settings["torch.backends.cudnn.benchmark"]`. As a context manager, this
    restores everything at the end.
    """

    def __init__(self, maker: SettingMaker) -> None:
        """Take the maker of the settings; `begin` makes them."""
        self._maker = maker
        self._made: dict[str, list[Setting]] = {}
        self._undo: list[tuple[str, Callable[[], None]]] = []
        self._is_active = True
        self._seeds_at_end: list[Setting] | None = None

    def begin(self) -> None:
        """Make the settings of all installed frameworks; those of frameworks not yet imported wait for the import."""
        for group in self._maker.groups():
            self._made[group] = []
            self._take(group, self._maker.changes(group))
            self._maker.when_imported(group, partial(self._imported, group), partial(self._failed, group))
        if self._maker.request.change:
            settings.add(self._open)

    def will_undo(self, name: str, undo: Callable[[], None]) -> None:
        """Also undo another change, before undoing those made so far.

        Args:
            name: Name of the change in messages if that fails.
            undo: Function that undoes the change.
        """
        self._undo.append((name, undo))

    def __iter__(self) -> Iterator[Setting]:
        for made in self._made.values():
            yield from made
        yield from self._maker.seeds() if self._seeds_at_end is None else self._seeds_at_end

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __getitem__(self, name: str) -> Setting:
        for setting in self:
            if setting.name == name:
                return setting
        raise KeyError(name)

    @property
    def open(self) -> list[Setting]:
        """The settings that are not as requested: they need a fresh process, could not be applied, or were changed."""
        return self._open()

    def _open(self) -> list[Setting]:
        return [*(setting for setting in self if setting.effect.is_open), *self._overridden()]

    def _overridden(self) -> list[Setting]:
        """Return the settings that the program has changed since they were made."""
        if not (self._is_active and self._maker.request.change):
            return []
        found = []
        looking = SettingMaker(replace(self._maker.request, change=False))
        for group, made in self._made.items():
            before = {setting.name: setting for setting in made if setting.effect in (Effect.NOW, Effect.ALREADY)}
            for now in (change.setting for change in looking.changes(group)):
                if now.effect is Effect.MISSING and now.name in before:
                    was = before[now.name].after
                    detail = f"It was {was!r}, and is now {now.after!r}"
                    found.append(replace(now, before=was, effect=Effect.OVERRIDDEN, detail=detail))
        return found

    @property
    def remaining(self) -> list[Remaining]:
        """What remains nondeterministic in the installed versions even with all settings made."""
        return self._maker.remaining(list(self._made))

    def restore(self) -> None:
        """Restore all settings, environment variables and generator states; a second call does nothing.

        Raises:
            StateError: Some settings could not be restored; everything else was.
        """
        failures = self._restore()
        if failures:
            raise StateError(
                "settings-not-restored",
                f"These settings could not be restored; all others were: {'; '.join(failures)}. Start a fresh process "
                "to restore them.",
            )

    def _restore(self) -> list[str]:
        if self._is_active:
            self._seeds_at_end = self._maker.seeds()
        self._is_active = False
        settings.remove(self._open)
        failures = []
        while self._undo:
            name, undo = self._undo.pop()
            try:
                undo()
            except Exception as error:
                failures.append(f"{name} ({type(error).__name__}: {error})")
        return failures

    def __enter__(self) -> Settings:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None:
            self.restore()
        else:
            # The program's own error is more informative than one from restoring.
            self._restore()

    def explain(self) -> None:
        """Print each setting with its reason, its source and the code that makes it by hand."""
        print(settings.explanation(list(self), self.remaining))

    def __repr__(self) -> str:
        return settings.table(list(self), self.remaining)

    def _repr_html_(self) -> str:
        return settings.html_table(list(self), self.remaining)

    def _take(self, group: str, changes: list[Change]) -> None:
        replaced = {change.setting.name: change.setting for change in changes}
        kept = [replaced.pop(setting.name, setting) for setting in self._made[group]]
        self._made[group] = [*kept, *replaced.values()]
        self._undo += [(change.setting.name, change.undo) for change in changes if change.undo is not None]

    def _imported(self, group: str) -> None:
        if self._is_active:
            waiting = {setting.name for setting in self._made[group] if setting.effect is Effect.WAITING}
            self._take(group, self._maker.changes(group, waiting))

    def _failed(self, group: str, message: str) -> None:
        self._made[group] = [
            replace(one, effect=Effect.FAILED, detail=message) if one.effect is Effect.WAITING else one
            for one in self._made[group]
        ]


# `determinism.enable`: makes libraries deterministic, whether they are imported already or later.


def enable(
    seed: int | None = None,
    *,
    warn_only: bool = False,
    threads: int | None = None,
    precision: PrecisionName | None = None,
) -> Settings:
    """Make this process deterministic: Python and, if installed, NumPy, PyTorch, TensorFlow with Keras, and JAX.

    It may be called before or after importing them; the settings of a framework that is not imported yet are made on
    import. Nothing is printed; inspect the result.

    Args:
        seed: Seed for every generator, each with its own stream; see `determinism.seed`. None leaves generators alone.
        warn_only: Whether ops without a deterministic implementation warn instead of raising.
        threads: Number of CPU threads for computations, on which results depend; None leaves it unchanged.
        precision: Precision of float32 matrix products: "highest", "high" or "medium"; None leaves it unchanged.

    Returns:
        For each setting, its old and new value, its reason, and whether it took effect. As a context manager
        (`with determinism.enable(seed=1):`) it restores everything at the end.

    Raises:
        UsageError: An argument is out of range; nothing was set.

    Example:
        >>> with determinism.enable(seed=1) as settings:
        ...     print(settings["seed of random"].after)
        1 (rank 0)
    """
    request = Request(warn_only=warn_only, threads=threads, precision=precision)
    settings = Settings(SettingMaker(request))
    settings.begin()
    if seed is not None:
        settings.will_undo("seeds", seeding.capture_states())
        try:
            seeding.start(seed)
        except Exception:
            settings.restore()
            raise
    return settings


def look(request: Request | None = None) -> Settings:
    """Inspect all settings without changing any."""
    settings = Settings(SettingMaker(replace(request or Request(), change=False)))
    settings.begin()
    return settings
