"""Numbers how tensors look at their memory, and knows which bytes of it they are."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import torch

from determinism.frameworks.torch.device_digests.record_digests import RecordDigests
from determinism.frameworks.torch.tensor_bytes import digest_tensor, memory_of
from determinism.trace.schema import SHARED

_STRIDED = torch.strided
_Key = tuple[Any, ...]


class Layout:
    """One way to look at memory."""

    __slots__ = ("digest", "fills_storage", "memory", "number")

    def __init__(self, number: int, fills_storage: bool, memory: Any, digest: Callable[[torch.Tensor], Any]) -> None:
        self.number = number
        self.fills_storage = fills_storage
        """Whether the elements take as many bytes as the storage has."""
        self.memory = memory
        """See `memory_of`."""
        self.digest = digest
        """Gives the digest of a tensor that looks at memory in this way."""


class KnownLayouts(dict[_Key, Layout]):
    """The ways to look at memory of one place, by dtype, sizes, strides, offset and bytes of the storage."""

    __slots__ = ("is_shared",)

    def __init__(self, is_shared: bool) -> None:
        super().__init__()
        self.is_shared = is_shared


class LayoutTable:
    """Numbers dtype, shape, strides, offset, device and storage size."""

    def __init__(self, add: Callable[[str], int], digests: RecordDigests) -> None:
        """Take the function that writes a text and gives its number, and what gives digests of tensors on devices."""
        self._add = add
        self._digests = digests
        self._by_place: dict[tuple[torch.device, bool], KnownLayouts] = {}
        self._without_storage: dict[_Key, int] = {}
        self.value_number = add(json.dumps(["value"]))
        """Stands for a value that is no tensor."""

    def where(self, tensor: torch.Tensor, *, is_shared: bool) -> KnownLayouts:
        """The known layouts of memory like that of a tensor.

        Args:
            tensor: Says on which device.
            is_shared: Whether processes share the memory.
        """
        place = (tensor.device, is_shared)
        return self._by_place.get(place) or self._by_place.setdefault(place, KnownLayouts(is_shared))

    def add(self, tensor: torch.Tensor, key: _Key, known: KnownLayouts) -> Layout:
        """Number a layout that is met for the first time."""
        dtype, sizes, strides, offset, storage_bytes = key
        shared = (SHARED,) if known.is_shared else ()
        number = self._new(dtype, sizes, strides, offset, tensor.device, storage_bytes, *shared)
        fills_storage = tensor.nbytes == storage_bytes
        if self._digests.handles(tensor):
            layout = Layout(number, fills_storage, None, self._digests.of)
        else:
            layout = Layout(number, fills_storage, memory_of(tensor), digest_tensor)
        known[key] = layout
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

    def _new(
        self, dtype: Any, sizes: Any, strides: Any, offset: int, device: Any, storage_bytes: int, *shared: str
    ) -> int:
        name = str(dtype).removeprefix("torch.")
        return self._add(json.dumps([name, list(sizes), list(strides), offset, str(device), storage_bytes, *shared]))
