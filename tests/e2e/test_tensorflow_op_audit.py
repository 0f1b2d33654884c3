"""`determinism audit` of TensorFlow: four processes, each with a different number of threads and mode."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from determinism.knowledge.entries import read_audit
from tests.e2e.commands import run

SEVERAL = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="ops race only where two threads run at a time")
RACES, SEEDED = "tf.Variable.scatter_add", "tf.random.normal"


@SEVERAL
def test_the_audit_finds_an_op_that_races_and_one_that_needs_a_seed(tmp_path: Path) -> None:
    for number in range(10):  # on a busy machine, threads may not overlap
        out = tmp_path / f"out-{number}.json"
        finished = run(
            tmp_path, "audit", "--framework", "tensorflow", "--ops", f"{RACES},{SEEDED}", "--runs", "40", "-o", out
        )
        assert finished.status == 0, finished.text
        found = read_audit(out)
        assert found.framework == "tensorflow"
        varied = {(one.threads > 1, one.deterministic_mode) for one in found.of(RACES) if one.varies}
        if varied:
            break
    assert varied == {(True, False)}
    raised = {(one.case, one.deterministic_mode) for one in found.of(SEEDED) if one.raised is not None}
    assert raised == {("no seed was set", True)}
    assert "no result contradicts the declared facts" in finished.text
