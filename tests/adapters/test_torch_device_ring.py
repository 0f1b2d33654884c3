"""Slots for digests in progress, on a simulated GPU: correct for every tensor, and bounded."""

from __future__ import annotations

import pytest
import torch

from determinism.frameworks.torch import tensor_bytes
from determinism.frameworks.torch.device_digests import Ring
from determinism.trace.spool import DigestLost
from tests.torch_slow_device import SlowDevice, expected

DTYPES = (
    torch.bool, torch.uint8, torch.int16, torch.int32, torch.int64, torch.float8_e4m3fn, torch.float16, torch.bfloat16,
    torch.float32, torch.float64, torch.complex64, torch.complex128,
)  # fmt: skip


def filled(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    count = torch.empty(shape, dtype=dtype).nbytes
    content = torch.arange(count) * 7 % 251
    return (content % 2 if dtype is torch.bool else content).to(torch.uint8).view(dtype).reshape(shape)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tensors_of_every_dtype_and_layout_have_the_defined_digest(dtype: torch.dtype) -> None:
    ring = Ring(SlowDevice())
    whole = filled(dtype, 6, 5, 7)
    tensors = [
        whole, whole[1:], whole[:, 1], whole.transpose(0, 2), whole[..., ::2], whole.reshape(-1)[3:50], whole[0, 0, 0],
        whole[:1].expand(3, 5, 7), whole.permute(2, 0, 1)[1:], filled(dtype, 1, 3, 4, 5).to(memory_format=torch.channels_last),
    ]  # fmt: skip
    for tensor, ticket in zip(tensors, ring.ask(tensors), strict=True):
        assert ticket.wait() == expected(tensor)


def test_many_tensors_take_one_launch_and_later_writes_do_not_count() -> None:
    device = SlowDevice()
    ring = Ring(device)
    tensors = [torch.full((n,), float(n)) for n in range(1, 200)]
    wanted = [expected(tensor) for tensor in tensors]
    tickets = ring.ask(tensors)
    for tensor in tensors:
        tensor.zero_()
    assert device.launches == [199]
    assert [ticket.wait() for ticket in tickets] == wanted


def test_nothing_waits_while_there_is_room_and_a_full_ring_waits_for_the_oldest() -> None:
    device = SlowDevice(looks=1_000_000)
    ring = Ring(device, batches=4, entries=8)
    tensors = [torch.full((3,), float(n)) for n in range(100)]
    tickets = []
    for number, tensor in enumerate(tensors):
        tickets += ring.ask([tensor])
        # A new batch reuses the entries of the fourth batch before it.
        assert device.num_waits == max(0, number // 8 - 3)
    assert [ticket.wait() for ticket in tickets] == [expected(tensor) for tensor in tensors]


def test_a_group_larger_than_the_ring_goes_through_it() -> None:
    device = SlowDevice()
    ring = Ring(device, batches=2, entries=4)
    tensors = [torch.full((3,), float(n)) for n in range(50)]
    assert [ticket.wait() for ticket in ring.ask(tensors)] == [expected(tensor) for tensor in tensors]
    assert max(device.launches) == 4


def test_fetched_digests_remain_for_late_tickets() -> None:
    ring = Ring(SlowDevice(looks=0), batches=2, entries=2)
    tensors = [torch.full((3,), float(n)) for n in range(20)]
    tickets = [ticket for tensor in tensors for ticket in ring.ask([tensor])]
    assert [ticket.wait() for ticket in tickets] == [expected(tensor) for tensor in tensors]


def test_tickets_are_ready_only_after_their_batch_was_collected_and_arrived() -> None:
    ring = Ring(SlowDevice(looks=2))
    (ticket,) = ring.ask([torch.ones(3)])
    assert [ticket.ready() for _ in range(5)] == [None] * 5
    ring.collect()
    assert [ticket.ready() is None for _ in range(4)] == [True, True, False, False]


def test_a_large_tensor_with_gaps_is_copied_part_by_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_bytes, "MOST_COPIED", 1 << 17)
    device = SlowDevice()
    ring = Ring(device)
    whole = torch.arange(3 * 211 * 1001, dtype=torch.float32).reshape(3, 211, 1001)
    small = torch.ones(7)
    for tensor in (whole[:, :, 1:], whole[:, 1:].transpose(0, 2), whole[:, ::2]):
        device.launches.clear()
        device.copied.clear()
        first, second, third = ring.ask([small, tensor, small])
        assert second.wait() == expected(tensor)
        assert first.wait() == third.wait() == expected(small)
        # One copy buffer for all its parts, and one for the small tensor.
        assert len(device.launches) > 10
        assert len(device.copied) == 2


def test_copies_of_many_tensors_are_made_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensor_bytes, "MOST_COPIED", 1 << 12)
    device = SlowDevice()
    tensors = [torch.arange(512, dtype=torch.float32).add(n)[::2] for n in range(20)]
    tickets = Ring(device).ask(tensors)
    assert device.launches == [5, 5, 5, 5]
    assert [ticket.wait() for ticket in tickets] == [expected(tensor) for tensor in tensors]


def test_a_failed_device_gives_no_more_digests() -> None:
    ring = Ring(SlowDevice(failing_after=0))
    (ticket,) = ring.ask([torch.ones(3)])
    with pytest.raises(DigestLost, match="illegal address"):
        ticket.wait()
    with pytest.raises(DigestLost, match="illegal address"):
        ring.ask([torch.ones(3)])
