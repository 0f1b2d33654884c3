"""`determinism audit` of JAX: it has no deterministic mode on the CPU, so it is measured without one."""

from __future__ import annotations

import os
from pathlib import Path

from determinism.knowledge.entries import read_audit
from tests.e2e.commands import run


def test_an_op_is_measured_with_all_threads_and_with_one(tmp_path: Path) -> None:
    finished = run(
        tmp_path, "audit", "--framework", "jax", "--ops", "jax.random.normal", "--runs", "5", "-o", "out.json"
    )

    assert finished.status == 0, finished.text
    found = read_audit(tmp_path / "out.json")
    processors = len(os.sched_getaffinity(0))
    assert {(one.threads, one.deterministic_mode) for one in found.measurements} == {(processors, False), (1, False)}
    assert all((one.runs, one.distinct) == (5, 1) for one in found.measurements)
    assert "no result contradicts the declared facts" in finished.text
