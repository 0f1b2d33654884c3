"""A fake GPU that computes reference digests of CPU memory on request, and returns the results with a delay."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from determinism.device_digest import TILE_BYTES, reference_digest
from determinism.frameworks.torch import tensor_bytes
from determinism.frameworks.torch.device_digests import DRIVER_FUNCTIONS, DeviceDigests, Ring
from determinism.frameworks.torch.tensor_bytes import Block, materialized

_number, _pointer = ctypes.c_uint, ctypes.c_void_p
_DRIVER = (
    ctypes.CFUNCTYPE(ctypes.c_int, _pointer, *[_number] * 7, _pointer, _pointer, _pointer),
    ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_ulonglong, _pointer, ctypes.c_size_t, _pointer),
    ctypes.CFUNCTYPE(ctypes.c_int, _pointer, _pointer),
    ctypes.CFUNCTYPE(ctypes.c_int, _pointer, _pointer),
)


class SlowDevice:
    """A device whose fetches complete only after they were polled a few times, or waited for."""

    def __init__(self, looks: int = 3, failing_after: int | None = None) -> None:
        self.looks = looks
        self.failing_after = failing_after
        self.launches: list[int] = []
        """The number of blocks of each launch."""
        self.copied: set[int] = set()
        """The addresses of the digested memory."""
        self.num_waits = 0
        self.num_queued = 0
        """The number of launches from native code."""
        self.num_fetches = 0
        self._slots: dict[int, bytearray] = {}
        self._busy: set[int] = set()
        self._lock = threading.Lock()
        self._driver: list[Any] = []

    def launch(self, blocks: Sequence[Block], first: int, slots: Sequence[int]) -> None:
        with self._lock:
            self.launches.append(len(blocks))
            for entry, (block, slot) in enumerate(zip(blocks, slots, strict=True), first):
                assert entry not in self._busy, "an entry was used again before its digest was fetched"
                self._busy.add(entry)
                content = self._slots.setdefault(slot, bytearray())
                assert len(content) == block.first_tile * TILE_BYTES
                content += ctypes.string_at(block.address, block.length)
                self.copied.add(block.address)
                assert len(content) <= block.total

    def launched_with(self) -> dict[str, Any]:
        """The functions of a fake driver, and two kernels that take one more address after their arguments."""
        self._table, self._host_table = np.zeros((2, 4096, 6), np.int64)
        called = (self._launched, self._copied, lambda event, stream: 0, lambda stream, status: 0)
        self._driver = [function(one) for function, one in zip(_DRIVER, called, strict=True)]
        addresses = (ctypes.cast(one, ctypes.c_void_p).value for one in self._driver)
        return {
            **dict(zip(DRIVER_FUNCTIONS, addresses, strict=True)),
            "device": "cpu", "single": (7, 128, 0, 1), "several": (3, 128, 0, 1), "keys": 1, "slots": 2,
            "table": self._table.ctypes.data, "host_table": self._host_table.ctypes.data, "columns": 6,
            "tile_bytes": TILE_BYTES, "programs": 64, "fewest_programs": 32, "most_copied": tensor_bytes.MOST_COPIED,
            "stream_of": lambda index: 0, "event_of_stream": lambda: 1,
        }  # fmt: skip

    def _launched(self, kernel: int, blocks: int, programs: int, *rest: Any) -> int:
        arguments = ctypes.cast(rest[6], ctypes.POINTER(ctypes.POINTER(ctypes.c_int64)))
        assert rest[:5] == (1, 128, 1, 1, 0)
        given = [arguments[number][0] for number in range(kernel + 1)]
        assert given[-3:] == [1, 2, 0]
        rows = [given[:5]]
        if kernel == 3:
            first = (given[0] - self._table.ctypes.data) // 48
            rows = self._table[first : first + blocks, :5].tolist()
        tiles = max(-(-row[1] // TILE_BYTES) for row in rows)
        assert (programs if kernel == 3 else blocks) == min(
            tiles, 64 // len(rows) if len(rows) < 2 else max(32, 64 // len(rows))
        )
        found = [Block(torch.empty(0), row[0], row[1], row[2], row[4]) for row in rows]
        self.num_queued += 1
        self.launch(found, rows[0][3], [row[3] for row in rows])
        return 0

    def _copied(self, target: int, source: int, length: int, stream: Any) -> int:
        ctypes.memmove(target, source, length)
        return 0

    def fetch(self, first: int, end: int) -> SlowFetch:
        self.num_fetches += 1
        if self.failing_after is not None and self.num_fetches > self.failing_after:
            raise RuntimeError("an illegal address was encountered")
        with self._lock:
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
    """Return device digests that record CPU ops as if the CPU were such a device."""
    ring = Ring(device or SlowDevice(), batches=batches, entries=entries)
    return DeviceDigests(lambda _: ring, lambda _: False, "cpu")


def expected(tensor: torch.Tensor) -> bytes:
    """Return the reference digest: in memory order if the tensor fills its storage, else in index order."""
    tensor = materialized(tensor)
    length = tensor.nbytes
    if tensor.untyped_storage().nbytes() != length or len(set(tensor.stride())) < tensor.dim():
        tensor = tensor.contiguous()
    return reference_digest(ctypes.string_at(tensor.data_ptr(), length))
