"""What a record takes as the digest of a tensor: bytes, or for a tensor on a GPU what stands for the digest to come."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from operator import attrgetter

import torch

from determinism import device_digest, digest
from determinism.frameworks.torch.device_digests import cuda
from determinism.frameworks.torch.device_digests.ring import Ring
from determinism.frameworks.torch.tensor_bytes import digest_tensor, is_plain, materialized
from determinism.trace.waiting_rows import DigestLost, PendingDigest
from determinism.trace.writer import ProcessWriter
from determinism.types import NO_DIGEST

Digest = bytes | PendingDigest
LOST = "device-digest"
_WHAT = "digests of tensors on a device"
_CAPTURED = "ops that are captured into a CUDA graph"
_CAPTURED_REASON = (
    "they do not run now, and what they will write is digested where an op reads memory that no record wrote"
)
_COPIED = "timing between the host and the device"


class DeviceDigests:
    """The rings of all devices that this process uses."""

    def __init__(
        self,
        open_ring: Callable[[torch.device], Ring] = cuda.open_ring,
        is_capturing: Callable[[torch.device], bool] = cuda.is_capturing,
        kind: str = "cuda",
    ) -> None:
        """Make none yet.

        Args:
            open_ring: Makes the ring of a device, or raises.
            is_capturing: Whether ops on a device are captured and not run.
            kind: The sort of devices.
        """
        self.kind = kind
        self.num_captures = 0
        """How many captures of graphs are under way."""
        self._open_ring = open_ring
        self._is_capturing = is_capturing
        self._rings: dict[torch.device, Ring | None] = {}
        self._lock = threading.Lock()
        self._users: list[RecordDigests] = []
        self.problem: str | None = None
        """Why a ring could not be made."""

    def add(self, user: RecordDigests) -> None:
        """Settle what this one asks for too."""
        self._users.append(user)

    def is_capturing(self, device: torch.device) -> bool:
        """Whether nothing may be launched, nor asked of the device, because it would end up in a graph or spoil it."""
        return self.num_captures > 0 or self._is_capturing(device)

    def ring(self, device: torch.device) -> Ring | None:
        """That of a device; None where tensors have to be copied to the host."""
        if device in self._rings:
            return self._rings[device]
        with self._lock:
            if device not in self._rings:
                self._rings[device] = self._open(device)
            return self._rings[device]

    def _open(self, device: torch.device) -> Ring | None:
        if self.problem is not None:
            # Tensors of one sort are all digested in one way.
            return None
        try:
            return self._open_ring(device)
        except Exception as error:
            # Triton's compiler has errors of its own.
            self.problem = f"{type(error).__name__}: {error}"[:300]
            return None

    def collect(self) -> None:
        """Have fetched what was asked for until now."""
        if self.num_captures:
            return
        for ring in list(self._rings.values()):
            if ring is not None:
                ring.collect()

    def settle(self) -> None:
        """Wait for everything that was asked for, before something begins that no question to a device may disturb."""
        for user in self._users:
            user.writer.settle_digests()


class RecordDigests:
    """Gives the digests for the records of one stream."""

    def __init__(self, writer: ProcessWriter, devices: DeviceDigests) -> None:
        """Take what writes the records, and the devices."""
        self.writer = writer
        self._devices = devices
        self.handles: Callable[[torch.Tensor], bool] = attrgetter(f"is_{devices.kind}")
        """Whether a tensor lies on a device of that sort."""
        self._is_described = False
        devices.add(self)

    def of(self, tensor: torch.Tensor) -> Digest:
        """What a tensor holds at this point of the stream that is used now."""
        return self.of_each([tensor])[0]

    def of_each(self, tensors: Sequence[torch.Tensor]) -> list[Digest]:
        """What tensors hold at this point of the stream that is used now; those on one device in one go."""
        found: list[Digest] = [NO_DIGEST] * len(tensors)
        groups: dict[torch.device, list[int]] = {}
        for position, tensor in enumerate(tensors):
            if not self.handles(tensor):
                found[position] = digest_tensor(tensor)
            elif self._devices.is_capturing(tensor.device):
                self.writer.blind_spot("cuda-graph", _CAPTURED, _CAPTURED_REASON)
            elif is_plain(tensor) and not tensor.is_quantized and tensor.nbytes:
                groups.setdefault(tensor.device, []).append(position)
            else:
                found[position] = digest_tensor(tensor)
        for device, positions in groups.items():
            for position, one in zip(positions, self._ask(device, [tensors[at] for at in positions]), strict=True):
                found[position] = one
        return found

    def _ask(self, device: torch.device, tensors: list[torch.Tensor]) -> Sequence[Digest]:
        # What is done here is not the program's: its own modes must not see it, nor a default device change it.
        with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
            ring = self._devices.ring(device)
            if not self._is_described:
                self._describe(ring)
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
        self._is_described = True
        algorithm = digest.ALGORITHM if ring is None else device_digest.ALGORITHM
        self.writer.await_digests(device_digests={self._devices.kind: algorithm})
        if ring is None:
            reason = f"tensors are copied to the host to be digested, and each copy waits for the device ({self._devices.problem})"
            self.writer.blind_spot("host-digests", _COPIED, reason)
