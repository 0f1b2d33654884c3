"""The factor `addresses`, perturbed: addresses differ between runs, and depend only on the number of the run."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from determinism.factors.catalog import Action, before_start, obstacle
from determinism.run_spec import FactorRequest

PROGRAM = """
import ctypes, sys
from determinism.factors.simple import _kept, start_addresses
from determinism.run_spec import FactorRequest

start_addresses(FactorRequest({"addresses": sys.argv[1]}, int(sys.argv[2])))
libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
print([libc.malloc(size) for size in (24, 200, 3000)], id(bytes(40)), id(bytes(300)), len(_kept))
"""


def addresses(action: str, number: int) -> str:
    """The addresses of memory of several sizes in a process whose addresses the system does not randomise."""
    unrandomised = before_start(FactorRequest({"addresses": "fixed"}))
    command = [sys.executable, "-c", PROGRAM, action, str(number)]
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    return subprocess.run(
        command, env=environment, preexec_fn=unrandomised, capture_output=True, text=True, check=True
    ).stdout


def test_memory_that_shifts_addresses_is_kept() -> None:
    assert [addresses(action, 1).split()[-1] for action in ("perturbed", "left")] == ["2", "0"]


@pytest.mark.skipif(obstacle("addresses", Action.FIXED) is not None, reason="this system does not fix addresses")
def test_perturbed_addresses_depend_only_on_the_number_of_the_run() -> None:
    first, again, second = addresses("perturbed", 1), addresses("perturbed", 1), addresses("perturbed", 2)

    assert first == again
    assert len({first, second, addresses("left", 1)}) == 3
    assert addresses("left", 1) == addresses("left", 2)
