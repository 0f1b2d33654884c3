"""Losses as numbers: written next to the records, and read whatever the state of the file."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from determinism.trace.kept_values import NumbersWriter, read_numbers
from determinism.trace.schema import NUMBERS_FILE, Meaning
from determinism.trace.writer import ProcessWriter
from tests.traces import TraceBuilder, process_of


@contextmanager
def open_writer(folder: Path) -> Iterator[NumbersWriter]:
    numbers = NumbersWriter(folder)
    yield numbers
    numbers.close()


def written(folder: Path, count: int, room: int | None = None) -> NumbersWriter:
    """Write rows of the first step, and close the file."""
    with open_writer(folder) as numbers:
        for record in range(count):
            numbers.add(Meaning.LOSS, record, record - 1, 0, record / 2, 0)
        numbers.flush(room)
    return numbers


def test_written_numbers_are_read(tmp_path: Path) -> None:
    with open_writer(tmp_path) as numbers:
        numbers.add(Meaning.READ, 2**40, 2**40 - 7, 3, math.pi, 12)
        numbers.add(Meaning.LOSS, 2**40 + 1, -1, 0, math.nan, 12)
        numbers.flush(None)
    first, second = read_numbers(tmp_path)
    assert first.tolist() == (2**40, 2**40 - 7, math.pi, 12, 3, Meaning.READ)
    assert math.isnan(second["value"]) and second["producer"] == -1


def test_without_numbers_there_is_no_file(tmp_path: Path) -> None:
    written(tmp_path, 0)
    assert list(tmp_path.iterdir()) == []
    assert len(read_numbers(tmp_path)) == 0


def test_the_number_of_rows_per_step_is_limited(tmp_path: Path) -> None:
    with open_writer(tmp_path) as numbers:
        for record in range(1000):
            numbers.add(Meaning.LOSS, record, -1, 0, 1.0, 0)
        numbers.flush(None)
        numbers.boundary()
        numbers.add(Meaning.LOSS, 1000, -1, 0, 1.0, 1)
        numbers.flush(None)
    assert len(read_numbers(tmp_path)) == 65


@pytest.mark.parametrize(("room", "rows"), [(0, 0), (-5, 0), (31, 0), (32, 1), (100, 3), (10**9, 10)])
def test_no_more_is_written_than_there_is_room_for(room: int, rows: int, tmp_path: Path) -> None:
    assert written(tmp_path, 10, room).bytes_written == 32 * rows
    assert len(read_numbers(tmp_path)) == rows


def test_a_truncated_row_is_skipped(tmp_path: Path) -> None:
    written(tmp_path, 3)
    os.truncate(tmp_path / NUMBERS_FILE, 70)
    assert [row["record"] for row in read_numbers(tmp_path)] == [0, 1]


def test_impossible_rows_are_skipped(tmp_path: Path) -> None:
    (tmp_path / NUMBERS_FILE).write_bytes(b"\xff" * 320)
    assert len(read_numbers(tmp_path)) == 0


def test_a_killed_process_leaves_its_complete_steps(tmp_path: Path) -> None:
    writer = ProcessWriter(tmp_path, description={})
    for step in range(3):
        writer.number(Meaning.LOSS, step, (), float(step), step)
        if step < 2:
            writer.boundary()
    assert [row["value"] for row in read_numbers(tmp_path)] == [0.0, 1.0]
    writer.close()
    assert [row["value"] for row in read_numbers(tmp_path)] == [0.0, 1.0, 2.0]


def test_the_size_limit_of_a_trace_applies_to_its_numbers(tmp_path: Path) -> None:
    writer = ProcessWriter(tmp_path, description={}, max_bytes=200_000)
    for step in range(20_000):
        writer.number(Meaning.LOSS, step, (), 1.0, step)
        writer.boundary()
    writer.close()
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 200_000
    assert len(read_numbers(tmp_path)) > 100


def test_numbers_of_omitted_records_are_omitted(tmp_path: Path) -> None:
    builder = TraceBuilder(tmp_path / "trace")
    for step in range(4):
        builder.number(Meaning.LOSS, step, builder.add("determinism::loss"))
        builder.step()
    process = process_of(builder.close())
    assert [row["value"] for row in process.numbers] == [0, 1, 2, 3]
    assert [row["value"] for row in process.until(3).numbers] == [0, 1]


def test_there_are_no_numbers_if_batches_are_counted_as_steps(tmp_path: Path) -> None:
    builder = TraceBuilder(tmp_path / "trace", steps_by=None)
    builder.number(Meaning.LOSS, 1.0, builder.add("determinism::loss"))
    assert len(process_of(builder.close()).numbers) == 0
