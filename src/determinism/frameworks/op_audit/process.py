"""What the process that measures says to the one that asked: what there is to measure, then a line per case."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any, Protocol, TypeVar

from determinism import environment
from determinism.knowledge.measurement import Measurement

Request = dict[str, Any]
"""What is asked for: what `determinism.launch.op_audit` says of the request and of the way to run it."""


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
