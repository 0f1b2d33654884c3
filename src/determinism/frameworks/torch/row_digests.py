"""Digests of a tensor's rows: of the slices along each dimension in which the samples of a batch may lie."""

from __future__ import annotations

import ctypes

import torch

from determinism.digest import digest_bytes
from determinism.frameworks.torch.tensor_bytes import digest_tensor, is_plain
from determinism.trace.row_calls import SeenTensor

_data_pointer = torch._C.TensorBase.data_ptr
_MOST_ROWS_PER_SAMPLE = 512
"""Where a sample has more rows than this, they count together."""


def seen(tensor: torch.Tensor, batch: int, *, with_padding: bool = False) -> SeenTensor:
    """What is to be known of a tensor to compare it row by row.

    Args:
        tensor: Any.
        batch: How many samples the batch has.
        with_padding: Look also at what its rows are without the zeros at their ends.
    """
    shape = tuple(tensor.shape)
    if not is_plain(tensor) or tensor.is_quantized or not tensor.numel():
        return SeenTensor(shape, digest_tensor(tensor), {})
    tensor = _on_host(tensor.detach())
    whole = _digests(tensor.contiguous(), 1)
    rows = {}
    for dimension, size in enumerate(shape):
        # Several rows of a sample lie in the first dimension where others were folded into it.
        if size % batch or (dimension and size != batch) or (batch == 1 and size == 1):
            continue
        per_sample = size // batch
        count = size if per_sample <= _MOST_ROWS_PER_SAMPLE else batch
        rows[dimension] = _digests(tensor.movedim(dimension, 0).contiguous(), count)
    unpadded = _unpadded(tensor) if with_padding and len(shape) > 1 and shape[0] == batch else b""
    return SeenTensor(shape, whole, rows, unpadded)


def _on_host(tensor: torch.Tensor) -> torch.Tensor:
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    return tensor if tensor.is_cpu else tensor.cpu()


def _digests(block: torch.Tensor, count: int) -> bytes:
    """Of a block of memory, cut into equal parts."""
    length = block.nbytes // count
    read, start = (ctypes.c_char * length).from_address, _data_pointer(block)
    return b"".join(digest_bytes(read(start + number * length)) for number in range(count))


def _unpadded(tensor: torch.Tensor) -> bytes:
    """Of the rows along the first dimension, each up to its last slice that is not zero."""
    found = []
    is_filled = (tensor != 0).flatten(2).any(2) if tensor.dim() > 2 else tensor != 0
    for row, filled in zip(tensor, is_filled, strict=True):
        positions = filled.nonzero()
        length = int(positions[-1]) + 1 if len(positions) else 0
        part = row[:length].contiguous()
        found.append(_digests(part, 1) if length else digest_bytes(b""))
    return b"".join(found)
