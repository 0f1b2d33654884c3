"""`determinism.seed`: seeds every generator that the program has loaded, and those that it loads later."""

from __future__ import annotations

import os
import secrets
import sys
from importlib import import_module

from determinism.errors import StateError
from determinism.frameworks.registry import SEEDERS
from determinism.import_hook import after_import
from determinism.seeds.process_generators import (
    capture_numpy,
    capture_python,
    numpy_random,
    seed_numpy,
    seed_python,
)
from determinism.seeds.streams import Streams
from determinism.session.child_seeding import (
    about_to_fork,
    forked,
    name_spawned_processes,
    process_name,
    rank_of_environment,
)
from determinism.session.registered_generators import RegisteredGenerators
from determinism.session.seeding_state import STATE
from determinism.settings.surroundings import is_loaded

TYPE_CHECKING = False
if TYPE_CHECKING:
    # At run time this would cost every Python process of the program the import of `typing`.
    from collections.abc import Callable
    from types import ModuleType

    from determinism.seeds.process_generators import UnseededNumpy
    from determinism.session.seeds import Seeds


def seed(
    master: int | None,
    *,
    rank: int | None = None,
    worker: int | None = None,
    epoch: int = 0,
    task: str | int = "main",
) -> Seeds:
    """Seed Python, NumPy, PyTorch, TensorFlow, Keras and all registered generators, each with a stream of its own.

    What is imported later is seeded then. Streams are derived by a keyed hash of the master seed and the place in the program,
    so no two places share one. In JAX, whose generators are keys, nothing can be seeded: take keys from `jax(name)` of the
    result.

    Args:
        master: The seed; None draws one, which the result tells as `master`.
        rank: Number of this process among those that train together; None reads it from the environment (`RANK`, or what MPI
            and Slurm set), and is 0 if there is nothing.
        worker: Number of this process among those that load data, if it is one.
        epoch: Number of the epoch that begins.
        task: What the program is about to do, such as "train"; a name or a number.

    Returns:
        The seeds: further generators, seeding for data loaders, and `begin` for the next epoch.

    Raises:
        UsageError: A number cannot name a stream.
        StateError: A framework's generators could not be seeded; all others were.
    """
    seeds = start(master, rank=rank, worker=worker, epoch=epoch, task=task)
    require_seeded()
    return seeds


def start(
    master: int | None, *, rank: int | None = None, worker: int | None = None, epoch: int = 0, task: str | int = "main"
) -> Seeds:
    """Do what `seed` does; what could not be seeded is in `failures`.

    Args:
        master: The seed.
        rank: Number of this process.
        worker: Number of this process among those that load data.
        epoch: Number of the epoch.
        task: What the program is about to do.

    Raises:
        UsageError: A number cannot name a stream.
    """
    from determinism.session.seeds import Seeds

    launched = rank_of_environment() if rank is None else None
    streams = Streams(
        secrets.randbits(63) if master is None else master,
        rank=rank if rank is not None else launched or 0,
        worker=worker,
        epoch=epoch,
        task=task,
        # A rank tells processes apart; without one their names do.
        process=process_name() if rank is None and launched is None else "",
    )
    seeds = Seeds(streams, master is None)
    activate(seeds)
    return seeds


def registered_generators() -> RegisteredGenerators:
    """What is registered with the seeds in force."""
    return RegisteredGenerators() if STATE.seeds is None else STATE.seeds.registered


def active_seeds() -> Seeds | None:
    """The seeds in force; None before the first."""
    return STATE.seeds


def unseeded_numpy() -> UnseededNumpy:
    """What seeds NumPy's generators that are made without a seed."""
    return STATE.unseeded_numpy


def unseeded_numpy_obstacle() -> str | None:
    """Why NumPy's generators made without a seed still take the system's entropy; None if they do not."""
    return STATE.unseeded_numpy_obstacle


def activate(seeds: Seeds | None) -> None:
    """Put seeds in force and seed everything that is loaded.

    Args:
        seeds: The seeds; None takes force from those that had it, and leaves all states as they are.
    """
    STATE.seeds = seeds
    if seeds is None:
        STATE.unseeded_numpy.remove()
        return
    _watch()
    STATE.unseeded_numpy.restart()
    streams = seeds.streams
    for framework in SEEDERS:
        if is_loaded(framework):
            _seed_framework(framework)
    # Last: whatever a framework does when it is seeded, these are left as they should be.
    seed_python(streams)
    _numpy_loaded()
    seeds.registered.seed(streams)


def _watch() -> None:
    """Seed also what is imported later, and what forks and starts of processes would seed otherwise."""
    if STATE.is_watching:
        return
    STATE.is_watching = True
    for name in SEEDERS:
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
        import_module(SEEDERS[framework]).seed(STATE.streams)
    except Exception as error:
        STATE.failures[framework] = f"{type(error).__name__}: {error}"


def failures() -> dict[str, str]:
    """Why the generators of a framework could not be seeded, by its name."""
    return STATE.failures


def require_seeded() -> None:
    """See that everything was seeded.

    Raises:
        StateError: Something was not.
    """
    if STATE.failures:
        reasons = "; ".join(f"{name} ({reason})" for name, reason in STATE.failures.items())
        raise StateError(
            "seed-failed",
            f"The generators of these could not be seeded, all others were: {reasons}. See that the version is one that "
            "determinism knows, or seed them by hand.",
        )


def _numpy_loaded() -> None:
    if STATE.seeds is not None and numpy_random() is not None:
        seed_numpy(STATE.streams)
        STATE.unseeded_numpy_obstacle = STATE.unseeded_numpy.install()


def _keras_loaded() -> None:
    # Without TensorFlow, Keras runs on another framework, and its own seeds wait for that adapter.
    if STATE.seeds is not None and is_loaded("tensorflow"):
        import_module(SEEDERS["tensorflow"]).seed_keras(STATE.streams)


def _ignore(message: str) -> None:
    """A generator that cannot be seeded shows in `determinism.enable`; the program goes on."""


def _capture(module: str) -> Callable[[], None]:
    try:
        put_back: Callable[[], None] = import_module(module).capture()
        return put_back
    except Exception:
        # What cannot be read cannot be seeded either, and `failures` says so; there is nothing to put back.
        return lambda: None


def capture_states() -> Callable[[], None]:
    """Note the states of all loaded generators, and which seeds are in force.

    Returns:
        What puts all of them back.
    """
    seeds = STATE.seeds
    put_back = [_capture(module) for name, module in SEEDERS.items() if is_loaded(name)]
    put_back += [capture_python(), capture_numpy()]

    def restore() -> None:
        for action in put_back:
            action()
        STATE.seeds = seeds
        if seeds is None:
            STATE.unseeded_numpy.remove()

    return restore
