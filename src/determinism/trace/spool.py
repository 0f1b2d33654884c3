"""A memory-mapped buffer of records that are not yet in the stream, which survives the end of the process.

Its pages belong to the kernel, so what was stored stays in the file when the process is killed: without a write per
record, a trace is complete up to the last whole record, however the process ended. The space is reserved in advance:
writing into a sparse map on a full disk would kill the program with SIGBUS.
"""

from __future__ import annotations

import mmap
import os
import struct
from array import array
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from determinism.errors import TraceError
from determinism.trace.chunks import CELL_TYPES, RECORD_SCHEMA, child_type
from determinism.trace.files import open_plain, read_plain
from determinism.trace.schema import CHILD_COLUMNS, INTERRUPT, RECORD_COLUMNS, Column
from determinism.types import NO_DIGEST

# The file format of a spool, and how it is read after the process that wrote it is gone.
#
# A header is followed by the rows of the records, including where their list entries end, and then the entries of each
# list. A row has all cells of a record side by side, so that one call stores them. References are the numbers of the
# records themselves; they become distances when the rows become a batch.

HEADER = struct.Struct("=8sIIQII")  # magic, version, rows, first record, record capacity, child capacity
MAGIC = b"detspool"
SPOOL_VERSION = 2
ROWS_OFFSET = 12
FIRST_OFFSET = 16
STOP_OFFSET = 32
HEADER_BYTES = 64
_MOST_TRIES = 3
_MOST_BYTES = 256 << 20
"""The largest spool that is read: one with room for records of a million tensors."""
STOPS = ("", "disk-full", "max-disk", INTERRUPT)
"""Why recording stopped. On a full disk only this byte can still be written, because its space is already reserved."""

RECORDS = "records"
_END = "end of "
_CODES = {"i": "i", "b": "b", "digest": "16s"}
_TYPES = {"i": "i4", "b": "i1", "16s": "V16", "q": "i8"}


def _cells(columns: tuple[Column, ...]) -> tuple[tuple[str, str], ...]:
    """Name and `struct` code of each cell of a row."""
    return tuple((c.name, "q" if c.is_reference else _CODES[c.code]) for c in columns)


ROWS = {
    RECORDS: (*_cells(RECORD_COLUMNS), *((_END + group, "i") for group in CHILD_COLUMNS)),
    **{group: _cells(columns) for group, columns in CHILD_COLUMNS.items()},
}
"""The cells of a row, for a record and for an entry of each list."""


def row_format(group: str) -> str:
    """The `struct` codes of a row, to be used without padding."""
    return "".join(code for _, code in ROWS[group])


def row_bytes(group: str) -> int:
    """Size of a row in bytes."""
    return struct.calcsize(f"={row_format(group)}")


class Section(NamedTuple):
    """Where in the file the rows of the records, or the entries of a list, are."""

    offset: int
    capacity: int


def sections(record_capacity: int, child_capacity: int) -> dict[str, Section]:
    """Lay out the sections for the given numbers of records and of entries in each list."""
    placed = {}
    offset = HEADER_BYTES
    for group in ROWS:
        capacity = record_capacity if group == RECORDS else child_capacity
        placed[group] = Section(offset, capacity)
        offset += -(-row_bytes(group) * capacity // 16) * 16
    return placed


def spool_bytes(record_capacity: int, child_capacity: int) -> int:
    """Size of a spool in bytes."""
    group, section = list(sections(record_capacity, child_capacity).items())[-1]
    return section.offset + -(-row_bytes(group) * section.capacity // 16) * 16


class SpoolContent(NamedTuple):
    """The content of a spool."""

    num_records: int
    first_record: int
    sections: dict[str, Section]
    data: Any
    """The whole file, as an object with the buffer protocol."""
    stopped_by: str | None
    """One of `STOPS`; None if recording did not stop."""

    def rows(self, group: str, count: int) -> np.ndarray[Any, Any]:
        """The first rows of a section, with a field per cell.

        Raises:
            ValueError: The section is smaller than that.
        """
        section = self.sections[group]
        if not 0 <= count <= section.capacity:
            raise ValueError(f"{count} rows of {group} in room for {section.capacity}")
        row = np.dtype([(name, _TYPES[code]) for name, code in ROWS[group]])
        return np.frombuffer(self.data, row, count, section.offset)

    def ends(self, group: str) -> np.ndarray[Any, Any]:
        """Where the entries of each record end in the list of a group."""
        return self.rows(RECORDS, self.num_records)[_END + group]


def read_spool(path: Path) -> SpoolContent | None:
    """Read the spool that a process left behind; None if there is none or if it is incomplete.

    Raises:
        TraceError: It is not a regular file.
    """
    try:
        data = read_plain(path, most=_MOST_BYTES)
    except OSError:
        return None
    if len(data) < HEADER_BYTES:
        return None
    magic, version, rows, first, record_capacity, child_capacity = HEADER.unpack_from(data)
    if magic != MAGIC or version != SPOOL_VERSION or rows > record_capacity:
        return None
    if len(data) < spool_bytes(record_capacity, child_capacity):
        return None
    stop = data[STOP_OFFSET]
    stopped_by = STOPS[stop] or None if stop < len(STOPS) else None
    return SpoolContent(rows, first, sections(record_capacity, child_capacity), data, stopped_by)


def steady_bytes(path: Path) -> bytes | None:
    """A consistent snapshot of a spool that is being written; None if there is none, or if it is emptied too often.

    Raises:
        TraceError: It is not a regular file.
    """
    for _ in range(_MOST_TRIES):
        try:
            data = read_plain(path, most=_MOST_BYTES)
            now = read_plain(path, most=HEADER_BYTES)
        except OSError:
            return None
        place = slice(FIRST_OFFSET, FIRST_OFFSET + 8)
        if len(data) >= HEADER_BYTES and data[place] == now[place]:
            # It was not emptied and refilled meanwhile, so the records that its header counts are whole.
            return data
    return None


def read_progress(path: Path) -> tuple[int, int] | None:
    """The number of records so far and the last step, from a spool that is being written; None before it exists."""
    try:
        with open_plain(path) as file:
            header = file.read(HEADER_BYTES)
            magic, version, rows, first, record_capacity, child_capacity = HEADER.unpack_from(header)
            if magic != MAGIC or version != SPOOL_VERSION:
                return None
            section = sections(record_capacity, child_capacity)[RECORDS]
            file.seek(section.offset + row_bytes(RECORDS) * max(rows - 1, 0))
            cells = struct.unpack(f"={row_format(RECORDS)}", file.read(row_bytes(RECORDS)))
            return first + rows, cells[[name for name, _ in ROWS[RECORDS]].index("step")]
    except (OSError, TraceError, struct.error):
        return None


class _Packers(dict[int, Callable[..., None]]):
    """Functions that store the rows of a list, given the cells of all of them in sequence; by the number of cells."""

    def __init__(self, group: str) -> None:
        self._row = row_format(group)
        self._width = len(ROWS[group])

    def __missing__(self, cells: int) -> Callable[..., None]:
        packer = self[cells] = struct.Struct("=" + self._row * (cells // self._width)).pack_into
        return packer


_pack_record = struct.Struct(f"={row_format(RECORDS)}").pack_into
_pack_inputs, _pack_digests, _pack_outputs, _pack_generators = (
    _Packers(group) for group in ("inputs", "input_digests", "outputs", "generators")
)
_RECORD, _INPUT, _DIGEST, _OUTPUT, _GENERATOR = (row_bytes(group) for group in ROWS)


class Spool:
    """The buffer of one process."""

    def __init__(self, path: Path, record_capacity: int, child_capacity: int, first_record: int = 0) -> None:
        """Create the file.

        Args:
            path: The file; an existing spool is replaced.
            record_capacity: How many records it has room for.
            child_capacity: How many entries of each list it has room for.
            first_record: Number of the next record.

        Raises:
            OSError: The disk has no room for it.
        """
        self.record_capacity = record_capacity
        self.child_capacity = child_capacity
        self.first_record = first_record
        self.counts = array("q", [0] * (len(ROWS) + 1))
        """The number of records and of entries of each list, in memory that other code may update too; the last element says whether
        records are held, see `hold`."""
        size = self.size = spool_bytes(record_capacity, child_capacity)
        # Under a temporary name until it is complete: a spool that is in use must not lose its file.
        part = path.with_name(f"{path.name}.part")
        descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, size)
            self._map = mmap.mmap(descriptor, size)
            header = (MAGIC, SPOOL_VERSION, 0, first_record, record_capacity, child_capacity)
            HEADER.pack_into(self._map, 0, *header)
            part.replace(path)
        except OSError:
            part.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)
        self._bytes = memoryview(self._map)
        self._committed = self._bytes[ROWS_OFFSET : ROWS_OFFSET + 4].cast("I")
        self._counted = self._committed
        """The number of records in the header, all of which readers take as whole."""
        self._first = self._bytes[FIRST_OFFSET : FIRST_OFFSET + 8].cast("Q")
        self._sections = sections(record_capacity, child_capacity)
        (
            self._records_at, self._inputs_at, self._digests_at, self._outputs_at, self._generators_at,
        ) = (section.offset for section in self._sections.values())  # fmt: skip

    def append(
        self,
        cells: tuple[int, ...],
        inputs: Sequence[int],
        input_digests: Sequence[int | bytes],
        outputs: Sequence[int | bytes],
        generators: Sequence[bytes],
    ) -> bool:
        """Store one record; it is in the file when this returns.

        Args:
            cells: One number per column of `schema.RECORD_COLUMNS`.
            inputs: The cells of all inputs in sequence, as in `schema.CHILD_COLUMNS`; likewise for the other lists.
            input_digests: See `inputs`.
            outputs: See `inputs`.
            generators: See `inputs`.

        Returns:
            False if there was no room, and nothing was stored.
        """
        row, first_input, first_digest, first_output, first_generator, _ = counts = self.counts
        room = self.child_capacity
        end_inputs = first_input + len(inputs) // 4
        end_digests = first_digest + len(input_digests) // 2
        end_outputs = first_output + len(outputs) // 2
        end_generators = first_generator + len(generators)
        if (
            row >= self.record_capacity
            or end_inputs > room
            or end_outputs > room
            or end_digests > room
            or end_generators > room
        ):
            return False
        into = self._map
        if inputs:
            _pack_inputs[len(inputs)](into, self._inputs_at + _INPUT * first_input, *inputs)
        if input_digests:
            _pack_digests[len(input_digests)](into, self._digests_at + _DIGEST * first_digest, *input_digests)
        if outputs:
            _pack_outputs[len(outputs)](into, self._outputs_at + _OUTPUT * first_output, *outputs)
        if generators:
            _pack_generators[len(generators)](into, self._generators_at + _GENERATOR * first_generator, *generators)
        ends = (end_inputs, end_digests, end_outputs, end_generators)
        _pack_record(into, self._records_at + _RECORD * row, *cells, *ends)
        counts[1], counts[2], counts[3], counts[4] = ends
        self._committed[0] = counts[0] = row + 1
        return True

    @property
    def num_records(self) -> int:
        """Number of records in it."""
        return self.counts[0]

    def offset_of_input_digest(self, number: int) -> int:
        """File offset of the digest of an input of the next record."""
        return self._digests_at + _DIGEST * (self.counts[2] + number + 1) - _GENERATOR

    def offset_of_output(self, number: int) -> int:
        """File offset of the digest of an output of the next record."""
        return self._outputs_at + _OUTPUT * (self.counts[3] + number + 1) - _GENERATOR

    @property
    def memory(self) -> mmap.mmap:
        """The memory map of the file."""
        return self._map

    @property
    def offsets(self) -> list[int]:
        """File offsets of the rows of the records and of each list."""
        return [section.offset for section in self._sections.values()]

    def hold(self) -> None:
        """Store records from now on without counting them for readers until `count_to` or `release`."""
        if not self.counts[-1]:
            self.counts[-1] = 1
            self._committed = memoryview(bytearray(4)).cast("I")

    def count_to(self, records: int) -> None:
        """Count this many records for readers."""
        self._counted[0] = records

    def release(self) -> None:
        """Count all records for readers, and later ones as they are stored."""
        self._counted[0] = self.num_records
        self._committed = self._counted
        self.counts[-1] = 0

    def content(self) -> SpoolContent:
        """The current content; valid until the next record is stored."""
        return SpoolContent(self.num_records, self.first_record, self._sections, self._bytes, None)

    def stop(self, reason: str) -> None:
        """Note why nothing more will be recorded."""
        self._map[STOP_OFFSET] = STOPS.index(reason)

    def restart(self) -> None:
        """Empty the spool, ready for the next record."""
        self.first_record += self.num_records
        for at in range(len(ROWS)):
            self.counts[at] = 0
        self._committed[0] = 0
        self._first[0] = self.first_record


# Records with a digest that is still being computed.
#
# They are in the spool like all others, with zeros in place of the digest, and the spool counts neither them nor later
# records until the digest is available. So the order of records stays that of the program, waiting takes little memory
# besides the spool, and readers of the spool, even after the process was killed, never see an incomplete record.


class Delivery:
    """Digests that are computed together and arrive together."""

    size: int
    """The maximum number of digests."""

    def ready(self) -> bytes | None:
        """Return all digests, 16 bytes each, if they are available; does not wait.

        Raises:
            DigestLost: They will never be available.
        """
        raise NotImplementedError

    def wait(self) -> bytes:
        """Wait for all digests and return them.

        Raises:
            DigestLost: They will never be available.
        """
        raise NotImplementedError


class PendingDigest:
    """A placeholder in a record for a digest that is still being computed."""

    __slots__ = ("delivery", "position")

    def __init__(self, delivery: Delivery, position: int) -> None:
        """Take the delivery that will bring the digest, and its position there."""
        self.delivery = delivery
        self.position = position

    def ready(self) -> bytes | None:
        """Return the digest if it is available; see `Delivery`."""
        digests = self.delivery.ready()
        return None if digests is None else self._of(digests)

    def wait(self) -> bytes:
        """Wait for the digest and return it; see `Delivery`."""
        return self._of(self.delivery.wait())

    def _of(self, digests: bytes) -> bytes:
        return digests[_GENERATOR * self.position : _GENERATOR * (self.position + 1)]


class DigestLost(Exception):
    """The computation of a digest failed."""


def resolved_digest(digest: bytes | PendingDigest) -> bytes:
    """Return a digest, waiting for it if it is pending."""
    return digest.wait() if isinstance(digest, PendingDigest) else digest


class _Places:
    """Where in a spool the digests of a delivery go."""

    __slots__ = ("first_row", "more", "offsets")

    def __init__(self, size: int, first_row: int) -> None:
        self.first_row = first_row
        """The first row that may wait for them."""
        self.offsets = array("q", [-1] * size + [1])
        """File offset of each digest, -1 for one that is in no record. The last element is 1 while offsets may be added, by other code too."""
        self.more: list[tuple[int, int]] = []
        """Offset and position of further copies of digests that several records have."""


class WaitingRows:
    """A layer between a writer and its spool that fills in pending digests."""

    def __init__(self, spool: Spool, lost: Callable[[str], None]) -> None:
        """Take the spool.

        Args:
            spool: Gets the records.
            lost: Called with the reason for each digest that will never be available; its record then has none.
        """
        self._spool = spool
        self._lost = lost
        self._waiting: dict[Delivery, _Places] = {}

    def store(
        self,
        cells: tuple[int, ...],
        inputs: Sequence[int],
        input_digests: Sequence[Any],
        outputs: Sequence[Any],
        generators: Sequence[bytes],
    ) -> bool:
        """Store a record as `Spool.append` does; its digests may be pending."""
        self.advance()
        spool, pending = self._spool, list[tuple[int, PendingDigest]]()
        input_digests = _without_pending(input_digests, spool.offset_of_input_digest, pending)
        outputs = _without_pending(outputs, spool.offset_of_output, pending)
        for offset, digest in pending:
            places = self._waiting.get(digest.delivery) or self._new_places(digest.delivery)
            if places.offsets[digest.position] < 0:
                places.offsets[digest.position] = offset
            else:
                places.more.append((offset, digest.position))
        is_stored = False
        try:
            is_stored = spool.append(cells, inputs, input_digests, outputs, generators)
        finally:
            if not is_stored:
                self._take_back(pending)
        return is_stored

    def _take_back(self, pending: list[tuple[int, PendingDigest]]) -> None:
        for offset, digest in pending:
            places = self._waiting[digest.delivery]
            if places.offsets[digest.position] == offset:
                places.offsets[digest.position] = -1
            else:
                places.more.remove((offset, digest.position))

    def places(self, delivery: Delivery) -> array[int]:
        """The file offsets of a delivery's digests, for other code to add to; see `_Places.offsets`."""
        self.advance()
        return (self._waiting.get(delivery) or self._new_places(delivery)).offsets

    def _new_places(self, delivery: Delivery) -> _Places:
        self._spool.hold()
        places = self._waiting[delivery] = _Places(delivery.size, self._spool.num_records)
        self._count()
        return places

    def advance(self) -> None:
        """Fill in the digests that have arrived."""
        if not self._waiting:
            return
        while self._waiting:
            delivery, places = next(iter(self._waiting.items()))
            try:
                digests = delivery.ready()
            except DigestLost as error:
                self._lose(places, str(error))
            else:
                if digests is None:
                    break
                self._fill(places, digests)
            self._remove(delivery)
        self._count()

    def settle(self) -> None:
        """Wait for all digests."""
        while self._waiting:
            delivery, places = next(iter(self._waiting.items()))
            if places.more or max(places.offsets[:-1]) >= 0:
                try:
                    self._fill(places, delivery.wait())
                except DigestLost as error:
                    self._lose(places, str(error))
            self._remove(delivery)
        self._count()

    def _remove(self, delivery: Delivery) -> None:
        self._waiting.pop(delivery).offsets[-1] = 0

    def _fill(self, places: _Places, digests: bytes) -> None:
        offsets, more = np.frombuffer(places.offsets, np.int64)[:-1], np.array(places.more, np.int64).reshape(-1, 2)
        (taken,) = np.nonzero(offsets >= 0)
        at = np.concatenate([offsets[taken], more[:, 0]])
        rows = np.frombuffer(digests, np.uint8).reshape(-1, _GENERATOR)[np.concatenate([taken, more[:, 1]])]
        np.frombuffer(self._spool.memory, np.uint8)[at[:, np.newaxis] + np.arange(_GENERATOR)] = rows

    def _lose(self, places: _Places, reason: str) -> None:
        for _ in range(sum(offset >= 0 for offset in places.offsets[:-1]) + len(places.more)):
            self._lost(reason)

    def _count(self) -> None:
        """Make the spool count the records before the first one that waits."""
        if self._waiting:
            # Deliveries are in the order of the records that wait for them.
            self._spool.count_to(next(iter(self._waiting.values())).first_row)
        else:
            self._spool.release()


def _without_pending(
    cells: Sequence[Any], offset_of: Callable[[int], int], pending: list[tuple[int, PendingDigest]]
) -> Sequence[Any]:
    """The cells of a list with zeros in place of pending digests, which are added to `pending` with their file offsets."""
    found = [(offset_of(at), digest) for at, digest in enumerate(cells[1::2]) if isinstance(digest, PendingDigest)]
    if not found:
        return cells
    pending += found
    return [NO_DIGEST if isinstance(cell, PendingDigest) else cell for cell in cells]


# The records of a spool as an Arrow batch.


def batch_from_spool(content: SpoolContent) -> pa.RecordBatch:
    """The records in a spool.

    Raises:
        ValueError: Its numbers refer to places outside of it.
    """
    records = content.rows(RECORDS, content.num_records)
    numbers = content.first_record + np.arange(content.num_records, dtype=np.int64)
    arrays = [_array(column, records, numbers) for column in RECORD_COLUMNS]
    for group, columns in CHILD_COLUMNS.items():
        offsets = np.zeros(content.num_records + 1, np.int32)
        offsets[1:] = content.ends(group)
        entries = content.rows(group, int(offsets[-1]))
        of_entries = np.repeat(numbers, np.diff(offsets))
        children = [_array(column, entries, of_entries) for column in columns]
        values = pa.StructArray.from_arrays(children, fields=list(child_type(columns)))
        # Built with the type from the schema: a cast to it would import `pyarrow.compute` into the program.
        kind = RECORD_SCHEMA.field(group).type
        arrays.append(
            pa.Array.from_buffers(kind, content.num_records, [None, pa.py_buffer(offsets)], children=[values])
        )
    return pa.record_batch(arrays, schema=RECORD_SCHEMA)


def _array(column: Column, rows: np.ndarray[Any, Any], numbers: np.ndarray[Any, Any]) -> pa.Array:
    """One column of rows; `numbers` are the numbers of the records that they belong to."""
    cells = rows[column.name]
    if column.is_reference:
        cells = np.where(cells >= 0, numbers - cells, 0).astype(np.int32)
    return _fixed(CELL_TYPES[column.code], cells)


def _fixed(kind: pa.DataType, cells: np.ndarray[Any, Any]) -> pa.Array:
    return pa.Array.from_buffers(kind, len(cells), [None, pa.py_buffer(np.ascontiguousarray(cells))])
