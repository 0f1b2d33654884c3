"""The ledgers of two runs of a JAX program show the step at which the runs diverge."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from determinism.trace.ledger import first_parting, read_ledger
from determinism.trace.opening import open_trace
from tests.e2e.checking import command, line
from tests.e2e.commands import run

PROGRAM = "compiled_by_xla/late_number"
STEPS = "8"
NEVER = "-1"


def test_a_planted_difference_is_narrowed_to_its_step_and_line(tmp_path: Path) -> None:
    words = ("narrow", "--no-explain", "--json", "report.json", "--", *command(PROGRAM, "5", STEPS))
    finished = run(tmp_path, *words)

    assert finished.status == 1, finished.stderr
    report: Any = json.loads((tmp_path / "report.json").read_text())
    narrowing = report["narrowing"]
    assert (narrowing["step"], narrowing["steps"], narrowing["pinned"]) == (5, [8, 8], True)
    assert {"loss", "parameters"} <= set(narrowing["groups"])
    assert report["first_divergence"]["site"]["line"] == line(PROGRAM, "SITE")


def test_equal_runs_have_equal_ledgers_that_know_the_loss(tmp_path: Path) -> None:
    ledgers = []
    for name in ("one", "other"):
        words = ("record", "--level", "step", "-o", name, "--", *command(PROGRAM, NEVER, STEPS))
        assert run(tmp_path, *words).status == 0
        (process,) = open_trace(tmp_path / name).processes
        ledgers.append(read_ledger(process.folder))

    assert len(ledgers[0]) == 8
    assert first_parting(*ledgers) is None
    assert {"loss", "parameters", "generators"} <= ledgers[0].digests(7).keys()
    losses = [ledgers[0].loss(step) for step in range(8)]
    assert None not in losses and len(set(losses)) == 8
