"""What all replacements ask of tensors: dtypes that they are right for, and the layout of the result."""

from __future__ import annotations

from typing import Any

import torch

FLOATING = frozenset({torch.float64, torch.float32, torch.float16, torch.bfloat16})
COMPLEX = frozenset({torch.complex64, torch.complex128})


def plain(*tensors: Any, dtypes: frozenset[torch.dtype] = FLOATING) -> bool:
    """Whether tensors are dense, lie on one device, and share one dtype out of `dtypes`."""
    first = tensors[0]
    return first.dtype in dtypes and all(
        tensor.layout == torch.strided and tensor.device == first.device and tensor.dtype == first.dtype
        for tensor in tensors
    )


def plain_indices(*tensors: Any, like: torch.Tensor) -> bool:
    """Whether tensors are dense, hold int64, and lie where another one does."""
    return all(
        tensor.layout == torch.strided and tensor.dtype == torch.int64 and tensor.device == like.device
        for tensor in tensors
    )


def only_batch_empty(tensor: torch.Tensor, axes: int) -> bool:
    """Whether nothing but the batch may have the size 0; what else is empty is for the stock kernels to refuse."""
    return all(size > 0 for size in tensor.shape[-axes - 1 :])


def suggested_format(tensor: torch.Tensor) -> torch.memory_format:
    """The memory format that PyTorch's kernels give what they make for a tensor."""
    if tensor.dim() == 4 and _is_last(tensor, torch.channels_last):
        return torch.channels_last
    if tensor.dim() == 5 and _is_last(tensor, torch.channels_last_3d):
        return torch.channels_last_3d
    return torch.contiguous_format


def _is_last(tensor: torch.Tensor, memory_format: torch.memory_format) -> bool:
    return tensor.is_contiguous(memory_format=memory_format) and not tensor.is_contiguous()


def spatial(values: list[int], dimensions: int) -> list[int]:
    """A size per dimension, from a list that may hold one for all."""
    return list(values) * dimensions if len(values) == 1 else list(values)
