"""The deterministic programs in `programs/`, by family, and how each is started."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NamedTuple

from tests.e2e.checking import PROGRAMS, command

WORKERS = ("fork", "pinned", "iterable", "persistent", "spawn", "forkserver", "unordered")
"""Modes in which the loader starts two processes."""


class Program(NamedTuple):
    """A program, and what its recording must contain."""

    words: tuple[str, ...]
    processes: int = 1
    blind_spots: tuple[str, ...] = ()
    """Identifiers of its blind spots."""
    exit_status: int = 0


def python(program: str, *arguments: str, processes: int = 1, blind_spots: tuple[str, ...] = ()) -> Program:
    """Return a program run by one Python interpreter."""
    return Program(tuple(command(program, *arguments)), processes, blind_spots)


def ranks(program: str, *arguments: str) -> Program:
    """Return a program run by two ranks."""
    torchrun = Path(sys.executable).with_name("torchrun")
    start = (str(torchrun), "--standalone", "--nproc-per-node", "2")
    return Program((*start, str(PROGRAMS / f"{program}.py"), *arguments), processes=2)


def shell(script: str, *arguments: str, processes: int) -> Program:
    """Return a program run by a shell."""
    start = ("env", f"PYTHON={sys.executable}", "bash")
    return Program((*start, str(PROGRAMS / f"{script}.sh"), *arguments), processes)


def suite(program: str) -> Program:
    """Return tests run by pytest without this project's configuration and without printing durations."""
    options = ("-qq", "-p", "no:cacheprovider", "--noconftest", "-c", os.devnull)
    return Program((sys.executable, "-m", "pytest", *options, str(PROGRAMS / f"{program}.py")))


def module(name: str, *arguments: str, exit_status: int = 0) -> Program:
    """Return a package run as a program."""
    return Program((sys.executable, "-m", name, *arguments), exit_status=exit_status)


STARTS = {
    "package": module("starts.perceptron"),
    "pytest": suite("starts/suite"),
    "shell": shell("starts/both", processes=2),
}
CHILDREN = {
    **{start: python("children/averaging", start, processes=3) for start in ("fork", "spawn", "forkserver")},
    **{kind: python("children/tasks", kind, processes=3) for kind in ("pool", "executor")},
    "shared memory": python("children/hogwild", processes=3),
}
THREADS = {
    "thread pool": python("threads/branches"),
    "lock": python("threads/counting"),
    "snapshots": python("threads/snapshots"),
}
LOADERS = {
    **{f"loader in {mode}": python("loaders/epochs", mode) for mode in ("main", "shuffled", "stream")},
    **{f"loader in {mode}": python("loaders/epochs", mode, processes=3) for mode in WORKERS},
}
RANKS = {name: ranks(f"ranks/{name}") for name in ("replicas", "shards", "collectives", "pipeline", "unawaited")}
COMPILERS = {
    "eager": python("compilers/compiled", "eager"),
    "aot_eager": python("compilers/compiled", "aot_eager"),
    "inductor": python("compilers/compiled", "inductor"),
    "transformed": python("compilers/transformed"),
}
TRAINING = {name: python(f"training/{name}") for name in ("rivals", "closures", "mixed", "copies", "kinds")}
ALL = {**STARTS, **CHILDREN, **THREADS, **LOADERS, **RANKS, **COMPILERS, **TRAINING}
"""All programs, each by itself; the tests run some of them together."""
