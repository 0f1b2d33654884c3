"""A snapshot of a process that is being recorded reads like any trace, whatever the process does meanwhile."""

from __future__ import annotations

import threading
from pathlib import Path

from determinism.op_semantics import OpSemantics
from determinism.trace.files import create_trace
from determinism.trace.opening import snapshot_live_trace
from determinism.trace.reader import StoredProcess
from determinism.trace.schema import Table
from determinism.trace.writer import ProcessWriter


class Running:
    """A process that is being recorded."""

    def __init__(self, folder: Path) -> None:
        create_trace(folder / "trace")
        self.folder = folder / "trace" / "processes" / "main"
        self.folder.mkdir()
        self.writer = ProcessWriter(self.folder, description={"level": "op", "steps_by": "optimizer"})

    def add(self, count: int) -> None:
        """Add records with distinct names."""
        for _ in range(count):
            number = self.writer.num_records
            op = self.writer.op(f"op::{number}", OpSemantics.NONE)
            self.writer.append((0, 0, 2, 0, op, -1, -1, -1, -1, -1))


def ops(picture: Path) -> list[str]:
    """The op of each record."""
    process = StoredProcess(picture)
    names = process.names.texts(Table.OP)
    return [names[op] for chunk in process.chunks() for op in chunk.columns["op"].tolist()]


def test_no_snapshot_is_taken_before_the_process_begins(tmp_path: Path) -> None:
    assert not snapshot_live_trace(tmp_path / "nowhere", tmp_path / "picture")


def test_a_snapshot_has_every_record_and_stays_valid_while_the_process_continues(tmp_path: Path) -> None:
    running, picture = Running(tmp_path), tmp_path / "picture"
    for total in (3, 300, 9000, 20_000):
        running.add(total - running.writer.num_records)
        assert snapshot_live_trace(running.folder, picture)
        assert ops(picture) == [f"op::{number}" for number in range(total)]
        running.add(10)
        running.writer.flush()
        assert ops(picture)[:total] == [f"op::{number}" for number in range(total)]
    running.writer.close()
    assert snapshot_live_trace(running.folder, picture)
    assert len(ops(picture)) == running.writer.num_records


def test_no_snapshot_is_torn(tmp_path: Path) -> None:
    running, picture = Running(tmp_path), tmp_path / "picture"
    writing = threading.Thread(target=running.add, args=(60_000,))
    writing.start()
    while writing.is_alive():
        if snapshot_live_trace(running.folder, picture):
            found = ops(picture)
            assert found == [f"op::{number}" for number in range(len(found))]
    writing.join()
    running.writer.close()
