"""The factor `addresses`, perturbed: memory lies elsewhere in each run, as the number of the run decides and nothing else."""

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
    """Where memory of several sizes lies in a process whose addresses are not randomised by the system."""
    unrandomised = before_start(FactorRequest({"addresses": "fixed"}))
    command = [sys.executable, "-c", PROGRAM, action, str(number)]
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    return subprocess.run(
        command, env=environment, preexec_fn=unrandomised, capture_output=True, text=True, check=True
    ).stdout


def test_what_makes_memory_lie_elsewhere_is_kept() -> None:
    assert [addresses(action, 1).split()[-1] for action in ("perturbed", "left")] == ["2", "0"]


@pytest.mark.skipif(obstacle("addresses", Action.FIXED) is not None, reason="this system does not fix addresses")
def test_memory_lies_elsewhere_in_runs_with_another_number_and_nowhere_else_in_one_with_the_same() -> None:
    first, again, second = addresses("perturbed", 1), addresses("perturbed", 1), addresses("perturbed", 2)

    assert first == again
    assert len({first, second, addresses("left", 1)}) == 3
    assert addresses("left", 1) == addresses("left", 2)
