"""The name of a process among its siblings, which is the same in every run."""

from __future__ import annotations

import itertools
import json
import os
import re
import sys
from collections.abc import Iterator
from typing import Any

_LAUNCHERS = (
    ("RANK", "WORLD_SIZE", "rank"),
    ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "rank"),
    ("PMI_RANK", "PMI_SIZE", "rank"),
    ("HOROVOD_RANK", "HOROVOD_SIZE", "rank"),
    ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "task"),
)
"""Variables in which launchers pass a process its number and the total, most reliable first, and the word for it.

torchrun, Open MPI, MPICH, Horovod, and srun, whose tasks are often torchruns that start their own ranks.
"""


_CLUSTER = "TF_CONFIG"
"""Variable that says, as JSON, which processes of a TensorFlow program train together and which one this is."""
_TRAINING = ("chief", "master", "worker")
"""Tasks of such a cluster that train, in the order in which TensorFlow numbers them."""


def _launched() -> tuple[str, int | None] | None:
    """Return a launcher's name for this process or its parent, and how many it started; None without a launcher."""
    for number, count, word in _LAUNCHERS:
        found, started = os.environ.get(number, ""), os.environ.get(count, "")
        if found.isdecimal() and (number == "RANK" or (started.isdecimal() and int(started) > 1)):
            return f"{word}-{found}", int(started) if started.isdecimal() else None
    return _task_of_cluster()


def _task_of_cluster() -> tuple[str, int | None] | None:
    """Return this process's name in a TensorFlow cluster, and how many processes train in it; None outside of one.

    Processes that train are ranks; a parameter server or an evaluator keeps its name in the cluster.
    """
    try:
        told = json.loads(os.environ.get(_CLUSTER, ""))
        jobs = {str(job): len(addresses) for job, addresses in told["cluster"].items()}
        kind, number = str(told["task"]["type"]), int(told["task"]["index"])
    except (ValueError, TypeError, KeyError, AttributeError):
        return None
    if sum(jobs.values()) < 2 or not kind.isalnum():
        return None
    if kind not in _TRAINING:
        return f"{kind}-{number}", None
    before = sum(jobs.get(job, 0) for job in _TRAINING[: _TRAINING.index(kind)])
    return f"rank-{before + number}", sum(jobs.get(job, 0) for job in _TRAINING)


def world_size() -> int | None:
    """Return how many processes the launcher of this one started together; None if unknown."""
    launched = _launched()
    return None if launched is None else launched[1]


class _Forks:
    """Counts the forks of this process, so that each child knows its number, whenever it needs it."""

    def __init__(self) -> None:
        self.own_name: str | None = None
        """Name of this process, if it was forked: its number, after those of its forked ancestors."""
        self.name_of_parent: str | None = None
        """Name, from `multiprocessing`, of the process that forked this one."""
        self._num_children = 0

    def about_to_fork(self) -> None:
        self._num_children += 1

    def forked(self) -> None:
        self.own_name = f"{self.own_name or 'fork'}-{self._num_children}"
        self.name_of_parent = _multiprocessing_name()
        self._num_children = 0


_POOLS = (
    "multiprocessing.pool",
    "concurrent.futures.process",
    "loky.process_executor",
    "joblib.externals.loky.process_executor",
    "multiprocess.pool",
    "billiard.pool",
    "distributed.process",
)
"""Modules with the functions that the processes of a pool run: those of Python, loky, joblib, pathos, Celery and Dask."""


def takes_tasks() -> bool:
    """Whether this process belongs to a pool, where timing decides which process gets a task."""
    process = _child_process()
    # Billiard's pools have a class for their processes, the others a function.
    modules = {getattr(getattr(process, "_target", None), "__module__", None), type(process).__module__}
    return not modules.isdisjoint(_POOLS) or _ray_name() == _RAY_TASKS


_RAY_TASKS, _RAY_ACTOR = "RayProcess-1", "RayActorProcess-1"


def _ray_name() -> str | None:
    """Return the name of a process in which Ray runs tasks or an actor; None in other processes, and before it runs one.

    Source: `ray.get_runtime_context`, of Ray 2.60 (2026-11).
    """
    ray = sys.modules.get("ray")
    try:
        # Without this check, some versions of Ray would start a cluster.
        if ray is None or not ray.is_initialized():
            return None
        context = ray.get_runtime_context()
        if context.get_task_id() is None:
            return None
        return _RAY_TASKS if context.get_actor_id() is None else _RAY_ACTOR
    except Exception:
        # Ray is another project: whatever changed in it must not end the program.
        return None


_SENT = re.compile(r"(Ray|RayActor|Loky|Dask)Process-[\d-]+")
_OTHER_PROGRAM = re.compile(r"\d+|main-\d+")


def is_sent_functions(key: str) -> bool:
    """Whether a process, by its key, does not run the program's file: Ray, loky and Dask send functions to their processes, which may fork."""
    return any(map(_SENT.fullmatch, key.split(".")))


def is_other_program(key: str) -> bool:
    """Whether a process, by its key, runs another program than the one that the command names, or was started by one that does."""
    return any(map(_OTHER_PROGRAM.fullmatch, key.split(".")))


def own_name(parent_key: str) -> str | None:
    """Return the name of this process among its siblings; None if it has none.

    Args:
        parent_key: Key of the process that started this one.
    """
    launched = _launched()
    # The children of a rank inherit its variables.
    if launched is not None and launched[0] not in parent_key.split("."):
        return launched[0]
    name = _ray_name() or _multiprocessing_name()
    # A child of `os.fork` keeps its parent's name.
    if _forks.own_name is not None and name == _forks.name_of_parent:
        return _forks.own_name
    return name


def _multiprocessing_name() -> str | None:
    process = _child_process()
    if process is None:
        return None
    name = re.sub(r"[^A-Za-z0-9-]", "-", str(process.name))
    # Dask gives all its workers one name, without a number.
    return "DaskProcess-1" if name.startswith("Dask-Worker-process") else name


_PROCESSES = ("multiprocessing.process", "multiprocess.process", "billiard.process")
"""Modules that know the current process: Python's, and those of two libraries that replace it."""


def _child_process() -> Any:
    """Return the object for this process, if one of these modules started it; else None."""
    for name in _PROCESSES:
        module = sys.modules.get(name)
        process = None if module is None else module.current_process()
        if process is not None and process.name != "MainProcess":
            return process
    return None


_forks = _Forks()
os.register_at_fork(before=_forks.about_to_fork, after_in_child=_forks.forked)


def possible_keys(parent: str | None, name: str | None) -> Iterator[str]:
    """Yield the keys that a process may have, without end: it takes the first that no other process has.

    Args:
        parent: Key of the process that started it; None if none with a key did.
        name: Its name among its siblings; None to number them.
    """
    if parent is not None and name is None:
        yield from (f"{parent}.{index}" for index in itertools.count(1))
    first = "main" if name is None else f"{parent or 'main'}.{name}"
    yield first
    yield from (f"{first}-{index}" for index in itertools.count(2))
