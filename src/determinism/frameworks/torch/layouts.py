"""Numbers how tensors look at their memory."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import torch


class LayoutTable:
    """Numbers dtype, shape, strides, offset, device and storage size."""

    def __init__(self, add: Callable[[str], int]) -> None:
        """Take the function that writes a text and gives its number."""
        self._add = add
        self._numbers: dict[tuple[Any, ...], int] = {}
        self.value_number = add(json.dumps(["value"]))
        """Stands for a value that is no tensor."""

    def number(self, tensor: torch.Tensor, storage_bytes: int) -> int:
        """The number of a tensor's layout."""
        if tensor.layout is torch.strided:
            key = (tensor.dtype, tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.device, storage_bytes)
        else:
            key = (tensor.dtype, tensor.shape, (), 0, tensor.device, 0)
        number = self._numbers.get(key)
        if number is None:
            dtype, shape, strides, offset, device, size = key
            text = json.dumps([str(dtype).removeprefix("torch."), list(shape), list(strides), offset, str(device), size])
            number = self._numbers[key] = self._add(text)
        return number
