"""Records that wait for digests: in order, complete or absent, in bounded memory, and never lost."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from determinism.op_semantics import OpSemantics
from determinism.trace.opening import open_trace
from determinism.trace.schema import Table
from determinism.trace.spool import Delivery, DigestLost, PendingDigest
from determinism.trace.writer import ProcessWriter
from determinism.types import NO_DIGEST
from tests.traces import process_of
from tests.unit.test_trace_writer import digests, finish, open_writer


class SlowDelivery(Delivery):
    """The delivery of one digest, which arrives on command or when waited for."""

    size = 1

    def __init__(self, number: int, failure: str | None) -> None:
        self.digest = number.to_bytes(16, "big")
        self.failure = failure
        self.has_come = False
        self.num_waits = 0

    def ready(self) -> bytes | None:
        return self._given() if self.has_come else None

    def wait(self) -> bytes:
        self.num_waits += 1
        self.has_come = True
        return self._given()

    def _given(self) -> bytes:
        if self.failure is not None:
            raise DigestLost(self.failure)
        return self.digest


class Slow(PendingDigest):
    """A digest that arrives on command or when waited for."""

    delivery: SlowDelivery

    def __init__(self, number: int, failure: str | None = None) -> None:
        super().__init__(SlowDelivery(number, failure), 0)


def add(writer: ProcessWriter, *found: bytes | PendingDigest, inputs: tuple[bytes | PendingDigest, ...] = ()) -> None:
    op, layout = writer.op("op::a", OpSemantics.NONE), writer.name(Table.LAYOUT, '["value"]')
    edges = (-1, 0, 0, layout) * len(inputs)
    outputs = [cell for digest in found for cell in (layout, digest)]
    writer.append(
        (0, 0, 2, 0, op, -1, -1, -1, -1, -1), edges, [c for at, d in enumerate(inputs) for c in (at, d)], outputs
    )


def left_by(trace: Path, copy: Path) -> list[int]:
    """The records that a process leaves if it is killed now."""
    shutil.copytree(trace, copy)
    return digests(process_of(copy))


@pytest.fixture
def writer(tmp_path: Path) -> ProcessWriter:
    writer = open_writer(tmp_path / "trace")
    writer.await_digests()
    return writer


def test_a_killed_process_leaves_the_records_before_the_first_that_waits(writer: ProcessWriter, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    first, second = Slow(1), Slow(3)
    for digest in ((0).to_bytes(16, "big"), first, (2).to_bytes(16, "big"), second):
        add(writer, digest)
    assert left_by(trace, tmp_path / "a") == [0]
    second.delivery.has_come = True
    writer.boundary()
    assert left_by(trace, tmp_path / "b") == [0]
    first.delivery.has_come = True
    writer.boundary()
    assert left_by(trace, tmp_path / "c") == [0, 1, 2, 3]
    add(writer, (4).to_bytes(16, "big"))
    assert left_by(trace, tmp_path / "d") == [0, 1, 2, 3, 4]
    writer.close()


def test_storing_a_record_takes_digests_that_arrived_and_waits_for_none(writer: ProcessWriter, tmp_path: Path) -> None:
    pending = [Slow(number) for number in range(100)]
    for number, one in enumerate(pending):
        add(writer, one)
        if number >= 10:
            pending[number - 10].delivery.has_come = True
    assert left_by(tmp_path / "trace", tmp_path / "left") == list(range(89))
    assert not any(one.delivery.num_waits for one in pending)
    finish(writer)
    assert digests(process_of(tmp_path / "trace")) == list(range(100))
    assert sum(one.delivery.num_waits for one in pending) == 11


@pytest.mark.parametrize("count", [8191, 8192, 8193, 20_000])
def test_a_full_spool_waits_for_its_own_digests_and_keeps_the_order(
    count: int, writer: ProcessWriter, tmp_path: Path
) -> None:
    for number in range(count):
        add(writer, Slow(number))
    finish(writer)
    assert digests(process_of(tmp_path / "trace")) == list(range(count))


def test_digests_of_inputs_and_of_several_outputs_are_stored_in_their_places(
    writer: ProcessWriter, tmp_path: Path
) -> None:
    sure = (7).to_bytes(16, "big")
    add(writer, Slow(1), sure, Slow(2), inputs=(Slow(3), sure))
    add(writer, sure, inputs=(Slow(4),))
    finish(writer)
    process = process_of(tmp_path / "trace")
    found = {group: [] for group in ("outputs", "input_digests")}
    for chunk in process.chunks():
        for group, numbers in found.items():
            column = chunk.children[group].columns["digest"]
            numbers += [int.from_bytes(cell.tobytes(), "big") for cell in column]
    assert found == {"outputs": [1, 7, 2, 7], "input_digests": [3, 7, 4]}


def test_a_record_wider_than_the_spool_waits_too(writer: ProcessWriter, tmp_path: Path) -> None:
    add(writer, Slow(0))
    add(writer, *[Slow(1)] * 70_000)
    add(writer, Slow(2))
    finish(writer)
    assert digests(process_of(tmp_path / "trace")) == [0, 1, 2]


def test_a_lost_digest_leaves_its_record_without_one_and_is_a_blind_spot(writer: ProcessWriter, tmp_path: Path) -> None:
    add(writer, Slow(1))
    add(writer, Slow(2, failure="the device is gone"))
    add(writer, Slow(3))
    finish(writer)
    process = process_of(tmp_path / "trace")
    assert digests(process) == [1, int.from_bytes(NO_DIGEST, "big"), 3]
    (spot,) = process.description["blind_spots"]
    assert (spot["id"], spot["reason"], spot["count"]) == ("device-digest", "the device is gone", 1)


def test_records_without_pending_digests_are_counted_at_once(writer: ProcessWriter, tmp_path: Path) -> None:
    for number in range(5):
        add(writer, number.to_bytes(16, "big"))
    assert left_by(tmp_path / "trace", tmp_path / "left") == list(range(5))
    writer.close()
    assert open_trace(tmp_path / "left").processes


def test_a_writer_that_stopped_takes_pending_digests_and_keeps_none(tmp_path: Path) -> None:
    writer = open_writer(tmp_path / "trace", max_bytes=200_000)
    writer.await_digests()
    for number in range(20_000):
        add(writer, Slow(number))
    assert writer.stopped_by == "max-disk"
    finish(writer)
    kept = digests(process_of(tmp_path / "trace"))
    assert kept == list(range(len(kept)))
    assert 0 < len(kept) < 20_000
