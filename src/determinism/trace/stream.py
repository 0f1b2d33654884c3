"""Files of Arrow messages: the records of one process, read from any of their batches, and tables.

A trace may have been written by hand. A message of a few bytes can claim a body of terabytes, or decompress to
one; so its claims are checked before Arrow sees it.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa

from determinism.errors import TraceError
from determinism.trace.chunks import NAMES_SCHEMA, RECORD_SCHEMA
from determinism.trace.files import FileParts, read_plain
from determinism.trace.schema import (
    FIRST_METADATA,
    FORMAT,
    MOST_BATCH_BYTES,
    NAMES_FILE,
    PENDING_NAMES_FILE,
    PROCESS_METADATA,
    RUN_METADATA,
)

# Reads the files, message by message.

MOST_ROWS = 1 << 16
"""Maximum number of records in a batch; a writer puts no more than 8,192 into one."""
_MOST_RATIO = 64
"""How many times larger than its file a table may become, in addition to one batch. Names are texts that compress about tenfold."""
_MOST_TABLE_ROWS = 1 << 14
"""How many rows of a table become objects at a time."""
_MOST_DIGITS = 15
"""Limit on the digits of a record's number."""
_PREFIX = struct.Struct("<II")
_CONTINUATION = 0xFFFFFFFF
_MOST_METADATA_BYTES = 1 << 20
_SCHEMA, _RECORD_BATCH = 1, 3
"""The kinds of messages, by their numbers in Arrow's `MessageHeader`."""


class Placed(NamedTuple):
    """A batch as it is in the file, and the offset of the next one."""

    message: Any
    end: int
    rows: int = 0
    decoded_bytes: int = 0
    """Size in bytes of its buffers after decompression."""


class _MessageFile:
    """The messages of a file; each is read as a whole, and only if it can be one that a writer wrote."""

    def __init__(self, path: Path) -> None:
        """Open it.

        Raises:
            OSError: It does not exist, or cannot be read.
            TraceError: It is not a regular file.
        """
        self._file = FileParts(path)

    @property
    def size(self) -> int:
        """The file's current size."""
        return self._file.size

    def at(self, offset: int, kind: int) -> Placed | None:
        """The message that begins at an offset; None at the end of the stream.

        Raises:
            OSError: It cannot be read.
            ValueError: It breaks off, or no writer wrote it.
        """
        size = self.size
        if offset >= size:
            return None
        prefix = self._read(offset, _PREFIX.size)
        continuation, metadata_bytes = _PREFIX.unpack(prefix)
        if continuation != _CONTINUATION:
            raise ValueError("no message begins here")
        if not metadata_bytes:
            return None
        body = offset + _PREFIX.size + metadata_bytes
        if metadata_bytes > min(_MOST_METADATA_BYTES, size - offset):
            raise ValueError("the message is truncated")
        metadata = self._read(offset + _PREFIX.size, metadata_bytes)
        header = _Header(metadata)
        if header.kind != kind or not 0 <= header.body_bytes <= size - body:
            raise ValueError("the message is truncated, or does not belong here")
        content = self._read(body, header.body_bytes)
        rows, decoded = (header.rows, header.decoded_bytes(content)) if kind == _RECORD_BATCH else (0, 0)
        message = pa.ipc.read_message(pa.py_buffer(prefix + metadata + content))
        return Placed(message, body + header.body_bytes, rows, decoded)

    def _read(self, offset: int, size: int) -> bytes:
        content = self._file.read_at(offset, size)
        while len(content) < size:
            part = self._file.read_at(offset + len(content), size - len(content))
            if not part:
                raise ValueError("the file is truncated")
            content += part
        return content


class _Header:
    """The metadata of a message: a flatbuffer.

    Source of the layout: https://flatbuffers.dev/internals and Message.fbs of Apache Arrow.
    """

    def __init__(self, metadata: bytes) -> None:
        """Parse the metadata.

        Raises:
            ValueError: They contain an offset beyond their end.
        """
        self._metadata = metadata
        message = self._unpack("<I", 0)
        self.kind = self._field(message, 1, "<B", 0)
        self.body_bytes = self._field(message, 3, "<q", 0)
        self._header = self._target(message, 2)

    @property
    def rows(self) -> int:
        """Number of rows that a record batch claims to have."""
        return 0 if self._header is None else self._field(self._header, 0, "<q", 0)

    def decoded_bytes(self, body: bytes) -> int:
        """Size in bytes of the buffers of a record batch after decompression.

        Raises:
            ValueError: It is larger than any that a writer writes, or a buffer is not within the body.
        """
        if self._header is None:
            raise ValueError("the message has no batch")
        nodes, buffers = (self._target(self._header, index) for index in (1, 2))
        is_compressed = self._target(self._header, 3) is not None
        entries = 0
        for at in self._structs(nodes):
            length = self._unpack("<q", at)
            entries += length
            if not 0 <= length <= MOST_BATCH_BYTES or entries > MOST_BATCH_BYTES:
                raise ValueError("the batch has more entries than any that is written")
        total = 0
        for at in self._structs(buffers):
            offset, length = self._unpack("<q", at), self._unpack("<q", at + 8)
            if not 0 <= offset <= offset + length <= len(body):
                raise ValueError("a buffer is not within the message")
            decoded = length
            if is_compressed and length >= 8:
                decoded = int.from_bytes(body[offset : offset + 8], "little", signed=True)
                decoded = length - 8 if decoded == -1 else decoded
            total += decoded
            if decoded < 0 or total > MOST_BATCH_BYTES:
                raise ValueError("the batch would take more memory than any that is written")
        return total

    def _structs(self, vector: int | None) -> Iterator[int]:
        """The offsets of the 16-byte structs in a vector."""
        if vector is not None:
            count = self._unpack("<I", vector)
            if count * 16 > len(self._metadata):
                raise ValueError("a vector extends beyond the message")
            yield from range(vector + 4, vector + 4 + 16 * count, 16)

    def _target(self, table: int, index: int) -> int | None:
        """The offset of the table or vector that a field refers to; None if the field is missing."""
        place = self._place(table, index)
        return None if place is None else place + self._unpack("<I", place)

    def _field(self, table: int, index: int, code: str, default: int) -> int:
        place = self._place(table, index)
        return default if place is None else self._unpack(code, place)

    def _place(self, table: int, index: int) -> int | None:
        fields = table - self._unpack("<i", table)
        at = 4 + 2 * index
        offset = self._unpack("<H", fields + at) if at < self._unpack("<H", fields) else 0
        return table + offset if offset else None

    def _unpack(self, code: str, at: int) -> int:
        if not 0 <= at <= len(self._metadata) - struct.calcsize(code):
            raise ValueError("the metadata of a message refer to a place outside of it")
        return int(struct.unpack_from(code, self._metadata, at)[0])


class BatchStream:
    """The batches of a stream of records; a missing end is not an error, since a process may be killed while it writes."""

    def __init__(self, path: Path) -> None:
        """Open the file and check its columns.

        Raises:
            TraceError: It does not exist, is not a regular file, or has different columns.
        """
        self.is_broken = False
        """Whether something follows the last batch that could be read."""
        self.start: int | None = None
        """Offset of the first batch; None if the file ends before that."""
        self.first: int | None = None
        """Number of the first record; None if the file ends before it says so."""
        try:
            self._source = _MessageFile(path)
        except OSError as error:
            raise TraceError(
                "trace-damaged",
                f"{path} cannot be read ({error}), so this trace is incomplete. Record the run again.",
            ) from None
        if not self._source.size:
            # Arrow writes the schema with the first batch, and there was none yet.
            return
        try:
            self.start = _start(self._source, RECORD_SCHEMA)
        except (OSError, ValueError):
            self.is_broken = True
            return
        if self.start is None:
            raise TraceError(
                "trace-damaged",
                f"{path} has different columns from those of {FORMAT!r}, so this trace was changed or damaged. Record the run again.",
            )
        said = _metadata_of(self._source).get(FIRST_METADATA.encode(), b"0")
        self.first = int(said) if said.isdigit() and len(said) <= _MOST_DIGITS else None

    def at(self, offset: int) -> Placed | None:
        """The batch that begins at an offset; None at the end of the readable part."""
        try:
            placed = self._source.at(offset, _RECORD_BATCH)
            if placed is not None and placed.rows > MOST_ROWS:
                raise ValueError(f"a batch of {placed.rows} records")
            return placed
        except (pa.ArrowException, OSError, ValueError):
            self.is_broken = True
            return None


def owner_named_in(path: Path) -> tuple[str | None, str | None]:
    """The run and the process that a file of records or names claims to belong to; None for either if it does not say.

    Raises:
        TraceError: It is not a regular file.
    """
    try:
        metadata = _metadata_of(_MessageFile(path))
    except (pa.ArrowException, OSError, ValueError):
        # Reading its rows will report what is wrong with it.
        return None, None
    run, process = (
        None if (said := metadata.get(key.encode())) is None else said.decode("utf-8", "replace")
        for key in (RUN_METADATA, PROCESS_METADATA)
    )
    return run, process


def _metadata_of(source: _MessageFile) -> dict[bytes, bytes]:
    placed = source.at(0, _SCHEMA)
    return (pa.ipc.read_schema(placed.message).metadata if placed is not None else None) or {}


def read_table(path: Path, columns: pa.Schema) -> Iterator[tuple[Any, ...]]:
    """Yield the cells of each row of a file of Arrow batches, up to the first batch that is not whole.

    Raises:
        OSError: It does not exist, or cannot be read.
        ValueError: It breaks off, or contains what no writer wrote.
        TraceError: It is not a regular file.
    """
    source = _MessageFile(path)
    left = MOST_BATCH_BYTES + _MOST_RATIO * source.size
    offset = _start(source, columns)
    if offset is None:
        raise ValueError("it has different columns")
    while (placed := source.at(offset, _RECORD_BATCH)) is not None:
        left -= placed.decoded_bytes
        if left < 0:
            raise ValueError("it would take far more memory than any that is written")
        try:
            batch = pa.ipc.read_record_batch(placed.message, columns)
            batch.validate(full=True)
        except pa.ArrowException as error:
            raise ValueError(str(error)) from None
        for first in range(0, batch.num_rows, _MOST_TABLE_ROWS):
            part = batch.slice(first, _MOST_TABLE_ROWS)
            yield from zip(*(column.to_pylist() for column in part.columns), strict=True)
        offset = placed.end


def _start(source: _MessageFile, columns: pa.Schema) -> int | None:
    """Offset of the first batch; None if the file has different columns.

    Raises:
        ValueError: The schema breaks off, or is not valid.
        OSError: It cannot be read.
    """
    placed = source.at(0, _SCHEMA)
    if placed is None:
        raise ValueError("it is truncated before its columns")
    try:
        return placed.end if pa.ipc.read_schema(placed.message).equals(columns) else None
    except pa.ArrowException as error:
        raise ValueError(str(error)) from None


_Row = tuple[Any, ...]


_MOST_PENDING_BYTES = 256 << 20


def name_rows(folder: Path) -> Iterator[_Row]:
    """Yield the names of a process: table, number, text. The pending file has those that a killed process had not moved to the stream."""
    yield from _stream_rows(folder / NAMES_FILE)
    yield from _pending_rows(folder / PENDING_NAMES_FILE)


def _stream_rows(path: Path) -> Iterator[_Row]:
    try:
        yield from read_table(path, NAMES_SCHEMA)
    except (OSError, ValueError):
        # The process was killed while writing: the whole batches count, the pending file has the rest.
        return


def _pending_rows(path: Path) -> Iterator[_Row]:
    try:
        lines = read_plain(path, most=_MOST_PENDING_BYTES).split(b"\n")
    except OSError:
        return
    for line in lines[:-1]:
        try:
            table, number, text = json.loads(line)
        except (ValueError, TypeError, RecursionError):
            return
        yield table, number, text
