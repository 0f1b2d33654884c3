"""A receiver whose sender differs is not the origin: the report names the process where a difference began."""

from __future__ import annotations

from pathlib import Path

import pytest

from determinism.comparison.result import Comparison
from determinism.types import Kind, Phase, Role, Verdict
from tests.streams import Writer, compared, first_of, pool, threads, worker
from tests.traces import Ref, TraceBuilder


def augment(builder: TraceBuilder, name: str, value: str) -> None:
    """Load an image in a worker and change it."""
    image = builder.add("op::decode", [Ref(-1, digest=name)], [f"image {name}"], site=("/work/data.py", 1))
    builder.add("op::flip", [image], [value], site=("/work/data.py", 2))


def batch(builder: TraceBuilder, value: str) -> int:
    return builder.add(
        "determinism::batch",
        [Ref(-1, digest=value)],
        [value],
        role=Role.BATCH,
        phase=Phase.DATA,
        site=("/work/train.py", 5),
    )


def train(builder: TraceBuilder, value: str, state: str) -> None:
    """Make one step on a batch."""
    builder.step({"weight": builder.add("op::train", [batch(builder, value)], [state])})


def received(comparison: Comparison) -> list[tuple[str, str | None, str]]:
    return [(d.process, d.received_from, d.op) for d in comparison.divergences]


def test_a_fault_in_a_worker(tmp_path: Path) -> None:
    def write(b: TraceBuilder, run: int) -> None:
        workers = [worker(b, number) for number in range(2)]
        faults = {1: f" {run}"}
        for number in range(4 + run):
            augment(workers[number % 2], str(number), f"flipped {number}{faults.get(number, '')}")
        for number in range(4):
            train(b, f"flipped {number}{faults.get(number, '')}", f"weight {number}{run if number else ''}")

    comparison = compared(tmp_path, write)
    first = first_of(comparison)
    assert (first.process, first.kind, first.op, first.step) == ("main.worker-1", Kind.OP, "op::flip", 1)
    assert first.site is not None and (first.site.file, first.site.line) == ("/work/data.py", 2)
    assert received(comparison) == [("main", "main.worker-1", "determinism::batch")]
    assert comparison.first_visible is not None and comparison.first_visible.what == "parameter weight"
    assert not comparison.absorbed and comparison.dead_differences == 0


def test_a_fault_in_a_worker_is_found_despite_a_prefetched_batch(tmp_path: Path) -> None:
    """The first run prefetched one more batch before the fault; main's batch is still traced to the right maker."""

    def write(b: TraceBuilder, run: int) -> None:
        own = worker(b)
        if not run:
            augment(own, "from an epoch that was left", "flipped and left")
        augment(own, f"file {run}", f"flipped {run}")
        train(b, f"flipped {run}", f"weight {run}")

    first = first_of(compared(tmp_path, write))
    assert (first.process, first.kind, first.op) == ("main.worker-0", Kind.DATA, "op::decode")


def test_a_fault_in_a_worker_that_main_never_receives(tmp_path: Path) -> None:
    def write(b: TraceBuilder, run: int) -> None:
        own = worker(b)
        augment(own, "0", "flipped")
        augment(own, "1", f"flipped {run}")
        train(b, "flipped", "weight")

    comparison = compared(tmp_path, write)
    assert comparison.verdict is Verdict.SAME and comparison.dead_differences == 1


def test_a_batch_that_no_worker_made(tmp_path: Path) -> None:
    def write(b: TraceBuilder, run: int) -> None:
        augment(worker(b), "0", f"flipped {run}")
        train(b, f"elsewhere {run}", f"weight {run}")

    first = first_of(compared(tmp_path, write))
    assert (first.process, first.kind, first.op) == ("main", Kind.DATA, "determinism::batch")


def test_the_same_batches_in_a_different_order(tmp_path: Path) -> None:
    def write(b: TraceBuilder, run: int) -> None:
        own = worker(b)
        for name in "abc" if run else "bac":
            augment(own, name, f"flipped {name}")
        state = ""
        for name in "abc" if run else "bac":
            state += name
            train(b, f"flipped {name}", state)

    first = first_of(compared(tmp_path, write))
    assert (first.process, first.kind, first.op) == ("main", Kind.ORDER, "determinism::batch")


def ranks(builder: TraceBuilder) -> list[TraceBuilder]:
    return [builder.beside(f"main.rank-{rank}", started=float(rank)) for rank in range(2)]


def all_reduce(builder: TraceBuilder, gradient: int, total: str) -> None:
    """Make a step with gradients that are summed over all ranks."""
    reduced = builder.add("c10d::allreduce_", [gradient], [None], phase=Phase.COMMUNICATION, site=("/work/train.py", 7))
    weight = builder.add("aten::add_", [Ref(reduced, digest=total)], [f"weight {total}"], phase=Phase.OPTIMIZER)
    builder.step({"weight": weight})


@pytest.mark.parametrize("fault", [0, 1])
def test_a_fault_in_one_rank(tmp_path: Path, fault: int) -> None:
    def write(b: TraceBuilder, run: int) -> None:
        b.add("op::launch")
        for rank, own in enumerate(ranks(b)):
            drawn = own.add("aten::uniform_", outputs=[f"draw {run}"], generators=[f"state {run}"])
            own.add("c10d::broadcast_", [drawn], [None], phase=Phase.COMMUNICATION)
            for step in range(3):
                differs = f" {run}" if step else ""
                made = own.add("op::backward", outputs=[f"gradient {step} {rank}{differs if rank == fault else ''}"])
                all_reduce(own, made, f"sum {step}{differs}")

    comparison = compared(tmp_path, write)
    first = first_of(comparison)
    assert (first.process, first.kind, first.op, first.step) == (f"main.rank-{fault}", Kind.OP, "op::backward", 1)
    assert received(comparison) == [(f"main.rank-{1 - fault}", f"main.rank-{fault}", "aten::add_")]


def test_a_fault_in_a_worker_of_one_rank(tmp_path: Path) -> None:
    def write(b: TraceBuilder, run: int) -> None:
        b.add("op::launch")
        for rank, own in enumerate(ranks(b)):
            loader = b.beside(f"main.rank-{rank}.worker-0", stream="worker", part_of=f"main.rank-{rank}")
            flipped = f"flipped {rank}{f' {run}' if rank else ''}"
            augment(loader, str(rank), flipped)
            all_reduce(own, own.add("op::backward", [batch(own, flipped)], [f"gradient {flipped}"]), f"sum {run}")

    comparison = compared(tmp_path, write)
    assert (first_of(comparison).process, first_of(comparison).op) == ("main.rank-1.worker-0", "op::flip")
    assert sorted(received(comparison)) == [
        ("main.rank-0", "main.rank-1", "aten::add_"),
        ("main.rank-1", "main.rank-1.worker-0", "determinism::batch"),
    ]


def test_a_pipeline_of_ranks(tmp_path: Path) -> None:
    """The sender does not keep the differing value: it counts because it is sent."""

    def write(b: TraceBuilder, run: int) -> None:
        b.add("op::launch")
        first, second = ranks(b)
        activation = first.add("op::forward", outputs=[f"activation {run}"])
        first.add("c10d::send", [activation], [None], phase=Phase.COMMUNICATION)
        buffer = second.add("aten::empty", outputs=[None])
        arrived = second.add("c10d::recv_", [buffer], [None], phase=Phase.COMMUNICATION)
        made = second.add("op::loss", [Ref(arrived, digest=f"activation {run}")], [f"loss {run}"])
        second.add("determinism::backward", [made], [f"loss {run}"], role=Role.LOSS)

    comparison = compared(tmp_path, write)
    assert (first_of(comparison).process, first_of(comparison).op) == ("main.rank-0", "op::forward")
    assert received(comparison) == [("main.rank-1", "main.rank-0", "op::loss")]
    assert comparison.first_visible is not None and comparison.first_visible.what == "loss"


def reduction(b: TraceBuilder, run: int, *given: str) -> None:
    """Record three steps of ranks that reduce these gradients; after the first step the sums differ between runs."""
    b.add("op::launch")
    for own, gradient in zip(ranks(b), given, strict=True):
        weight = ""
        for step in range(3):
            made = own.add("op::backward", outputs=[f"{gradient}{weight}"], site=("/work/train.py", 5))
            weight = f" {step} {run}" if step else ""
            all_reduce(own, made, f"sum{weight}")


def test_a_reduction_that_differs_by_itself(tmp_path: Path) -> None:
    """Its result makes the gradients of the next step differ in all ranks."""
    comparison = compared(tmp_path, lambda b, run: reduction(b, run, "gradient", "gradient"))
    first = first_of(comparison)
    assert (first.process, first.kind, first.op, first.step) == ("main.rank-0", Kind.OP, "c10d::allreduce_", 1)
    assert first.site is not None and first.site.line == 7
    assert "same values in both runs" in first.detail
    assert received(comparison) == [("main.rank-1", None, "aten::add_")]


def test_a_reduction_that_is_waited_for(tmp_path: Path) -> None:
    def write(b: TraceBuilder, run: int) -> None:
        b.add("op::launch")
        for own in ranks(b):
            made = own.add("op::backward", outputs=["gradient"])
            reduced = own.add("_c10d_functional::all_reduce", [made], [None], phase=Phase.COMMUNICATION)
            arrived = own.add("_c10d_functional::wait_tensor", [reduced], [None], phase=Phase.COMMUNICATION)
            own.step({"weight": own.add("op::use", [Ref(arrived, digest=f"sum {run}")], [f"weight {run}"])})

    first = first_of(compared(tmp_path, write))
    assert (first.process, first.kind, first.op) == ("main.rank-0", Kind.OP, "_c10d_functional::all_reduce")


def test_a_reduction_that_is_complete_when_it_returns(tmp_path: Path) -> None:
    def write(b: TraceBuilder, run: int) -> None:
        b.add("op::launch")
        for own in ranks(b):
            made = own.add("op::backward", outputs=["gradient"])
            reduced = own.add("tf::CollectiveReduceV2", [made], [f"sum {run}"], phase=Phase.COMMUNICATION)
            own.step({"weight": own.add("op::use", [reduced], [f"weight {run}"])})

    first = first_of(compared(tmp_path, write))
    assert (first.process, first.kind, first.op) == ("main.rank-0", Kind.OP, "tf::CollectiveReduceV2")
    assert first.outputs and first.outputs[0].shape == (4,)


@pytest.mark.parametrize("op", ["c10d::allreduce_", "tf::CollectiveReduceV2"])
def test_a_reduction_with_a_different_contribution_from_one_rank(op: str, tmp_path: Path) -> None:
    """The contribution is not visible anywhere else in that rank."""

    def write(b: TraceBuilder, run: int) -> None:
        b.add("op::launch")
        for rank, own in enumerate(ranks(b)):
            made = own.add("op::backward", outputs=[f"gradient {run if rank else ''}"])
            total = f"sum {run}"
            reduced = own.add(op, [made], [total if op.startswith("tf") else None], phase=Phase.COMMUNICATION)
            if rank == 0:
                own.step({"weight": own.add("op::use", [Ref(reduced, digest=total)], [f"weight {run}"])})

    first = first_of(compared(tmp_path, write))
    assert (first.process, first.kind, first.op) == ("main.rank-1", Kind.OP, "op::backward")


def test_a_reduction_with_uninitialized_memory_from_one_rank(tmp_path: Path) -> None:
    def write(b: TraceBuilder, run: int) -> None:
        b.add("op::launch")
        for rank, own in enumerate(ranks(b)):
            made = own.add("aten::empty", outputs=[None]) if rank else own.add("op::backward", outputs=["gradient"])
            all_reduce(own, made, f"sum {run}")

    first = first_of(compared(tmp_path, write))
    assert (first.process, first.kind, first.op) == ("main.rank-0", Kind.DATA, "aten::add_")


def test_a_reduction_with_an_unrecorded_rank(tmp_path: Path) -> None:
    def write(b: TraceBuilder, run: int) -> None:
        b.add("op::launch")
        for rank in range(2):
            own = b.beside(f"main.rank-{rank}", started=float(rank), world_size=3)
            all_reduce(own, own.add("op::backward", outputs=["gradient"]), f"sum {run}")

    first = first_of(compared(tmp_path, write))
    assert (first.process, first.kind, first.op) == ("main.rank-0", Kind.DATA, "aten::add_")
    assert "received from another process" in first.detail


def test_a_received_difference_is_not_blamed_on_the_receive(tmp_path: Path) -> None:
    def write(b: TraceBuilder, run: int) -> None:
        b.add("op::launch")
        for own in ranks(b):
            buffer = own.add("aten::zeros", outputs=["zeros"])
            arrived = own.add("c10d::recv_", [buffer], [None], phase=Phase.COMMUNICATION)
            own.step({"weight": own.add("op::use", [Ref(arrived, digest=f"sent {run}")], [f"weight {run}"])})

    first = first_of(compared(tmp_path, write))
    assert (first.kind, first.op) == (Kind.DATA, "op::use")


def test_a_draw_that_a_receive_overwrites_is_not_a_difference(tmp_path: Path) -> None:
    def write(b: TraceBuilder, run: int) -> None:
        b.add("op::launch")
        for own in ranks(b):
            drawn = own.add("aten::randn", outputs=[f"draw {run}"], generators=[f"state {run}"])
            arrived = own.add("c10d::recv_", [drawn], [None], phase=Phase.COMMUNICATION)
            own.step({"weight": own.add("op::use", [Ref(arrived, digest="sent")], ["weight"])})

    assert compared(tmp_path, write).verdict is Verdict.SAME


@pytest.mark.parametrize("op", ["c10d::broadcast_", "c10d::send"])
def test_a_sent_difference_without_effect_is_dead(tmp_path: Path, op: str) -> None:
    """This happens when each rank draws its own parameters and all take those of the first rank."""

    def write(b: TraceBuilder, run: int) -> None:
        b.add("op::launch")
        own = ranks(b)[1]
        drawn = own.add("aten::uniform_", outputs=[f"draw {run}"], generators=[f"state {run}"])
        sent = own.add(op, [drawn], [None], phase=Phase.COMMUNICATION)
        own.step({"weight": own.add("aten::copy_", [Ref(sent, digest="that of rank 0")], ["that of rank 0"])})

    comparison = compared(tmp_path, write)
    assert comparison.verdict is Verdict.SAME and comparison.dead_differences == 1


def test_a_process_that_gets_its_tensors_from_another(tmp_path: Path) -> None:
    def write(b: TraceBuilder, run: int) -> None:
        made = b.add("aten::randn", outputs=[f"draw {run}"], generators=[f"state {run}"])
        b.add("determinism::pickle", [made], [f"draw {run}"], role=Role.ESCAPE)
        child = b.beside("main.Process-1", started=-1.0)
        used = child.add("op::use", [Ref(-1, digest=f"draw {run}")], [f"used {run}"])
        child.add("determinism::tolist", [used], [f"used {run}"], role=Role.ESCAPE)

    comparison = compared(tmp_path, write)
    assert (first_of(comparison).process, first_of(comparison).kind) == ("main", Kind.RNG)
    assert received(comparison) == [("main.Process-1", "main", "op::use")]


def test_a_result_of_a_pool(tmp_path: Path) -> None:
    def write(b: TraceBuilder, run: int) -> None:
        own = pool(b)
        made = own.add("op::simulate", [Ref(-1, digest="task")], [f"result {run}"])
        own.add("determinism::pickle", [made], [f"result {run}"], role=Role.ESCAPE)
        b.step({"weight": b.add("op::use", [Ref(-1, digest=f"result {run}")], [f"weight {run}"])})

    comparison = compared(tmp_path, write)
    first = first_of(comparison)
    assert (first.process, first.kind, first.op) == ("main.pool-0", Kind.OP, "op::simulate")
    assert received(comparison) == [("main", "main.pool-0", "op::use")]


def test_a_value_that_main_and_a_thread_both_read(tmp_path: Path) -> None:
    """The thread loads a file that differs, and main reads the loaded value: the thread comes first."""

    def write(b: TraceBuilder, run: int) -> None:
        threads(b).add("op::load", [Ref(-1, digest=f"file {run}")], [f"file {run}"])
        b.step({"weight": b.add("op::use", [Ref(-1, digest=f"file {run}")], [f"weight {run}"])})

    comparison = compared(tmp_path, write)
    first = first_of(comparison)
    assert (first.process, first.thread, first.op) == ("main", "loader", "op::load")
    assert received(comparison) == [("main", "main", "op::use")]


def increments(builder: TraceBuilder, *steps: tuple[int, str, str, str]) -> None:
    """Add to one tensor from threads; each step has the thread, the value read, the value added and the result."""
    for thread, read, added, value in steps:
        inputs = [Ref(-1, digest=read), Ref(-1, digest=added)]
        builder.add("aten::add_", inputs, [value], site=("/work/race.py", 3 + thread), thread=thread)


def race(*runs: list[tuple[int, str, str, str]]) -> Writer:
    """Write runs in which main makes a tensor, threads add to it, and main keeps the result."""

    def write(b: TraceBuilder, run: int) -> None:
        b.add("aten::zeros", outputs=["0"])
        increments(threads(b, "one", "two"), *runs[run])
        last = runs[run][-1][3]
        b.step({"weight": b.add("aten::clone", [Ref(-1, digest=last)], [last])})

    return write


def test_updates_that_are_lost(tmp_path: Path) -> None:
    runs = [(1, "0", "a", "a"), (2, "0", "b", "b")], [(1, "0", "a", "a"), (2, "a", "b", "a + b")]
    comparison = compared(tmp_path, race(*runs))
    first = first_of(comparison)
    assert (first.kind, first.process, first.thread, first.op) == (Kind.MUTATION, "main", "two", "aten::add_")
    assert first.site is not None and first.site.line == 5 and "update can be lost" in first.detail
    assert received(comparison) == [("main", "main", "aten::clone")]


def test_updates_that_are_read_half_written(tmp_path: Path) -> None:
    """A thread that reads while another writes may see a value that no op produced."""
    runs = [(1, "0", "a", "0a"), (2, "0", "b", "0b")], [(1, "0", "a", "0a"), (2, "half", "b", "half b")]
    first = first_of(compared(tmp_path, race(*runs)))
    assert (first.kind, first.op, first.thread) == (Kind.MUTATION, "aten::add_", "two")


def test_a_fault_in_a_value_that_one_thread_adds(tmp_path: Path) -> None:
    runs = [[(1, "0", f"a {run}", f"0a {run}"), (2, f"0a {run}", "b", f"0ab {run}")] for run in range(2)]
    first = first_of(compared(tmp_path, race(*runs)))
    assert (first.kind, first.op, first.thread) == (Kind.DATA, "aten::add_", "one")


def test_updates_that_overlap_while_the_op_runs(tmp_path: Path) -> None:
    """Both threads see the same value before they add; the result depends on which thread wrote last."""
    runs = [(1, "0", "a", "a"), (2, "0", "b", "b")], [(1, "0", "a", "a + b"), (2, "0", "b", "a + b")]
    first = first_of(compared(tmp_path, race(*runs)))
    assert (first.kind, first.op, first.inputs_equal) == (Kind.MUTATION, "aten::add_", False)


def test_an_op_that_differs_by_itself_in_a_thread(tmp_path: Path) -> None:
    first = first_of(compared(tmp_path, race([(1, "0", "a", "a")], [(1, "0", "a", "another a")])))
    assert (first.kind, first.op, first.thread) == (Kind.OP, "aten::add_", "one")


def test_updates_of_two_threads_in_a_different_order(tmp_path: Path) -> None:
    runs = [(1, "0", "a", "0a"), (2, "0a", "b", "0ab")], [(2, "0", "b", "0b"), (1, "0b", "a", "0ba")]
    first = first_of(compared(tmp_path, race(*runs)))
    assert (first.kind, first.op, first.thread) == (Kind.ORDER, "aten::add_", "one")
    assert "one after the other" in first.detail


def test_a_varying_op_on_tensors_of_each_thread_is_not_a_race(tmp_path: Path) -> None:
    """The threads' tensors look the same, and neither thread ever reads what the other wrote."""

    def write(b: TraceBuilder, run: int) -> None:
        b.add("aten::zeros", outputs=["0"])
        own = threads(b, "one", "two")
        for thread in (1, 2):
            last: Ref | int = Ref(-1, digest="0")
            for number in range(2):
                made = f"{thread} {number}" + (f" {run}" if thread == 2 else "")
                last = own.add("aten::put_", [last], [made], thread=thread)
        b.step({"weight": b.add("op::use", [Ref(-1, digest=f"2 1 {run}")], [f"weight {run}"])})

    first = first_of(compared(tmp_path, write))
    assert (first.kind, first.op, first.thread) == (Kind.OP, "aten::put_", "two")


def test_updates_that_are_lost_and_only_printed(tmp_path: Path) -> None:
    """Unlike a thread that only reads, these threads made the value that is read."""

    def write(b: TraceBuilder, run: int) -> None:
        b.add("aten::zeros", outputs=["0"])
        own = threads(b, "one", "two")
        last = "0ab" if run else "0b"
        increments(own, (1, "0", "a", "0a"), (2, "0a" if run else "0", "b", last))
        own.add("determinism::print", [Ref(-1, digest=last)], [last], role=Role.ESCAPE, thread=1)

    first = first_of(compared(tmp_path, write))
    assert (first.kind, first.op, first.thread) == (Kind.MUTATION, "aten::add_", "two")


def test_a_fault_in_a_copy_that_a_thread_made(tmp_path: Path) -> None:
    """Both runs hold the value without the fault; only one of them continues with it."""

    def write(b: TraceBuilder, run: int) -> None:
        own = threads(b)
        made = own.add("op::make", outputs=["made"])
        handed = own.add("op::hand_on", [made], ["fault" if run else "made"])
        own.add("determinism::backward", [handed], ["fault" if run else "made"], role=Role.LOSS)
        b.step({"weight": b.add("op::use", [Ref(-1, digest="fault" if run else "made")], [f"weight {run}"])})

    comparison = compared(tmp_path, write)
    assert (first_of(comparison).op, first_of(comparison).kind) == ("op::hand_on", Kind.OP)
    assert received(comparison) == [("main", "main", "op::use")]


def test_a_fault_that_one_thread_hands_to_another(tmp_path: Path) -> None:
    def write(b: TraceBuilder, run: int) -> None:
        own = threads(b, "one", "two")
        own.add("op::make", outputs=[f"made {run}"], site=("/work/race.py", 1))
        used = own.add("op::use", [Ref(-1, digest=f"made {run}")], [f"used {run}"], thread=2)
        own.add("determinism::tolist", [used], [f"used {run}"], role=Role.ESCAPE, thread=2)

    comparison = compared(tmp_path, write)
    assert [first_of(comparison).thread, first_of(comparison).op] == ["one", "op::make"]
    assert [(d.thread, d.received_from) for d in comparison.divergences] == [("two", "main")]


def test_a_tensor_that_main_reads_while_a_thread_writes_it(tmp_path: Path) -> None:
    def write(b: TraceBuilder, run: int) -> None:
        b.add("aten::zeros", outputs=["0"])
        increments(threads(b), (1, "0", "a", "a"), (1, "a", "b", "a + b"))
        seen = "a + b" if run else "a"
        b.step({"weight": b.add("aten::clone", [Ref(-1, digest=seen)], [seen])})

    first = first_of(compared(tmp_path, write))
    assert (first.kind, first.op, first.thread) == (Kind.MUTATION, "aten::clone", None)


def read_while_main_writes(role: Role, fault: bool = False) -> Writer:
    def write(b: TraceBuilder, run: int) -> None:
        increments(b, (0, "0", "a", "a"), (0, "a", "b", "a + b"))
        if fault:
            b.step({"weight": b.add("op::train", outputs=[f"weight {run}"])})
        seen = "a + b" if run else "a"
        own = threads(b)
        read = own.add("aten::clone", [Ref(-1, digest=seen)], [seen])
        own.add("determinism::use", [read], [seen], role=role)

    return write


def test_a_tensor_that_a_thread_uses_while_main_writes_it(tmp_path: Path) -> None:
    first = first_of(compared(tmp_path, read_while_main_writes(Role.LOSS)))
    assert (first.kind, first.op, first.thread) == (Kind.MUTATION, "aten::clone", "loader")


def test_a_thread_that_logs_periodically_is_not_the_origin(tmp_path: Path) -> None:
    assert compared(tmp_path / "1", read_while_main_writes(Role.ESCAPE)).verdict is Verdict.SAME
    comparison = compared(tmp_path / "2", read_while_main_writes(Role.ESCAPE, fault=True))
    assert (first_of(comparison).op, first_of(comparison).thread) == ("op::train", None)
    assert received(comparison) == [] and comparison.dead_differences == 1


def hands_to_a_thread(faults: tuple[str, ...]) -> Writer:
    """Write runs in which main makes two values, gives a thread the second, and reads its result; `faults` differ."""

    def write(b: TraceBuilder, run: int) -> None:
        left, handed = (f"{name} {run if name in faults else ''}" for name in ("left", "handed"))
        differs = run if "handed" in faults or "thread" in faults else ""
        b.add("op::left", outputs=[left], site=("/work/train.py", 1))
        b.add("op::hand_over", outputs=[handed], site=("/work/train.py", 2))
        own = threads(b)
        own.add("op::use", [Ref(-1, digest=handed)], [f"used {differs}"], site=("/work/train.py", 3))
        read = Ref(-1, digest=f"used {differs}")
        b.add("determinism::tolist", [read], [f"read {differs}"], role=Role.ESCAPE, site=("/work/train.py", 4))

    return write


def test_a_difference_that_main_passes_to_a_thread_and_reads_back_begins_in_main(tmp_path: Path) -> None:
    """Main reads the result, so the difference both begins and shows there."""
    comparison = compared(tmp_path, hands_to_a_thread(("left", "handed")))
    first = first_of(comparison)
    assert (first.op, first.thread, first.site and first.site.line) == ("op::hand_over", None, 2)
    assert [dead.op for dead in comparison.dead_first] == ["op::left"] and comparison.dead_differences == 1


def test_a_difference_that_a_thread_makes_from_an_equal_value_begins_in_the_thread(tmp_path: Path) -> None:
    comparison = compared(tmp_path, hands_to_a_thread(("left", "thread")))
    assert (first_of(comparison).op, first_of(comparison).site and first_of(comparison).site.line) == ("op::use", 3)
    assert [dead.op for dead in comparison.dead_first] == ["op::left"]
