"""`resize_` of quantized tensors: what is new gets the largest integer, as PyTorch fills those that are not quantized."""

from __future__ import annotations

import math
from typing import Any

import torch

from determinism.frameworks.torch.patches.patch import Patch

_INTEGERS = {torch.quint8: torch.uint8, torch.qint8: torch.int8, torch.qint32: torch.int32}
"""Per quantized dtype that of the numbers it is stored as."""


def resize(target: torch.Tensor, size: list[int], *, memory_format: torch.memory_format | None = None) -> torch.Tensor:
    """Change the shape; the storage grows where it must, and never shrinks."""
    if list(target.shape) == list(size):
        return target
    storage = target.untyped_storage()
    width = target.element_size()
    held, offset = storage.nbytes() // width, int(target.storage_offset())
    needed = offset + math.prod(size)
    if needed > held:
        storage.resize_(needed * width)
        dtype = _INTEGERS[target.dtype]
        numbers = torch.empty(0, dtype=dtype, device=target.device).set_(storage, held, [needed - held], [1])
        numbers.fill_(torch.iinfo(dtype).max)
    strides = [math.prod(max(each, 1) for each in size[axis + 1 :]) for axis in range(len(size))]
    torch.ops.aten.set_.source_Storage_storage_offset(target, storage, offset, list(size), strides)
    return target


def _supports(target: torch.Tensor, size: list[int], *, memory_format: torch.memory_format | None = None) -> bool:
    return (
        memory_format is None
        and target.dtype in _INTEGERS
        and target.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric)
        and all(each >= 0 for each in size)
        and target.untyped_storage().resizable()
    )


def _example(device: Any) -> tuple[Any, ...]:
    return torch._empty_affine_quantized([2], scale=1.0, zero_point=0, dtype=torch.quint8, device=device), [1]


PATCHES = (
    Patch(
        identity="quantized-resize",
        what="resize_ of quantized tensors",
        overloads=("resize_",),
        run=resize,
        supports=_supports,
        example=_example,
        in_place=True,
        cpu_key="QuantizedCPU",
        gpu_key="QuantizedCUDA",
    ),
)
