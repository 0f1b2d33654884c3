"""Programs whose threads compute with, share and save tensors."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.clean_programs import THREADS, python
from tests.e2e.families import Fault, assert_named, assert_same, only, only_named


@pytest.mark.parametrize("name", only_named(["thread pool"], THREADS))
def test_clean_programs_are_the_same(name: str, tmp_path: Path) -> None:
    assert_same(THREADS[name], tmp_path)


def in_thread(program: str, name: str, kind: str, step: int) -> Fault:
    """Return a fault in a thread other than the main one."""
    words = python(f"threads/{program}", name)
    return Fault(f"{program}, {name}", words, kind, step, f"threads/{program} SITE {name}", is_in_thread=True)


FAULTS = [
    in_thread("branches", "bit", "op", 1),
    in_thread("branches", "draws", "rng", 1),
    in_thread("counting", "lost", "mutation", 0),
    # The step ends with the optimizer's, and the checkpoint is saved after it.
    in_thread("snapshots", "torn", "mutation", 2),
    Fault("order", python("threads/branches", "order"), "order", 0, "threads/branches SITE order"),
]


@pytest.mark.parametrize("fault", only(["counting, lost", "snapshots, torn"], FAULTS))
def test_a_fault_is_named(fault: Fault, tmp_path: Path) -> None:
    assert_named(fault, tmp_path)
