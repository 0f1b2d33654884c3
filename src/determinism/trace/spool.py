"""A memory-mapped buffer of records that are not yet in the stream.

What was stored stays in the file when the process is killed, because the pages belong to the kernel; so a trace is
complete up to the last whole record, however the process ended, without a write per record. The space is reserved
beforehand: writing into a sparse map on a full disk would kill the program with SIGBUS.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Callable, Sequence
from pathlib import Path

from determinism.trace import spool_file
from determinism.trace.spool_file import SpoolContent, row_bytes, row_format


class _Packers(dict[int, Callable[..., None]]):
    """Stores the rows of a list, given the cells of all of them one after the other; by the number of cells."""

    def __init__(self, group: str) -> None:
        self._row = row_format(group)
        self._width = len(spool_file.ROWS[group])

    def __missing__(self, cells: int) -> Callable[..., None]:
        packer = self[cells] = struct.Struct("=" + self._row * (cells // self._width)).pack_into
        return packer


_pack_record = struct.Struct(f"={row_format(spool_file.RECORDS)}").pack_into
_pack_inputs, _pack_digests, _pack_outputs, _pack_generators = (
    _Packers(group) for group in ("inputs", "input_digests", "outputs", "generators")
)
_RECORD, _INPUT, _DIGEST, _OUTPUT, _GENERATOR = (row_bytes(group) for group in spool_file.ROWS)


class Spool:
    """The buffer of one process."""

    def __init__(self, path: Path, record_capacity: int, child_capacity: int, first_record: int = 0) -> None:
        """Create the file.

        Args:
            path: Where; a spool that lies there already is replaced.
            record_capacity: Room for so many records.
            child_capacity: Room for so many entries of each list.
            first_record: Number of the next record.

        Raises:
            OSError: The disk has no room for it.
        """
        self.record_capacity = record_capacity
        self.child_capacity = child_capacity
        self.num_records = 0
        self.first_record = first_record
        self._inputs = self._digests = self._outputs = self._generators = 0
        size = self.size = spool_file.spool_bytes(record_capacity, child_capacity)
        # Under another name until it is whole: the pages of a spool that is in use must not lose their file.
        part = path.with_name(f"{path.name}.part")
        descriptor = os.open(part, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, size)
            self._map = mmap.mmap(descriptor, size)
            header = (spool_file.MAGIC, spool_file.SPOOL_VERSION, 0, first_record, record_capacity, child_capacity)
            spool_file.HEADER.pack_into(self._map, 0, *header)
            part.replace(path)
        except OSError:
            part.unlink(missing_ok=True)
            raise
        finally:
            os.close(descriptor)
        self._bytes = memoryview(self._map)
        self._committed = self._bytes[spool_file.ROWS_OFFSET : spool_file.ROWS_OFFSET + 4].cast("I")
        self._counted = self._committed
        """Where the number of records stands that readers take for whole."""
        self._first = self._bytes[spool_file.FIRST_OFFSET : spool_file.FIRST_OFFSET + 8].cast("Q")
        self._sections = spool_file.sections(record_capacity, child_capacity)
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
            inputs: Cell after cell of all inputs, as in `schema.CHILD_COLUMNS`; so for the other lists.
            input_digests: See `inputs`.
            outputs: See `inputs`.
            generators: See `inputs`.

        Returns:
            False if there was no room, and nothing was stored.
        """
        row = self.num_records
        room = self.child_capacity
        first_input, first_digest, first_output, first_generator = (
            self._inputs, self._digests, self._outputs, self._generators,
        )  # fmt: skip
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
        self._inputs, self._digests, self._outputs, self._generators = ends
        self._committed[0] = self.num_records = row + 1
        return True

    @property
    def num_input_digests(self) -> int:
        """How many entries that list has."""
        return self._digests

    @property
    def num_outputs(self) -> int:
        """How many entries that list has."""
        return self._outputs

    def set_digest(self, group: str, entry: int, digest: bytes) -> None:
        """Put a digest in the place of the one that an entry of a list has; it ends the entry."""
        end = self._sections[group].offset + row_bytes(group) * (entry + 1)
        self._bytes[end - len(digest) : end] = digest

    def hold(self) -> None:
        """From now on records are stored, and not counted for readers until `count_to` or `release`."""
        if self._committed is self._counted:
            self._committed = memoryview(bytearray(4)).cast("I")

    def count_to(self, records: int) -> None:
        """Count so many of them."""
        self._counted[0] = records

    def release(self) -> None:
        """Count all, and those to come as they come."""
        self._counted[0] = self.num_records
        self._committed = self._counted

    def content(self) -> SpoolContent:
        """What it holds now; valid until the next record is stored."""
        return SpoolContent(self.num_records, self.first_record, self._sections, self._bytes, None)

    def stop(self, reason: str) -> None:
        """Say why nothing more will be recorded."""
        self._map[spool_file.STOP_OFFSET] = spool_file.STOPS.index(reason)

    def restart(self) -> None:
        """Empty the spool; it goes on with the next record."""
        self.first_record += self.num_records
        self._committed[0] = self.num_records = 0
        self._first[0] = self.first_record
        self._inputs = self._digests = self._outputs = self._generators = 0
