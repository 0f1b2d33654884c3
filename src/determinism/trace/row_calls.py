"""Digests of the rows of the inputs and outputs of ops and modules: written only if batches are compared by their rows."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from determinism.errors import TraceError
from determinism.trace.schema import ROWS_FILE
from determinism.trace.stream import read_table

DIGEST_BYTES = 16
_MOST_BYTES = 1 << 30
_MOST_ROWS_PER_SAMPLE = 512
"""If a sample has more rows than this, they count as one."""
_CALLS_PER_BATCH = 256
_COLUMNS = pa.schema(
    [
        ("record", pa.int64()),
        ("name", pa.string()),
        ("stack", pa.int32()),
        ("batch", pa.int32()),
        ("facts", pa.string()),
        ("tensors", pa.string()),
        ("digests", pa.large_binary()),
    ]
)


def counts_of_rows(shape: Sequence[int], batch: int) -> Iterator[tuple[int, int]]:
    """Yield each dimension of a tensor that may be that of the samples, with the number of rows to digest along it.

    Args:
        shape: Its shape, without zeros.
        batch: How many samples the batch has.
    """
    for dimension, size in enumerate(shape):
        # The first dimension has several rows per sample if other dimensions were folded into it.
        if not (size % batch or (dimension and size != batch) or (batch == 1 and size == 1)):
            yield dimension, size if size // batch <= _MOST_ROWS_PER_SAMPLE else batch


@dataclass(frozen=True)
class SeenTensor:
    """One input or output tensor."""

    shape: tuple[int, ...]
    whole: bytes
    """Digest of all elements, in the order of the indices."""
    rows: dict[int, bytes]
    """For each dimension that may be the batch's, the concatenated digests of the slices along it."""
    unpadded: bytes = b""
    """Digests of the slices along the first dimension without the zeros at their ends; empty if this was not examined."""

    def along(self, dimension: int, batch: int) -> list[bytes] | None:
        """The digests of the rows along a dimension; None if they were not examined.

        Args:
            dimension: The dimension.
            batch: Number of samples in the batch.
        """
        found = self.rows.get(dimension)
        if found is not None:
            return _taken_apart(found)
        return [self.whole] if batch == 1 and self.shape[dimension] == 1 else None

    def without_padding(self) -> list[bytes]:
        """The digests of the rows along the first dimension, without the zeros at their ends."""
        return _taken_apart(self.unpadded)


@dataclass(frozen=True)
class SeenCall:
    """One call of an op, or of the outermost module."""

    record: int
    """Number of the op's record; -1 for a module."""
    name: str
    """Qualified overload name, or the class of the module."""
    stack: int
    """For a module: number of the stack that called it; for an op -1, since its record has it."""
    batch: int
    """Number of samples in the batch, as far as it could be determined."""
    facts: dict[str, Any]
    """`phase`; `training`: whether the module was in training mode; `draws`: whether the op draws random numbers;
    `trains`: whether the op was called in training mode; `dim`: the dimension that it was given. For a module also
    `state`: digest of its parameters and buffers; `changed`: names of those that the call changed; `sensitive`: path and class of
    each submodule that is in training mode and computes differently in it; `drawn`: whether random numbers were drawn."""
    inputs: tuple[SeenTensor, ...]
    outputs: tuple[SeenTensor, ...]


class RowCallsWriter:
    """Appends calls to the file of one process."""

    def __init__(self, folder: Path, *, max_bytes: int = _MOST_BYTES) -> None:
        """Create the file.

        Args:
            folder: Folder of the process.
            max_bytes: Maximum number of bytes of digests; calls beyond it are left out.

        Raises:
            OSError: It cannot be created.
        """
        self._file = pa.OSFile(str(folder / ROWS_FILE), "wb")
        self._stream = pa.ipc.new_stream(self._file, _COLUMNS)
        self._waiting: list[tuple[Any, ...]] = []
        self._max_bytes = self._bytes_left = max_bytes

    def add(self, call: SeenCall) -> str | None:
        """Append one call; return why, if it is the first one that is left out.

        Raises:
            OSError: It cannot be written.
        """
        was_full = self._bytes_left < 0
        digests = b"".join(part for one in (*call.inputs, *call.outputs) for part in _parts(one))
        self._bytes_left -= len(digests)
        if self._bytes_left < 0:
            reason = f"their digests take more than {self._max_bytes:,} bytes, so later rows were not examined"
            return None if was_full else reason
        tensors = json.dumps([[_described(one) for one in group] for group in (call.inputs, call.outputs)])
        facts = json.dumps(call.facts)
        self._waiting.append(
            (call.record, call.name, call.stack, call.batch, facts, tensors, digests)
        )  # fmt: skip
        if len(self._waiting) >= _CALLS_PER_BATCH:
            self._flush()
        return None

    def _flush(self) -> None:
        columns = zip(*self._waiting, strict=True)
        arrays = [pa.array(cells, field.type) for cells, field in zip(columns, _COLUMNS, strict=True)]
        self._stream.write_batch(pa.RecordBatch.from_arrays(arrays, schema=_COLUMNS))
        self._waiting.clear()

    def close(self) -> None:
        """Write the remaining calls, and close the file.

        Raises:
            OSError: It cannot be written.
        """
        if self._file.closed:
            return
        try:
            if self._waiting:
                self._flush()
            self._stream.close()
        finally:
            self._file.close()


def read_row_calls(folder: Path) -> Iterator[SeenCall]:
    """Yield the calls of one process, in the order in which they were made; none if rows were not examined.

    Raises:
        TraceError: The file is damaged.
    """
    path = folder / ROWS_FILE
    try:
        for row in read_table(path, _COLUMNS):
            yield _call(dict(zip(_COLUMNS.names, row, strict=True)))
    except FileNotFoundError:
        return
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise TraceError(
            "trace-damaged",
            f"{path} cannot be read ({error}), so this trace is incomplete. Record the run again.",
        ) from None


def _call(row: dict[str, Any]) -> SeenCall:
    groups, digests, at = json.loads(row["tensors"]), row["digests"], 0
    tensors: list[tuple[SeenTensor, ...]] = []
    for group in groups:
        found = []
        for shape, dimensions, unpadded in group:
            parts = []
            for count in (1, *(size for _, size in dimensions), unpadded):
                parts.append(digests[at : at + count * DIGEST_BYTES])
                at += count * DIGEST_BYTES
            rows = {dimension: part for (dimension, _), part in zip(dimensions, parts[1:-1], strict=True)}
            found.append(SeenTensor(tuple(shape), parts[0], rows, parts[-1]))
        tensors.append(tuple(found))
    inputs, outputs = tensors
    return SeenCall(row["record"], row["name"], row["stack"], row["batch"], json.loads(row["facts"]), inputs, outputs)


def _parts(tensor: SeenTensor) -> list[bytes]:
    return [tensor.whole, *tensor.rows.values(), tensor.unpadded]


def _described(tensor: SeenTensor) -> list[Any]:
    counts = [[dimension, len(part) // DIGEST_BYTES] for dimension, part in tensor.rows.items()]
    return [list(tensor.shape), counts, len(tensor.unpadded) // DIGEST_BYTES]


def _taken_apart(digests: bytes) -> list[bytes]:
    return [digests[at : at + DIGEST_BYTES] for at in range(0, len(digests), DIGEST_BYTES)]
