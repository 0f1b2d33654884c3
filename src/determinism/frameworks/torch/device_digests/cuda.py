"""Digests on an NVIDIA or AMD GPU, by the Triton kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from determinism.device_digest import KEYS, TILE_BYTES, reference_digest
from determinism.frameworks.torch.device_digests.blocks import Block
from determinism.frameworks.torch.device_digests.ring import BATCHES, ENTRIES, Ring

_PROGRAMS_PER_PROCESSOR = 8
_FEWEST_PROGRAMS = 32
"""For each block of a group, where there are so many blocks that they fill the device anyhow."""
_PROBE_BYTES = 2 * TILE_BYTES + 1237


# Those of the class are watched: the program's own calls of them are recorded.
_data_pointer = torch._C.TensorBase.data_ptr
_numpy = torch._C.TensorBase.numpy


class _Address:
    """What Triton needs to know of a tensor that is an argument of a kernel."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.dtype = tensor.dtype
        self._address = _data_pointer(tensor)

    def data_ptr(self) -> int:
        return self._address


class CudaDigests:
    """Makes digests on one GPU; see `ring.Device`."""

    def __init__(self, device: torch.device, entries: int) -> None:
        """Take memory on the GPU and page-locked memory on the host: 64 bytes per entry each.

        Raises:
            ImportError: There is no Triton.
            RuntimeError: There is no memory.
        """
        from determinism.frameworks.torch.device_digests import kernel

        self._kernel = kernel.determinism_digest
        self._device = device
        self._programs = torch.cuda.get_device_properties(device).multi_processor_count * _PROGRAMS_PER_PROCESSOR
        with torch.inference_mode(False), torch.cuda.device(device):
            self._keys = torch.from_numpy(KEYS.copy()).to(device)
            self._slots = torch.zeros(entries, 2, dtype=torch.int64, device=device)
            self._table = torch.zeros(entries, kernel.COLUMNS, dtype=torch.int64, device=device)
            self._host_slots = torch.zeros(entries, 2, dtype=torch.int64, device="cpu", pin_memory=True)
            self._host_table = torch.zeros(entries, kernel.COLUMNS, dtype=torch.int64, device="cpu", pin_memory=True)
            self._fetching = torch.cuda.Stream(device)
            self._launched: dict[int, torch.cuda.Event] = {}
            # From now on every stream may use them.
            torch.cuda.current_stream(device).synchronize()
        self._rows = _numpy(self._host_table)
        self._digests = _numpy(self._host_slots)
        self._table_at = [_Address(row) for row in self._table.unbind()]
        self._keys_at, self._slots_at = _Address(self._keys), _Address(self._slots)

    def launch(self, blocks: Sequence[Block], first: int, slots: Sequence[int]) -> None:
        """See `ring.Device`."""
        end = first + len(blocks)
        self._rows[first:end] = [
            (block.address, block.length, block.first_tile, slot, block.total, 0)
            for block, slot in zip(blocks, slots, strict=True)
        ]
        tiles = max(-(-block.length // TILE_BYTES) for block in blocks)
        programs = min(tiles, max(_FEWEST_PROGRAMS, self._programs // len(blocks)))
        with torch.cuda.device(self._device):
            self._table[first:end].copy_(self._host_table[first:end], non_blocking=True)
            # Nothing here is a sum of floats; without saying so, Triton 3.9 warns of what a later version will do with those.
            options: dict[str, Any] = {"num_warps": 4, "enable_fp_fusion": False}
            self._kernel[(len(blocks), programs)](self._table_at[first], self._keys_at, self._slots_at, **options)
            stream = torch.cuda.current_stream()
            event = self._launched.get(stream.cuda_stream)
            if event is None:
                event = self._launched[stream.cuda_stream] = torch.cuda.Event()
            event.record(stream)

    def fetch(self, first: int, end: int) -> _CudaFetch:
        """See `ring.Device`."""
        with torch.cuda.device(self._device), torch.cuda.stream(self._fetching):
            for event in self._launched.values():
                self._fetching.wait_event(event)
            self._launched.clear()
            self._host_slots[first:end].copy_(self._slots[first:end], non_blocking=True)
            self._slots[first:end].zero_()
            arrived = torch.cuda.Event()
            arrived.record(self._fetching)
        return _CudaFetch(arrived, self._digests[first:end])


class _CudaFetch:
    """See `ring.Fetch`."""

    def __init__(self, arrived: torch.cuda.Event, slots: np.ndarray[Any, Any]) -> None:
        self._arrived = arrived
        self._slots = slots

    def is_done(self) -> bool:
        return self._arrived.query()

    def wait(self) -> None:
        self._arrived.synchronize()

    def digests(self) -> bytes:
        return self._slots.tobytes()


def is_capturing(device: torch.device) -> bool:
    """Whether what is queued now becomes part of a CUDA graph."""
    with torch.cuda.device(device):
        return torch.cuda.is_current_stream_capturing()


def open_ring(device: torch.device) -> Ring:
    """Make the ring of a GPU, and see that its kernel gives the digests that it must.

    Raises:
        ImportError: There is no Triton.
        RuntimeError: It does not, or there is no memory.
    """
    ring = Ring(CudaDigests(device, BATCHES * ENTRIES))
    verify(ring, device)
    return ring


def verify(ring: Ring, device: torch.device) -> None:
    """Let a ring digest known bytes at every alignment and with gaps, and compare with the definition.

    Raises:
        RuntimeError: They differ.
    """
    known = (torch.arange(_PROBE_BYTES, device="cpu") * 2654435761 >> 13).to(torch.uint8)
    on_device = known.to(device)
    views = [(known[start:], on_device[start:]) for start in (0, 1, 2, 4, 8)]
    views.append((known[::3], on_device[::3]))
    tickets = ring.ask([view for _, view in views])
    for (view, _), ticket in zip(views, tickets, strict=True):
        if ticket.wait() != reference_digest(_numpy(view.contiguous()).tobytes()):
            raise RuntimeError("the kernel's digest of known bytes is not the one that it must be")
