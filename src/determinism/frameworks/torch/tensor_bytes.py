"""From a tensor to the digest of its bytes."""

from __future__ import annotations

import ctypes
from typing import Any

import torch

from determinism.digest import digest_bytes, digest_many
from determinism.types import NO_DIGEST

_data_pointer = torch._C.TensorBase.data_ptr
_storage_of = torch._C.TensorBase.untyped_storage
_EMPTY = digest_bytes(b"")
_buffer_types: dict[int, Any] = {}


def _digest_memory(address: int, length: int) -> bytes:
    kind = _buffer_types.get(length)
    if kind is None:
        if len(_buffer_types) > 4096:
            _buffer_types.clear()
        kind = _buffer_types[length] = ctypes.c_char * length
    return digest_bytes(kind.from_address(address))


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a strided view of one storage that holds data."""
    return tensor.layout is torch.strided and not (tensor.is_meta or tensor.is_nested)


def digest_tensor(tensor: torch.Tensor) -> bytes:
    """Digest of the elements of a tensor, in the order of its indices, with every bit of them.

    A tensor that fills its storage is digested as its memory lies, so the digest goes with the strides.
    Conjugate and negative views are resolved first; sparse and quantized tensors are digested by their parts.

    Returns:
        16 bytes; `NO_DIGEST` for tensors without data (meta).
    """
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_nested:
        return _digest_parts(tensor)
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    length = tensor.nbytes
    if length == 0:
        return _EMPTY
    if not tensor.is_cpu:
        if tensor.is_meta:
            return NO_DIGEST
        tensor = tensor.detach().cpu()
    storage = _storage_of(tensor)
    address = _data_pointer(tensor)
    if not address or not storage.nbytes():
        return _digest_without_memory(tensor)
    if tensor.is_contiguous():
        if storage.nbytes() < length:
            return _digest_without_memory(tensor)
        return _digest_memory(address, length)
    if storage.nbytes() == length and _is_dense(tensor):
        return _digest_memory(storage.data_ptr(), length)
    return _digest_memory(_data_pointer(contiguous := tensor.detach().contiguous()), contiguous.nbytes)


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements lie side by side, each at a place of its own."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def _digest_without_memory(tensor: torch.Tensor) -> bytes:
    """Zeros that have no memory yet (forward-mode differentiation makes them), or memory that was given back."""
    if tensor._is_zerotensor():
        return digest_tensor(tensor.clone())
    raise ValueError(
        f"a tensor of {tensor.nbytes} bytes lies in a storage of {tensor.untyped_storage().nbytes()} bytes"
    )


def _digest_parts(tensor: torch.Tensor) -> bytes:
    if tensor.is_nested:
        return digest_many([digest_tensor(part) for part in tensor.unbind()])
    if tensor.is_quantized:
        return digest_many([digest_tensor(tensor.int_repr()), repr(tensor.qscheme()).encode()])
    if tensor.layout is torch.sparse_coo:
        parts = [tensor._indices(), tensor._values()]
    elif tensor.layout in (torch.sparse_csr, torch.sparse_bsr):
        parts = [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
    elif tensor.layout in (torch.sparse_csc, torch.sparse_bsc):
        parts = [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
    elif tensor.is_mkldnn:
        parts = [tensor.to_dense()]
    else:
        raise TypeError(f"tensors of layout {tensor.layout} have no known parts")
    return digest_many([digest_tensor(part) for part in parts])
