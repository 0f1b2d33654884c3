"""Streams without an inherent order: the same work counts as equal, whoever did it and whenever."""

from __future__ import annotations

import cProfile
import pstats
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from determinism.comparison import fingerprints, partners
from determinism.comparison.runs import compare
from determinism.types import Access, Kind, Role, Verdict
from tests.streams import compared, first_of, pool, threads, worker
from tests.traces import Ref, TraceBuilder, layout


def task(
    builder: TraceBuilder, name: str, value: str | None = None, *, thread: int | None = None, shows: bool = True
) -> int:
    """Add two ops on a value from outside, the second in place, and a read of the result."""
    value = value or f"sum {name}"
    made = builder.add("aten::mul", [Ref(-1, digest=name)], [f"twice {name}"], site=("/work/task.py", 1), thread=thread)
    total = builder.add("aten::add_", [made], [value], site=("/work/task.py", 2), thread=thread)
    if shows:
        builder.add("determinism::tolist", [total], [value], role=Role.ESCAPE, site=("/work/task.py", 3), thread=thread)
    return total


def test_threads_that_interleave_differently(tmp_path: Path) -> None:
    def write(b: TraceBuilder, run: int) -> None:
        stream = threads(b, "one", "two")
        order = [("a", 1), ("b", 2), ("c", 1)]
        for name, thread in order if run else order[::-1]:
            task(stream, name, thread=thread if run else 3 - thread)

    comparison = compared(tmp_path, write)
    assert comparison.verdict is Verdict.SAME and comparison.dead_differences == 0
    assert comparison.recorded.processes == 1


def test_the_cost_of_comparing_grows_no_faster_than_the_work_of_threads(tmp_path: Path) -> None:
    """Calls are counted because they are the same on every machine; each value comes from outside and is only read."""

    def calls(tasks: int) -> int:
        def write(b: TraceBuilder, run: int) -> None:
            stream = threads(b, "one")
            for number in range(tasks):
                task(stream, f"{number + run}", f"sum {number} of {run}", thread=1)

        with cProfile.Profile() as profile:
            assert compared(tmp_path / f"{tasks}", write).verdict is Verdict.DIFFERENT
        return sum(count for _, count, *_ in pstats.Stats(profile).stats.values())  # type: ignore[attr-defined]

    few, many = (calls(tasks) for tasks in (100, 600))
    assert many < 9 * few


def test_work_taken_by_another_process_of_the_pool(tmp_path: Path) -> None:
    def write(b: TraceBuilder, run: int) -> None:
        streams = [pool(b, number) for number in range(3 - run)]
        for number, name in enumerate("abcdef" if run else "dafbec"):
            task(streams[number * number % len(streams)], name)

    assert compared(tmp_path, write).verdict is Verdict.SAME


@pytest.mark.parametrize("stream", [threads, pool])
def test_a_different_argument_is_found_if_the_inputs_are_the_same(
    tmp_path: Path, stream: Callable[[TraceBuilder], TraceBuilder]
) -> None:
    """Each task has a different rate and takes a different turn."""

    def write(b: TraceBuilder, run: int) -> None:
        own = stream(b)
        for name in "abc" if run else "cab":
            data = own.add("aten::randn", [], [f"data {name}"], site=("/work/task.py", 1))
            moved = own.add(
                "aten::add_", [data], [f"{name} {run}"], arguments=f"rate={name}{run}", site=("/work/task.py", 2)
            )
            own.add("determinism::tolist", [moved], [f"{name} {run}"], role=Role.ESCAPE, site=("/work/task.py", 3))

    first = first_of(compared(tmp_path, write))
    assert (first.kind, first.op) == (Kind.ARGUMENT, "aten::add_")
    run = first.detail.split("rate=")
    assert run[1][0] == run[2][0], "the same task in both runs"


@pytest.mark.parametrize("stream", [threads, pool])
def test_a_different_result_that_is_read(tmp_path: Path, stream: Callable[[TraceBuilder], TraceBuilder]) -> None:
    def write(b: TraceBuilder, run: int) -> None:
        own = stream(b)
        for name in "abc" if run else "cab":
            task(own, name, f"sum b {run}" if name == "b" else None)

    comparison = compared(tmp_path, write)
    first = first_of(comparison)
    assert (first.kind, first.op, first.inputs_equal) == (Kind.OP, "aten::add_", None)
    assert first.site is not None and (first.site.file, first.site.line) == ("/work/task.py", 2)
    assert comparison.first_visible is not None and "tolist" in comparison.first_visible.what
    assert (first.process, first.thread) == (("main", "loader") if stream is threads else ("main.pool-0", None))


def test_a_different_result_that_nothing_reads(tmp_path: Path) -> None:
    def write(b: TraceBuilder, run: int) -> None:
        own = threads(b)
        task(own, "a", f"sum {run}", shows=False)
        task(own, "b")

    comparison = compared(tmp_path / "1", write)
    assert comparison.verdict is Verdict.SAME and comparison.dead_differences == 1
    assert first_of(compared(tmp_path / "2", write, strict=True)).kind is Kind.OP


def test_the_state_that_a_thread_holds_at_the_end_of_a_step_is_compared(tmp_path: Path) -> None:
    def write(b: TraceBuilder, run: int) -> None:
        own = threads(b)
        own.add("aten::mul", [Ref(-1, digest="unused")], [f"unused {run}"])
        for name in "abc" if run else "cab":
            task(own, name)
        made = own.add("aten::add_", [Ref(-1, digest="weight")], [f"trained {run}"], site=("/work/task.py", 9))
        held = '[["parameter", "weight"]]'
        own.add("determinism::state", [made], [], role=Role.STATE, arguments=held)

    comparison = compared(tmp_path, write)
    assert first_of(comparison).site == ("/work/task.py", 9, *first_of(comparison).site[2:])  # type: ignore[index]
    assert comparison.first_visible is not None and comparison.first_visible.what == "parameter weight"


@pytest.mark.parametrize("is_read", [True, False])
def test_a_difference_that_vanishes_before_it_is_read(tmp_path: Path, is_read: bool) -> None:
    def write(b: TraceBuilder, run: int) -> None:
        task(b, "main")
        own = threads(b)
        made = own.add("op::noise", outputs=[f"noise {run}"])
        best = own.add("aten::argmax", [made], ["best"])
        for _ in range(3):
            best = own.add("op::same", [best], ["same"])
        if is_read:
            own.add("determinism::tolist", [best], ["same"], role=Role.ESCAPE)

    comparison = compared(tmp_path, write)
    if is_read:
        assert (first_of(comparison).op, comparison.absorbed) == ("op::noise", True)
    else:
        assert comparison.verdict is Verdict.SAME and comparison.dead_differences == 1


def test_a_value_from_outside_that_makes_no_difference(tmp_path: Path) -> None:
    def write(b: TraceBuilder, run: int) -> None:
        own = threads(b)
        made = own.add("aten::isnan", [Ref(-1, digest=f"file {run}")], ["no"])
        own.add("determinism::tolist", [made], ["no"], role=Role.ESCAPE)

    comparison = compared(tmp_path, write)
    assert (first_of(comparison).kind, comparison.absorbed) == (Kind.DATA, True)


def test_prefetched_work_of_a_worker(tmp_path: Path) -> None:
    def write(b: TraceBuilder, run: int) -> None:
        for number in range(2):
            own = worker(b, number)
            for name in "abc"[: 2 + (run == number)]:
                task(own, f"{name} {number}")

    comparison = compared(tmp_path / "1", write)
    assert comparison.verdict is Verdict.SAME and comparison.dead_differences > 0
    assert compared(tmp_path / "2", write, strict=True).verdict is Verdict.SAME


def test_streams_that_one_run_lacks(tmp_path: Path) -> None:
    def write(b: TraceBuilder, run: int) -> None:
        task(b, "main")
        if run:
            task(worker(b), "a")
            task(threads(b), "b", shows=False)

    assert compared(tmp_path, write).verdict is Verdict.SAME


def test_a_value_that_a_thread_gets_from_outside(tmp_path: Path) -> None:
    def write(b: TraceBuilder, run: int) -> None:
        task(threads(b), f"file {run}")

    first = first_of(compared(tmp_path, write))
    assert (first.kind, first.op) == (Kind.DATA, "aten::mul")


def test_a_different_argument_in_a_pool(tmp_path: Path) -> None:
    def write(b: TraceBuilder, run: int) -> None:
        own = pool(b)
        made = own.add("aten::full", outputs=[f"full {run}"], arguments=f"fill_value={run}")
        own.add("determinism::tolist", [made], [f"full {run}"], role=Role.ESCAPE)

    assert first_of(compared(tmp_path, write)).kind is Kind.ARGUMENT


def test_a_generator_in_a_different_state_in_a_thread(tmp_path: Path) -> None:
    def write(b: TraceBuilder, run: int) -> None:
        own = threads(b)
        made = own.add("aten::rand", outputs=[f"draw {run}"], generators=[f"state {run}"])
        own.add("determinism::tolist", [made], [f"draw {run}"], role=Role.ESCAPE)

    assert first_of(compared(tmp_path, write)).kind is Kind.RNG


def test_threads_that_draw_from_one_generator(tmp_path: Path) -> None:
    """The draws are equal as a multiset; the values computed from them are not."""

    def write(b: TraceBuilder, run: int) -> None:
        own = threads(b, "one", "two")
        for at, thread in enumerate((1, 2) if run else (2, 1)):
            draw = own.add("aten::rand", outputs=[f"draw {at}"], generators=[f"state {at}"], thread=thread)
            noise = own.add("aten::mul", [draw], [f"noise {at}"], thread=thread)
            given = Ref(-1, digest=f"task {thread}")
            made = own.add("aten::add", [given, noise], [f"sum {thread} {at}"], thread=thread)
            own.add("determinism::tolist", [made], [f"sum {thread} {at}"], role=Role.ESCAPE, thread=thread)

    first = first_of(compared(tmp_path, write))
    assert (first.kind, first.op) == (Kind.RNG, "aten::rand")


@pytest.mark.parametrize("of_one_item", [False, True])
def test_draws_of_other_items_explain_nothing_in_a_worker(of_one_item: bool, tmp_path: Path) -> None:
    """Each run flips another item: its draw is in another state since it is another item, unless the item is the same."""

    def write(b: TraceBuilder, run: int) -> None:
        own = worker(b)
        made = []
        for number in range(2):
            draw = own.add("aten::rand", outputs=[f"draw {number}"], generators=[f"state {number}"])
            given = Ref(-1, digest="item" if of_one_item else f"item {number}")
            item = own.add("aten::add", [given, draw], [f"sum {number}"])
            made.append(own.add("aten::flip", [item], [f"flipped {number}"]) if number == run else item)
        own.add("aten::stack", made, [f"stacked {run}"])
        batch = b.add("determinism::batch", outputs=[f"stacked {run}"], role=Role.BATCH)
        loss = b.add("aten::mul", [batch], [f"loss {run}"])
        b.add("determinism::loss", [loss], [f"loss {run}"], role=Role.LOSS)
        b.step()

    first = first_of(compared(tmp_path, write))
    assert (first.kind is Kind.RNG, first.op) == (of_one_item, "aten::rand" if of_one_item else "aten::flip")


def test_the_step_of_a_thread_is_that_of_its_process(tmp_path: Path) -> None:
    def write(b: TraceBuilder, run: int) -> None:
        own = threads(b)
        own.step(name="determinism::other")
        task(own, "a", f"sum {run}")
        task(b, "main")

    folders = []
    for run in range(2):
        builder = TraceBuilder(tmp_path / str(run), steps_by=None)
        write(builder, run)
        folders.append(builder.close())
    assert first_of(compare(*folders)).step == 1


def test_a_sum_in_the_order_of_arrival(tmp_path: Path) -> None:
    def write(b: TraceBuilder, run: int) -> None:
        own = threads(b)
        parts = {name: own.add("op::part", [Ref(-1, digest=name)], [name], site=("/work/task.py", 9)) for name in "xyz"}
        total = own.add("aten::zeros", outputs=["0"])
        so_far = "0"
        for name in "xzy" if run else "xyz":
            so_far += name
            total = own.add("aten::add", [total, parts[name]], [so_far])
        own.add("determinism::tolist", [total], [so_far], role=Role.ESCAPE)

    first = first_of(compared(tmp_path, write))
    assert (first.kind, first.op) == (Kind.ORDER, "aten::add")


def test_a_sum_of_other_threads_results_in_the_order_of_arrival(tmp_path: Path) -> None:
    """This is what a loop over `as_completed` does, in another thread and in the main thread."""

    def write(b: TraceBuilder, run: int, in_main: bool) -> None:
        makers = threads(b, "one", "two", "sum")
        for thread, name in ((1, "x"), (2, "y")) if run else ((2, "y"), (1, "x")):
            makers.add("op::part", [Ref(-1, digest=f"task {name}")], [name], thread=thread)
        own = b if in_main else makers
        own.thread = 0 if in_main else 3
        total = own.add("aten::zeros", outputs=["0"])
        so_far = "0"
        for name in "xy" if run else "yx":
            so_far += name
            total = own.add("aten::add", [total, Ref(-1, digest=name)], [so_far])
        own.add("determinism::tolist", [total], [so_far], role=Role.ESCAPE)

    for in_main in (True, False):
        first = first_of(compared(tmp_path / str(in_main), lambda b, run, where=in_main: write(b, run, where)))
        assert (first.kind, first.op, first.thread) == (Kind.ORDER, "aten::add", None if in_main else "sum")


def test_the_state_of_a_thread_counts_but_not_that_of_a_pool_process(tmp_path: Path) -> None:
    def write(b: TraceBuilder, run: int, stream: Callable[[TraceBuilder], TraceBuilder]) -> None:
        task(b, "main")
        own = stream(b)
        own.step({"weight": own.add("op::train", outputs=[f"weight {run}"])})

    first = first_of(compared(tmp_path / "1", lambda b, run: write(b, run, threads)))
    assert (first.kind, first.op) == (Kind.OP, "op::train")
    # Which results a pool process keeps depends on the tasks that it happened to get.
    assert compared(tmp_path / "2", lambda b, run: write(b, run, pool)).verdict is Verdict.SAME


def test_uninitialized_memory_in_a_thread(tmp_path: Path) -> None:
    def write(b: TraceBuilder, run: int) -> None:
        own = threads(b)
        empty = own.add("aten::empty", outputs=[None])
        made = own.add("op::use", [empty], [f"used {run}"])
        own.add("determinism::tolist", [made], [f"used {run}"], role=Role.ESCAPE)

    assert first_of(compared(tmp_path, write)).kind is Kind.UNINITIALIZED


def test_part_of_a_tensor_that_was_written_over(tmp_path: Path) -> None:
    low = layout(2, elements=4)

    def write(b: TraceBuilder, run: int) -> None:
        own = threads(b)
        made = own.add("aten::full", outputs=[f"full {run}"], arguments=f"fill_value={run}")
        last = own.add("aten::fill_", [Ref(made, layout=low, access=Access.CARRY)], ["zeros"], layouts=[low])
        own.add("determinism::tolist", [Ref(last, layout=low)], ["zeros"], role=Role.ESCAPE)

    comparison = compared(tmp_path, write)
    assert comparison.verdict is Verdict.SAME and comparison.dead_differences == 1


def test_extra_work_of_a_thread(tmp_path: Path) -> None:
    def write(b: TraceBuilder, run: int, changes: bool) -> None:
        own = threads(b)
        made = own.add("op::a")
        if run:
            more = own.add("op::more", [made], ["more"])
            made = more if changes else made
            own.add("determinism::tolist", [more], ["more"], role=Role.ESCAPE, site=("/work/log.py", 1))
        own.add("determinism::tolist", [made], ["more" if run and changes else "value"], role=Role.ESCAPE)

    assert compared(tmp_path / "1", lambda b, run: write(b, run, changes=False)).verdict is Verdict.SAME
    first = first_of(compared(tmp_path / "2", lambda b, run: write(b, run, changes=True)))
    assert (first.kind, first.records_of) == (Kind.STRUCTURE, 1)


def shuffled(tasks: Sequence[int], run: int) -> list[int]:
    return [number * 7 % len(tasks) for number in tasks] if run else list(tasks)


@pytest.mark.parametrize("fault", [None, 3])
def test_long_streams_are_compared_in_parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: int | None) -> None:
    monkeypatch.setattr(partners, "_MOST_HELD", 64)
    monkeypatch.setattr(fingerprints, "_HELD_ROWS", 16)

    def write(b: TraceBuilder, run: int) -> None:
        own = threads(b)
        weight = own.add("op::weight", outputs=["weight"], site=("/work/task.py", 9))
        for number in shuffled(range(100), run):
            value = f"result {number} {run if number == fault else ''}"
            made = own.add("op::use", [weight, Ref(-1, digest=str(number))], [value])
            own.add("determinism::tolist", [made], [value], role=Role.ESCAPE)

    comparison = compared(tmp_path, write)
    if fault is None:
        assert comparison.verdict is Verdict.SAME and comparison.dead_differences == 0
    else:
        assert (first_of(comparison).kind, first_of(comparison).op) == (Kind.OP, "op::use")


def test_more_differences_than_can_be_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partners, "_MOST_RECORDS", 20)

    def write(b: TraceBuilder, run: int) -> None:
        for index in range(2):
            own = pool(b, index)
            for number in range(50):
                task(own, f"{index} {number} {run}")

    assert first_of(compared(tmp_path, write)).kind is Kind.DATA


def test_thread_is_in_the_step_of_its_process(tmp_path: Path) -> None:
    def write(b: TraceBuilder, run: int) -> None:
        # The process counts the steps; the stream of its threads does not say what counts as a step.
        own = b.beside("main.threads", stream="threads", part_of="main", threads=["loader"], steps_by=None)
        own.step()
        task(own, "a", f"sum {run}")

    assert first_of(compared(tmp_path, write)).step == 1


def test_more_dead_differences_than_can_be_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(partners, "_MOST_RECORDS", 20)

    def write(b: TraceBuilder, run: int, most: int) -> None:
        own = threads(b)
        for number in range(most if run else 1):
            task(own, f"{number}", shows=False)

    few = compared(tmp_path / "1", lambda b, run: write(b, run, 10))
    assert few.verdict is Verdict.SAME
    many = compared(tmp_path / "2", lambda b, run: write(b, run, 40))
    assert (many.verdict, [trouble.identifier for trouble in many.trouble]) == (
        Verdict.INCONCLUSIVE,
        ["too-many-differences"],
    )


@pytest.mark.parametrize(
    ("overlapped", "kind"),
    [
        (None, Kind.MUTATION),  # if overlaps were not recorded, equal-looking tensors must suffice
        ([], Kind.OP),
        ([0], Kind.MUTATION),
        ([3], Kind.MUTATION),  # of two ops on one tensor, only the one that ended later is certain to be noted
        ([2], Kind.OP),
    ],
)
def test_equal_looking_tensors_are_one_only_if_two_threads_were_seen_to_write_at_once(
    overlapped: list[int] | None, kind: Kind, tmp_path: Path
) -> None:
    """Each of two threads adds into zeros, and the op of one of them gives a different result."""

    def write(b: TraceBuilder, run: int) -> None:
        facts = {} if overlapped is None or not run else {"overlapped": overlapped}
        noted = {} if overlapped is None else {"overlapped": [], **facts}
        own = b.beside("main.threads", stream="threads", part_of="main", threads=["one", "two"], **noted)
        for thread in (1, 2):
            result = f"sum {thread} {run if thread == 1 else ''}"
            given = [Ref(-1, digest="zeros"), Ref(-1, digest=f"values {thread}")]
            made = own.add("aten::index_put_", given, [result], thread=thread)
            own.add("determinism::tolist", [made], [result], role=Role.ESCAPE, thread=thread)
            if thread == 1:
                own.add("aten::exp", [Ref(-1, digest="other")], ["exp"], thread=thread)

    found = compared(tmp_path, write)
    assert (first_of(found).kind, first_of(found).op) == (kind, "aten::index_put_")
