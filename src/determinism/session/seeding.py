"""`determinism.seed`: seeds all generators that the program has loaded or will load."""

from __future__ import annotations

import os
import random
import secrets
import sys
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Any

from determinism import seeds
from determinism.errors import StateError, UsageError
from determinism.frameworks.registry import EPOCH_CALLBACKS, STATES
from determinism.import_hook import after_import
from determinism.knowledge.settings import is_loaded
from determinism.seeds import (
    Streams,
    UnseededNumpy,
    capture_numpy,
    capture_python,
    numpy_random,
    seed_numpy,
    seed_python,
)

# Generators of the program and of third parties, which are seeded along with all others.

_WORDS = 16


class RegisteredGenerators:
    """The registered generators of a process, by name."""

    def __init__(self) -> None:
        self._entries: dict[str, tuple[Any, Callable[[Streams], None], bool]] = {}
        self._made = 0

    def add(self, thing: Any, *, name: str | None, shared: bool) -> tuple[str, Callable[[Streams], None]]:
        """Register a generator.

        Args:
            thing: A generator of Python, NumPy or a loaded framework, or a function that takes a 32-bit number.
            name: Name of its stream; with None the generator is numbered.
            shared: Whether all ranks give it the same stream.

        Returns:
            Its name, and the function that seeds it.

        Raises:
            UsageError: It is none of these, or the name is taken.
        """
        if name is None:
            name = f"registered {self._made}"
            self._made += 1
        if name in self._entries:
            raise UsageError(
                "generator-name-taken",
                f"A generator is already registered under the name {name!r}; two generators with the same name would "
                "draw the same numbers. Give a different name, or unregister the other one.",
            )
        seed = _reseeder(thing, name)
        if seed is None:
            raise UsageError(
                "generator-unknown",
                f"{type(thing).__qualname__} is not a generator that can be seeded, so it was not registered. Give a "
                "random.Random, a numpy.random.Generator or RandomState, a torch.Generator, a tf.random.Generator, or a "
                "function that takes a seed.",
            )
        entry = (lambda streams: seed(streams.shared)) if shared else seed
        self._entries[name] = (thing, entry, shared)
        return name, entry

    def remove(self, thing: Any) -> None:
        """Forget a generator.

        Args:
            thing: The registered generator or its name.

        Raises:
            UsageError: It is not registered.
        """
        # Each access to a bound method creates a new object, equal but not identical.
        names = [
            name for name, entry in self._entries.items() if name == thing or entry[0] is thing or entry[0] == thing
        ]
        if not names:
            raise UsageError(
                "generator-not-registered",
                f"{thing!r} is not registered, so it cannot be unregistered. Registered generators: "
                f"{', '.join(self._entries) or 'none'}.",
            )
        for name in names:
            del self._entries[name]

    def things(self) -> dict[str, Any]:
        """Return the registered generators, by name."""
        return {name: thing for name, (thing, _, _) in self._entries.items()}

    def seed(self, streams: Streams) -> None:
        """Seed all registered generators."""
        for _, seed, _ in list(self._entries.values()):
            seed(streams)


def _reseeder(thing: Any, name: str) -> Callable[[Streams], None] | None:
    if isinstance(thing, random.Random):
        return lambda streams: thing.seed(streams.integer("registered", name, bits=512))
    numpy = sys.modules.get("numpy.random")
    if numpy is not None and isinstance(thing, numpy.RandomState):
        return lambda streams: thing.seed(streams.words("registered", name, count=_WORDS))
    if numpy is not None and isinstance(thing, numpy.Generator):
        return lambda streams: _seed_numpy_generator(thing, streams.words("registered", name, count=_WORDS))
    for framework, module in STATES.items():
        if is_loaded(framework):
            found: Callable[[Streams], None] | None = import_module(module).reseeder(thing, name)
            if found is not None:
                return found
    if callable(thing):
        # Functions that take a seed, such as NumPy's and TensorFlow's, often refuse more than 32 bits.
        return lambda streams: thing(streams.integer("registered", name, bits=32))
    return None


def _seed_numpy_generator(generator: Any, words: list[int]) -> None:
    """Give a `numpy.random.Generator` the state of a new one of its kind."""
    from numpy.random import SeedSequence

    kind = type(generator.bit_generator)
    generator.bit_generator.state = kind(SeedSequence(words)).state


# The seeds in force in this process, with their state.


class SeedingState:
    """The seeds in force in this process."""

    def __init__(self) -> None:
        self.seeds: Seeds | None = None
        self.process = ""
        self.children = 0
        self.is_watching = False
        self.failures: dict[str, str] = {}
        """Why a framework's generators could not be seeded, by the framework's name."""
        self.unseeded_numpy_obstacle: str | None = None
        """Why NumPy generators created without a seed still use the system's entropy; None if they do not."""
        self.unseeded_numpy = UnseededNumpy(lambda: self.streams)
        """Seeds NumPy generators created without a seed."""

    @property
    def streams(self) -> Streams:
        """The streams at the program's current place."""
        return Streams(0) if self.seeds is None else self.seeds.streams


STATE = SeedingState()


# Identifies each process of a program by rank, by name, or by the order of forks, so that each draws its own numbers.

RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "HOROVOD_RANK", "SLURM_PROCID")
"""Environment variables in which launchers pass a process its rank, most reliable first."""


def process_name() -> str:
    """Return the name from `multiprocessing`, if it started this process; else its position among forked children."""
    module = sys.modules.get("multiprocessing.process")
    # A process that is being started has its name before it has a parent.
    name = "MainProcess" if module is None else str(module.current_process().name)
    return STATE.process if name == "MainProcess" else name


def rank_of_environment() -> int | None:
    """Return the rank that a launcher gave this process; None without one.

    Raises:
        UsageError: The value that the launcher set is not a number.
    """
    for name in RANK_VARIABLES:
        text = os.environ.get(name)
        if text is not None:
            if text.strip().isdecimal():
                return int(text)
            raise UsageError(
                "rank-unreadable",
                f"The environment variable {name} is {text!r}, which is not a rank, so nothing was seeded. Unset it, "
                "or pass rank=.",
            )
    return None


def about_to_fork() -> None:
    """Count the children, so that each knows its number."""
    STATE.children += 1


def forked() -> None:
    """Seed `random` in a forked child, where Python gives it new entropy but leaves all other generators alone."""
    if STATE.seeds is None:
        return
    STATE.process = f"{STATE.process}/{STATE.children}"
    STATE.children = 0
    STATE.seeds.streams = STATE.streams.moved(process=STATE.process)
    seed_python(STATE.streams)


def name_spawned_processes(module: ModuleType) -> None:
    """In a process that `multiprocessing` spawns, seed again as soon as its name is known."""
    original: Callable[..., Any] = module.prepare

    def prepare(data: dict[str, Any]) -> None:
        if STATE.seeds is not None and data.get("name"):
            STATE.process = str(data["name"])
            STATE.seeds.begin(process=STATE.process)
        original(data)

    module.prepare = prepare  # type: ignore[attr-defined]


def seed(
    master: int | None,
    *,
    rank: int | None = None,
    worker: int | None = None,
    epoch: int = 0,
    task: str | int = "main",
) -> Seeds:
    """Seed Python, NumPy, PyTorch, TensorFlow, Keras and all registered generators, each with its own stream.

    A library that is imported later is seeded when it is imported. Streams are derived by a keyed hash of the master
    seed and the place in the program, so no two places share one. JAX has no global generators to seed, as its
    generators are keys: take keys from the result's `jax(name)`.

    Args:
        master: The seed. With None a random one is drawn; the result has it as its attribute `master`.
        rank: Number of this process among those that train together; None reads it from the environment (`RANK`, or the
            variables of MPI and Slurm) and uses 0 if none is set.
        worker: Number of this process among those that load data, if it is one of them.
        epoch: Number of the epoch that begins.
        task: What the program is about to do, such as "train"; a name or a number.

    Returns:
        The seeds, which make further generators, seed data loaders, and start the next epoch with `begin`.

    Raises:
        UsageError: An argument is unusable, such as a negative number.
        StateError: A framework's generators could not be seeded; all others were.

    Example:
        >>> import random
        >>> seeds = determinism.seed(1)
        >>> first = random.random()
        >>> seeds.begin(epoch=0)
        >>> random.random() == first
        True
    """
    seeds = start(master, rank=rank, worker=worker, epoch=epoch, task=task)
    require_seeded()
    return seeds


def start(
    master: int | None, *, rank: int | None = None, worker: int | None = None, epoch: int = 0, task: str | int = "main"
) -> Seeds:
    """Do what `seed` does, but report what could not be seeded only in `failures`.

    Args:
        master: The seed.
        rank: Number of this process.
        worker: Number of this process among those that load data.
        epoch: Number of the epoch.
        task: What the program is about to do.

    Raises:
        UsageError: An argument is unusable, such as a negative number.
    """
    launched = rank_of_environment() if rank is None else None
    streams = Streams(
        secrets.randbits(63) if master is None else master,
        rank=rank if rank is not None else launched or 0,
        worker=worker,
        epoch=epoch,
        task=task,
        # Ranks distinguish processes; without ranks, names do.
        process=process_name() if rank is None and launched is None else "",
    )
    seeds = Seeds(streams, master is None)
    activate(seeds)
    return seeds


def registered_generators() -> RegisteredGenerators:
    """Return the generators that are registered with the seeds in force."""
    return RegisteredGenerators() if STATE.seeds is None else STATE.seeds.registered


def active_seeds() -> Seeds | None:
    """Return the seeds in force; None if there are none."""
    return STATE.seeds


def activate(seeds: Seeds | None) -> None:
    """Put seeds in force and seed everything that is loaded.

    Args:
        seeds: The seeds; None deactivates the current ones and leaves the states of all generators as they are.
    """
    STATE.seeds = seeds
    if seeds is None:
        STATE.unseeded_numpy.remove()
        return
    _watch()
    STATE.unseeded_numpy.restart()
    streams = seeds.streams
    for framework in STATES:
        if is_loaded(framework):
            _seed_framework(framework)
    # Last, since seeding a framework may change these.
    seed_python(streams)
    _numpy_loaded()
    seeds.registered.seed(streams)


def _watch() -> None:
    """Also seed libraries that are imported later, and new processes, which would be seeded differently."""
    if STATE.is_watching:
        return
    STATE.is_watching = True
    for name in STATES:
        if name not in sys.modules:
            after_import(name, _seeder(name), _ignore)
    if numpy_random() is None:
        after_import("numpy.random", lambda _: _numpy_loaded(), _ignore)
    if "keras" not in sys.modules:
        after_import("keras", lambda _: _keras_loaded(), _ignore)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=about_to_fork, after_in_child=forked)
    after_import("multiprocessing.spawn", name_spawned_processes, _ignore)


def _seeder(framework: str) -> Callable[[ModuleType], None]:
    def seed_loaded(_: ModuleType) -> None:
        if STATE.seeds is not None and is_loaded(framework):
            _seed_framework(framework)

    return seed_loaded


def _seed_framework(framework: str) -> None:
    STATE.failures.pop(framework, None)
    try:
        import_module(STATES[framework]).seed(STATE.streams)
    except Exception as error:
        STATE.failures[framework] = f"{type(error).__name__}: {error}"


def require_seeded() -> None:
    """Check that everything was seeded.

    Raises:
        StateError: Some generators were not seeded.
    """
    if STATE.failures:
        reasons = "; ".join(f"{name} ({reason})" for name, reason in STATE.failures.items())
        raise StateError(
            "seed-failed",
            f"The generators of these could not be seeded; all others were: {reasons}. Check that determinism "
            "supports this version, or seed them by hand.",
        )


def _numpy_loaded() -> None:
    if STATE.seeds is not None and numpy_random() is not None:
        seed_numpy(STATE.streams)
        STATE.unseeded_numpy_obstacle = STATE.unseeded_numpy.install()


def _keras_loaded() -> None:
    # Without TensorFlow, Keras runs on another framework, for which its own seeds have no adapter yet.
    if STATE.seeds is not None and is_loaded("tensorflow"):
        import_module(STATES["tensorflow"]).seed_keras(STATE.streams)


def _ignore(message: str) -> None:
    """Let the program continue; `determinism.enable` shows a generator that cannot be seeded."""


def _capture(module: str) -> Callable[[], None]:
    try:
        put_back: Callable[[], None] = import_module(module).capture()
        return put_back
    except Exception:
        # What cannot be read cannot be seeded either, as `failures` says; there is nothing to restore.
        return lambda: None


def capture_states() -> Callable[[], None]:
    """Capture the states of all loaded generators and the seeds in force.

    Returns:
        A function that restores all of them.
    """
    seeds = STATE.seeds
    put_back = [_capture(module) for name, module in STATES.items() if is_loaded(name)]
    put_back += [capture_python(), capture_numpy()]

    def restore() -> None:
        for action in put_back:
            action()
        STATE.seeds = seeds
        if seeds is None:
            STATE.unseeded_numpy.remove()

    return restore


# The result of `determinism.seed`: everything that draws from the streams of one master seed.

_VERSION = 1


class Seeds:
    """The streams of one master seed, at the program's current place.

    Attributes:
        streams: The current place and the streams there.
        master_was_drawn: Whether the master seed was drawn at random. If so, each process has its own and shares nothing.
        registered: The generators that are seeded with everything else.
    """

    def __init__(self, streams: Streams, master_was_drawn: bool = False) -> None:
        """Take the place without seeding anything."""
        self.streams = streams
        self.master_was_drawn = master_was_drawn
        self.registered = RegisteredGenerators()

    def __getstate__(self) -> tuple[Streams, bool]:
        # Registered generators stay in this process; workers get only the place.
        return self.streams, self.master_was_drawn

    def __setstate__(self, state: tuple[Streams, bool]) -> None:
        self.streams, self.master_was_drawn = state
        self.registered = RegisteredGenerators()

    @property
    def master(self) -> int:
        """The master seed, with which the run can be repeated."""
        return self.streams.master

    def begin(self, **place: Any) -> None:
        """Move to another place and seed everything for it.

        Args:
            **place: `epoch`, `task`, `rank` or `worker`; the others keep their values.

        Raises:
            UsageError: An argument is unusable, such as a negative number.
            StateError: A framework's generators could not be seeded.
        """
        self.streams = self.streams.moved(**place)
        activate(self)
        require_seeded()

    def at(self, **place: Any) -> Seeds:
        """Return the seeds of another place without moving there or seeding anything.

        Args:
            **place: The same arguments as for `begin`.
        """
        return Seeds(self.streams.moved(**place), self.master_was_drawn)

    @property
    def shared(self) -> Seeds:
        """The seeds that all ranks share.

        Raises:
            UsageError: The master seed was drawn, so no other rank has it.
        """
        if self.master_was_drawn:
            raise UsageError(
                "seed-not-shared",
                f"This process drew the master seed {self.master} itself, so no stream is shared between ranks. Give "
                "all ranks the same master seed: determinism.seed(1).",
            )
        return Seeds(self.streams.shared)

    def register(self, generator: Any, *, name: str | None = None, shared: bool = False) -> Any:
        """Seed a generator now, and with everything else whenever a new place begins.

        Args:
            generator: A generator of Python, NumPy or a loaded framework, or a function that takes a 32-bit number.
            name: Name of its stream; without one it is numbered, so register in the same order in each run.
            shared: Whether all ranks give it the same stream.

        Returns:
            The generator.

        Raises:
            UsageError: It cannot be seeded, the name is taken, or ranks share no master seed.
        """
        if shared:
            _ = self.shared
        _, seed = self.registered.add(generator, name=name, shared=shared)
        seed(self.streams)
        return generator

    def unregister(self, generator: Any) -> None:
        """Stop seeding a generator.

        Args:
            generator: The registered generator or its name.

        Raises:
            UsageError: It is not registered.
        """
        self.registered.remove(generator)

    def python(self, name: str = "default") -> Any:
        """Return a `random.Random` with the named stream at this place."""
        return seeds.python_generator(self.streams, name)

    def numpy(self, name: str = "default") -> Any:
        """Return a `numpy.random.Generator` with the named stream at this place."""
        return seeds.numpy_generator(self.streams, name)

    def torch(self, name: str = "default", device: str = "cpu") -> Any:
        """Return a `torch.Generator` with the named stream at this place."""
        return import_module(STATES["torch"]).generator(self.streams, name, device)

    def tensorflow(self, name: str = "default") -> Any:
        """Return a `tf.random.Generator` with the named stream at this place."""
        return import_module(STATES["tensorflow"]).generator(self.streams, name)

    def jax(self, name: str = "default") -> Any:
        """Return a JAX key with the named stream at this place."""
        return import_module(STATES["jax"]).key(self.streams, name)

    def generator(self, name: str = "loader") -> Any:
        """Return the generator for a PyTorch `DataLoader`: `DataLoader(..., generator=seeds.generator())`.

        It is registered: `begin(epoch=N)` gives it that epoch's stream, and a resumed run shuffles like the full one.

        Args:
            name: Name of its stream, different for each loader.

        Raises:
            UsageError: The name is taken.
        """
        return self.register(self.torch(name), name=name)

    def worker_init_fn(self, worker: int) -> None:
        """Seed a worker of a PyTorch `DataLoader`: `DataLoader(..., worker_init_fn=seeds.worker_init_fn)`.

        Workers that outlive an epoch (`persistent_workers=True`) are seeded once, when they start.

        Args:
            worker: Number of the worker.
        """
        self.streams = import_module(STATES["torch"]).seed_worker(self.streams, worker)

    def sampler(self, data: Any, *, ranks: int = 1, name: str = "sampler") -> Any:
        """Return a sampler for a PyTorch `DataLoader` whose order depends only on the epoch, not on earlier epochs.

        Args:
            data: The data set.
            ranks: How many ranks divide it; this rank takes its share.
            name: Name of its stream, different for each sampler.

        Raises:
            UsageError: This process's rank is not below `ranks`.
        """
        rank = self.streams.rank or 0
        if not rank < ranks and ranks > 1:
            raise UsageError(
                "rank-outside",
                f"This process has rank {rank}, but the data set is divided among {ranks} ranks, so it has no share. "
                "Pass the total number of ranks as ranks=.",
            )
        own = rank if ranks > 1 else 0
        return import_module(STATES["torch"]).EpochSampler(data, self, rank=own, ranks=ranks, name=name)

    def keras_callback(self, task: str = "train") -> Any:
        """Return a Keras callback that begins each epoch with its own seeds.

        Args:
            task: The `task` of these epochs.
        """
        return import_module(EPOCH_CALLBACKS["keras"]).ReseedEachEpoch(self, task)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the seeds for a checkpoint: numbers and strings only."""
        streams = self.streams
        return {
            "version": _VERSION,
            "master": streams.master,
            "rank": streams.rank,
            "epoch": streams.epoch,
            "task": streams.task,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at the place where a checkpoint was made and seed everything for it.

        Args:
            state: The result of `state_dict`.

        Raises:
            UsageError: It was made by another version, or by another rank.
        """
        found = (state.get("version"), state.get("rank"))
        if found != (_VERSION, self.streams.rank):
            raise UsageError(
                "seeds-unfit",
                f"The saved seeds have version {found[0]} and rank {found[1]}, but this is rank {self.streams.rank} "
                f"and reads version {_VERSION}, so nothing was seeded. In each rank, load what that rank saved, with "
                "the version of determinism that saved it.",
            )
        self.master_was_drawn = False
        self.streams = Streams(
            state["master"], rank=state["rank"], epoch=state["epoch"], task=state["task"], process=self.streams.process
        )
        activate(self)

    def __repr__(self) -> str:
        return f"<determinism seeds: {self.streams}>"
