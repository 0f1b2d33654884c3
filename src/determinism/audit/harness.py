"""Shared by all audits: inputs that provoke differences, counting of results, the protocol with the parent process."""

from __future__ import annotations

import json
import os
import sys
import time
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from determinism import environment
from determinism.knowledge.entries import Measurement

# Arrays that provoke differences: the same ones for the same seed.

FLOATS = ("float32", "float64", "float16", "bfloat16")
MANY = 1 << 18
"""Number of contributions; on the CPU, frameworks divide work among threads from a certain size on."""
FEW = 16
"""Number of elements that they go to."""


class Arrays:
    """Makes the arrays of one case, one after another.

    Args:
        seed: Equal seeds make equal arrays.
    """

    def __init__(self, seed: int) -> None:
        self._generator = np.random.default_rng(seed)

    def normal(self, *shape: int) -> NDArray[np.float64]:
        """Values of very different magnitudes, so that their sum depends on the order."""
        return self._generator.normal(size=shape) * np.exp(self._generator.normal(size=shape))

    def near_one(self, *shape: int) -> NDArray[np.float64]:
        """Values whose product neither vanishes nor overflows, however many there are."""
        return np.exp(self._generator.normal(size=shape) * 0.01)

    def unit(self, *shape: int) -> NDArray[np.float64]:
        """Values between 0 and 1."""
        return self._generator.random(size=shape)

    def whole(self, high: int, *shape: int) -> NDArray[np.int32]:
        """Integers below `high`: as indices of many contributions to few elements, they collide."""
        return self._generator.integers(high, size=shape, dtype=np.int32)

    def boxes(self, count: int) -> NDArray[np.float64]:
        """Overlapping boxes: two corners each, between 0 and 1."""
        return np.tile([[0.1, 0.1, 0.8, 0.8]], (count, 1)) + self.unit(count, 4) * 0.1


def array_bytes(array: Any) -> bytes:
    """The bytes of anything that converts to an array, in index order."""
    return np.asarray(array).tobytes()


# Counts the different results of a case, forward and backward.


class Repeatable(Protocol):
    """One case on one set of inputs, to be run again and again."""

    def forward(self) -> bytes:
        """Run it, and return the digest of its results."""

    def backward(self) -> bytes | None:
        """Differentiate the last results of `forward`, and return the digest of the gradients; None if there are none."""


def count_results(
    run: Repeatable, about: Measurement, *, runs: int, seconds: float, errors: tuple[type[Exception], ...]
) -> Iterator[Measurement]:
    """Run a case, and yield a measurement per direction.

    Args:
        run: The case.
        about: A measurement without counts: what is measured, and how.
        runs: How often to run it, at most.
        seconds: After this time from the first run no further run begins, if it was run at least three times.
        errors: The exceptions that the framework raises for an op that it refuses to run.
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
            # The first run may compile, which does not count towards the time.
            until = time.monotonic() + seconds
        done += 1
    yield replace(about, direction="forward", runs=done, distinct=len(forward))
    if backward:
        # Only runs with equal forward results can be compared backward.
        yield replace(about, direction="backward", runs=done, distinct=max(map(len, backward.values())))


def _first_line(error: Exception) -> str:
    text = str(error).strip().partition("\n")[0][:200]
    return text or type(error).__name__


Call = Callable[[], Any]
Input = Callable[[Any], Any]
"""Makes one input of a case, with the `Inputs` of the framework."""


def normal(*shape: int) -> Input:
    """An input of values of very different magnitudes, so that their sum depends on the order; not differentiated."""
    return lambda inputs: inputs.normal(*shape)


def leaf(*shape: int) -> Input:
    """Like `normal`, but differentiated."""
    return lambda inputs: inputs.leaf(*shape)


def whole(high: int, *shape: int) -> Input:
    """An input of integers below `high`: as indices of many contributions to few elements, they collide."""
    return lambda inputs: inputs.whole(high, *shape)


def calling(run: Callable[..., Any], *given: Input) -> Callable[[Any], Call]:
    """What makes the inputs of a case, in this order, and returns the call of a function with them."""

    def make(inputs: Any) -> Call:
        made = [one(inputs) for one in given]
        return lambda: run(*made)

    return make


Request = dict[str, Any]
"""The request, from `determinism.audit.launch`: what to measure, and the way to run it."""


@dataclass(frozen=True)
class Case:
    """One way to call an op, on inputs that are most likely to make it vary.

    Attributes:
        op: The name under which the knowledge lists the op.
        name: Which variant of the op it is, and on which inputs.
        make: Makes the inputs, with the `Inputs` of the framework, and returns the call of the op with them.
        dtypes: Names of the dtypes to try.
    """

    op: str
    name: str
    make: Callable[[Any], Any]
    dtypes: Sequence[str] = ("float32",)


class Auditor(ABC):
    """Measures the ops of one framework, in its own process: `determinism audit` starts it, sends it a request on standard
    input, and reads a line per result.
    """

    version: str
    """The version of the framework."""
    errors: tuple[type[Exception], ...]
    """The exceptions that the framework raises for an op that it refuses to run."""
    families: Sequence[Callable[[], Iterable[Case]]]
    """Each returns the project's cases for a family of ops that run on any device."""

    @abstractmethod
    def prepare(self, request: Request) -> None:
        """Set what must be set before the first op: threads, and a deterministic mode that cannot be switched later."""

    @abstractmethod
    def accelerators(self) -> list[str]:
        """The names of the GPUs that the framework sees."""

    @abstractmethod
    def threads(self) -> int:
        """Number of threads that compute on the CPU."""

    @abstractmethod
    def running(self, device: str, *, deterministic_mode: bool) -> AbstractContextManager[object]:
        """Run ops on a device, in the deterministic mode or without it."""

    @abstractmethod
    def repeatable(self, case: Case, device: str, dtype: str, seed: int) -> Repeatable | None:
        """A case on one set of inputs, made from the seed; None if there are no such inputs."""

    def all_cases(self) -> Iterator[Case]:
        """The cases of all families of ops."""
        for cases in self.families:
            yield from cases()

    def cases(self, request: Request) -> Iterable[Case]:
        """The cases that a request chooses from."""
        return self.all_cases()

    def measure(
        self,
        case: Case,
        *,
        device: str,
        seed: int,
        runs: int,
        seconds: float,
        deterministic_mode: bool,
        patched: bool = False,
    ) -> Iterator[Measurement]:
        """Measure a case, for each of its dtypes and in both directions.

        Args:
            case: What to run.
            device: `cpu` or `cuda`.
            seed: Seed for the inputs.
            runs: How often to run it, at most.
            seconds: After this time no further run of a case begins, if it was run at least three times.
            deterministic_mode: Whether to run in the framework's deterministic mode.
            patched: Whether ops have been replaced, which is noted.
        """
        for dtype in case.dtypes:
            about = Measurement(
                case.op, case.name, "forward", dtype, self.threads(), deterministic_mode, 0, 0, patched=patched
            )
            with self.running(device, deterministic_mode=deterministic_mode):
                run = self.repeatable(case, device, dtype, seed)
                if run is not None:
                    yield from count_results(run, about, runs=runs, seconds=seconds, errors=self.errors)

    def main(self) -> int:
        """Read the request on standard input, and write what was found on standard output, line by line."""
        request: Request = json.loads(sys.stdin.read())
        # This counts processors, so it comes before threads are limited.
        about = about_machine(self.version)
        self.prepare(request)
        about = with_device(about, request["device"], self.accelerators())
        chosen = [case for case in self.cases(request) if not request["ops"] or case.op in request["ops"]]
        _write({"cases": len(chosen), "about": about})
        if about["has_device"]:
            asked = {name: request[name] for name in _ASKED}
            for case in chosen:
                _write({"case": case.name, "measured": [asdict(one) for one in self.measure(case, **asked)]})
        return 0


_ASKED = ("device", "seed", "runs", "seconds", "deterministic_mode", "patched")


def about_machine(version: str) -> dict[str, Any]:
    """The description of a framework of this version and of the machine, as it is before threads are limited."""
    described = environment.describe()
    kept = {"python", "platform", *(name for name in described if name.startswith("package "))}
    return {
        "version": version,
        "hardware": {"processor": described["processor"], "cores": described["processors"]},
        "versions": {name.removeprefix("package "): described[name] for name in sorted(kept)},
    }


def with_device(about: dict[str, Any], device: str, accelerators: list[str]) -> dict[str, Any]:
    """The description, completed with the accelerator and with whether the device is available."""
    on_gpu = device == "cuda" and bool(accelerators)
    hardware = {**about["hardware"], **({"accelerator": accelerators[0]} if on_gpu else {})}
    return {**about, "hardware": hardware, "has_device": device == "cpu" or on_gpu}


def available_processors() -> int:
    """How many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _write(line: dict[str, object]) -> None:
    print(json.dumps(line), flush=True)
