"""`determinism.seed`: seeds every generator that the program has loaded, and those that it loads later."""

from __future__ import annotations

import os
import secrets
import sys
from importlib import import_module

from determinism.errors import UsageError
from determinism.frameworks.registry import SEEDERS
from determinism.import_hook import after_import
from determinism.seeds.process_generators import (
    UnseededNumpy,
    capture_numpy,
    capture_python,
    numpy_random,
    seed_numpy,
    seed_python,
)
from determinism.seeds.streams import Streams
from determinism.session.registered_generators import RegisteredGenerators

TYPE_CHECKING = False
if TYPE_CHECKING:
    # At run time this would cost every Python process of the program the import of `typing`.
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

    from determinism.session.seeds import Seeds

RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID")
"""Environment variables in which launchers tell a process its rank, the surest first."""


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
        process=_process_name() if rank is None and launched is None else "",
    )
    seeds = Seeds(streams, master is None)
    activate(seeds)
    return seeds


def _process_name() -> str:
    """What `multiprocessing` calls this process, if it started it; the place among forked children otherwise."""
    module = sys.modules.get("multiprocessing.process")
    # A process that is being started has its name before it has a parent.
    name = "MainProcess" if module is None else str(module.current_process().name)
    return _STATE.process if name == "MainProcess" else name


def rank_of_environment() -> int | None:
    """The rank that a launcher gave this process; None without one.

    Raises:
        UsageError: What the launcher set is no number.
    """
    for name in RANK_VARIABLES:
        text = os.environ.get(name)
        if text is not None:
            if text.strip().isdecimal():
                return int(text)
            raise UsageError(
                "rank-unreadable",
                f"The environment variable {name} is {text!r}, which is no rank, so nothing was seeded. Unset it, or give "
                "rank=.",
            )
    return None


class _State:
    """The seeds in force in this process."""

    def __init__(self) -> None:
        self.seeds: Seeds | None = None
        self.registered = RegisteredGenerators()
        self.process = ""
        self.children = 0
        self.is_watching = False
        self.unseeded_numpy_obstacle: str | None = None
        self.unseeded_numpy = UnseededNumpy(lambda: self.streams)

    @property
    def streams(self) -> Streams:
        """Where the program is."""
        return Streams(0) if self.seeds is None else self.seeds.streams


_STATE = _State()


def registered_generators() -> RegisteredGenerators:
    """What was registered in this process."""
    return _STATE.registered


def active_seeds() -> Seeds | None:
    """The seeds in force; None before the first."""
    return _STATE.seeds


def unseeded_numpy() -> UnseededNumpy:
    """What seeds NumPy's generators that are made without a seed."""
    return _STATE.unseeded_numpy


def unseeded_numpy_obstacle() -> str | None:
    """Why NumPy's generators made without a seed still take the system's entropy; None if they do not."""
    return _STATE.unseeded_numpy_obstacle


def activate(seeds: Seeds | None) -> None:
    """Put seeds in force and seed everything that is loaded.

    Args:
        seeds: The seeds; None takes force from those that had it, and leaves all states as they are.
    """
    _STATE.seeds = seeds
    if seeds is None:
        _STATE.unseeded_numpy.remove()
        return
    _watch()
    _STATE.unseeded_numpy.restart()
    streams = seeds.streams
    for framework, module in SEEDERS.items():
        if framework in sys.modules:
            import_module(module).seed(streams)
    # Last: whatever a framework does when it is seeded, these are left as they should be.
    seed_python(streams)
    _numpy_loaded()
    _STATE.registered.seed(streams)


def _watch() -> None:
    """Seed also what is imported later, and what forks and starts of processes would seed otherwise."""
    if _STATE.is_watching:
        return
    _STATE.is_watching = True
    for name, module in SEEDERS.items():
        if name not in sys.modules:
            after_import(name, _seeder(module), _ignore)
    if numpy_random() is None:
        after_import("numpy.random", lambda _: _numpy_loaded(), _ignore)
    if "keras" not in sys.modules:
        after_import("keras", lambda _: _keras_loaded(), _ignore)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(before=_about_to_fork, after_in_child=_forked)
    after_import("multiprocessing.spawn", _name_spawned_processes, _ignore)


def _seeder(module: str) -> Callable[[ModuleType], None]:
    def seed_loaded(_: ModuleType) -> None:
        if _STATE.seeds is not None:
            import_module(module).seed(_STATE.streams)

    return seed_loaded


def _numpy_loaded() -> None:
    if _STATE.seeds is not None and numpy_random() is not None:
        seed_numpy(_STATE.streams)
        _STATE.unseeded_numpy_obstacle = _STATE.unseeded_numpy.install()


def _keras_loaded() -> None:
    # Without TensorFlow, Keras runs on another framework, and its own seeds wait for that adapter.
    if _STATE.seeds is not None and "tensorflow" in sys.modules:
        import_module(SEEDERS["tensorflow"]).seed_keras(_STATE.streams)


def _about_to_fork() -> None:
    _STATE.children += 1


def _forked() -> None:
    """Seed `random` in a forked child: Python itself gives it new entropy there, and leaves all other generators alone."""
    if _STATE.seeds is None:
        return
    _STATE.process = f"{_STATE.process}/{_STATE.children}"
    _STATE.children = 0
    _STATE.seeds.streams = _STATE.streams.moved(process=_STATE.process)
    seed_python(_STATE.streams)


def _name_spawned_processes(module: ModuleType) -> None:
    """In a process that `multiprocessing` starts anew, seed again as soon as it knows which one it is."""
    original: Callable[..., Any] = module.prepare

    def prepare(data: dict[str, Any]) -> None:
        if _STATE.seeds is not None and data.get("name"):
            _STATE.process = str(data["name"])
            _STATE.seeds.begin(process=_STATE.process)
        original(data)

    module.prepare = prepare  # type: ignore[attr-defined]


def _ignore(message: str) -> None:
    """A generator that cannot be seeded shows in `determinism.enable`; the program goes on."""


def capture_states() -> Callable[[], None]:
    """Note the states of all loaded generators, and which seeds are in force.

    Returns:
        What puts all of them back.
    """
    seeds = _STATE.seeds
    put_back = [import_module(module).capture() for name, module in SEEDERS.items() if name in sys.modules]
    put_back += [capture_python(), capture_numpy()]

    def restore() -> None:
        for action in put_back:
            action()
        _STATE.seeds = seeds
        if seeds is None:
            _STATE.unseeded_numpy.remove()

    return restore
