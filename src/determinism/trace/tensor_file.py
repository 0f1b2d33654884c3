"""Files of tensors in the format safetensors, which nothing has to be installed for to read or write.

Source of the format: https://github.com/huggingface/safetensors#format. Eight bytes give the length of a JSON header,
which names the tensors with their types, shapes and places; their elements follow, row by row, without gaps.
"""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from determinism.errors import TraceError
from determinism.trace.files import private, read_plain

BYTES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "U16": 2, "I16": 2, "F16": 2, "BF16": 2, "U32": 4,
    "I32": 4, "F32": 4, "U64": 8, "I64": 8, "F64": 8,
}  # fmt: skip
"""Bytes of one element, by the names that the format has for types."""
_METADATA = "__metadata__"
_MOST_HEADER_BYTES = 100 << 20
"""What the format itself allows."""
_MOST_BYTES = 4 << 30


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file."""

    dtype: str
    """One of `BYTES`."""
    shape: tuple[int, ...]
    elements: bytes | memoryview
    """Row by row, little-endian."""


def write_tensors(path: Path, tensors: Mapping[str, StoredTensor], *, about: Mapping[str, str]) -> None:
    """Write tensors to a file.

    Args:
        path: The file; it is made anew.
        tensors: By name.
        about: Texts that go with them.

    Raises:
        OSError: It cannot be written.
    """
    header: dict[str, Any] = {_METADATA: dict(about)}
    end = 0
    for name, tensor in tensors.items():
        start, end = end, end + len(tensor.elements)
        header[name] = {"dtype": tensor.dtype, "shape": list(tensor.shape), "data_offsets": [start, end]}
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb", opener=private) as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.writelines(tensor.elements for tensor in tensors.values())


def read_tensors(path: Path) -> dict[str, StoredTensor]:
    """Read the tensors of a file, in the order in which they lie there.

    Raises:
        TraceError: It is damaged, or cannot be read.
    """
    try:
        content = memoryview(read_plain(path, most=_MOST_BYTES))
        (length,) = struct.unpack("<Q", content[:8])
        if length > min(_MOST_HEADER_BYTES, len(content) - 8):
            raise ValueError(f"its header would take {length} bytes")
        header = json.loads(bytes(content[8 : 8 + length]))
        return dict(_entries(header, content[8 + length :]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, struct.error) as error:
        raise TraceError(
            "trace-damaged", f"The tensors in {path} cannot be read ({error}), so their values are not shown."
        ) from None


def _entries(header: dict[str, Any], elements: memoryview) -> Iterable[tuple[str, StoredTensor]]:
    for name, entry in header.items():
        if name == _METADATA:
            continue
        start, end = entry["data_offsets"]
        shape = tuple(int(size) for size in entry["shape"])
        if not 0 <= start <= end <= len(elements) or end - start != math.prod(shape) * BYTES[entry["dtype"]]:
            raise ValueError(f"{name!r} does not lie where the header says")
        yield name, StoredTensor(entry["dtype"], shape, elements[start:end])
