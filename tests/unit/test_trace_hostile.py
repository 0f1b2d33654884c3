"""Trace files that would block the reader or exhaust memory: each is refused or read in part, without delay."""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from determinism.errors import TraceError
from determinism.trace import schema
from determinism.trace.chunks import NAMES_SCHEMA, RECORD_SCHEMA, WRITE_OPTIONS, Names
from determinism.trace.files import MOST_DOCUMENT_BYTES, open_plain, read_document, read_plain, read_tensors
from determinism.trace.kept_values import ValuesReader, read_numbers
from determinism.trace.reader import StoredProcess
from determinism.trace.row_calls import read_row_calls
from determinism.trace.spool import HEADER, HEADER_BYTES, MAGIC, SPOOL_VERSION, read_progress, read_spool
from determinism.trace.stream import MOST_ROWS, BatchStream, name_rows
from tests.traces import TraceBuilder

MOST_SECONDS = 10
MOST_BYTES = 200 << 20


def sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(64 << 30)


def unix_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        here = os.getcwd()
        # A socket address has no room for a long path.
        os.chdir(path.parent)
        try:
            one.bind(path.name)
        finally:
            os.chdir(here)


NO_FILES: dict[str, Callable[[Path], object]] = {
    "FIFO": os.mkfifo,
    "device": lambda path: path.symlink_to("/dev/zero"),
    "file elsewhere": lambda path: path.symlink_to(path.parent / "elsewhere"),
    "link to nothing": lambda path: path.symlink_to("nowhere"),
    "file of holes": sparse,
    "socket": unix_socket,
    "folder": Path.mkdir,
}


def read_with_values(folder: Path) -> object:
    return ValuesReader(folder, 64).between(0, 10)


READERS: list[tuple[str, Callable[[Path], object]]] = [
    (schema.PROCESS_FILE, lambda folder: read_document(folder / schema.PROCESS_FILE)),
    (schema.RECORDS_FILE, lambda folder: BatchStream(folder / schema.RECORDS_FILE)),
    (schema.NAMES_FILE, lambda folder: Names(folder, name_rows(folder))),
    (schema.PENDING_NAMES_FILE, lambda folder: Names(folder, name_rows(folder))),
    (schema.SPOOL_FILE, lambda folder: read_spool(folder / schema.SPOOL_FILE)),
    (schema.NUMBERS_FILE, read_numbers),
    (schema.VALUES_FILE, read_with_values),
    (schema.ROWS_FILE, lambda folder: list(read_row_calls(folder))),
    (schema.CAPTURED_INPUTS_FILE, lambda folder: read_tensors(folder / schema.CAPTURED_INPUTS_FILE)),
]


@pytest.mark.parametrize(("name", "read"), READERS, ids=[name for name, _ in READERS])
@pytest.mark.parametrize("kind", NO_FILES)
def test_each_reader_refuses_files_that_are_not_regular(
    name: str, read: Callable[[Path], object], kind: str, tmp_path: Path
) -> None:
    (tmp_path / "elsewhere").write_bytes(b"{}")
    NO_FILES[kind](tmp_path / name)
    begin = time.process_time()

    with pytest.raises(TraceError) as caught:
        read(tmp_path)

    assert caught.value.identifier == "trace-damaged"
    assert time.process_time() - begin < MOST_SECONDS


def test_a_file_that_is_not_a_spool_has_no_progress(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "spool")
    assert read_progress(tmp_path / "spool") is None


def test_a_device_is_not_even_opened() -> None:
    with pytest.raises(TraceError, match="is a device"):
        open_plain(Path("/dev/zero"))


def test_no_more_is_read_than_requested(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"abcdef")
    assert read_plain(tmp_path / "file", most=4) == b"abcd"
    assert read_plain(tmp_path / "file", most=100) == b"abcdef"


def test_large_or_deep_documents_are_refused(tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b" " * (MOST_DOCUMENT_BYTES + 1))
    with pytest.raises(TraceError):
        read_document(tmp_path / "large")
    (tmp_path / "deep").write_text("[" * 200_000)
    with pytest.raises(ValueError, match="nested"):
        read_document(tmp_path / "deep")


@pytest.fixture
def arrow_memory() -> Iterator[None]:
    """Check that Arrow allocates no more memory than a batch may take."""
    pool, usual = pa.default_memory_pool(), pa.default_memory_pool()
    limited = pa.proxy_memory_pool(pool)
    pa.set_memory_pool(limited)
    yield
    pa.set_memory_pool(usual)
    assert limited.max_memory() < MOST_BYTES


def write_stream(path: Path, columns: pa.Schema, *batches: pa.RecordBatch) -> bytes:
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_stream(file, columns, options=WRITE_OPTIONS) as stream:
        for batch in batches:
            stream.write_batch(batch)
    return path.read_bytes()


def zeros(kind: pa.DataType, rows: int, entries: int) -> pa.Array:
    """A column of zeros; the first of its lists has all the entries."""
    if pa.types.is_list(kind):
        ends = np.full(rows + 1, entries, np.int32)
        ends[0] = 0
        fields = list(kind.value_type)
        inner = pa.StructArray.from_arrays([zeros(field.type, entries, 0) for field in fields], fields=fields)
        return pa.ListArray.from_arrays(pa.array(ends), inner).cast(kind)
    width = kind.bit_width // 8
    return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(bytes(width * rows))])


def records_of(rows: int, entries: int = 0) -> pa.RecordBatch:
    columns = [zeros(field.type, rows, entries) for field in RECORD_SCHEMA]
    return pa.record_batch(columns, schema=RECORD_SCHEMA)


@pytest.mark.parametrize(("rows", "entries"), [(20 * MOST_ROWS, 0), (1, 2 << 20)], ids=["records", "entries"])
def test_a_batch_that_decompresses_beyond_the_maximum_size_is_not_decoded(
    rows: int, entries: int, tmp_path: Path
) -> None:
    content = write_stream(tmp_path / "records", RECORD_SCHEMA, records_of(rows, entries))
    assert len(content) < 1 << 20
    stream = BatchStream(tmp_path / "records")
    assert stream.start is not None

    assert stream.at(stream.start) is None
    assert stream.is_broken


def test_a_batch_of_usual_size_is_decoded(tmp_path: Path) -> None:
    write_stream(tmp_path / "records", RECORD_SCHEMA, records_of(MOST_ROWS, 1000))
    stream = BatchStream(tmp_path / "records")
    assert stream.start is not None
    placed = stream.at(stream.start)
    assert placed is not None
    assert pa.ipc.read_record_batch(placed.message, RECORD_SCHEMA).num_rows == MOST_ROWS
    assert stream.at(placed.end) is None
    assert not stream.is_broken


@pytest.mark.parametrize("claimed", [1 << 33, 1 << 62, -2])
def test_a_buffer_that_claims_to_be_huge_is_not_allocated(claimed: int, tmp_path: Path, arrow_memory: None) -> None:
    content = bytearray(write_stream(tmp_path / "records", RECORD_SCHEMA, records_of(4000)))
    size = struct.pack("<q", 4000 * 4)
    assert content.count(size) > 1
    (tmp_path / "records").write_bytes(content.replace(size, struct.pack("<q", claimed)))
    stream = BatchStream(tmp_path / "records")
    assert stream.start is not None

    assert stream.at(stream.start) is None
    assert stream.is_broken


def test_no_byte_of_the_metadata_makes_arrow_allocate_more(tmp_path: Path, arrow_memory: None) -> None:
    whole = write_stream(tmp_path / "records", RECORD_SCHEMA, records_of(3))
    first = BatchStream(tmp_path / "records").start
    assert first is not None
    for at in range(first + 4, min(first + 500, len(whole) - 8), 3):
        content = bytearray(whole)
        content[at : at + 8] = struct.pack("<q", 1 << 40)
        (tmp_path / "records").write_bytes(content)
        stream = BatchStream(tmp_path / "records")
        placed = None if stream.start is None else stream.at(stream.start)
        if placed is not None:
            try:
                pa.ipc.read_record_batch(placed.message, RECORD_SCHEMA)
            except (pa.ArrowException, OSError):
                continue


def test_names_that_decompress_to_gigabytes_are_not_read(tmp_path: Path, arrow_memory: None) -> None:
    text = "x" * (30 << 20)
    batches = [
        pa.record_batch(
            [pa.array([0], pa.int8()), pa.array([number], pa.int32()), pa.array([text])], schema=NAMES_SCHEMA
        )
        for number in range(4)
    ]
    content = write_stream(tmp_path / schema.NAMES_FILE, NAMES_SCHEMA, *batches)
    assert len(content) < 1 << 20

    assert len(Names(tmp_path, name_rows(tmp_path)).texts(schema.Table.OP)) < len(batches)


def test_names_nested_too_deeply_are_skipped(tmp_path: Path) -> None:
    (tmp_path / schema.PENDING_NAMES_FILE).write_text('[0, 0, "op"]\n' + "[" * 200_000 + "\n")
    assert Names(tmp_path, name_rows(tmp_path)).texts(schema.Table.OP) == ["op"]


def test_views_outside_their_memory_are_refused_but_tensors_without_memory_are_not(tmp_path: Path) -> None:
    texts = (
        '["float32", [4, 4], [4], 0, "cpu", 64]', '["float32", [4, 4], [], 0, "cpu", 64]', '["float32", [4, 4], [], 4, "cpu", 0]',
        '["float32", [4], [-1], 0, "cpu", 16]', '["float32", [4], [1], -8, "cpu", 16]', '["float32", [4], [4611686018427387905], 0, "cpu", 16]',
        '["float32", [4], [1.5], 0, "cpu", 16]', '["float32", [4, 4], [4, 1], 0, "cpu", 64]', '["float32", [4, 4], [], 0, "cpu", 0]',
    )  # fmt: skip
    names = Names(tmp_path, [(schema.Table.LAYOUT.value, number, text) for number, text in enumerate(texts)])

    *refused, dense, sparse = range(len(texts))
    for number in refused:
        with pytest.raises(TraceError, match="is not a valid entry"):
            names.layout(number)
    assert names.layout(dense) == schema.Layout("float32", (4, 4), (4, 1), 0, "cpu", 64)
    assert names.layout(sparse) == schema.Layout("float32", (4, 4), (), 0, "cpu", 0)


def test_a_spool_that_claims_more_space_than_it_has_is_not_read(tmp_path: Path) -> None:
    for capacities in ((2**32 - 1, 2**32 - 1), (1, 2**31)):
        header = HEADER.pack(MAGIC, SPOOL_VERSION, 1, 0, *capacities)
        (tmp_path / "spool").write_bytes(header.ljust(HEADER_BYTES + 1000, b"\0"))
        assert read_spool(tmp_path / "spool") is None


def test_kept_values_longer_than_the_limit_are_not_read(tmp_path: Path) -> None:
    row = struct.pack("<qhxxI", 0, 0, 4) + b"abcd"
    (tmp_path / schema.VALUES_FILE).write_bytes(row + struct.pack("<qhxxI", 1, 0, 2**32 - 1) + b"x" * 100)
    assert ValuesReader(tmp_path, 64).between(0, 10) == {(0, 0): b"abcd"}


def test_reading_stops_after_the_declared_number_of_records(tmp_path: Path) -> None:
    builder = TraceBuilder(tmp_path / "trace")
    for _ in range(20):
        builder.add("op::one")
        builder._writer.flush()
    builder.close()
    folder = tmp_path / "trace" / schema.PROCESSES_FOLDER / "main"
    file = folder / schema.PROCESS_FILE
    file.write_text(file.read_text().replace('"records": 21', '"records": 5'))
    process = StoredProcess(folder)

    assert sum(chunk.rows for chunk in process.chunks()) < 10
    assert process.truncated
