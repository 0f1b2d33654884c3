"""Digests of tensors on a GPU, computed there: queued behind the op that wrote them, and fetched later in batches."""

from __future__ import annotations

import ctypes
import os
import re
import threading
import time
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from operator import attrgetter
from typing import Any, Protocol

import numpy as np
import torch

from determinism import device_digest, digest
from determinism.compile_caches import own_cache
from determinism.device_digest import KEYS, TILE_BYTES, reference_digest
from determinism.frameworks.torch import tensor_bytes
from determinism.frameworks.torch.tensor_bytes import (
    Block,
    digest_tensor,
    is_plain,
    materialized,
    staged_blocks,
    whole_block,
)
from determinism.trace.spool import Delivery, DigestLost, PendingDigest
from determinism.trace.writer import ProcessWriter, VisibleLock
from determinism.types import NO_DIGEST

# `torch.Tensor.data_ptr` is wrapped to record the program's own calls.
_data_pointer = torch._C.TensorBase.data_ptr

# A ring of slots on a device for digests that are still being computed, fetched a batch at a time.
#
# Nothing here waits for the device as long as there is room. An entry is a row of the table of blocks and a slot for
# a digest. A batch of entries is closed when it is full or when one of its digests is needed; its slots are then
# copied to the host behind the work that fills them. Its entries are reused once that copy has arrived.

BATCHES = 16
ENTRIES = 256
"""Entries per batch; no tensor is cut into more blocks."""
_LAUNCHING = 3
"""See `Ring.cursor`."""


class Fetch(Protocol):
    """A copy of slots to the host that is under way."""

    def is_done(self) -> bool:
        """Whether it has arrived; does not wait."""

    def wait(self) -> None:
        """Block until it has arrived."""

    def digests(self) -> bytes:
        """Return what arrived: 16 bytes per slot."""


class Device(Protocol):
    """Computes digests: a GPU, or in tests a stand-in for one."""

    def launch(self, blocks: Sequence[Block], first: int, slots: Sequence[int]) -> None:
        """Queue the digesting of blocks behind the program's work on its current stream.

        Args:
            blocks: What to digest.
            first: The first of `len(blocks)` entries whose table rows are free.
            slots: For each block, the slot to which its part of a digest is added.
        """

    def fetch(self, first: int, end: int) -> Fetch:
        """Queue a copy of slots to the host, and zeros in their place, behind everything launched so far."""

    def launched_with(self) -> dict[str, Any] | None:
        """Return what native code needs to launch the kernels as `launch` does; None where that is not possible."""


class _Batch(Delivery):
    def __init__(self, ring: Ring, first: int, size: int) -> None:
        self._ring = ring
        self.first = first
        self.size = size
        self.fetch: Fetch | None = None
        self.digests: bytes | None = None
        self.failure: str | None = None

    @property
    def is_over(self) -> bool:
        return self.digests is not None or self.failure is not None

    def ready(self) -> bytes | None:
        """See `Delivery`."""
        return self._found() if self.is_over or self._ring.has_landed(self) else None

    def wait(self) -> bytes:
        """See `Delivery`."""
        if not self.is_over:
            self._ring.land(self)
        return self._found()

    def _found(self) -> bytes:
        if self.digests is None:
            raise DigestLost(self.failure)
        return self.digests


class Ring:
    """The slots of one device."""

    def __init__(self, device: Device, *, batches: int = BATCHES, entries: int = ENTRIES) -> None:
        """Take the device, which has `batches * entries` rows and zeroed slots."""
        self.device = device
        self.entries = entries
        """Entries per batch."""
        self._batches = [_Batch(self, number * entries, entries) for number in range(batches)]
        self._current = 0
        self.lock = VisibleLock()
        """Held to take entries; native code instead checks that nobody holds it, and keeps the GIL."""
        self.cursor = array("q", [0, 0, 0, 0])
        """The first entry of the batch being filled, how many of its entries are in use, the number of this batch counted from the start, and
        how many threads, without the GIL, are launching what they took entries for."""
        self.queue: Any = None
        """The native queue of digests, once it was made."""
        self._failure: str | None = None
        """Why no more digests can be requested: slots may hold anything now."""

    @property
    def batch(self) -> Delivery:
        """The batch that is being filled."""
        return self._batches[self._current]

    def ask(self, tensors: Sequence[torch.Tensor]) -> list[PendingDigest]:
        """Queue the digesting of tensors of this device, as they are at this point of the current stream.

        Args:
            tensors: Strided tensors with memory and at least one byte, without lazy conjugation or negation.

        Raises:
            DigestLost: The device failed.
        """
        if self._failure is not None:
            raise DigestLost(self._failure)
        if len(tensors) == 1 and (block := whole_block(tensors[0])) is not None:
            with self.lock:
                return [self._launch_one(block)]
        tickets: dict[int, PendingDigest] = {}
        group: list[tuple[int, Block]] = []
        copied = 0
        with self.lock:
            for position, tensor in enumerate(tensors):
                block = whole_block(tensor)
                if block is None:
                    tickets[position] = self._ask_in_parts(tensor)
                    continue
                copied += 0 if block.memory is tensor else block.length
                group.append((position, block))
                if copied > tensor_bytes.MOST_COPIED:
                    # Free the copies, so that their memory can be reused.
                    self._launch(group, tickets)
                    group, copied = [], 0
            self._launch(group, tickets)
        return [tickets[position] for position in range(len(tensors))]

    def make_room(self, entries: int) -> None:
        """Ensure room for `entries` entries in the batch being filled; waits only if the ring is full."""
        with self.lock:
            if self._failure is None:
                self._batch_with_room(entries)

    def _launch_one(self, block: Block) -> PendingDigest:
        batch = self._batch_to_fill(1)
        position = self._take(1)
        entry = batch.first + position
        self.device.launch((block,), entry, (entry,))
        return PendingDigest(batch, position)

    def _launch(self, group: Sequence[tuple[int, Block]], tickets: dict[int, PendingDigest]) -> None:
        start = 0
        while start < len(group):
            batch = self._batch_to_fill(1)
            part = group[start : start + self.entries - self._used]
            used = self._take(len(part))
            first = batch.first + used
            self.device.launch([block for _, block in part], first, range(first, first + len(part)))
            for at, (position, _) in enumerate(part):
                tickets[position] = PendingDigest(batch, used + at)
            start += len(part)

    def _ask_in_parts(self, tensor: torch.Tensor) -> PendingDigest:
        # All parts add to one slot, which must not be fetched in between.
        batch = self._batch_to_fill(self.entries)
        slot = batch.first
        for block in staged_blocks(tensor):
            self.device.launch([block], batch.first + self._take(1), [slot])
        return PendingDigest(batch, 0)

    @property
    def _used(self) -> int:
        return self.cursor[1]

    def _take(self, entries: int) -> int:
        """Take entries of the batch being filled; returns the position of the first."""
        position = self.cursor[1]
        self.cursor[1] += entries
        return position

    def _batch_to_fill(self, entries: int) -> _Batch:
        batch = self._batch_with_room(entries)
        if self._failure is not None:
            raise DigestLost(self._failure)
        return batch

    def _batch_with_room(self, entries: int) -> _Batch:
        batch = self._batches[self._current]
        if self._used + entries <= self.entries:
            return batch
        self._close(batch)
        following = (self._current + 1) % len(self._batches)
        oldest = self._batches[following]
        if oldest.fetch is not None:
            self.land(oldest)
            # The old object stays: records may still read its digests.
            self._batches[following] = _Batch(self, oldest.first, self.entries)
        self._current = following
        used = 0 if self._failure is None else self.entries
        self.cursor[0], self.cursor[1], self.cursor[2] = oldest.first, used, self.cursor[2] + 1
        return self._batches[following]

    def _close(self, batch: _Batch) -> None:
        if batch.fetch is None and not batch.is_over:
            while self.cursor[_LAUNCHING]:
                time.sleep(0.0001)
            try:
                batch.fetch = self.device.fetch(batch.first, batch.first + self._used)
            except RuntimeError as error:
                self._fail(batch, error)

    def _fail(self, batch: _Batch, error: RuntimeError) -> None:
        self._failure = f"the device failed before they were fetched ({type(error).__name__}: {error})"[:300]
        batch.failure = self._failure
        # No more entries may be taken.
        self.cursor[1] = self.entries

    def collect(self) -> None:
        """Start fetching all digests requested so far; waits only if the ring is full."""
        with self.lock:
            if self._used:
                self._batch_with_room(self.entries)

    def has_landed(self, batch: _Batch) -> bool:
        """Whether the digests of a batch are on the host."""
        with self.lock:
            if batch.is_over:
                return True
            if batch.fetch is None:
                return False
            try:
                if not batch.fetch.is_done():
                    return False
                batch.digests = batch.fetch.digests()
            except RuntimeError as error:
                self._fail(batch, error)
            return True

    def land(self, batch: _Batch) -> None:
        """Wait for the digests of a batch."""
        with self.lock:
            if batch is self._batches[self._current]:
                self.collect()
            fetch = batch.fetch
        if fetch is None:
            return
        try:
            # Without the lock: what this thread waits for may still have to be queued by another.
            fetch.wait()
        except RuntimeError as error:
            self._fail(batch, error)
            return
        with self.lock:
            if not batch.is_over:
                batch.digests = fetch.digests()


# Digests on an NVIDIA or AMD GPU, by the Triton kernel.

_PROGRAMS_PER_PROCESSOR = 8
_FEWEST_PROGRAMS = 32
"""Minimum per block; enough where the blocks of a group are so many that they fill the device anyway."""
DRIVER_FUNCTIONS = ("cuLaunchKernel", "cuMemcpyHtoDAsync_v2", "cuEventRecord", "cuStreamIsCapturing")
"""Functions of NVIDIA's driver that the native code calls."""
_PROBE_BYTES = 2 * TILE_BYTES + 1237
_CACHE_VARIABLE = "TRITON_CACHE_DIR"
_stream_handle: Any = getattr(torch._C, "_cuda_getCurrentRawStream", None)
"""Returns the handle of a device's current stream without making a stream object; exists only in GPU builds."""


# `torch.Tensor.numpy` is wrapped to record the program's own calls.
_numpy = torch._C.TensorBase.numpy


class _Address:
    """What Triton needs of a tensor argument of a kernel."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.dtype = tensor.dtype
        self._address = _data_pointer(tensor)

    def data_ptr(self) -> int:
        return self._address


class CudaDigests:
    """Computes digests on one GPU; see `Device`."""

    def __init__(self, device: torch.device, entries: int) -> None:
        """Allocate memory on the GPU and page-locked memory on the host: 64 bytes per entry each.

        Raises:
            ImportError: Triton is not installed.
            RuntimeError: Not enough memory.
        """
        from determinism.frameworks.torch.device_digests import kernel

        self._kernel = kernel.determinism_digest
        self._several: Any = None
        """The same, compiled; a reference, as Triton unloads unreferenced kernels from the GPU."""
        self.alone: Any = None
        """The compiled kernel for a single block, launched without a table to copy; None where that is not possible."""
        with suppress(Exception):
            self.alone = _compiled(kernel.determinism_digest_one)
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
            """The last launch on each stream, by the stream's handle."""
            # After this, every stream may use them.
            torch.cuda.current_stream(device).synchronize()
        self._rows = _numpy(self._host_table)
        self._digests = _numpy(self._host_slots)
        self._table_at = [_Address(row) for row in self._table.unbind()]
        self._keys_at, self._slots_at = _Address(self._keys), _Address(self._slots)

    def launch(self, blocks: Sequence[Block], first: int, slots: Sequence[int]) -> None:
        """See `Device`."""
        if self.alone is not None and len(blocks) == 1:
            self._launch_alone(blocks[0], slots[0])
            return
        end = first + len(blocks)
        self._rows[first:end] = [
            (block.address, block.length, block.first_tile, slot, block.total, 0)
            for block, slot in zip(blocks, slots, strict=True)
        ]
        tiles = max(-(-block.length // TILE_BYTES) for block in blocks)
        programs = min(tiles, max(_FEWEST_PROGRAMS, self._programs // len(blocks)))
        with torch.cuda.device(self._device):
            self._table[first:end].copy_(self._host_table[first:end], non_blocking=True)
            # The kernel adds no floats; without this option, Triton 3.9 warns of a later change to how floats are added.
            options: dict[str, Any] = {"num_warps": 4, "enable_fp_fusion": False}
            self._kernel[(len(blocks), programs)](self._table_at[first], self._keys_at, self._slots_at, **options)
            self._note_launch(torch.cuda.current_stream())

    def _launch_alone(self, block: Block, slot: int) -> None:
        _, address, length, first_tile, total = block
        programs = min(-(-length // TILE_BYTES), max(_FEWEST_PROGRAMS, self._programs))
        with _on(self._device):
            stream = torch.cuda.current_stream()
            given = (address, length, first_tile, slot, total, self._keys_at.data_ptr(), self._slots_at.data_ptr())
            self.alone[(programs, 1, 1)](*given, stream=stream.cuda_stream)
            self._note_launch(stream)

    def _note_launch(self, stream: torch.cuda.Stream) -> torch.cuda.Event:
        # If two threads make the first launch on a stream at once, they must share one event.
        event = self._launched.get(stream.cuda_stream) or self._launched.setdefault(
            stream.cuda_stream, torch.cuda.Event()
        )
        event.record(stream)
        return event

    def event_of_stream(self) -> int:
        """Record a launch on the current stream; returns the handle of the event that marks it."""
        with _on(self._device):
            return int(self._note_launch(torch.cuda.current_stream()).cuda_event)

    def launched_with(self) -> dict[str, Any] | None:
        """Return what native code needs to launch the kernels as `launch` does; None where that is not possible.

        The driver's functions are given as addresses. Each kernel is given as a function handle, the threads and bytes of
        shared memory per program, and the number of addresses that follow its own arguments: Triton adds them for scratch
        memory that the kernel does not use.
        """
        if self.alone is None or torch.version.hip is not None:
            return None
        with suppress(Exception), torch.cuda.device(self._device):
            self._several = _compiled(self._kernel)
            driver = ctypes.CDLL("libcuda.so.1")
            return {
                **{name: ctypes.cast(getattr(driver, name), ctypes.c_void_p).value for name in DRIVER_FUNCTIONS},
                "device": str(self._device),
                "single": _handles(self.alone, 7),
                "several": _handles(self._several, 3),
                "keys": self._keys_at.data_ptr(),
                "slots": self._slots_at.data_ptr(),
                "table": _data_pointer(self._table),
                "host_table": _data_pointer(self._host_table),
                "columns": self._host_table.shape[1],
                "tile_bytes": TILE_BYTES,
                "programs": self._programs,
                "fewest_programs": _FEWEST_PROGRAMS,
                "most_copied": tensor_bytes.MOST_COPIED,
                "stream_of": _stream_handle,
                "event_of_stream": self.event_of_stream,
            }
        return None

    def fetch(self, first: int, end: int) -> _CudaFetch:
        """See `Device`."""
        with torch.cuda.device(self._device), torch.cuda.stream(self._fetching):
            for event in list(self._launched.values()):
                self._fetching.wait_event(event)
            self._host_slots[first:end].copy_(self._slots[first:end], non_blocking=True)
            self._slots[first:end].zero_()
            arrived = torch.cuda.Event()
            arrived.record(self._fetching)
        return _CudaFetch(arrived, self._digests[first:end])


def _compiled(kernel: Any) -> Any:
    """Compile a kernel that takes raw numbers and addresses, which Triton would otherwise inspect at each launch."""
    import triton
    from triton.compiler import ASTSource

    kinds = {"table": "*i64", "keys": "*i32", "slots": "*i64"}
    source = ASTSource(fn=kernel, signature={name: kinds.get(name, "i64") for name in kernel.arg_names}, constexprs={})
    return triton.compile(source, options={"num_warps": 4, "enable_fp_fusion": False})


def _handles(compiled: Any, arguments: int) -> tuple[int, int, int, int]:
    """Return what a compiled kernel is launched with; see `CudaDigests.launched_with`.

    Raises:
        ValueError: The kernel needs more than that.
    """
    compiled._init_handles()
    facts = compiled.metadata
    if getattr(facts, "global_scratch_size", 0) or getattr(facts, "profile_scratch_size", 0) or facts.num_ctas != 1:
        raise ValueError("the kernel needs memory of its own, or programs in clusters")
    declared = re.search(r"\.entry\s+\w+\s*\((.*?)\)", compiled.asm["ptx"], re.DOTALL)
    if declared is None:
        raise ValueError("the kernel's parameters are not known")
    return compiled.function, 32 * facts.num_warps, facts.shared, declared[1].count(".param") - arguments


class _CudaFetch:
    """See `Fetch`."""

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
    with _on(device):
        return torch.cuda.is_current_stream_capturing()


def _on(device: torch.device) -> AbstractContextManager[object]:
    """Make a device current, cheaply if it already is."""
    return nullcontext() if torch.cuda.current_device() == device.index else torch.cuda.device(device)


def open_ring(device: torch.device) -> Ring:
    """Make the ring of a GPU, and verify that its kernel computes correct digests.

    Raises:
        ImportError: Triton is not installed.
        RuntimeError: A digest is wrong, or there is not enough memory.
    """
    with _own_cache():
        # Everything is compiled here: all later launches have arguments of the same types.
        digests = CudaDigests(device, BATCHES * ENTRIES)
        try:
            verify((ring := Ring(digests)).ask, device)
        except Exception:
            if digests.alone is None:
                raise
            digests = CudaDigests(device, BATCHES * ENTRIES)
            digests.alone = None
            verify((ring := Ring(digests)).ask, device)
    return ring


@contextmanager
def _own_cache() -> Iterator[None]:
    """Let Triton cache what it compiles outside of the user's cache, which must stay as the program left it."""
    before = os.environ.get(_CACHE_VARIABLE)
    os.environ[_CACHE_VARIABLE] = str(own_cache() / "triton")
    try:
        yield
    finally:
        if before is None:
            del os.environ[_CACHE_VARIABLE]
        else:
            os.environ[_CACHE_VARIABLE] = before


def verify(ask: Callable[[list[torch.Tensor]], Sequence[PendingDigest]], device: torch.device) -> None:
    """Digest known bytes on a device, at every alignment and with gaps, and compare with the reference.

    Args:
        ask: See `Ring.ask`.
        device: The device.

    Raises:
        RuntimeError: A digest is wrong.
    """
    known = (torch.arange(_PROBE_BYTES, device="cpu") * 2654435761 >> 13).to(torch.uint8)
    on_device = known.to(device)
    views = [(known[start:], on_device[start:]) for start in (0, 1, 2, 4, 8)]
    views.append((known[::3], on_device[::3]))
    tickets = [*ask([view for _, view in views]), *(ask([view])[0] for _, view in views)]
    for (view, _), ticket in zip([*views, *views], tickets, strict=True):
        if ticket.wait() != reference_digest(_numpy(view.contiguous()).tobytes()):
            raise RuntimeError("the kernel computed a wrong digest for known bytes")


# What a record takes as the digest of a tensor: bytes, or for a tensor on a GPU a placeholder until the digest arrives.

Digest = bytes | PendingDigest
LOST = "device-digest"
_WHAT = "digests of tensors on a device"
_CAPTURED = "ops that are captured into a CUDA graph"
_CAPTURED_REASON = (
    "they do not run during the capture; what they will write is digested where an op reads memory that no record wrote"
)
_COPIED = "timing between the host and the device"


class DeviceDigests:
    """The rings of all devices that this process uses."""

    def __init__(
        self,
        open_ring: Callable[[torch.device], Ring] = open_ring,
        is_capturing: Callable[[torch.device], bool] = is_capturing,
        kind: str = "cuda",
    ) -> None:
        """Start without any ring.

        Args:
            open_ring: Makes the ring of a device, or raises.
            is_capturing: Returns whether ops on a device are captured and not run.
            kind: The type of the devices.
        """
        self.kind = kind
        self.captures = array("q", [0])
        """One number: how many graph captures are under way."""
        self._open_ring = open_ring
        self._is_capturing = is_capturing
        self._rings: dict[torch.device, Ring | None] = {}
        self.lock = threading.Lock()
        """Held while a ring or its native queue is made."""
        self._users: list[RecordDigests] = []
        self.problem: str | None = None
        """Why a ring could not be made."""

    @property
    def num_captures(self) -> int:
        """How many graph captures are under way."""
        return self.captures[0]

    @num_captures.setter
    def num_captures(self, number: int) -> None:
        self.captures[0] = number

    def add(self, user: RecordDigests) -> None:
        """Include this user's digests in `settle`."""
        self._users.append(user)

    def is_capturing(self, device: torch.device) -> bool:
        """Whether a graph is being captured, so that any launch would end up in it and any query would break it."""
        return self.num_captures > 0 or self._is_capturing(device)

    def ring(self, device: torch.device) -> Ring | None:
        """Return a device's ring; None where tensors have to be copied to the host."""
        if device in self._rings:
            return self._rings[device]
        with self.lock:
            if device not in self._rings:
                self._rings[device] = self._open(device)
            return self._rings[device]

    def _open(self, device: torch.device) -> Ring | None:
        if self.problem is not None:
            # All devices of one type must compute digests the same way.
            return None
        try:
            return self._open_ring(device)
        except Exception as error:
            # Triton's compiler raises its own error types.
            self.problem = f"{type(error).__name__}: {error}"[:300]
            return None

    def collect(self) -> None:
        """Start fetching all digests requested so far."""
        if self.num_captures:
            return
        for ring in list(self._rings.values()):
            if ring is not None:
                ring.collect()

    def settle(self) -> None:
        """Wait for all requested digests, before a phase in which a device must not be queried."""
        for user in self._users:
            user.writer.settle_digests()


def _asked(queue: Any, tensors: list[torch.Tensor]) -> list[PendingDigest]:
    """Queue digests natively, retrying while another thread uses the ring."""
    for _ in range(100):
        if (found := queue.ask(tensors)) is not None:
            return list(found)
        time.sleep(0.001)
    raise RuntimeError("the driver took no launch")


class RecordDigests:
    """Digests the tensors of one stream's records."""

    def __init__(self, writer: ProcessWriter, devices: DeviceDigests) -> None:
        """Take the writer of the records, and the devices."""
        self.writer = writer
        self._devices = devices
        self.handles: Callable[[torch.Tensor], bool] = attrgetter(f"is_{devices.kind}")
        """Whether a tensor is on a device of that type."""
        self.below: Callable[[Sequence[torch.Tensor]], list[Digest] | None] | None = None
        """Digests ordinary CPU tensors natively; returns None if any tensor is of another kind."""
        self._is_described = False
        devices.add(self)

    def of(self, tensor: torch.Tensor) -> Digest:
        """Digest what a tensor holds at this point of the current stream."""
        return self.of_each([tensor])[0] if self.handles(tensor) else digest_tensor(tensor)

    def of_each(self, tensors: Sequence[torch.Tensor]) -> list[Digest]:
        """Digest what tensors hold at this point of the current stream, all tensors of a device at once."""
        if self.below is not None and (digests := self.below(tensors)) is not None:
            return digests
        if not any(map(self.handles, tensors)):
            return [digest_tensor(tensor) for tensor in tensors]
        found: list[Digest] = [NO_DIGEST] * len(tensors)
        groups: dict[torch.device, list[int]] = {}
        for position, tensor in enumerate(tensors):
            if self.handles(tensor):
                groups.setdefault(tensor.device, []).append(position)
            else:
                found[position] = digest_tensor(tensor)
        for device, positions in groups.items():
            if self._devices.is_capturing(device):
                for _ in positions:
                    self.writer.blind_spot("cuda-graph", _CAPTURED, _CAPTURED_REASON)
                continue
            plain = []
            for position in positions:
                tensor = tensors[position]
                if is_plain(tensor) and not tensor.is_quantized and tensor.nbytes:
                    plain.append(position)
                else:
                    found[position] = digest_tensor(tensor)
            if plain:
                for position, one in zip(plain, self._ask(device, [tensors[at] for at in plain]), strict=True):
                    found[position] = one
        return found

    def queue_of(self, device: torch.device, make: Callable[[Ring, dict[str, Any], array[int]], Any]) -> Any:
        """Return the native queue of digests on a device.

        Args:
            device: The device.
            make: Makes it from the ring, the result of `CudaDigests.launched_with`, and the count of captures under way.

        Returns:
            The queue; None if tensors have to go through `of_each`; False if that is unknown during a graph capture.
        """
        if self._devices.is_capturing(device):
            return False
        with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
            ring = self._ring(device)
            if ring is None:
                return None
            with self._devices.lock:
                if ring.queue is None:
                    ring.queue = False
                    with suppress(Exception), _own_cache():
                        facts = ring.device.launched_with()
                        if facts is not None:
                            queue = make(ring, facts, self._devices.captures)
                            with _on(device) if device.type == "cuda" else nullcontext():
                                verify(lambda tensors: _asked(queue, tensors), device)
                            ring.queue = queue
                return ring.queue or None

    def _ring(self, device: torch.device) -> Ring | None:
        ring = self._devices.ring(device)
        if not self._is_described:
            self._describe(ring)
        return ring

    def _ask(self, device: torch.device, tensors: list[torch.Tensor]) -> Sequence[Digest]:
        # This is our own work: the program's modes must not see it, nor may a default device change it.
        with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
            ring = self._ring(device)
            if ring is None:
                return [digest_tensor(tensor) for tensor in tensors]
            try:
                return ring.ask([materialized(tensor) for tensor in tensors])
            except DigestLost as error:
                reason = str(error)
            except Exception as error:
                reason = f"{type(error).__name__}: {error}"[:300]
            self.writer.blind_spot(LOST, _WHAT, reason)
            return [NO_DIGEST] * len(tensors)

    def _describe(self, ring: Ring | None) -> None:
        algorithm = digest.ALGORITHM if ring is None else device_digest.ALGORITHM
        self.writer.await_digests(device_digests={self._devices.kind: algorithm})
        with self._devices.lock:
            if self._is_described:
                return
            self._is_described = True
        if ring is None:
            reason = f"tensors are copied to the host to be digested, and each copy waits for the device ({self._devices.problem})"
            self.writer.blind_spot("host-digests", _COPIED, reason)
