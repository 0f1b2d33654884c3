"""The writer: however it ends, every record written so far can be read, and it never exceeds its size limit."""

from __future__ import annotations

import errno
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest

from determinism.comparison.runs import compare
from determinism.op_semantics import OpSemantics
from determinism.trace.chunks import batch_from_names, readable_parts
from determinism.trace.files import create_trace, write_manifest
from determinism.trace.opening import open_trace
from determinism.trace.process import ProcessTrace
from determinism.trace.schema import Table
from determinism.trace.spool import Spool
from determinism.trace.writer import NamesWriter, ProcessWriter, RecordsWriter
from determinism.types import Verdict
from tests.traces import process_of

DESCRIPTION = {"level": "op", "steps_by": "optimizer", "framework": "torch"}


def open_writer(folder: Path, max_bytes: int | None = None) -> ProcessWriter:
    create_trace(folder, command=["program"])
    own = folder / "processes" / "main"
    own.mkdir()
    return ProcessWriter(own, description=dict(DESCRIPTION), max_bytes=max_bytes)


def add(writer: ProcessWriter, count: int, width: int = 1) -> None:
    """Add records of one op with `width` inputs and outputs."""
    op, layout = writer.op("op::a", OpSemantics.NONE), writer.name(Table.LAYOUT, '["value"]')
    for _ in range(count):
        number = writer.num_records
        cells = (0, 0, 2, 0, op, -1, -1, -1, -1, -1)
        digest = number.to_bytes(16, "big")
        writer.append(cells, (number - 1, 0, 0, layout) * width, (), (layout, digest) * width)


def finish(writer: ProcessWriter) -> None:
    writer.describe(records=writer.num_records, steps=0)
    writer.close()
    trace = writer.folder.parents[1]
    write_manifest(trace, {"command": ["program"], "complete": True, "exit_status": 0, "seconds": 1.0})


def digests(process: ProcessTrace) -> list[int]:
    """The digest of each record's first output, as the number that it was made from."""
    return [
        int.from_bytes(chunk.children["outputs"].columns["digest"][start].tobytes(), "big")
        for chunk in process.chunks()
        for start in chunk.children["outputs"].starts[:-1]
    ]


def test_very_wide_records_are_written_in_batches_that_a_reader_takes(tmp_path: Path) -> None:
    """Two such records fit in one spool but exceed what a reader takes at once."""
    writer = open_writer(tmp_path / "trace")
    add(writer, 1, width=1_100_000)
    add(writer, 3, width=1_100_000)
    finish(writer)
    assert digests(process_of(tmp_path / "trace")) == [0, 1, 2, 3]


@pytest.mark.parametrize("most", [1, 500, 10_000, 1 << 20])
def test_the_parts_of_a_batch_hold_its_rows(most: int) -> None:
    rows = [(2, number, f"text {number}" * (number % 7)) for number in range(100)]
    batch = batch_from_names(rows)
    parts = list(readable_parts(batch, most))
    assert all(part.nbytes <= most or part.num_rows == 1 for part in parts)
    assert pa.Table.from_batches(parts).to_pylist() == batch.to_pylist()
    assert (len(parts) == 1) == (batch.nbytes <= most)


@pytest.mark.parametrize("count", [0, 1, 100, 8191, 8192, 8193, 20_000])
def test_an_unclosed_writer_leaves_every_record(count: int, tmp_path: Path) -> None:
    writer = open_writer(tmp_path / "trace")
    add(writer, count)
    shutil.copytree(tmp_path / "trace", tmp_path / "left")
    writer.close()

    process = process_of(tmp_path / "left")
    assert digests(process) == list(range(count))
    assert not process.truncated
    assert process.extent[0] == count
    assert not process.description["ended"]


def test_record_wider_than_the_spool(tmp_path: Path) -> None:
    writer = open_writer(tmp_path / "trace")
    add(writer, 3)
    add(writer, 2, width=70_000)
    add(writer, 3)
    finish(writer)
    process = process_of(tmp_path / "trace")
    assert digests(process) == list(range(8))
    assert not process.truncated


def test_names_that_are_not_utf8(tmp_path: Path) -> None:
    writer = open_writer(tmp_path / "trace")
    writer.name(Table.MODULE, "caf\udce9 ☕")
    finish(writer)
    assert process_of(tmp_path / "trace").names.texts(Table.MODULE) == ["caf\\udce9 ☕"]


@pytest.mark.parametrize("limit", [20_000, 100_000, 400_000, 20_000_000])
def test_never_larger_than_allowed(limit: int, tmp_path: Path) -> None:
    writer = open_writer(tmp_path / "trace", limit)
    for _ in range(30):
        add(writer, 1000)
        size = sum(path.stat().st_size for path in (tmp_path / "trace").rglob("*") if path.is_file())
        assert size <= limit
    finish(writer)
    process = process_of(tmp_path / "trace")
    kept = digests(process)
    assert kept == list(range(len(kept)))
    assert process.stopped_by == (None if limit == 20_000_000 else "max-disk")
    assert (len(kept) > 100) == (limit > 20_000)
    assert writer.num_records == 30_000


class Full:
    """A disk that becomes full at some point."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._monkeypatch = monkeypatch

    def begin(self, writer: ProcessWriter) -> None:
        def fail(*arguments: object, **keywords: object) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        self._monkeypatch.setattr(NamesWriter, "add", fail)
        self._monkeypatch.setattr(RecordsWriter, "flush", fail)
        self._monkeypatch.setattr(Spool, "__init__", fail)
        self._monkeypatch.setattr("determinism.trace.writer.write_json", fail)


@pytest.mark.parametrize("count", [5, 9000])
def test_full_disk_is_remembered(count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing more can be written, not even the reason; the spool has room for that."""
    traces = []
    for name in ("one", "two"):
        writer = open_writer(tmp_path / name)
        add(writer, count)
        with monkeypatch.context() as patch:
            Full(patch).begin(writer)
            add(writer, 10_000)
            writer.blind_spot("some", "op", "reason")
            writer.close()
        write_manifest(tmp_path / name, {"command": ["program"], "complete": True, "exit_status": 0, "seconds": 1.0})
        traces.append(tmp_path / name)
    process = process_of(traces[0])
    assert process.stopped_by == "disk-full"
    assert digests(process) == list(range(count))
    comparison = compare(*traces)
    assert comparison.verdict is Verdict.INCONCLUSIVE
    assert [trouble.identifier for trouble in comparison.trouble] == ["disk-full"]


def test_no_room_for_a_spool(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("determinism.trace.writer.Spool", fail)
    writer = open_writer(tmp_path / "trace")
    add(writer, 100)
    finish(writer)
    assert writer.stopped_by == "disk-full"
    assert open_trace(tmp_path / "trace").processes[0].stopped_by == "disk-full"


def test_two_runs_cut_at_different_places_are_not_different(tmp_path: Path) -> None:
    for name, limit in (("one", 200_000), ("two", 300_000)):
        writer = open_writer(tmp_path / name, limit)
        add(writer, 20_000)
        finish(writer)
    comparison = compare(tmp_path / "one", tmp_path / "two")
    assert [trouble.identifier for trouble in comparison.trouble] == ["max-disk"]
    assert comparison.first_divergence is None


def test_threads_that_describe_at_once_do_not_stop_the_writer(tmp_path: Path) -> None:
    writer = open_writer(tmp_path / "trace")

    def describe(number: int) -> None:
        for time in range(60):
            writer.describe(**{f"thread {number}": time})

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(describe, range(4)))
    assert writer.stopped_by is None
    add(writer, 3)
    finish(writer)
    described = open_trace(tmp_path / "trace").processes[0].description
    assert [described[f"thread {number}"] for number in range(4)] == [59] * 4
