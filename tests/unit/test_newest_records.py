"""Traces whose oldest records make room for the newest: the rest can be read and compared, however the program ends."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from determinism.comparison.result import Comparison
from determinism.comparison.runs import compare
from determinism.errors import UsageError
from determinism.launch.runs import open_stored_run
from determinism.op_semantics import OpSemantics
from determinism.trace.files import create_trace, write_manifest
from determinism.trace.ledger import LedgerWriter
from determinism.trace.process import ProcessTrace
from determinism.trace.schema import EARLIER_RECORDS, RECORDS_FILE, STEP_OP, Table
from determinism.trace.writer import ProcessWriter
from determinism.types import Role, Verdict
from tests.traces import digest_of, process_of

LIMIT = 250_000
OPS = 9
"""The number of ops in each step, before the record of its end."""


class Program:
    """A program that records steps, each of which reads the results of the previous one."""

    def __init__(self, folder: Path, *, keeps_newest: bool = True, has_ledger: bool = True, limit: int = LIMIT) -> None:
        create_trace(folder, command=["program"])
        own = folder / "processes" / "main"
        own.mkdir()
        description = {"level": "op", "steps_by": "optimizer", "framework": "torch"}
        self.writer = ProcessWriter(own, description=description, max_bytes=limit, keeps_newest=keeps_newest)
        self._ops = [self.writer.op(name, OpSemantics.NONE) for name in ("op::a", STEP_OP)]
        self._layout = self.writer.name(Table.LAYOUT, '["value"]')
        self._held = self.writer.name(Table.ARGUMENTS, '[["parameter", "w"]]')
        self._ledger = LedgerWriter(own) if has_ledger else None
        self.steps = 0

    def train(self, steps: int, *, differs_at: int | None = None) -> None:
        """Record steps; from `differs_at` on, the values differ."""
        for _ in range(steps):
            step = self.steps
            value = "other" if differs_at is not None and step >= differs_at else "value"
            for _ in range(OPS):
                number = self.writer.num_records
                edge = (number - 1, 0, 0, self._layout)
                cells = (0, step, 2, Role.OP, self._ops[0], -1, -1, number - OPS if step else -1, -1, -1)
                self.writer.append(cells, edge, (), (self._layout, digest_of(f"{value} {number}")))
            edge = (self.writer.num_records - 1, 0, 0, self._layout)
            self.writer.append((0, step, 7, Role.STATE, self._ops[1], -1, -1, -1, -1, self._held), edge)
            if self._ledger is not None:
                self._ledger.add(step, {"parameters": digest_of(f"{value} {step}")}, [])
            self.writer.boundary()
            self.steps += 1

    def end(self, exit_status: int = 0) -> Path:
        """Finish the trace and return its folder."""
        self.writer.describe(records=self.writer.num_records, steps=self.steps)
        self.writer.close()
        trace = self.writer.folder.parents[1]
        manifest = {"command": ["program"], "complete": True, "exit_status": exit_status, "seconds": 1.0}
        write_manifest(trace, manifest)
        return trace


def size_of(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.iterdir())


def steps_of(process: ProcessTrace) -> list[int]:
    """The step of each record."""
    return [int(step) for chunk in process.chunks() for step in chunk.columns["step"]]


def test_the_newest_steps_are_kept_within_the_limit(tmp_path: Path) -> None:
    program = Program(tmp_path / "trace")
    for _ in range(300):
        program.train(1)
        assert size_of(program.writer.folder) <= LIMIT
    process = process_of(program.end())

    assert process.stopped_by is None and not process.truncated
    first = process.first_step
    assert 100 < first < 280
    assert steps_of(process) == [step for step in range(first, 300) for _ in range(OPS + 1)]
    assert process.begin == first * (OPS + 1)
    assert process.extent == ((300 - first) * (OPS + 1), 300 - first)


def test_references_to_removed_records_are_cut_and_the_others_are_kept(tmp_path: Path) -> None:
    program = Program(tmp_path / "trace")
    program.train(300)
    process = process_of(program.end())

    numbers = producers = forwards = 0
    for chunk in process.chunks():
        distances = chunk.children["inputs"].columns["producer"]
        assert (distances[chunk.numbers > 0] == 1).all() and (distances[chunk.numbers == 0] == 0).all()
        assert (chunk.columns["forward"] <= chunk.numbers).all()
        numbers += chunk.rows
        producers += int((distances > 0).sum())
        forwards += int((chunk.columns["forward"] > 0).sum())
    assert (numbers, producers) == (process.extent[0], process.extent[0] - 1)
    assert forwards > 0
    chunk, row = process.record(numbers - 1)
    assert (chunk.number(row), int(chunk.columns["step"][row])) == (numbers - 1, 299)


def test_the_newest_records_are_readable_whenever_the_process_is_killed(tmp_path: Path) -> None:
    program = Program(tmp_path / "trace")
    for number in range(60):
        program.train(5)
        picture = tmp_path / f"picture-{number}"
        shutil.copytree(tmp_path / "trace", picture)
        process = process_of(picture)
        steps = steps_of(process)
        assert not process.truncated
        assert steps == [step for step in range(process.first_step, program.steps) for _ in range(OPS + 1)]
    assert process.num_removed
    program.end()


def test_a_process_that_is_killed_while_it_starts_a_file_loses_nothing(tmp_path: Path) -> None:
    program = Program(tmp_path / "trace")
    program.train(20)
    program.writer.flush()
    program.writer._records.begin_file()
    program.train(1)
    picture = tmp_path / "picture"
    shutil.copytree(tmp_path / "trace", picture)
    program.end()
    own = picture / "processes" / "main"
    (own / RECORDS_FILE).rename(own / f"{RECORDS_FILE}.part")

    process = process_of(picture)

    assert steps_of(process) == [step for step in range(21) for _ in range(OPS + 1)]
    assert not process.truncated


@pytest.mark.parametrize("which", [0, 1, -1])
def test_a_lost_file_is_noticed_unless_it_is_the_oldest(which: int, tmp_path: Path) -> None:
    program = Program(tmp_path / "trace")
    program.train(300)
    trace = program.end()
    files = sorted((trace / "processes" / "main").glob(EARLIER_RECORDS))
    assert len(files) > 2
    os.remove(files[which])

    process = process_of(trace)
    steps_of(process)

    assert process.truncated == (which != 0)


def test_recording_ends_at_the_limit_unless_it_keeps_the_newest(tmp_path: Path) -> None:
    program = Program(tmp_path / "trace", keeps_newest=False)
    program.train(600)
    process = process_of(program.end())

    assert process.stopped_by == "max-disk"
    assert (process.num_removed, steps_of(process)[0]) == (0, 0)


def compared(
    folder: Path, first: int, second: int, *, differs_at: int | None = None, ledger: bool = True
) -> Comparison:
    """Compare two runs of these numbers of steps; the second differs from `differs_at` on."""
    one, other = (Program(folder / name, has_ledger=ledger) for name in ("first", "second"))
    one.train(first)
    other.train(second, differs_at=differs_at)
    return compare(one.end(), other.end())


def test_equal_runs_are_the_same_and_report_the_removed_ops(tmp_path: Path) -> None:
    comparison = compared(tmp_path, 300, 300)

    assert (comparison.verdict, comparison.trouble) == (Verdict.SAME, ())
    removed = [spot for spot in comparison.recorded.blind_spots if spot.identifier == "ops-removed"]
    assert [spot.what.partition("step")[0] for spot in removed] == ["ops before "] * 2
    assert all(spot.count > 1000 for spot in removed)


def test_runs_that_diverge_in_the_kept_steps_diverge_at_their_op(tmp_path: Path) -> None:
    divergence = compared(tmp_path, 300, 300, differs_at=295).first_divergence

    assert divergence is not None
    assert (divergence.step, divergence.op) == (295, "op::a")


def test_runs_that_diverged_earlier_diverge_at_the_step_in_the_ledgers(tmp_path: Path) -> None:
    comparison = compared(tmp_path, 300, 300, differs_at=20)

    assert comparison.verdict is Verdict.DIFFERENT
    assert comparison.first_divergence is not None and comparison.narrowing is not None
    assert comparison.first_divergence.step == comparison.narrowing.step == 20
    assert comparison.narrowing.groups == ("parameters",)
    assert "--from-step 18 --steps 23" in comparison.first_divergence.detail


def test_runs_that_removed_different_steps_are_compared_from_their_first_common_step(tmp_path: Path) -> None:
    one, other = Program(tmp_path / "first"), Program(tmp_path / "second", limit=LIMIT + 20_000)
    one.train(300)
    other.train(300)

    traces = one.end(), other.end()
    assert len({process_of(trace).first_step for trace in traces}) == 2
    comparison = compare(*traces)

    assert (comparison.verdict, comparison.trouble) == (Verdict.SAME, ())


def test_without_ledgers_equal_ends_give_no_verdict(tmp_path: Path) -> None:
    comparison = compared(tmp_path, 600, 600, ledger=False)

    assert comparison.verdict is Verdict.INCONCLUSIVE
    assert [trouble.identifier for trouble in comparison.trouble] == ["steps-removed"]


def test_runs_without_a_step_in_common_give_no_verdict(tmp_path: Path) -> None:
    comparison = compared(tmp_path, 300, 40)

    assert comparison.verdict is Verdict.INCONCLUSIVE
    assert [trouble.identifier for trouble in comparison.trouble] == ["steps-apart"]


def test_a_check_does_not_begin_with_a_run_that_lacks_its_first_ops(tmp_path: Path) -> None:
    program, whole = Program(tmp_path / "trace"), Program(tmp_path / "whole")
    program.train(300)
    whole.train(3)

    with pytest.raises(UsageError) as raised:
        open_stored_run(program.end(), level="op", steps=None)

    assert raised.value.identifier == "stored-run-removed"
    assert open_stored_run(whole.end(), level="op", steps=None).folder == tmp_path / "whole"
