"""Numbers how tensors look at their memory."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import torch

_STRIDED = torch.strided


class LayoutTable:
    """Numbers dtype, shape, strides, offset, device and storage size."""

    def __init__(self, add: Callable[[str], int]) -> None:
        """Take the function that writes a text and gives its number."""
        self._add = add
        self._on_processor: dict[tuple[Any, ...], int] = {}
        self._elsewhere: dict[tuple[Any, ...], int] = {}
        self.value_number = add(json.dumps(["value"]))
        """Stands for a value that is no tensor."""

    def number(self, tensor: torch.Tensor, storage_bytes: int) -> int:
        """The number of a tensor's layout."""
        if tensor.is_cpu and tensor.layout is _STRIDED and not tensor.is_nested:
            # Making a device object costs as much as the rest of the key.
            key = (tensor.dtype, tensor.shape, tensor.stride(), tensor.storage_offset(), storage_bytes)
            number = self._on_processor.get(key)
            if number is None:
                number = self._on_processor[key] = self._new("cpu", key)
            return number
        return self._number_elsewhere(tensor, storage_bytes)

    def _number_elsewhere(self, tensor: torch.Tensor, storage_bytes: int) -> int:
        view: tuple[Any, ...]
        if tensor.is_nested:
            shape = tuple(size for part in tensor.unbind() for size in part.shape)
            view = (tensor.dtype, shape, (), 0, 0)
        elif tensor.layout is _STRIDED:
            view = (tensor.dtype, tensor.shape, tensor.stride(), tensor.storage_offset(), storage_bytes)
        else:
            view = (tensor.dtype, tensor.shape, (), 0, 0)
        key = (tensor.device, view)
        number = self._elsewhere.get(key)
        if number is None:
            number = self._elsewhere[key] = self._new(str(tensor.device), view)
        return number

    def _new(self, device: str, view: tuple[Any, ...]) -> int:
        dtype, shape, strides, offset, size = view
        return self._add(
            json.dumps([str(dtype).removeprefix("torch."), list(shape), list(strides), offset, device, size])
        )
