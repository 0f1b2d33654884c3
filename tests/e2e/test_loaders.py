"""Programs with data loaders, in the main process and with workers of every kind."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.clean_programs import python
from tests.e2e.families import Fault, assert_named, assert_same, only

FORKED = "main,shuffled,stream,fork,pinned,iterable,persistent,unordered"
STARTED = "spawn,forkserver"


@pytest.mark.parametrize(
    ("modes", "processes"), [(FORKED, 11), pytest.param(STARTED, 5, marks=pytest.mark.thorough("programs"))]
)
def test_a_clean_program_is_the_same(modes: str, processes: int, tmp_path: Path) -> None:
    assert_same(python("loaders/epochs", modes, processes=processes), tmp_path)


def fault(mode: str, name: str, kind: str, step: int, process: str = "main") -> Fault:
    """A fault in the samples of one loader."""
    program = python("loaders/epochs", mode, name, processes=1 if mode == "main" else 3)
    return Fault(f"{mode}, {name}", program, kind, step, f"loaders/epochs SITE {name}", process)


FAULTS = [
    # Sample 5 is in the second batch, which the second worker makes; in a stream, it is in that worker's first.
    fault("main", "bit", "op", 1),
    fault("fork", "bit", "op", 1, "main.worker-1"),
    fault("iterable", "bit", "op", 1, "main.worker-1"),
    fault("spawn", "seed", "rng", 1, "main.worker-1"),
    fault("persistent", "seed", "rng", 1, "main.worker-1"),
    fault("unordered", "order", "order", 0),
]


@pytest.mark.parametrize("planted", only(["fork, bit", "unordered, order"], FAULTS))
def test_a_fault_is_located(planted: Fault, tmp_path: Path) -> None:
    report = assert_named(planted, tmp_path)
    if planted.process != "main":
        assert [(d["process"], d["received_from"]) for d in report["divergences"]] == [("main", planted.process)]
