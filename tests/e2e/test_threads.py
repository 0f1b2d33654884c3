"""Programs whose threads compute, share tensors and save them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.clean_programs import THREADS, python
from tests.e2e.families import Fault, assert_named, assert_same, by_name


@pytest.mark.parametrize("name", THREADS)
def test_same(name: str, tmp_path: Path) -> None:
    assert_same(THREADS[name], tmp_path)


FAULTS = [
    Fault("bit", python("threads/branches", "bit"), "op", 1, "threads/branches SITE bit", is_in_thread=True),
    Fault("order", python("threads/branches", "order"), "order", 0, "threads/branches SITE order"),
]


@pytest.mark.parametrize("fault", FAULTS, ids=by_name)
def test_fault(fault: Fault, tmp_path: Path) -> None:
    assert_named(fault, tmp_path)
