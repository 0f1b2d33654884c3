"""Elements of outputs: which are kept, how they are written with the records, and how damaged files are read."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from determinism.trace.kept_values import ValuesReader, ValuesWriter, sampled_places
from determinism.trace.schema import VALUES_FILE
from determinism.trace.writer import ProcessWriter


def written(folder: Path, count: int, room: int | None = None) -> ValuesWriter:
    """Write rows of 20 bytes: record, output 0 and four bytes each."""
    values = ValuesWriter(folder)
    for record in range(count):
        values.add(record, 0, bytes([record] * 4))
    values.flush(room)
    values.close()
    return values


def test_small_tensors_are_kept_whole() -> None:
    assert sampled_places(5, 64) == [0, 1, 2, 3, 4]
    assert sampled_places(64, 64) == list(range(64))


@pytest.mark.parametrize("elements", [65, 1000, 64 * 256, 3 * 5 * 7 * 11 * 13, 10**12])
def test_one_element_of_each_part_of_a_large_tensor_is_kept(elements: int) -> None:
    places = sampled_places(elements, 64)
    assert [place * 64 // elements for place in places] == list(range(64)) or len(set(places)) == 64
    assert places == sorted(places) and places[0] >= 0 and places[-1] < elements


@pytest.mark.parametrize("columns", [4, 32, 256, 1024])
def test_the_places_do_not_follow_a_column(columns: int) -> None:
    met = {place % columns for place in sampled_places(512 * columns, 64)}
    assert len(met) > min(columns, 64) // 2


def test_rows_are_read_in_portions(tmp_path: Path) -> None:
    written(tmp_path, 10)
    reader = ValuesReader(tmp_path)
    assert reader.between(2, 4) == {(2, 0): b"\2\2\2\2", (3, 0): b"\3\3\3\3"}
    assert list(reader.between(4, 5)) == [(4, 0)]
    assert list(reader.between(8, 99)) == [(8, 0), (9, 0)]
    assert reader.between(99, 100) == {}


def test_without_values_there_is_no_file(tmp_path: Path) -> None:
    written(tmp_path, 0)
    assert list(tmp_path.iterdir()) == []
    assert ValuesReader(tmp_path).between(0, 10) == {}


@pytest.mark.parametrize(("room", "rows"), [(0, 0), (-5, 0), (19, 0), (20, 1), (70, 3), (10**9, 10)])
def test_no_more_rows_are_written_than_fit(room: int, rows: int, tmp_path: Path) -> None:
    values = written(tmp_path, 10, room)
    assert (values.bytes_written, values.is_full) == (20 * rows, rows < 10)
    assert len(ValuesReader(tmp_path).between(0, 10)) == rows


def test_a_truncated_row_is_skipped(tmp_path: Path) -> None:
    written(tmp_path, 3)
    os.truncate(tmp_path / VALUES_FILE, 58)
    assert list(ValuesReader(tmp_path).between(0, 10)) == [(0, 0), (1, 0)]


def test_impossible_rows_are_skipped(tmp_path: Path) -> None:
    (tmp_path / VALUES_FILE).write_bytes(b"\xff" * 320)
    assert ValuesReader(tmp_path).between(0, 10) == {}


def test_values_count_towards_the_disk_limit(tmp_path: Path) -> None:
    writer = ProcessWriter(tmp_path, description={"level": "op"}, max_bytes=400_000)
    for record in range(100):
        writer.values(record, 0, bytes(10_000))
        writer.boundary()
    writer.close()
    assert 0 < (tmp_path / VALUES_FILE).stat().st_size < 400_000
    assert "values-cut" in (tmp_path / "process.json").read_text()
