"""Slots on a device for digests that are still being made, used over and over, and fetched a batch at a time.

Nothing here waits for the device as long as there is room. An entry is a row of the table of blocks and a slot for a
digest. A batch of entries is closed when it is full or when somebody wants what is in it; then its slots are copied to the
host behind the work that fills them. Its entries are used again when that copy has arrived.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Protocol

import torch

from determinism.frameworks.torch.device_digests.blocks import MOST_COPIED, Block, staged_blocks, whole_block
from determinism.trace.waiting_rows import DigestLost, PendingDigest

BATCHES = 16
ENTRIES = 256
"""Of a batch; no tensor is cut into more blocks."""
_DIGEST = 16


class Fetch(Protocol):
    """A copy of slots to the host that is on its way."""

    def is_done(self) -> bool:
        """Whether it has arrived; does not wait."""

    def wait(self) -> None:
        """Return when it has arrived."""

    def digests(self) -> bytes:
        """What arrived: 16 bytes per slot."""


class Device(Protocol):
    """What makes digests: a GPU, or in tests something that behaves like one."""

    def launch(self, blocks: Sequence[Block], first: int, slots: Sequence[int]) -> None:
        """Queue the digesting of blocks behind what the program has queued on the stream that it uses now.

        Args:
            blocks: What to digest.
            first: The first of as many entries, whose rows of the table are free.
            slots: For each block the slot that its part of a digest is added to.
        """

    def fetch(self, first: int, end: int) -> Fetch:
        """Queue a copy of slots to the host, and zeros in their place, behind all that was launched."""


class _Batch:
    def __init__(self, first: int) -> None:
        self.first = first
        self.used = 0
        self.fetch: Fetch | None = None
        self.digests: bytes | None = None
        self.failure: str | None = None

    @property
    def is_over(self) -> bool:
        return self.digests is not None or self.failure is not None


class Ticket(PendingDigest):
    """Stands for one digest."""

    def __init__(self, ring: Ring, batch: _Batch, position: int) -> None:
        self._ring = ring
        self._batch = batch
        self._position = position

    def ready(self) -> bytes | None:
        """See `PendingDigest`."""
        if not self._batch.is_over and not self._ring.has_landed(self._batch):
            return None
        return self._digest()

    def wait(self) -> bytes:
        """See `PendingDigest`."""
        if not self._batch.is_over:
            self._ring.land(self._batch)
        return self._digest()

    def _digest(self) -> bytes:
        if self._batch.digests is None:
            raise DigestLost(self._batch.failure)
        at = _DIGEST * self._position
        return self._batch.digests[at : at + _DIGEST]


class Ring:
    """The slots of one device."""

    def __init__(self, device: Device, *, batches: int = BATCHES, entries: int = ENTRIES) -> None:
        """Take what makes digests; it has `batches * entries` rows and slots, and the slots hold zeros."""
        self._device = device
        self._entries = entries
        self._batches = [_Batch(number * entries) for number in range(batches)]
        self._current = 0
        self._lock = threading.RLock()
        self._failure: str | None = None
        """Why nothing can be asked for any more: slots may hold anything now."""

    def ask(self, tensors: Sequence[torch.Tensor]) -> list[Ticket]:
        """Queue the digesting of tensors of this device, as they are where the stream that is used now stands.

        Args:
            tensors: Strided tensors with memory and at least one byte, without lazy conjugation or negation.

        Raises:
            DigestLost: The device failed.
        """
        if self._failure is not None:
            raise DigestLost(self._failure)
        tickets: dict[int, Ticket] = {}
        group: list[tuple[int, Block]] = []
        copied = 0
        with self._lock:
            for position, tensor in enumerate(tensors):
                block = whole_block(tensor)
                if block is None:
                    tickets[position] = self._ask_in_parts(tensor)
                    continue
                copied += 0 if block.memory is tensor else block.length
                group.append((position, block))
                if copied > MOST_COPIED:
                    # What was copied is freed, for the next one to use.
                    self._launch(group, tickets)
                    group, copied = [], 0
            self._launch(group, tickets)
        return [tickets[position] for position in range(len(tensors))]

    def _launch(self, group: Sequence[tuple[int, Block]], tickets: dict[int, Ticket]) -> None:
        start = 0
        while start < len(group):
            batch = self._batch_with_room(1)
            part = group[start : start + self._entries - batch.used]
            first, used = batch.first + batch.used, batch.used
            batch.used += len(part)
            self._device.launch([block for _, block in part], first, range(first, first + len(part)))
            for at, (position, _) in enumerate(part):
                tickets[position] = Ticket(self, batch, used + at)
            start += len(part)

    def _ask_in_parts(self, tensor: torch.Tensor) -> Ticket:
        # All parts add to one slot, which must not be fetched in between.
        batch = self._batch_with_room(self._entries)
        slot = batch.first
        for block in staged_blocks(tensor):
            batch.used += 1
            self._device.launch([block], batch.first + batch.used - 1, [slot])
        return Ticket(self, batch, 0)

    def _batch_with_room(self, entries: int) -> _Batch:
        batch = self._batches[self._current]
        if batch.used + entries <= self._entries:
            return batch
        self._close(batch)
        following = (self._current + 1) % len(self._batches)
        oldest = self._batches[following]
        if oldest.fetch is not None:
            self.land(oldest)
            # Tickets may still ask for what is in it.
            self._batches[following] = _Batch(oldest.first)
        self._current = following
        return self._batches[following]

    def _close(self, batch: _Batch) -> None:
        if batch.fetch is None and not batch.is_over:
            try:
                batch.fetch = self._device.fetch(batch.first, batch.first + batch.used)
            except RuntimeError as error:
                self._fail(batch, error)

    def _fail(self, batch: _Batch, error: RuntimeError) -> None:
        self._failure = f"the device failed before they were fetched ({type(error).__name__}: {error})"[:300]
        batch.failure = self._failure

    def collect(self) -> None:
        """Have fetched what was asked for until now; waits only if the ring is full."""
        with self._lock:
            batch = self._batches[self._current]
            if batch.used:
                self._batch_with_room(self._entries)

    def has_landed(self, batch: _Batch) -> bool:
        """Whether the digests of a batch are on the host."""
        with self._lock:
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
        with self._lock:
            if batch is self._batches[self._current]:
                self.collect()
            fetch = batch.fetch
        if fetch is None:
            return
        try:
            # Without the lock: another thread may have to queue what this one waits for.
            fetch.wait()
        except RuntimeError as error:
            self._fail(batch, error)
            return
        with self._lock:
            if not batch.is_over:
                batch.digests = fetch.digests()
