"""Measures ops in a process of its own: `determinism audit` starts it, hands it a request, and reads a line per result."""

from __future__ import annotations

import os
from functools import partial

import jax

from determinism.frameworks.jax.op_audit.cases import all_cases
from determinism.frameworks.jax.op_audit.measuring import measure
from determinism.frameworks.op_audit.process import about_machine, answer, read_request, with_device

_DETERMINISTIC_MODE = "--xla_gpu_exclude_nondeterministic_ops=true"


def main() -> int:
    """Read the request on standard input, and write what was found on standard output, line by line."""
    request = read_request()
    about = about_machine(jax.__version__)
    # XLA reads both with its first op. It makes a thread per processor that it may use, and has no setting for fewer; where
    # a system cannot limit these, the results say how many there were.
    if request["threads"] is not None and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: request["threads"]])
    if request["deterministic_mode"]:
        os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {_DETERMINISTIC_MODE}".strip()
    given = {name: request[name] for name in ("device", "seed", "runs", "seconds", "deterministic_mode")}
    about = with_device(about, request["device"], _gpus())
    answer(request, about, all_cases(), partial(measure, **given))
    return 0


def _gpus() -> list[str]:
    try:
        return [device.device_kind for device in jax.devices("cuda")]
    except RuntimeError:
        return []


if __name__ == "__main__":
    raise SystemExit(main())
