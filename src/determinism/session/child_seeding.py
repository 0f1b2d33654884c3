"""Tells the processes of a program apart, so that each draws numbers of its own: by rank, by name, or by the order of forks."""

from __future__ import annotations

import os
import sys

from determinism.errors import UsageError
from determinism.seeds.process_generators import seed_python
from determinism.session.seeding_state import STATE

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType
    from typing import Any

RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "HOROVOD_RANK", "SLURM_PROCID")
"""Environment variables in which launchers tell a process its rank, the surest first."""


def process_name() -> str:
    """What `multiprocessing` calls this process, if it started it; the place among forked children otherwise."""
    module = sys.modules.get("multiprocessing.process")
    # A process that is being started has its name before it has a parent.
    name = "MainProcess" if module is None else str(module.current_process().name)
    return STATE.process if name == "MainProcess" else name


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


def about_to_fork() -> None:
    """Count the children, so that each knows which one it is."""
    STATE.children += 1


def forked() -> None:
    """Seed `random` in a forked child: Python itself gives it new entropy there, and leaves all other generators alone."""
    if STATE.seeds is None:
        return
    STATE.process = f"{STATE.process}/{STATE.children}"
    STATE.children = 0
    STATE.seeds.streams = STATE.streams.moved(process=STATE.process)
    seed_python(STATE.streams)


def name_spawned_processes(module: ModuleType) -> None:
    """In a process that `multiprocessing` starts anew, seed again as soon as it knows which one it is."""
    original: Callable[..., Any] = module.prepare

    def prepare(data: dict[str, Any]) -> None:
        if STATE.seeds is not None and data.get("name"):
            STATE.process = str(data["name"])
            STATE.seeds.begin(process=STATE.process)
        original(data)

    module.prepare = prepare  # type: ignore[attr-defined]
