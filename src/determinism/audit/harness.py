"""Shared by all audits: inputs that provoke differences, counting results, the protocol with the asking process."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, replace
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from determinism import environment
from determinism.knowledge.entries import Measurement

# Arrays made to provoke: the same ones for the same seed.

FLOATS = ("float32", "float64", "float16", "bfloat16")
MANY = 1 << 18
"""Contributions; on the CPU frameworks share out work among threads from a size on."""
FEW = 16
"""Places that they go to."""


class Arrays:
    """Makes the arrays of one case, one after another.

    Args:
        seed: Equal seeds make equal arrays.
    """

    def __init__(self, seed: int) -> None:
        self._generator = np.random.default_rng(seed)

    def normal(self, *shape: int) -> NDArray[np.float64]:
        """Values of very different sizes, so that no order of adding them up is like another."""
        return self._generator.normal(size=shape) * np.exp(self._generator.normal(size=shape))

    def near_one(self, *shape: int) -> NDArray[np.float64]:
        """Values whose product neither vanishes nor overflows, however many they are."""
        return np.exp(self._generator.normal(size=shape) * 0.01)

    def unit(self, *shape: int) -> NDArray[np.float64]:
        """Values between 0 and 1."""
        return self._generator.random(size=shape)

    def whole(self, high: int, *shape: int) -> NDArray[np.int32]:
        """Whole numbers below `high`: as indices of many contributions to few places, they collide."""
        return self._generator.integers(high, size=shape, dtype=np.int32)

    def boxes(self, count: int) -> NDArray[np.float64]:
        """Boxes that lie over one another: two corners each, between 0 and 1."""
        return np.tile([[0.1, 0.1, 0.8, 0.8]], (count, 1)) + self.unit(count, 4) * 0.1


def array_bytes(array: Any) -> bytes:
    """The bytes of what converts to an array, in the order of its indices."""
    return np.asarray(array).tobytes()


# Counts the different results that a case gives, forward and backward.


class Repeatable(Protocol):
    """One case on one set of inputs, to be run again and again."""

    def forward(self) -> bytes:
        """Run it, and give the digest of its results."""

    def backward(self) -> bytes | None:
        """Differentiate what `forward` gave last, and give the digest of the gradients; None where there are none."""


def count_results(
    run: Repeatable, about: Measurement, *, runs: int, seconds: float, errors: tuple[type[Exception], ...]
) -> Iterator[Measurement]:
    """Run a case, and give a measurement per direction.

    Args:
        run: What to run.
        about: A measurement without counts: what is measured, and how.
        runs: How often, at most.
        seconds: After this time since the first run it is left, if it was run at least three times.
        errors: What the framework raises for an op that it refuses to run.
    """
    forward: set[bytes] = set()
    backward: dict[bytes, set[bytes]] = defaultdict(set)
    done, until = 0, float("inf")
    while done < runs and (done < 3 or time.monotonic() < until):
        try:
            key = run.forward()
        except errors as error:
            yield replace(about, direction="forward", raised=_first_line(error))
            return
        forward.add(key)
        try:
            gradients = run.backward()
        except errors as error:
            yield replace(about, direction="forward", runs=1, distinct=1)
            yield replace(about, direction="backward", raised=_first_line(error))
            return
        if gradients is not None:
            backward[key].add(gradients)
        if not done:
            # The first run may compile, which is not what the time is for.
            until = time.monotonic() + seconds
        done += 1
    yield replace(about, direction="forward", runs=done, distinct=len(forward))
    if backward:
        # Only runs whose forward gave the same say something about the backward.
        yield replace(about, direction="backward", runs=done, distinct=max(map(len, backward.values())))


def _first_line(error: Exception) -> str:
    text = str(error).strip().partition("\n")[0][:200]
    return text or type(error).__name__


Request = dict[str, Any]
"""What is asked for: what `determinism.audit.launch` says of the request and of the way to run it."""


class NamedCase(Protocol):
    """A case, as far as it is told about."""

    @property
    def op(self) -> str:
        """The name that the op is listed under."""

    @property
    def name(self) -> str:
        """What of the op it is."""


_Case = TypeVar("_Case", bound=NamedCase)


def read_request() -> Request:
    """What standard input asks for."""
    request: Request = json.loads(sys.stdin.read())
    return request


def answer(
    request: Request, about: dict[str, Any], cases: Iterable[_Case], measure: Callable[[_Case], Iterable[Measurement]]
) -> None:
    """Measure the cases that are asked for, and say each result as soon as it is there."""
    chosen = [case for case in cases if not request["ops"] or case.op in request["ops"]]
    _write({"cases": len(chosen), "about": about})
    if about["has_device"]:
        for case in chosen:
            _write({"case": case.name, "measured": [asdict(one) for one in measure(case)]})


def about_machine(version: str) -> dict[str, Any]:
    """What is told of a framework of this version and of the machine, to be asked before threads are limited."""
    described = environment.describe()
    kept = {"python", "platform", *(name for name in described if name.startswith("package "))}
    return {
        "version": version,
        "hardware": {"processor": described["processor"], "cores": described["processors"]},
        "versions": {name.removeprefix("package "): described[name] for name in sorted(kept)},
    }


def with_device(about: dict[str, Any], device: str, accelerators: list[str]) -> dict[str, Any]:
    """What is told, and whether the device is there.

    Args:
        about: Of the framework and the machine.
        device: Where the ops are to run.
        accelerators: The names of the GPUs that the framework sees.
    """
    on_gpu = device == "cuda" and bool(accelerators)
    hardware = {**about["hardware"], **({"accelerator": accelerators[0]} if on_gpu else {})}
    return {**about, "hardware": hardware, "has_device": device == "cpu" or on_gpu}


def available_processors() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _write(line: dict[str, object]) -> None:
    print(json.dumps(line), flush=True)
