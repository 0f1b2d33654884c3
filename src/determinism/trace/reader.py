"""The processes, records and names of a stored trace, checked before they are used."""

from __future__ import annotations

import math
import os
import stat
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from determinism.errors import TraceError
from determinism.trace import schema
from determinism.trace.chunks import Array, Chunk, Decoder, Names, chunk_from_batch, cut, is_whole
from determinism.trace.files import read_document, require_plain
from determinism.trace.kept_values import read_numbers
from determinism.trace.process import ProcessTrace, ReadSoFar, Trace
from determinism.trace.schema import NONE, Table
from determinism.trace.spool import STOPS, batch_from_spool, read_spool
from determinism.trace.stream import BatchStream, name_rows, owner_named_in
from determinism.types import Access, Level, Phase, Role, Stream

# Reads the JSON documents of a trace, and refuses what this tool cannot have written.

Document = dict[str, Any]
_Rule = Callable[[Any], bool]


def read_manifest(folder: Path) -> Document:
    """Read the manifest of a trace.

    Raises:
        TraceError: It is damaged, foreign, or newer than this version.
    """
    _require_plain_files(folder)
    _require_plain_files(folder / schema.PROCESSES_FOLDER)
    return _read(folder / schema.MANIFEST_FILE, _MANIFEST_RULES)


def read_description(folder: Path) -> Document:
    """Read the description of a process.

    Raises:
        TraceError: It is damaged, foreign, or newer than this version.
    """
    _require_plain_files(folder)
    return _read(folder / schema.PROCESS_FILE, _PROCESS_RULES)


def has_begun(folder: Path) -> bool:
    """Whether a process recorded anything; one that was killed right after its start did not.

    Raises:
        TraceError: It has records but no description.
    """
    _require_plain_files(folder)
    if (folder / schema.PROCESS_FILE).exists():
        return True
    records = folder / schema.RECORDS_FILE
    content = read_spool(folder / schema.SPOOL_FILE)
    if (content is not None and content.num_records) or (records.exists() and records.stat().st_size):
        raise TraceError(
            "trace-damaged",
            f"{folder} has records but no {schema.PROCESS_FILE}, so this trace is incomplete. Record the run again.",
        )
    return False


def _require_plain_files(folder: Path) -> None:
    """Refuse a folder that contains anything but folders and regular files, before anything in it is read."""
    try:
        with os.scandir(folder) as listing:
            entries = [(Path(entry.path), entry.stat(follow_symlinks=False)) for entry in listing]
    except OSError:
        # It is missing, or a file was removed meanwhile: reading it will report that.
        return
    for path, status in entries:
        if not stat.S_ISDIR(status.st_mode):
            require_plain(path, status)


def _read(path: Path, rules: dict[str, _Rule]) -> Document:
    try:
        document: Document = read_document(path)
    except (OSError, ValueError) as error:
        reason = f"is empty or truncated: {error}" if isinstance(error, ValueError) else f"cannot be read: {error}"
        raise TraceError(
            "trace-damaged", f"{path} {reason}. So this trace is incomplete. Record the run again."
        ) from None
    _check_format(document, path)
    for key, is_valid in rules.items():
        if not is_valid(document.get(key)):
            shown = repr(document.get(key))
            raise TraceError(
                "trace-damaged",
                f"{path} says {key!r} is {shown[:60]}, which this tool does not write, so the trace was changed or "
                "damaged. Record the run again.",
            )
    return document


def _check_format(document: Any, path: Path) -> None:
    if not isinstance(document, dict):
        found = {list: "a list", str: "a string", type(None): "null"}.get(type(document), "a number")
        raise TraceError(
            "trace-foreign",
            f"{path} holds {found} instead of a JSON object, so {path.parent} is not a trace of this tool. Give the folder "
            "that `determinism record -o` wrote.",
        )
    text, version = document.get("format", ""), _version(document)
    if version is None:
        raise TraceError(
            "trace-foreign",
            f"{path} names the format {str(text)[:60]!r}, so {path.parent} is not a trace of this tool. Give the folder that "
            "`determinism record -o` wrote.",
        )
    if version > schema.VERSION:
        raise TraceError(
            "trace-newer",
            f"{path} has the format {text!r}, and this version reads up to {schema.FORMAT!r}. Update `determinism` to read "
            "this trace.",
        )


def _version(document: Document) -> int | None:
    """The version of the format that a document names; None if it names none."""
    name, _, version = str(document.get("format", "")).partition("/")
    is_number = version.isascii() and version.isdigit() and len(version) < 10
    return int(version) if name == "determinism.trace" and is_number else None


def _is_count(value: Any) -> bool:
    return value is None or (isinstance(value, int) and not isinstance(value, bool) and -(2**31) <= value < 2**63)


def _is_text(value: Any) -> bool:
    return value is None or isinstance(value, str)


def _is_duration(value: Any) -> bool:
    # A number in JSON may be too large for a float.
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return value is None or (is_number and abs(value) < _MOST_SECONDS and math.isfinite(value))


_MOST_SECONDS = 1e12


def _is_text_list(value: Any) -> bool:
    return value is None or (isinstance(value, list) and all(isinstance(item, str) for item in value))


def _is_facts(value: Any) -> bool:
    return value is None or (isinstance(value, dict) and all(isinstance(item, str) for item in value.values()))


def _is_spots(value: Any) -> bool:
    return value is None or (
        isinstance(value, list)
        and all(
            isinstance(spot, dict)
            and all(isinstance(spot.get(key), str) for key in ("id", "what", "reason"))
            and isinstance(spot.get("count"), int)
            for spot in value
        )
    )


def _is_one_of(values: Iterable[str]) -> _Rule:
    known = frozenset(values)
    # Some JSON values are not hashable.
    return lambda value: isinstance(value, str) and value in known


def _is_environment(value: Any) -> bool:
    return value is None or (isinstance(value, dict) and all(_is_facts(facts) for facts in value.values()))


_is_level, _is_stream, _is_stop = _is_one_of(Level), _is_one_of(Stream), _is_one_of(filter(None, STOPS))
_MANIFEST_RULES: dict[str, _Rule] = {
    "run": _is_text,
    "created": _is_duration,
    "complete": lambda value: value is None or isinstance(value, bool),
    "environment": _is_environment,
    "level": lambda value: value is None or _is_level(value),
    "command": _is_text_list,
    "exit_status": _is_count,
    "stopped_by": _is_text,
    "seconds": _is_duration,
    "waited": _is_duration,
    "steps": _is_count,
    "processes": _is_text_list,
    "blind_spots": _is_spots,
}
_PROCESS_RULES: dict[str, _Rule] = {
    "run": _is_text,
    "process": _is_text,
    "level": _is_level,
    "stream": lambda value: value is None or _is_stream(value),
    "started": _is_duration,
    "part_of": _is_text,
    "threads": _is_text_list,
    "threads_made_at": _is_text_list,
    "framework": _is_text,
    "steps_by": _is_text,
    "records": _is_count,
    "steps": _is_count,
    "step_seconds": _is_duration,
    "world_size": _is_count,
    "keeps_newest": lambda value: value is None or isinstance(value, bool),
    "values": lambda value: value is None or (_is_count(value) and value > 0),
    "stopped_by": lambda value: value is None or _is_stop(value),
    "environment": _is_facts,
    "settings": _is_facts,
    "open_settings": _is_facts,
    "device_digests": _is_facts,
    "racy": _is_text_list,
    "overlapped": lambda value: value is None or (type(value) is list and all(map(_is_count, value))),
    "blind_spots": _is_spots,
}


# Checks that a batch of records can be what a writer wrote, before anything relies on its numbers.

_LARGEST = 2**31 - 1


def is_sound(chunk: Chunk, names: Names) -> bool:
    """Whether every number in a chunk refers to something that exists."""
    return all(_lies_within(cells, low, high) for cells, low, high in _limits(chunk, names)) and _points_back(chunk)


def _limits(chunk: Chunk, names: Names) -> Iterator[tuple[Array, int, int]]:
    """Yield each column of numbers with its lowest and highest valid number."""
    columns, inputs = chunk.columns, chunk.children["inputs"].columns
    sizes = {table: len(names.texts(table)) - 1 for table in Table}
    yield columns["op"], 0, sizes[Table.OP]
    yield columns["module"], NONE, sizes[Table.MODULE]
    yield columns["stack"], NONE, sizes[Table.STACK]
    yield columns["forward_stack"], NONE, sizes[Table.STACK]
    yield columns["arguments"], NONE, sizes[Table.ARGUMENTS]
    yield inputs["layout"], NONE, sizes[Table.LAYOUT]
    yield chunk.children["outputs"].columns["layout"], NONE, sizes[Table.LAYOUT]
    yield columns["phase"], min(Phase), max(Phase)
    yield columns["role"], min(Role), max(Role)
    yield inputs["access"], min(Access), max(Access)
    yield columns["thread"], 0, _LARGEST
    yield columns["step"], 0, _LARGEST
    yield inputs["output"], 0, _LARGEST
    yield chunk.children["input_digests"].columns["position"], 0, _LARGEST


def _lies_within(cells: Array, low: int, high: int) -> bool:
    return not len(cells) or (int(cells.min()) >= low and int(cells.max()) <= high)


def _points_back(chunk: Chunk) -> bool:
    """Whether every distance to an earlier record refers to an existing one."""
    inputs = chunk.children["inputs"]
    distances = (chunk.columns["forward"], inputs.columns["producer"])
    if any(not _lies_within(cells, 0, _LARGEST) for cells in distances):
        return False
    if all(_lies_within(cells, 0, chunk.first) for cells in distances):
        return True
    numbers = chunk.first + np.arange(chunk.rows, dtype=np.int64)
    return bool((distances[0] <= numbers).all() and (distances[1] <= inputs.spread(numbers)).all())


def recorded_records(trace: Path) -> int:
    """Number of records that the processes of a trace claim to have written; 0 if none does.

    Args:
        trace: The folder of a run, which may be damaged in any way.
    """
    count = 0
    for path in trace.glob(f"**/{schema.PROCESSES_FOLDER}/*/{schema.PROCESS_FILE}"):
        try:
            count += int(read_document(path).get("records") or 0)
        except (OSError, ValueError, TypeError, AttributeError, OverflowError, TraceError):
            continue
    return count


class StoredProcess(ProcessTrace):
    """The records and names of one process of a run, read from its folder."""

    def __init__(
        self,
        folder: Path,
        *,
        limit: int | None = None,
        description: dict[str, Any] | None = None,
        from_step: int | None = None,
    ) -> None:
        """Open the folder of one process.

        If the oldest records were removed, records are counted from 0 at the first whole step.

        Args:
            folder: Its path.
            limit: Read at most this many of the first records.
            description: The description of the process; None reads it from the folder.
            from_step: Leave out the records before this step; None reads all.

        Raises:
            TraceError: It was written by a newer version, or `process.json` cannot be read.
        """
        super().__init__(
            folder, folder.name, read_description(folder) if description is None else description, from_step=from_step
        )
        self._limit = limit
        self._firsts, self._places = array("q"), list[tuple[BatchStream, int]]()
        """For each batch that `chunks` passed: the number of its first record, and its file and offset."""
        self._cached: Chunk | None = None
        self._tail: Chunk | None = None
        self._num_batches = 0
        self._spool_stopped_by: str | None = None

    @cached_property
    def _streams(self) -> list[BatchStream]:
        """The files of records, earliest first."""
        earlier = sorted(self.folder.glob(schema.EARLIER_RECORDS))
        last = self.folder / schema.RECORDS_FILE
        # It is missing if the process was killed while it began a new one.
        return [BatchStream(path) for path in (*earlier, *([last] if last.exists() or not earlier else []))]

    @cached_property
    def num_removed(self) -> int:
        """Number of the oldest records that were removed, so that the newest stay within the limit of --max-disk."""
        if not self.description.get("keeps_newest"):
            return 0
        first = self._streams[0].first
        if first is None:
            content = read_spool(self.folder / schema.SPOOL_FILE)
            first = 0 if content is None else content.first_record
        return first

    @property
    def begin(self) -> int:
        """Number of the process's records before the first one that is read."""
        return self._beginning[0]

    @property
    def first_step(self) -> int:
        """The step of the first record that is read."""
        return self._beginning[1]

    @cached_property
    def _beginning(self) -> tuple[int, int]:
        if not self.num_removed and not self.from_step:
            return 0, 0
        found = self._find_beginning()
        # The search may have ended early: `chunks` starts again from the first batch.
        self._firsts, self._places, self._tail = array("q"), [], None
        return found

    def _find_beginning(self) -> tuple[int, int]:
        ops = self.names.texts(Table.OP)
        step_op = ops.index(schema.STEP_OP) if schema.STEP_OP in ops else NONE
        first: tuple[int, int] | None = None
        last = 0
        for chunk in self._stored_chunks(Decoder()):
            first = first or (chunk.first, int(chunk.columns["step"][0]))
            for row in np.flatnonzero(chunk.columns["op"] == step_op).tolist():
                following = int(chunk.columns["step"][row]) + 1
                if following >= (self.from_step or 0):
                    return chunk.number(row) + 1, following
            last = chunk.first + chunk.rows
        # A step longer than what is kept is read as far as it exists.
        return (first or (0, 0)) if self.from_step is None else (last, self.from_step)

    @cached_property
    def names(self) -> Names:
        """The tables of names."""
        return Names(self.folder, name_rows(self.folder), version=_version(self.description) or schema.VERSION)

    def give_back(self) -> None:
        """Free the memory of what was read; it is read again when needed."""
        super().give_back()
        self._cached = None

    def until(self, limit: int | None) -> StoredProcess:
        """The same process, opened anew, as if it had made no more than this many records; None for all."""
        return self._opened_again(self._limit if limit is None else limit, self.from_step)

    def since(self, step: int) -> StoredProcess:
        """The same process, opened anew, as if it had begun with this step."""
        return self._opened_again(self._limit, step)

    def _opened_again(self, limit: int | None, from_step: int | None) -> StoredProcess:
        opened = StoredProcess(self.folder, limit=limit, description=self.description, from_step=from_step)
        opened.key = self.key
        return opened

    def chunks(self, decoder: Decoder | None = None) -> Iterator[Chunk]:
        """Yield every record in order, in the batches in which they were written.

        A stream that breaks off yields its whole batches; then the spool of a killed process follows.

        Args:
            decoder: A decoder shared with other readers.
        """
        # Threads are in the step of their process.
        counts_batches = self.steps_by is None and self.description.get("stream") != Stream.THREADS
        batches = self._num_batches = 0
        _ = self.begin
        for chunk in map(self._counted, self._stored_chunks(decoder or Decoder())):
            if self._limit is not None and chunk.first >= self._limit:
                return
            if self._limit is not None and chunk.first + chunk.rows > self._limit:
                chunk = cut(chunk, 0, self._limit - chunk.first)
            if not chunk.rows:
                continue
            if counts_batches:
                # No steps were counted, so batches count as steps.
                upto = batches + np.cumsum(chunk.columns["role"] == Role.BATCH)
                batches = self._num_batches = int(upto[-1])
                chunk = replace(chunk, columns={**chunk.columns, "step": np.maximum(upto - 1, 0).astype(np.int32)})
            yield chunk

    def _counted(self, chunk: Chunk) -> Chunk:
        """A batch with its records counted from the first one that is read, and without references to those before."""
        begin = self.begin
        if not begin:
            return chunk
        chunk = cut(chunk, min(max(0, begin - chunk.first), chunk.rows), chunk.rows)
        chunk = replace(chunk, first=max(0, chunk.first - begin))
        inputs, numbers = chunk.children["inputs"], chunk.numbers
        forward, producer = chunk.columns["forward"], inputs.columns["producer"]
        forward = np.where(forward > numbers, 0, forward).astype(forward.dtype)
        producer = np.where(producer > inputs.spread(numbers), 0, producer).astype(producer.dtype)
        inputs = inputs._replace(columns={**inputs.columns, "producer": producer})
        return replace(
            chunk,
            columns={**chunk.columns, "forward": forward},
            children={**chunk.children, "inputs": inputs},
        )

    @cached_property
    def numbers(self) -> np.ndarray[Any, Any]:
        """The recorded numbers, such as losses, see `read_numbers`; none if batches count as steps."""
        begin = self.begin
        numbers = read_numbers(self.folder, None if self._limit is None else self._limit + begin)
        if begin:
            numbers = numbers[numbers["record"] >= begin].copy()
            numbers["record"] -= begin
            numbers["producer"] = np.maximum(numbers["producer"] - begin, -1)
        return numbers if self.steps_by is not None else numbers[:0]

    @property
    def stopped_by(self) -> str | None:
        """`disk-full` or `max-disk` if recording stopped before the process ended."""
        if self._spool_stopped_by is None and not self.description.get("ended"):
            content = read_spool(self.folder / schema.SPOOL_FILE)
            self._spool_stopped_by = None if content is None else content.stopped_by
        return self.description.get("stopped_by") or self._spool_stopped_by

    @cached_property
    def extent(self) -> tuple[int, int]:
        """The number of records and of steps; counted here if the process was killed before it could write them."""
        promised = self._promised()
        if promised is not None and self._limit is None:
            return max(0, promised - self.begin), max(0, int(self.description.get("steps") or 0) - self.first_step)
        ops = self.names.texts(schema.Table.OP)
        step_op = ops.index(schema.STEP_OP) if schema.STEP_OP in ops else schema.NONE
        records = steps = 0
        for chunk in self.chunks():
            records += chunk.rows
            steps += int((chunk.columns["op"] == step_op).sum())
        return records, steps if self.steps_by is not None else self._num_batches

    def _promised(self) -> int | None:
        """The number of records according to a process that finished its trace; None for others."""
        if not self.description.get("ended") or self.stopped_by is not None:
            return None
        records = self.description.get("records")
        return None if records is None else int(records)

    def _stored_chunks(self, decoder: Decoder) -> Iterator[Chunk]:
        self._firsts, self._places = array("q"), []
        self.truncated = False
        first = self.num_removed
        for stream in self._streams:
            if stream.first not in (None, first):
                self.truncated = True
                break
            for chunk in self._chunks_of(stream, first, decoder):
                yield chunk
                first += chunk.rows
            self.truncated |= stream.is_broken
            if self.truncated:
                break
        tail = self._left_in_spool(first)
        if tail is not None:
            self._tail = tail
            first += tail.rows
            yield tail
        promised = self._promised()
        self.truncated |= promised is not None and promised != first

    def _chunks_of(self, stream: BatchStream, first: int, decoder: Decoder) -> Iterator[Chunk]:
        """Yield the batches of one file, up to the first that cannot be what was written."""
        offset = stream.start
        promised = self._promised()
        while offset is not None and (placed := stream.at(offset)) is not None:
            if promised is not None and first > promised:
                # The file has more records than the process says that it wrote, maybe without end.
                return
            chunk = self._sound(decoder.chunk(first, placed.message))
            if chunk is None:
                return
            self._firsts.append(first)
            self._places.append((stream, offset))
            offset = placed.end
            first += chunk.rows
            ReadSoFar.records += chunk.rows
            yield chunk

    def _left_in_spool(self, first: int) -> Chunk | None:
        """The records that a killed process had not yet moved to the stream."""
        content = read_spool(self.folder / schema.SPOOL_FILE)
        if content is None:
            self.truncated |= self._promised() is None and self.stopped_by is None
            return None
        if content.first_record + content.num_records <= first:
            return None
        # The stream may end in half a batch: its records are still in the spool.
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
        """The records of a batch, if they can be what was written; else None."""
        if chunk is not None and is_sound(chunk, self.names):
            return chunk
        self.truncated = True
        return None

    def record(self, number: int) -> tuple[Chunk, int]:
        """The chunk that holds one record, and its position there; reads the trace first if `chunks` has not."""
        chunk = self._chunk_of(number)
        return chunk, number - chunk.first

    def _chunk_of(self, number: int) -> Chunk:
        if self._cached is not None and 0 <= number - self._cached.first < self._cached.rows:
            return self._cached
        stored = number + self.begin
        if not self._firsts and self._tail is None:
            # The trace was compared in another process, so this one has not read it.
            for _ in self._stored_chunks(Decoder()):
                pass
        if self._tail is not None and stored >= self._tail.first:
            return self._counted(self._tail)
        index = bisect_right(self._firsts, stored) - 1
        stream, offset = self._places[index]
        placed = stream.at(offset)
        assert placed is not None
        chunk = Decoder().chunk(self._firsts[index], placed.message)
        assert chunk is not None
        self._cached = self._counted(chunk)
        return self._cached


class StoredTrace(Trace):
    """The recording of one run, read from its folder."""

    @cached_property
    def processes(self) -> list[ProcessTrace]:
        """The processes that recorded, in order of key."""
        parent = self.folder / schema.PROCESSES_FOLDER
        folders = sorted(p for p in parent.iterdir() if p.is_dir()) if parent.is_dir() else []
        found: list[ProcessTrace] = [StoredProcess(folder) for folder in folders if has_begun(folder)]
        for process in found:
            self._require_own(process)
        return found

    def _require_own(self, process: ProcessTrace) -> None:
        """Refuse files of another run or process; files of older versions do not name theirs, and pass.

        Raises:
            TraceError: A file belongs to another run or process.
        """
        own = self.manifest.get("run"), process.folder.name
        description = process.description
        named = {process.folder / schema.PROCESS_FILE: (description.get("run"), description.get("process"))}
        earlier = sorted(process.folder.glob(schema.EARLIER_RECORDS))
        for file in (*earlier, process.folder / schema.RECORDS_FILE, process.folder / schema.NAMES_FILE):
            if file.exists():
                named[file] = owner_named_in(file)
        for place, owner in named.items():
            for what, mine, its in zip(("run", "process"), own, owner, strict=True):
                if mine is not None and its is not None and its != mine:
                    raise TraceError(
                        "trace-mixed",
                        f"{place} belongs to {what} {its[:40]!r}, but is in the folder of {what} {mine[:40]!r}. The "
                        "trace mixes files that do not belong together, so it does not describe one run. Copy it again as a "
                        "whole, or record the run again.",
                    )

    @cached_property
    def missing_processes(self) -> list[str]:
        """Folders of processes that the manifest lists but that no longer exist: removed, emptied or not copied."""
        # Older manifests do not have this list, but the environment of each process, by its key.
        listed = self.manifest.get("processes", self.manifest.get("environment"))
        present = {process.folder.name for process in self.processes}
        return sorted({str(key) for key in listed} - present) if isinstance(listed, list | dict) else []
