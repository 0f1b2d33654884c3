"""Stands in for a GPU: digests the CPU's memory as the definition says, when it is told to, and its results come late."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch

from determinism.device_digest import TILE_BYTES, reference_digest
from determinism.frameworks.torch.device_digests import Block, DeviceDigests, Ring
from determinism.frameworks.torch.tensor_bytes import materialized


class SlowDevice:
    """A device of which each fetch arrives only after it was looked at a few times, or waited for."""

    def __init__(self, looks: int = 3, failing_after: int | None = None) -> None:
        self.looks = looks
        self.failing_after = failing_after
        self.launches: list[int] = []
        """How many blocks each launch had."""
        self.copied: set[int] = set()
        """Where memory lay that was digested."""
        self.num_waits = 0
        self.num_fetches = 0
        self._slots: dict[int, bytearray] = {}
        self._busy: set[int] = set()

    def launch(self, blocks: Sequence[Block], first: int, slots: Sequence[int]) -> None:
        self.launches.append(len(blocks))
        for entry, (block, slot) in enumerate(zip(blocks, slots, strict=True), first):
            assert entry not in self._busy, "an entry was used again before its digest was fetched"
            self._busy.add(entry)
            content = self._slots.setdefault(slot, bytearray())
            assert len(content) == block.first_tile * TILE_BYTES
            content += ctypes.string_at(block.address, block.length)
            self.copied.add(block.address)
            assert len(content) <= block.total

    def fetch(self, first: int, end: int) -> SlowFetch:
        self.num_fetches += 1
        if self.failing_after is not None and self.num_fetches > self.failing_after:
            raise RuntimeError("an illegal address was encountered")
        found = [bytes(self._slots.pop(slot, b"")) for slot in range(first, end)]
        return SlowFetch(self, b"".join(reference_digest(content) for content in found), range(first, end))

    def arrived(self, entries: range) -> None:
        self._busy.difference_update(entries)


class SlowFetch:
    def __init__(self, device: SlowDevice, digests: bytes, entries: range) -> None:
        self._device = device
        self._digests = digests
        self._entries = entries
        self._looks = device.looks
        self._has_arrived = False

    def is_done(self) -> bool:
        self._looks -= 1
        if self._looks < 0:
            self._arrive()
        return self._has_arrived

    def wait(self) -> None:
        self._device.num_waits += not self._has_arrived
        self._arrive()

    def _arrive(self) -> None:
        self._has_arrived = True
        self._device.arrived(self._entries)

    def digests(self) -> bytes:
        assert self._has_arrived
        return self._digests


def slow_devices(device: SlowDevice | None = None, *, batches: int = 4, entries: int = 256) -> DeviceDigests:
    """What records ops of the CPU as if it were such a device."""
    ring = Ring(device or SlowDevice(), batches=batches, entries=entries)
    return DeviceDigests(lambda _: ring, lambda _: False, "cpu")


def expected(tensor: torch.Tensor) -> bytes:
    """The digest by definition: of a tensor that fills its storage as its memory lies, else in the order of indices."""
    tensor = materialized(tensor)
    length = tensor.nbytes
    if tensor.untyped_storage().nbytes() != length or len(set(tensor.stride())) < tensor.dim():
        tensor = tensor.contiguous()
    return reference_digest(ctypes.string_at(tensor.data_ptr(), length))
