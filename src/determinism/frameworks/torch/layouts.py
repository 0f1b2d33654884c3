"""Numbers how tensors look at their memory, and knows which bytes of it they are."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import torch

from determinism.frameworks.torch.tensor_bytes import memory_of

_STRIDED = torch.strided
_Key = tuple[Any, ...]


class Layout:
    """One way to look at memory."""

    __slots__ = ("fills_storage", "memory", "number")

    def __init__(self, number: int, fills_storage: bool, memory: Any) -> None:
        self.number = number
        self.fills_storage = fills_storage
        """Whether the elements take as many bytes as the storage has."""
        self.memory = memory
        """See `memory_of`."""


class LayoutTable:
    """Numbers dtype, shape, strides, offset, device and storage size."""

    def __init__(self, add: Callable[[str], int]) -> None:
        """Take the function that writes a text and gives its number."""
        self._add = add
        self._by_device: dict[str, dict[_Key, Layout]] = {}
        self._without_storage: dict[_Key, int] = {}
        self.value_number = add(json.dumps(["value"]))
        """Stands for a value that is no tensor."""

    def on_device_of(self, tensor: torch.Tensor) -> dict[_Key, Layout]:
        """The known layouts on one device, by dtype, sizes, strides, offset and bytes of the storage."""
        return self._by_device.setdefault(str(tensor.device), {})

    def add(self, tensor: torch.Tensor, key: _Key) -> Layout:
        """Number a layout that is met for the first time."""
        dtype, sizes, strides, offset, storage_bytes = key
        number = self._new(dtype, sizes, strides, offset, tensor.device, storage_bytes)
        layout = Layout(number, tensor.nbytes == storage_bytes, memory_of(tensor))
        self.on_device_of(tensor)[key] = layout
        return layout

    def number_without_storage(self, tensor: torch.Tensor) -> int:
        """The number for a tensor of which no storage is to be known, or that has none of its own."""
        if tensor.is_nested:
            view: _Key = (tuple(size for part in tensor.unbind() for size in part.shape), (), 0)
        elif tensor.layout is _STRIDED:
            view = (tensor.shape, tensor.stride(), tensor.storage_offset())
        else:
            view = (tensor.shape, (), 0)
        key = (tensor.dtype, *view, tensor.device, 0)
        number = self._without_storage.get(key)
        if number is None:
            number = self._without_storage[key] = self._new(*key)
        return number

    def _new(self, dtype: Any, sizes: Any, strides: Any, offset: int, device: Any, storage_bytes: int) -> int:
        name = str(dtype).removeprefix("torch.")
        return self._add(json.dumps([name, list(sizes), list(strides), offset, str(device), storage_bytes]))
