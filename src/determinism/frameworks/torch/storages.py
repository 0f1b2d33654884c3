"""Which record wrote the memory that a tensor lies in.

Identity is the address of the storage object. It is not reused while a weak reference is held, so one is held for
every known storage until a sweep finds that the storage is gone.
"""

from __future__ import annotations

import threading
from typing import Any

import torch

from determinism.frameworks.torch.device_digests.record_digests import Digest
from determinism.frameworks.torch.layouts import KnownLayouts, Layout, LayoutTable

EXTERNAL = -1
_storage_of = torch._C.TensorBase.untyped_storage
_expired = torch.UntypedStorage._expired
_free_weak_reference = torch.UntypedStorage._free_weak_ref
_NEW_BETWEEN_SWEEPS = 256
"""A weak reference keeps the storage object's few bytes; too many of them would scatter the allocator's free memory."""


class StorageState:
    """What is known of one storage."""

    __slots__ = ("digest", "is_foreign", "key", "layouts", "lifted", "output", "record", "reference", "view", "writer")

    def __init__(self, key: int, layouts: KnownLayouts) -> None:
        self.key = key
        self.layouts = layouts
        """The ways to look at memory like its own."""
        self.record = EXTERNAL
        """Number of the record that wrote it last; `EXTERNAL` if nobody recorded did."""
        self.output = 0
        """Which output of that record lies here."""
        self.digest: Digest = b""
        """Of what that output held when it was written; kept only while a record is captured."""
        self.view: Any = None
        """Sizes, strides, offset and dtype of that output; kept with the digest."""
        self.is_foreign = False
        """Others can write this memory unseen: NumPy, a C extension, another process."""
        self.lifted: tuple[int, Digest] | None = None
        """Layout and digest of a foreign tensor (from_numpy) when the framework took it over; None once an op wrote it."""
        self.reference: Any = None
        self.writer: Any = None
        """Which thread wrote it last; kept only for threads other than the main one."""


class StorageTable:
    """The state of every storage that records have touched."""

    def __init__(self, layouts: LayoutTable) -> None:
        """Take what numbers the ways to look at storages."""
        self._layouts = layouts
        self._states: dict[int, StorageState] = {}
        self._sweep_at = _NEW_BETWEEN_SWEEPS
        self._lock = threading.Lock()

    def look(self, tensor: torch.Tensor) -> tuple[StorageState, Layout]:
        """The state of a tensor's storage, and how the tensor looks at it; a storage met for the first time is external.

        Raises:
            RuntimeError: It is not a tensor with strides over one storage.
        """
        storage = _storage_of(tensor)
        state = self._states.get(storage._cdata)
        if state is None:
            state = self._new(tensor, storage)
        key = (tensor.dtype, tensor.shape, tensor.stride(), tensor.storage_offset(), storage.nbytes())
        return state, state.layouts.get(key) or self._layouts.add(tensor, key, state.layouts)

    def state(self, tensor: torch.Tensor) -> StorageState:
        """The state of a tensor's storage."""
        return self.look(tensor)[0]

    def _new(self, tensor: torch.Tensor, storage: Any) -> StorageState:
        key = storage._cdata
        with self._lock:
            state = self._states.get(key)
            if state is not None:
                return state
            if len(self._states) >= self._sweep_at:
                self._sweep()
            # On a GPU it always says so.
            is_shared = tensor.is_cpu and storage.is_shared()
            state = StorageState(key, self._layouts.where(tensor, is_shared=is_shared))
            state.reference = storage._weak_ref()
            # Memory that PyTorch cannot resize belongs to somebody else (from_numpy, frombuffer, dlpack, a map).
            state.is_foreign = is_shared or not storage.resizable()
            self._states[key] = state
            return state

    def known(self, tensor: torch.Tensor) -> StorageState | None:
        """The state of a tensor's storage if a record has touched it."""
        return self._states.get(_storage_of(tensor)._cdata)

    def share(self, tensor: torch.Tensor) -> None:
        """A tensor's memory becomes that of other processes too."""
        self.state(tensor).layouts = self._layouts.where(tensor, is_shared=True)

    def written_elsewhere(self, key: int) -> None:
        """Another thread wrote a storage: what it holds is digested when it is read."""
        state = self._states.get(key)
        if state is not None:
            state.record = EXTERNAL
            state.is_foreign = True

    def _sweep(self) -> None:
        gone = [key for key, state in self._states.items() if _expired(state.reference)]
        for key in gone:
            _free_weak_reference(self._states.pop(key).reference)
        self._sweep_at = len(self._states) + max(_NEW_BETWEEN_SWEEPS, len(self._states) // 2)
