"""What a child process is to the program: a worker of a data loader, a member of a pool, or a process of its own."""

from __future__ import annotations

import sys
from typing import NamedTuple

from torch.utils.data import get_worker_info

_POOLS = ("multiprocessing.pool", "concurrent.futures.process")


class Part(NamedTuple):
    """How the records of a process belong to the program."""

    stream: str
    """`process`; or, where which process does which work may vary, `worker` or `pool`."""
    name: str | None
    """What the process is called among its siblings; None if the framework knows no name."""


def is_being_made() -> bool:
    """Whether `multiprocessing` still unpickles this process, so that what it is for is not known yet."""
    module = sys.modules.get("multiprocessing.process")
    return module is not None and bool(getattr(module.current_process(), "_inheriting", False))


def part_of_program() -> Part:
    """What this process is for."""
    worker = get_worker_info()
    if worker is not None:
        return Part("worker", f"worker-{worker.id}")
    module = sys.modules.get("multiprocessing.process")
    target = getattr(module.current_process(), "_target", None) if module is not None else None
    return Part("pool" if getattr(target, "__module__", None) in _POOLS else "process", None)
