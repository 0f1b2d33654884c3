"""The kernel that digests tensors on a GPU, in Triton's interpreter: its digests agree with the definition.

Triton decides at import whether it interprets, so `test_torch_device_kernel.py` runs this file in a separate process.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch

from determinism.device_digest import KEYS, TILE_BYTES, reference_digest
from determinism.frameworks.torch import device_digests
from determinism.frameworks.torch.device_digests import Ring
from tests.adapters.test_torch_device_ring import DTYPES, filled
from tests.torch_slow_device import expected


@pytest.fixture(scope="module")
def kernel() -> ModuleType:
    from determinism.frameworks.torch.device_digests import kernel

    return kernel


@pytest.fixture(scope="module")
def memory() -> torch.Tensor:
    return (torch.arange(4 * TILE_BYTES) * 2654435761 >> 13).to(torch.uint8)


def run_kernel(
    kernel: ModuleType, blocks: Sequence[tuple[int, int, int, int, int]], slots: int, programs: int
) -> list[bytes]:
    """Launch the kernel for rows of address, bytes, first tile, slot and total; return the content of the slots."""
    table = torch.tensor([(*block, 0) for block in blocks], dtype=torch.int64)
    found = torch.zeros(slots, 2, dtype=torch.int64)
    kernel.determinism_digest[(len(blocks), programs)](table, torch.from_numpy(KEYS.copy()), found)
    return [slot.numpy().tobytes() for slot in found]


def run_alone(kernel: ModuleType, block: tuple[int, int, int, int, int], programs: int) -> bytes:
    """Launch the kernel for a single block, without a table; return the content of its slot."""
    address, length, first_tile, slot, total = block
    found = torch.zeros(slot + 1, 2, dtype=torch.int64)
    keys = torch.from_numpy(KEYS.copy())
    kernel.determinism_digest_one[(programs,)](address, length, first_tile, slot, total, keys, found)
    return found[slot].numpy().tobytes()


def whole(tensor: torch.Tensor, slot: int) -> tuple[int, int, int, int, int]:
    return tensor.data_ptr(), tensor.nbytes, 0, slot, tensor.nbytes


def test_one_launch_digests_blocks_of_every_alignment_and_odd_sizes(kernel: ModuleType, memory: torch.Tensor) -> None:
    starts = (0, 1, 2, 3, 4, 6, 8, 12, 16)
    lengths = (1, 7, 8, 13, 4096, 16_380)
    views = [memory[start : start + length] for at, start in enumerate(starts) for length in lengths[at % 2 :: 2]]
    views += [memory[start : start + TILE_BYTES + 5] for start in (0, 4, 1)]
    found = run_kernel(kernel, [whole(view, slot) for slot, view in enumerate(views)], len(views), 2)
    assert found == [reference_digest(view.numpy().tobytes()) for view in views]


def test_a_block_that_is_launched_alone_has_the_same_digest(kernel: ModuleType, memory: torch.Tensor) -> None:
    for start, length in ((0, 13), (4, 4096), (1, 7), (16, TILE_BYTES + 5), (3, 2 * TILE_BYTES)):
        view = memory[start : start + length]
        assert run_alone(kernel, whole(view, 1), 2) == reference_digest(view.numpy().tobytes())


@pytest.mark.parametrize("programs", [1, 2, 5])
def test_the_digest_does_not_depend_on_the_number_of_programs(
    programs: int, kernel: ModuleType, memory: torch.Tensor
) -> None:
    view = memory[16 : 16 + 3 * TILE_BYTES + 24]
    assert run_kernel(kernel, [whole(view, 0)], 1, programs) == [reference_digest(view.numpy().tobytes())]


def test_parts_of_a_tensor_add_up_to_its_digest(kernel: ModuleType, memory: torch.Tensor) -> None:
    view = memory[: 3 * TILE_BYTES + 11]
    cuts = (0, TILE_BYTES, 3 * TILE_BYTES, view.nbytes)
    parts = [
        (view.data_ptr() + start, end - start, start // TILE_BYTES, 1, view.nbytes)
        for start, end in itertools.pairwise(cuts)
    ]
    assert run_kernel(kernel, parts, 2, 2) == [bytes(16), reference_digest(view.numpy().tobytes())]


def test_nothing_beyond_the_end_of_a_block_is_read_into_its_digest(kernel: ModuleType) -> None:
    found = []
    for rest in (0, 255):
        block = torch.full((TILE_BYTES,), rest, dtype=torch.uint8)
        block[:4099] = 7
        found += run_kernel(kernel, [(block.data_ptr(), 4099, 0, 0, 4099)], 1, 2)
    assert found[0] == found[1] == reference_digest(bytes([7]) * 4099)


class PretendedStream:
    cuda_stream = 7

    def __init__(self, device: Any = None) -> None:
        pass

    def synchronize(self) -> None:
        pass

    def wait_event(self, event: PretendedEvent) -> None:
        assert event.is_recorded


class PretendedEvent:
    is_recorded = False

    def record(self, stream: PretendedStream) -> None:
        self.is_recorded = True

    def query(self) -> bool:
        return self.is_recorded

    def synchronize(self) -> None:
        assert self.is_recorded


@pytest.fixture
def pretended_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[torch.device]:
    """Make the code for GPUs run on the CPU, with streams that execute at once and the interpreted kernel."""
    zeros = torch.zeros

    @contextlib.contextmanager
    def using(device: Any) -> Iterator[None]:
        yield

    pretended = {
        "Stream": PretendedStream,
        "Event": PretendedEvent,
        "device": using,
        "current_device": lambda: None,
        "stream": using,
        "current_stream": PretendedStream,
        "get_device_properties": lambda device: SimpleNamespace(multi_processor_count=1),
    }
    for name, one in pretended.items():
        monkeypatch.setattr(torch.cuda, name, one)
    monkeypatch.setattr(torch, "zeros", lambda *sizes, pin_memory=False, **named: zeros(*sizes, **named))
    monkeypatch.setattr(device_digests, "_Address", lambda tensor: tensor)
    monkeypatch.setattr(device_digests, "_stream_handle", lambda index: PretendedStream.cuda_stream)
    return torch.device("cpu")


class InterpretedAlone:
    """Launches the kernel for a single block in the same way as a compiled one."""

    def __init__(self, kernel: ModuleType, digests: device_digests.CudaDigests) -> None:
        self._kernel = kernel
        self._digests = digests
        self.streams: list[int] = []

    def __getitem__(self, grid: tuple[int, int, int]) -> Any:
        def run(*given: Any, stream: int) -> None:
            self.streams.append(stream)
            assert grid[1:] == (1, 1)
            # The interpreter takes tensors, a compiled kernel takes addresses.
            *numbers, keys, slots = given
            tensors = self._digests._keys, self._digests._slots
            assert [keys, slots] == [tensor.data_ptr() for tensor in tensors]
            self._kernel.determinism_digest_one[(grid[0],)](*numbers, *tensors)

        return run


def test_a_single_tensor_is_launched_alone_on_the_stream_that_is_used(
    pretended_gpu: torch.device, kernel: ModuleType
) -> None:
    digests = device_digests.CudaDigests(pretended_gpu, 24)
    digests.alone = alone = InterpretedAlone(kernel, digests)
    ring = Ring(digests, batches=3, entries=8)
    device_digests.verify(ring.ask, pretended_gpu)
    before = len(alone.streams)
    tensors = [filled(torch.float32, 4, 6), filled(torch.bfloat16, 4, 6).t(), filled(torch.float32, 4, 6)[:, ::2]]
    assert [ring.ask([tensor])[0].wait() for tensor in tensors] == [expected(tensor) for tensor in tensors]
    assert alone.streams[before:] == [PretendedStream.cuda_stream] * 3


def test_the_code_for_gpus_passes_its_own_check_and_digests_every_dtype(pretended_gpu: torch.device) -> None:
    ring = Ring(device_digests.CudaDigests(pretended_gpu, 24), batches=3, entries=8)
    device_digests.verify(ring.ask, pretended_gpu)
    tensors = [filled(dtype, 3, 5, 7)[1:] for dtype in DTYPES]
    tensors += [filled(torch.bfloat16, 4, 6).t(), filled(torch.float32, 5), filled(torch.float32, 4, 6)[:, ::2]]
    assert [ticket.wait() for ticket in ring.ask(tensors)] == [expected(tensor) for tensor in tensors]


def test_a_kernel_with_wrong_digests_is_rejected(pretended_gpu: torch.device, monkeypatch: pytest.MonkeyPatch) -> None:
    device = device_digests.CudaDigests(pretended_gpu, 16)
    device._keys += 1
    with pytest.raises(RuntimeError, match="a wrong digest for known bytes"):
        device_digests.verify(Ring(device, batches=2, entries=8).ask, pretended_gpu)
