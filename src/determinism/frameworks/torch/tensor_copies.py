"""Copies of tensors that lie in memory as the originals do: with their strides, and at an address like theirs."""

from __future__ import annotations

from typing import Any

import torch

ALIGNMENT = 64
"""Bytes. Vector instructions and cache lines see no more of an address than what is left when it is divided by this."""


def alignment_of(tensor: torch.Tensor) -> int:
    """How far beyond a multiple of `ALIGNMENT` a tensor's first element lies."""
    return int(tensor.data_ptr() % ALIGNMENT)


def copied(value: Any, *, shift: int = 0) -> Any:
    """The same arguments with memory of their own; a tensor that is there twice stays one.

    Args:
        value: Tensors and other values, in nested lists, tuples and dictionaries.
        shift: Elements by which each tensor is moved from where it would lie like the original.
    """
    return _copied(value, shift, {})


def _copied(value: Any, shift: int, known: dict[tuple[Any, ...], torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided or value.is_quantized or value.is_nested:
            return value.clone()
        key = (value.untyped_storage()._cdata, value.dtype, value.storage_offset(), value.shape, value.stride())
        if key not in known:
            known[key] = _copy(value.detach(), shift)
        return known[key]
    if isinstance(value, dict):
        return {name: _copied(item, shift, known) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_copied(item, shift, known) for item in value]
    return value


def _copy(tensor: torch.Tensor, shift: int) -> torch.Tensor:
    item = tensor.element_size()
    pairs = list(zip(tensor.shape, tensor.stride(), strict=True))
    span = 1 + sum((size - 1) * stride for size, stride in pairs) if tensor.numel() else 0
    memory = torch.empty(span * item + 2 * ALIGNMENT, dtype=torch.uint8, device=tensor.device)
    wanted = alignment_of(tensor) + shift * item if tensor.numel() else 0
    start = (wanted - memory.data_ptr()) % ALIGNMENT // item * item
    flat = memory[start : start + span * item].view(tensor.dtype)
    # Of a dimension that repeats the same elements (of an expanded tensor) there is one copy, too.
    once = [1 if size and not stride else size for size, stride in pairs]
    first = tensor.as_strided(once, tensor.stride(), tensor.storage_offset())
    flat.as_strided(once, tensor.stride()).copy_(first)
    return flat.as_strided(tensor.shape, tensor.stride())
