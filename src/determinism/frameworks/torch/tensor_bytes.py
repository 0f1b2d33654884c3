"""Digests the bytes of tensors."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
import torch.distributed
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from determinism.device_digest import TILE_BYTES
from determinism.digest import digest_bytes, digest_many
from determinism.types import NO_DIGEST

# Not the methods of `torch.Tensor`: `data_ptr` is wrapped there to record the program's own calls.
_data_pointer = torch._C.TensorBase.data_ptr
_storage_of = torch._C.TensorBase.untyped_storage
_transforms_are_active = torch._C._are_functorch_transforms_active
_functorch: Any = torch._C._functorch
_EMPTY = digest_bytes(b"")


_readers: dict[int, Callable[[int], Any]] = {}


def memory_of(tensor: torch.Tensor) -> Callable[[int], Any] | None:
    """Return a function from the address of a tensor with this layout to its bytes, as `digest_bytes` reads them.

    None if the digest is not simply that of the bytes from the tensor's address on: the tensor is on another device,
    has gaps, or is of a type that needs a closer look.
    """
    length = tensor.nbytes
    if not length or not tensor.is_cpu or tensor.is_quantized or tensor.is_complex():
        return None
    return _reader(length) if is_block(tensor) and _storage_of(tensor).nbytes() >= length else None


def _reader(length: int) -> Callable[[int], Any]:
    reader = _readers.get(length)
    if reader is None:
        if len(_readers) > 4096:
            _readers.clear()
        reader = _readers[length] = (ctypes.c_char * length).from_address
    return reader


def is_strided(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a strided view of one storage."""
    return tensor.layout is torch.strided and not tensor.is_nested


def is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor is a strided view of one storage that holds data."""
    return is_strided(tensor) and not tensor.is_meta and not is_without_values(tensor)


def is_without_values(tensor: torch.Tensor) -> bool:
    """Whether it is a tensor of a compiler or an exporter, which has only a shape."""
    return type(tensor).__module__.startswith("torch._subclasses.")


def plain_parts(tensor: torch.Tensor) -> list[torch.Tensor]:
    """Return the tensors that hold the data.

    For a wrapper (DTensor, a masked or quantized subclass, what `vmap` and `grad` pass to a function) these are what it
    wraps; for a compiler's tensor without values, none; else, the tensor itself.
    """
    while _transforms_are_active() and _functorch.is_functorch_wrapped_tensor(tensor):
        tensor = _functorch.get_unwrapped(tensor)
    if type(tensor) is torch.Tensor:
        return [tensor]
    if is_without_values(tensor):
        return []
    if not is_traceable_wrapper_subclass(tensor):
        return [tensor]
    wrapped = (getattr(tensor, name) for name in tensor.__tensor_flatten__()[0])
    return [part for inner in wrapped if isinstance(inner, torch.Tensor) for part in plain_parts(inner)]


def digest_tensor(tensor: torch.Tensor) -> bytes:
    """Digest all bits of a tensor's elements, in the order of its indices.

    A tensor that fills its storage is digested in memory order, so its digest depends on the strides.
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
    storage_bytes = _storage_of(tensor).nbytes()
    if not _data_pointer(tensor) or not storage_bytes:
        return _digest_without_memory(tensor)
    if not is_block(tensor):
        tensor = tensor.detach().contiguous()
    elif storage_bytes < length:
        return _digest_without_memory(tensor)
    return digest_bytes(_reader(tensor.nbytes)(_data_pointer(tensor)))


def materialized(tensor: torch.Tensor) -> torch.Tensor:
    """Resolve a strided tensor's lazy operations, so that its memory holds its elements.

    Raises:
        ValueError: Its memory was freed.
    """
    if tensor.is_conj() or tensor.is_neg():
        tensor = tensor.resolve_conj().resolve_neg()
    if tensor._is_zerotensor():
        return tensor.clone()
    storage_bytes = _storage_of(tensor).nbytes()
    if not storage_bytes or not _data_pointer(tensor) or (tensor.is_contiguous() and storage_bytes < tensor.nbytes):
        raise ValueError(_without_memory(tensor))
    return tensor


def is_block(tensor: torch.Tensor) -> bool:
    """Whether the elements are one block of bytes, from the tensor's address on."""
    return tensor.is_contiguous() or (_storage_of(tensor).nbytes() == tensor.nbytes and _is_dense(tensor))


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether the elements are adjacent in memory and do not overlap."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


def _digest_without_memory(tensor: torch.Tensor) -> bytes:
    """Digest zeros that have no memory yet (made by forward-mode differentiation); raise if the memory was freed."""
    if tensor._is_zerotensor():
        return digest_tensor(tensor.clone())
    raise ValueError(_without_memory(tensor))


def _without_memory(tensor: torch.Tensor) -> str:
    return f"a tensor of {tensor.nbytes} bytes lies in a storage of {tensor.untyped_storage().nbytes()} bytes"


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


def leaves(value: Any) -> Iterator[Any]:
    """Yield everything in nested lists, tuples, mappings and plain objects, in order."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from leaves(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from leaves(item)
    elif hasattr(value, "__dict__") and not isinstance(value, type):
        yield from leaves(vars(value))
    else:
        yield value


def loaded_tensors(loaded: Any, passed: set[int], name: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Yield tensors in nested lists, tuples, mappings and modules, with their names; objects may contain themselves.

    Args:
        loaded: What was loaded from a file, or will be saved to one.
        passed: Ids of the objects already visited.
        name: The name of `loaded`.
    """
    if id(loaded) in passed:
        return
    if isinstance(loaded, torch.Tensor):
        if not loaded.is_meta:
            yield name, loaded
        return
    inner: Iterable[tuple[Any, Any]] = ()
    if isinstance(loaded, torch.nn.Module):
        inner = (*loaded.named_parameters(), *loaded.named_buffers())
    elif isinstance(loaded, Mapping):
        inner = loaded.items()
    elif isinstance(loaded, (list, tuple)):
        inner = enumerate(loaded)
    passed.add(id(loaded))
    for key, one in inner:
        yield from loaded_tensors(one, passed, f"{name}.{key}" if name else str(key))


# Cuts tensors into blocks of memory that hold their bytes in the order of a digest.

MOST_COPIED = 32 << 20
"""Bytes copied at once, on their own device, of tensors with gaps or whose elements are not in memory order."""
MOST_BLOCKS = 160
"""The maximum number of parts into which a tensor that must be copied is cut."""


class Block(NamedTuple):
    """Consecutive bytes of a tensor."""

    memory: torch.Tensor
    """Keeps the memory alive until the kernel is queued."""
    address: int
    length: int
    first_tile: int
    """How many tiles of the tensor precede it."""
    total: int
    """Bytes of the whole tensor."""


def whole_block(tensor: torch.Tensor) -> Block | None:
    """Return the bytes of a tensor as one block, copied if necessary; None if it is too large to copy at once."""
    length = tensor.nbytes
    if not is_block(tensor):
        if length > MOST_COPIED:
            return None
        tensor = tensor.detach().contiguous()
    return Block(tensor, _data_pointer(tensor), length, 0, length)


def staged_blocks(tensor: torch.Tensor) -> Iterator[Block]:
    """Yield the bytes of a tensor as blocks that use the same memory, one after the other.

    Each block must be queued for digesting before the next one is requested; stream order does the rest.
    """
    tensor = tensor.detach()
    total = tensor.nbytes
    part_bytes = max(MOST_COPIED // 2, total // (MOST_BLOCKS // 2))
    stage = torch.empty(2 * part_bytes + TILE_BYTES, dtype=torch.uint8, device=tensor.device)
    filled = first_tile = 0
    for part in _parts(tensor, part_bytes):
        end = filled + part.nbytes
        stage[filled:end].view(tensor.dtype).view(part.shape).copy_(part)
        filled = end
        if filled >= part_bytes:
            whole = filled // TILE_BYTES * TILE_BYTES
            yield Block(stage, _data_pointer(stage), whole, first_tile, total)
            first_tile += whole // TILE_BYTES
            filled -= whole
            stage[:filled].copy_(stage[whole:end].clone())
    if filled:
        yield Block(stage, _data_pointer(stage), filled, first_tile, total)


def _parts(tensor: torch.Tensor, most_bytes: int) -> Iterator[torch.Tensor]:
    """Yield parts of a tensor in the order of its indices, each at most `most_bytes` large if possible."""
    if tensor.nbytes <= most_bytes:
        yield tensor
        return
    axis = next(axis for axis, size in enumerate(tensor.shape) if size > 1)
    size = tensor.shape[axis]
    step = max(1, most_bytes // (tensor.nbytes // size))
    for start in range(0, size, step):
        yield from _parts(tensor.narrow(axis, start, min(step, size - start)), most_bytes)
