"""Tensor files are compatible with the library that defines the format."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import load_file, save_file

from determinism.errors import TraceError
from determinism.trace.files import StoredTensor, read_tensors, write_tensors

MATRIX = np.arange(6, dtype="<f4").reshape(2, 3)
TENSORS = {
    "weight": StoredTensor("F32", (2, 3), MATRIX.tobytes()),
    "flag": StoredTensor("BOOL", (), b"\x01"),
    "nothing": StoredTensor("I64", (0, 4), b""),
}


def test_the_library_reads_a_file_that_we_wrote(tmp_path: Path) -> None:
    path = tmp_path / "tensors.safetensors"
    write_tensors(path, TENSORS, about={"about": 'a "text" \u00e9'})
    found = load_file(path)
    assert {name: (value.shape, value.tobytes()) for name, value in found.items()} == {
        name: (tensor.shape, bytes(tensor.elements)) for name, tensor in TENSORS.items()
    }
    with safe_open(path, "numpy") as file:
        assert file.metadata() == {"about": 'a "text" \u00e9'}


def test_a_file_that_the_library_wrote_is_read(tmp_path: Path) -> None:
    path = tmp_path / "tensors.safetensors"
    save_file({"weight": MATRIX, "count": np.array([3], dtype="<i8")}, path, metadata={"some": "text"})
    found = read_tensors(path)
    assert {name: (one.dtype, one.shape, bytes(one.elements)) for name, one in found.items()} == {
        "weight": ("F32", (2, 3), MATRIX.tobytes()),
        "count": ("I64", (1,), struct.pack("<q", 3)),
    }


def entry(**changes: Any) -> dict[str, Any]:
    return {"weight": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24], **changes}}


@pytest.mark.parametrize(
    "header",
    [
        entry(data_offsets=[0, 20]),
        entry(data_offsets=[8, 32]),
        entry(data_offsets=[-4, 20]),
        entry(data_offsets=[0]),
        entry(dtype="F31"),
        entry(shape=[2, 4]),
        entry(shape=None),
        {"weight": None},
        [],
        "",
    ],
)
def test_a_damaged_header_is_an_error(header: Any, tmp_path: Path) -> None:
    path = tmp_path / "tensors.safetensors"
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(24))
    with pytest.raises(TraceError, match="cannot be read"):
        read_tensors(path)


@pytest.mark.parametrize(
    "content", [b"", b"1234567", struct.pack("<Q", 99) + b"{}", struct.pack("<Q", 2) + b"\xff\xff"]
)
def test_a_broken_file_is_an_error(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "tensors.safetensors"
    path.write_bytes(content)
    with pytest.raises(TraceError, match="cannot be read"):
        read_tensors(path)


def test_a_missing_file_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot be read"):
        read_tensors(tmp_path / "tensors.safetensors")
