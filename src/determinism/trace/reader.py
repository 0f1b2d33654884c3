"""Opens a trace and gives its processes, records and names."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from determinism.trace import schema
from determinism.trace.batches import batch_from_spool
from determinism.trace.chunk import Chunk, chunk_from_batch, cut
from determinism.trace.decoder import Decoder
from determinism.trace.description import has_begun, read_description
from determinism.trace.names import Names
from determinism.trace.numbers import read_numbers
from determinism.trace.portions import RecordReader
from determinism.trace.soundness import is_sound, is_whole
from determinism.trace.spool_file import read_spool
from determinism.trace.stream import BatchStream
from determinism.types import Role, Stream


class ProcessTrace:
    """The records and names of one process of a run."""

    def __init__(self, folder: Path, *, limit: int | None = None) -> None:
        """Open the folder of one process.

        Args:
            folder: Where it is.
            limit: Give only so many of the first records.

        Raises:
            TraceError: It was written by a newer version, or `process.json` cannot be read.
        """
        self.folder = folder
        self.key = folder.name
        self.description = read_description(folder)
        self._limit = limit
        self._firsts, self._offsets = array("q"), array("q")
        """Of each batch that `chunks` passed: the number of its first record, and where it lies in the stream."""
        self._cached: Chunk | None = None
        self._tail: Chunk | None = None
        self._num_batches = 0
        self._spool_stopped_by: str | None = None
        self.truncated = False
        """Whether records that were written are missing; known when `chunks` has come to its end."""

    @cached_property
    def _stream(self) -> BatchStream:
        return BatchStream(self.folder / schema.RECORDS_FILE)

    @cached_property
    def names(self) -> Names:
        """The tables of names."""
        return Names(self.folder)

    def until(self, limit: int) -> ProcessTrace:
        """The same process, as if it had made no more than this many records."""
        shorter = ProcessTrace(self.folder, limit=limit)
        shorter.key, shorter.description = self.key, self.description
        return shorter

    def chunks(self, decoder: Decoder | None = None) -> Iterator[Chunk]:
        """Every record in order, in the batches they were written in.

        A stream that breaks off gives its whole batches; then the spool of a killed process follows.

        Args:
            decoder: One that other readers use too.
        """
        # Threads are in the step of their process.
        counts_batches = self.steps_by is None and self.description.get("stream") != Stream.THREADS
        batches = self._num_batches = 0
        for chunk in self._stored_chunks(decoder or Decoder()):
            if self._limit is not None and chunk.first >= self._limit:
                return
            if self._limit is not None and chunk.first + chunk.rows > self._limit:
                chunk = cut(chunk, 0, self._limit - chunk.first)
            if not chunk.rows:
                continue
            if counts_batches:
                # No step was counted: then batches count.
                upto = batches + np.cumsum(chunk.columns["role"] == Role.BATCH)
                batches = self._num_batches = int(upto[-1])
                chunk = replace(chunk, columns={**chunk.columns, "step": np.maximum(upto - 1, 0).astype(np.int32)})
            yield chunk

    @cached_property
    def numbers(self) -> np.ndarray[Any, Any]:
        """What is known of losses as numbers, see `read_numbers`; nothing where batches count as steps."""
        numbers = read_numbers(self.folder, self._limit)
        return numbers if self.steps_by is not None else numbers[:0]

    @property
    def steps_by(self) -> str | None:
        """What counted as a step; None before anything did."""
        found = self.description.get("steps_by")
        return None if found is None else str(found)

    @property
    def stopped_by(self) -> str | None:
        """`disk-full` or `max-disk` where recording stopped before the process ended."""
        if self._spool_stopped_by is None and not self.description.get("ended"):
            content = read_spool(self.folder / schema.SPOOL_FILE)
            self._spool_stopped_by = None if content is None else content.stopped_by
        return self.description.get("stopped_by") or self._spool_stopped_by

    @cached_property
    def extent(self) -> tuple[int, int]:
        """How many records and steps there are; what a killed process could not count is counted here."""
        promised = self._promised()
        if promised is not None and self._limit is None:
            return promised, int(self.description.get("steps") or 0)
        ops = self.names.texts(schema.Table.OP)
        step_op = ops.index(schema.STEP_OP) if schema.STEP_OP in ops else schema.NONE
        records = steps = 0
        for chunk in self.chunks():
            records += chunk.rows
            steps += int((chunk.columns["op"] == step_op).sum())
        return records, steps if self.steps_by is not None else self._num_batches

    def _promised(self) -> int | None:
        """How many records a process that could finish its trace said there are."""
        if not self.description.get("ended") or self.stopped_by is not None:
            return None
        records = self.description.get("records")
        return None if records is None else int(records)

    def _stored_chunks(self, decoder: Decoder) -> Iterator[Chunk]:
        self._firsts, self._offsets = array("q"), array("q")
        self.truncated = False
        first = 0
        offset = self._stream.start
        while offset is not None and (placed := self._stream.at(offset)) is not None:
            chunk = self._sound(decoder.chunk(first, placed.message))
            if chunk is None:
                break
            self._firsts.append(first)
            self._offsets.append(offset)
            offset = placed.end
            first += chunk.rows
            yield chunk
        self.truncated |= self._stream.is_broken
        tail = self._left_in_spool(first)
        if tail is not None:
            self._tail = tail
            first += tail.rows
            yield tail
        promised = self._promised()
        self.truncated |= promised is not None and promised != first

    def _left_in_spool(self, first: int) -> Chunk | None:
        """What a killed process had not yet moved to the stream."""
        content = read_spool(self.folder / schema.SPOOL_FILE)
        if content is None:
            self.truncated |= self._promised() is None and self.stopped_by is None
            return None
        if content.first_record + content.num_records <= first:
            return None
        # The stream may end in half a batch: what that was is still here.
        self.truncated = content.first_record != first
        if self.truncated:
            return None
        try:
            batch = batch_from_spool(content)
        except (ValueError, pa.ArrowException):
            self.truncated = True
            return None
        return self._sound(chunk_from_batch(first, batch) if is_whole(batch) else None)

    def _sound(self, chunk: Chunk | None) -> Chunk | None:
        """The records of a batch; None if they cannot be what was written."""
        if chunk is not None and is_sound(chunk, self.names):
            return chunk
        self.truncated = True
        return None

    def record(self, number: int) -> tuple[Chunk, int]:
        """The chunk that holds one record and its position there; `chunks` must have passed it."""
        chunk = self._chunk_of(number)
        return chunk, number - chunk.first

    def _chunk_of(self, number: int) -> Chunk:
        if self._cached is not None and 0 <= number - self._cached.first < self._cached.rows:
            return self._cached
        if self._tail is not None and number >= self._tail.first:
            return self._tail
        index = bisect_right(self._firsts, number) - 1
        placed = self._stream.at(self._offsets[index])
        assert placed is not None
        self._cached = Decoder().chunk(self._firsts[index], placed.message)
        assert self._cached is not None
        return self._cached

    def reader(self, decoder: Decoder | None = None) -> RecordReader:
        """Read the records from the first on, in portions of any size.

        Args:
            decoder: One that other readers use too.
        """
        return RecordReader(self.chunks(decoder))


class Trace:
    """What one run recorded."""

    def __init__(self, folder: Path, manifest: dict[str, Any]) -> None:
        self.folder = folder
        self.manifest = manifest

    @cached_property
    def processes(self) -> list[ProcessTrace]:
        """The processes that recorded, by key."""
        parent = self.folder / schema.PROCESSES_FOLDER
        folders = sorted(p for p in parent.iterdir() if p.is_dir()) if parent.is_dir() else []
        return [ProcessTrace(folder) for folder in folders if has_begun(folder)]

    @cached_property
    def missing_processes(self) -> list[str]:
        """Folders of processes that the manifest lists and that are no longer there: removed, emptied or not copied."""
        # Manifests that were written before they had this list name each process with what it ran on.
        listed = self.manifest.get("processes", self.manifest.get("environment"))
        present = {process.folder.name for process in self.processes}
        return sorted({str(key) for key in listed} - present) if isinstance(listed, list | dict) else []
