"""Which record wrote the memory that a tensor lies in.

Identity is the address of the storage object. It is not reused while a weak reference is held, so one is held for
every known storage until a sweep finds that the storage is gone.
"""

from __future__ import annotations

from typing import Any

import torch

EXTERNAL = -1
_storage_of = torch._C.TensorBase.untyped_storage
_expired = torch.UntypedStorage._expired
_free_weak_reference = torch.UntypedStorage._free_weak_ref
_NEW_BETWEEN_SWEEPS = 256
"""A weak reference keeps the storage object's few bytes; too many of them would scatter the allocator's free memory."""


class StorageState:
    """What is known of one storage."""

    __slots__ = ("digest", "is_foreign", "lifted", "output", "record", "reference", "size", "view")

    def __init__(self, size: int) -> None:
        self.size = size
        """Bytes."""
        self.record = EXTERNAL
        """Number of the record that wrote it last; `EXTERNAL` if nobody recorded did."""
        self.output = 0
        """Which output of that record lies here."""
        self.digest: bytes = b""
        """Of what that output held when it was written; kept only while a record is captured."""
        self.view: Any = None
        """Sizes, strides, offset and dtype of that output; kept with the digest."""
        self.is_foreign = False
        """Others can write this memory unseen: NumPy, a C extension, another process."""
        self.lifted: tuple[int, bytes] | None = None
        """Layout and digest of a foreign tensor (from_numpy) when the framework took it over; None once an op wrote it."""
        self.reference: Any = None


class StorageTable:
    """The state of every storage that records have touched."""

    def __init__(self) -> None:
        self._states: dict[int, StorageState] = {}
        self._sweep_at = _NEW_BETWEEN_SWEEPS

    def state(self, tensor: torch.Tensor) -> StorageState:
        """The state of a tensor's storage; a storage met for the first time is external."""
        storage = _storage_of(tensor)
        key = storage._cdata
        state = self._states.get(key)
        if state is None:
            state = self._states[key] = StorageState(storage.nbytes())
            state.reference = storage._weak_ref()
            # Memory that PyTorch cannot resize belongs to somebody else (from_numpy, frombuffer, dlpack, a map).
            state.is_foreign = not storage.resizable()
            if len(self._states) >= self._sweep_at:
                self._sweep()
        return state

    def known(self, tensor: torch.Tensor) -> StorageState | None:
        """The state of a tensor's storage if a record has touched it."""
        return self._states.get(_storage_of(tensor)._cdata)

    def _sweep(self) -> None:
        gone = [key for key, state in self._states.items() if _expired(state.reference)]
        for key in gone:
            _free_weak_reference(self._states.pop(key).reference)
        self._sweep_at = len(self._states) + max(_NEW_BETWEEN_SWEEPS, len(self._states) // 2)
