"""Which differences are read: the rules for live and dead values, on traces written without a framework."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from determinism.comparison.records import read_unwritten
from determinism.comparison.result import Comparison
from determinism.comparison.runs import compare
from determinism.trace.opening import open_trace
from determinism.trace.schema import RESULTS_OP, Layout
from determinism.types import Access, Kind, Role, Verdict
from tests.traces import Ref, TraceBuilder, layout

Writer = Callable[[TraceBuilder, int], None]

LOW, HIGH = layout(2, elements=4), layout(2, offset=2, elements=4)


def compared(folder: Path, write: Writer, **options: bool) -> Comparison:
    """Compare two runs, each written by one call with the run's number."""
    folders = []
    for run in range(2):
        builder = TraceBuilder(folder / str(run))
        write(builder, run)
        folders.append(builder.close())
    return compare(*folders, **options)


def carry(record: int, view: Layout | None = None) -> Ref:
    return Ref(record, layout=view, access=Access.CARRY)


def escape(builder: TraceBuilder, record: int, value: str, view: Layout | None = None) -> None:
    builder.add("determinism::tolist", [Ref(record, layout=view)], [value], role=Role.ESCAPE)


def differing(builder: TraceBuilder, run: int) -> int:
    return builder.add("aten::full", outputs=[f"made {run}"], arguments=f"fill_value={run}")


def divergence(comparison: Comparison) -> tuple[Kind | None, int]:
    assert comparison.verdict is Verdict.DIFFERENT and comparison.first_divergence is not None
    return comparison.first_divergence.kind, comparison.first_divergence.record


def test_equal_runs_are_the_same(tmp_path: Path) -> None:
    comparison = compared(tmp_path, lambda b, run: escape(b, b.add("op::a"), "x"))
    assert comparison.verdict is Verdict.SAME and comparison.dead_differences == 0


def test_an_unread_difference_is_dead(tmp_path: Path) -> None:
    def write(b: TraceBuilder, run: int) -> None:
        b.add("op::use", [differing(b, run)], [f"used {run}"])

    comparison = compared(tmp_path / "1", write)
    assert comparison.verdict is Verdict.SAME and comparison.dead_differences == 1
    assert divergence(compared(tmp_path / "2", write, strict=True)) == (Kind.ARGUMENT, 0)


def test_a_difference_that_escapes_counts(tmp_path: Path) -> None:
    def write(b: TraceBuilder, run: int) -> None:
        escape(b, b.add("op::use", [differing(b, run)], [f"used {run}"]), f"used {run}")

    assert divergence(compared(tmp_path, write)) == (Kind.ARGUMENT, 0)


def test_memory_that_was_handed_out_is_visible_if_it_differs(tmp_path: Path) -> None:
    def write(b: TraceBuilder, run: int, used: str) -> None:
        record = b.add("op::use", [differing(b, run)], [used])
        b.add("determinism::numpy", [record], [], role=Role.ESCAPE)

    other = compared(tmp_path / "other", lambda b, run: write(b, run, f"used {run}"))
    equal = compared(tmp_path / "equal", lambda b, run: write(b, run, "used"))
    assert other.first_visible is not None and other.first_visible.what == "value read by numpy()"
    assert not other.absorbed
    assert equal.first_visible is None and equal.absorbed


def test_a_result_that_no_op_used_is_not_shown_under_an_internal_name(tmp_path: Path) -> None:
    def write(b: TraceBuilder, run: int) -> None:
        b.add(RESULTS_OP, [differing(b, run)], [], role=Role.ESCAPE)

    visible = compared(tmp_path, write).first_visible
    assert visible is not None and visible.what == "result that the program may read (no other op used it)"


def test_a_difference_in_a_held_parameter_counts(tmp_path: Path) -> None:
    def write(b: TraceBuilder, run: int) -> None:
        b.step({"weight": differing(b, run)})

    comparison = compared(tmp_path, write)
    assert divergence(comparison) == (Kind.ARGUMENT, 0)
    assert comparison.first_visible is not None and comparison.first_visible.what == "parameter weight"


def test_a_parameter_overwritten_before_the_end_of_the_step_is_dead(tmp_path: Path) -> None:
    def write(b: TraceBuilder, run: int) -> None:
        record = differing(b, run)
        b.step({"weight": b.add("aten::fill_", [carry(record)])})

    assert compared(tmp_path, write).verdict is Verdict.SAME


def test_a_difference_that_disappears_is_absorbed(tmp_path: Path) -> None:
    def write(b: TraceBuilder, run: int) -> None:
        escape(b, b.add("op::clamp", [differing(b, run)], ["equal"]), "equal")

    comparison = compared(tmp_path, write)
    assert divergence(comparison) == (Kind.ARGUMENT, 0)
    assert comparison.absorbed


@pytest.mark.parametrize(
    ("reads", "is_absorbed"),
    [(("20 19 21 22", "19 21 22 20"), False), (("20 19 21", "19 21 23"), False), (("20 19", "20 19"), True)],
)
def test_differences_in_successive_reads_are_not_absorbed_by_equal_values_elsewhere(
    reads: tuple[str, str], is_absorbed: bool, tmp_path: Path
) -> None:
    """As with the number of hits per batch: each is read, and a batch of the other run had the same number."""

    def write(b: TraceBuilder, run: int) -> None:
        record = differing(b, run)
        for number in reads[run - 1].split():
            record = b.add("op::hits", [record], [f"hits {number}"])
            escape(b, record, number)

    comparison = compared(tmp_path, write)
    assert comparison.absorbed is is_absorbed
    assert (comparison.first_visible is None) is is_absorbed


def test_a_difference_next_to_an_overwritten_part_is_not_absorbed(tmp_path: Path) -> None:
    def write(b: TraceBuilder, run: int) -> None:
        part = b.add("aten::fill_", [carry(differing(b, run), LOW)], layouts=[LOW])
        b.step({"weight": part})

    comparison = compared(tmp_path, write)
    assert divergence(comparison) == (Kind.ARGUMENT, 0)
    assert not comparison.absorbed


def test_a_difference_read_in_a_later_step_counts(tmp_path: Path) -> None:
    def write(b: TraceBuilder, run: int) -> None:
        record = differing(b, run)
        for _ in range(5):
            b.step({"weight": b.add("op::a")})
        escape(b, b.add("op::use", [record], [f"used {run}"]), f"used {run}")

    assert divergence(compared(tmp_path, write)) == (Kind.ARGUMENT, 0)


def test_dead_differences_before_the_first_live_one_are_counted(tmp_path: Path) -> None:
    def write(b: TraceBuilder, run: int) -> None:
        differing(b, run)
        differing(b, run)
        escape(b, differing(b, run), f"made {run}")
        escape(b, differing(b, run), f"made {run}")

    comparison = compared(tmp_path, write)
    assert divergence(comparison) == (Kind.ARGUMENT, 2)
    assert comparison.dead_differences == 2


def test_the_first_live_difference_may_be_read_last(tmp_path: Path) -> None:
    def write(b: TraceBuilder, run: int) -> None:
        early, late = differing(b, run), differing(b, run)
        escape(b, late, f"made {run}")
        b.step()
        escape(b, early, f"made {run}")

    assert divergence(compared(tmp_path, write)) == (Kind.ARGUMENT, 0)


def part_writes(*views: Layout, read: Layout | None, equal: bool = True) -> Writer:
    def write(b: TraceBuilder, run: int) -> None:
        last = differing(b, run)
        for view in views:
            last = b.add("aten::fill_", [carry(last, view)], layouts=[view])
        escape(b, last, "equal" if equal else f"read {run}", read)

    return write


def test_a_difference_is_dead_only_in_the_overwritten_part(tmp_path: Path) -> None:
    assert compared(tmp_path / "1", part_writes(LOW, read=LOW)).verdict is Verdict.SAME
    assert divergence(compared(tmp_path / "2", part_writes(LOW, read=None, equal=False))) == (Kind.ARGUMENT, 0)
    assert compared(tmp_path / "3", part_writes(LOW, HIGH, read=layout(4))).verdict is Verdict.SAME
    assert divergence(compared(tmp_path / "4", part_writes(LOW, LOW, read=HIGH, equal=False))) == (Kind.ARGUMENT, 0)


def unwritten(*views: Layout, read: Layout, run_reads: bool) -> Writer:
    def write(b: TraceBuilder, run: int) -> None:
        last = b.add("aten::empty", outputs=[None])
        for view in views:
            last = b.add("aten::copy_", [carry(last, view), b.add("op::a")], layouts=[view])
        made = b.add("op::use", [Ref(last, layout=read)], [f"used {run}" if run_reads else "used"])
        escape(b, made, f"used {run}" if run_reads else "used")

    return write


def test_a_difference_from_unwritten_memory_is_uninitialized(tmp_path: Path) -> None:
    whole = layout(4)
    kind, _ = divergence(compared(tmp_path / "1", unwritten(read=whole, run_reads=True)))
    assert kind is Kind.UNINITIALIZED
    kind, record = divergence(compared(tmp_path / "2", unwritten(LOW, read=whole, run_reads=True)))
    assert (kind, record) == (Kind.UNINITIALIZED, 3)
    kind, _ = divergence(compared(tmp_path / "3", unwritten(LOW, HIGH, read=whole, run_reads=True)))
    assert kind is Kind.OP
    assert compared(tmp_path / "4", unwritten(LOW, read=LOW, run_reads=False)).verdict is Verdict.SAME


def test_copies_pass_unwritten_memory_on(tmp_path: Path) -> None:
    def write(b: TraceBuilder, run: int, read: Layout, live: bool) -> None:
        last = b.add("aten::empty", outputs=[None])
        last = b.add("aten::copy_", [carry(last, LOW), b.add("op::a")], layouts=[LOW])
        copied = b.add("aten::clone", [last], [f"copy {run}"])
        made = b.add("op::use", [Ref(copied, layout=read)], [f"used {run}" if live else "used"])
        escape(b, made, f"used {run}" if live else "used")

    kind, record = divergence(compared(tmp_path / "2", lambda b, run: write(b, run, layout(4), live=True)))
    assert (kind, record) == (Kind.UNINITIALIZED, 4)


@pytest.mark.parametrize(("op", "is_read"), [("aten::add.Tensor", True), ("c10d::allgather_", False)])
def test_a_collective_does_not_read_the_memory_that_it_fills(op: str, is_read: bool, tmp_path: Path) -> None:
    builder = TraceBuilder(tmp_path / "trace")
    memory = builder.add("aten::empty.memory_format", outputs=[None])
    builder.add(op, inputs=[memory], outputs=["sum"])
    [process] = open_trace(builder.close()).processes
    assert read_unwritten(process) == (f"{op} at /work/train.py:1" if is_read else None)


@pytest.mark.parametrize(("device", "is_read"), [("cpu", True), ("meta", False)])
def test_a_tensor_without_memory_does_not_read_unwritten_memory(device: str, is_read: bool, tmp_path: Path) -> None:
    """Keras computes the shapes of layers with convolutions of tensors on the device `meta`."""
    builder = TraceBuilder(tmp_path / "trace")
    view = layout(4)._replace(device=device)
    memory = builder.add("aten::empty.memory_format", outputs=[None], layouts=[view])
    builder.add("aten::convolution", inputs=[Ref(memory, layout=view)], outputs=["shape"], layouts=[view])
    [process] = open_trace(builder.close()).processes
    assert read_unwritten(process) == ("aten::convolution at /work/train.py:1" if is_read else None)


def test_an_extra_record_counts_only_if_results_depend_on_it(tmp_path: Path) -> None:
    def dead(b: TraceBuilder, run: int) -> None:
        made = b.add("op::a")
        if run:
            escape(b, b.add("op::log", [made]), "logged")
        escape(b, b.add("op::b", [made]), "x")

    def live(b: TraceBuilder, run: int) -> None:
        made = b.add("op::a")
        if run:
            made = b.add("op::twice", [made], ["doubled"])
        escape(b, b.add("op::b", [made], [f"x {run}"]), f"x {run}")

    assert compared(tmp_path / "1", dead).verdict is Verdict.SAME
    comparison = compared(tmp_path / "2", live)
    assert divergence(comparison) == (Kind.STRUCTURE, 1)
    assert comparison.first_divergence is not None and comparison.first_divergence.records_of == 1


def test_an_extra_draw_is_a_structural_difference(tmp_path: Path) -> None:
    def write(b: TraceBuilder, run: int) -> None:
        if run:
            b.add("aten::rand", outputs=["draw 0"], generators=["state 0"], site=("/work/train.py", 9))
        made = b.add("aten::randn", outputs=[f"draw {run}"], generators=[f"state {run}"])
        escape(b, made, f"draw {run}")

    assert divergence(compared(tmp_path, write)) == (Kind.STRUCTURE, 0)


def test_a_different_generator_state_is_an_rng_difference(tmp_path: Path) -> None:
    def write(b: TraceBuilder, run: int) -> None:
        escape(b, b.add("aten::randn", outputs=[f"draw {run}"], generators=[f"state {run}"]), f"draw {run}")

    assert divergence(compared(tmp_path, write)) == (Kind.RNG, 0)


def test_a_different_external_value_is_a_data_difference(tmp_path: Path) -> None:
    def write(b: TraceBuilder, run: int) -> None:
        escape(b, b.add("op::a", [Ref(-1, digest=f"file {run}")], [f"x {run}"]), f"x {run}")

    assert divergence(compared(tmp_path, write)) == (Kind.DATA, 0)


def test_swapped_inputs_are_an_order_difference(tmp_path: Path) -> None:
    def write(b: TraceBuilder, run: int) -> None:
        parts = [b.add("op::a", outputs=["left"]), b.add("op::a", outputs=["right"])]
        escape(b, b.add("aten::cat", parts[::-1] if run else parts, [f"both {run}"]), f"both {run}")

    assert divergence(compared(tmp_path, write)) == (Kind.ORDER, 2)


def sum_of(names: str, b: TraceBuilder, *, first_line: int) -> None:
    """Record `total = 0; for part in parts: total = total * 0.5 + part`: the first iteration uses a different op."""
    made = {name: b.add("op::a", outputs=[name], site=("/work/parts.py", 1)) for name in "xyz"}
    total = b.add("aten::rsub", [made[names[0]]], [names[0]], site=("/work/sum.py", first_line))
    for position, name in enumerate(names[1:], start=2):
        total = b.add("aten::sub", [total, made[name]], [names[:position]], site=("/work/sum.py", 2))
    escape(b, total, names)


def test_order_is_recognized_even_if_the_first_op_of_a_sum_differs(tmp_path: Path) -> None:
    same_line = compared(tmp_path / "1", lambda b, run: sum_of("yxz" if run else "xyz", b, first_line=2))
    other_line = compared(tmp_path / "2", lambda b, run: sum_of("yxz" if run else "xyz", b, first_line=9))
    kinds = [divergence(comparison)[0] for comparison in (same_line, other_line)]
    assert kinds == [Kind.ORDER, Kind.STRUCTURE]


def test_an_op_with_equal_inputs_and_different_outputs_is_blamed(tmp_path: Path) -> None:
    def write(b: TraceBuilder, run: int) -> None:
        escape(b, b.add("aten::index_add", [b.add("op::a")], [f"sum {run}"]), f"sum {run}")

    comparison = compared(tmp_path, write)
    assert divergence(comparison) == (Kind.OP, 1)
    assert comparison.first_divergence is not None and comparison.first_divergence.inputs_equal is None


def test_an_input_changed_without_a_record_is_a_mutation(tmp_path: Path) -> None:
    def write(b: TraceBuilder, run: int) -> None:
        made = b.add("op::a")
        escape(b, b.add("op::b", [Ref(made, digest=f"held {run}")], [f"x {run}"]), f"x {run}")

    assert divergence(compared(tmp_path, write)) == (Kind.MUTATION, 1)


def test_an_input_digested_in_only_one_run_is_not_a_difference(tmp_path: Path) -> None:
    """Only one run accessed the values through NumPy, and changed nothing."""

    def write(b: TraceBuilder, run: int) -> None:
        made = b.add("op::a", outputs=["held"])
        escape(b, b.add("op::b", [Ref(made, digest="held") if run else made], ["x"]), "x")

    assert compared(tmp_path, write).verdict is Verdict.SAME


def test_a_different_draw_size_is_reported_along_with_the_generator(tmp_path: Path) -> None:
    def write(b: TraceBuilder, run: int) -> None:
        sizes = f"size=[{100 + run}]"
        drawn = b.add("aten::randint", outputs=[f"drawn {run}"], generators=[f"state {run}"], arguments=sizes)
        escape(b, drawn, f"drawn {run}")

    first = compared(tmp_path, write).first_divergence
    assert first is not None and first.kind is Kind.RNG
    assert "Its arguments differ, too. Run 1: size=[100]. Run 2: size=[101]." in first.detail


def stepped(b: TraceBuilder, order: str, *, trained: str) -> None:
    """Record two steps of an optimizer over parameters in this order; `trained` changes the values of parameter b."""
    made = {name: Ref(b.add("op::init", [], [name])) for name in "abc"}
    for step in range(2):
        values = [f"{name} {step} {trained}" if name == "b" else f"{name} {step}" for name in order]
        record = b.add("aten::_foreach_add_.List", [made[name] for name in order], values)
        made = {name: Ref(record, order.index(name)) for name in order}
        b.step({name: made[name] for name in "abc"})
        for name in "abc":
            turned = made[name]._replace(layout=layout(4, strides=[1]))
            used = b.add("op::use", [turned], [f"used {name}" if trained == "equally" else f"used {name} {trained}"])
            escape(b, used, f"used {name}")


def test_the_order_of_parameters_in_a_foreach_step_does_not_matter(tmp_path: Path) -> None:
    comparison = compared(tmp_path, lambda b, run: stepped(b, ("abc", "bac")[run], trained="equally"))
    assert comparison.verdict is Verdict.SAME


def test_the_differing_parameter_of_a_foreach_step_is_found(tmp_path: Path) -> None:
    comparison = compared(tmp_path, lambda b, run: stepped(b, ("abc", "bac")[run], trained=f"otherwise {run}"))
    assert comparison.first_visible is not None and comparison.first_visible.what == "parameter b"


def test_swapped_foreach_tensors_differ_in_order_if_one_result_is_read(tmp_path: Path) -> None:
    def write(b: TraceBuilder, run: int) -> None:
        made = [Ref(b.add("op::init", [], [name])) for name in "ab"]
        order = made if run == 0 else made[::-1]
        record = b.add("aten::_foreach_neg", order, ["-a", "-b"][:: 1 if run == 0 else -1])
        escape(b, b.add("op::use", [Ref(record, 0)], [f"used {run}"]), f"used {run}")

    comparison = compared(tmp_path, write)
    assert divergence(comparison)[0] is Kind.ORDER


def first_written(*views: Layout, reads: bool = False) -> Writer:
    """Record an op without an edge to the allocation that it fills, like an op that overwrites a whole storage."""

    def write(b: TraceBuilder, run: int) -> None:
        b.add("aten::empty", outputs=[None], layouts=[views[run]], arguments=f"{list(views[run].shape)}")
        source = [b.add("op::a")] if reads else []
        made = b.add("aten::uniform_", source, [f"drawn {run}"], layouts=[views[run]])
        escape(b, made, f"drawn {run}", views[run])

    return write


@pytest.mark.parametrize(
    "other", [layout(5), layout(2, 2), layout(4, dtype="float64"), layout(4)._replace(device="cuda:0")]
)
def test_a_different_size_dtype_or_device_is_not_blamed_on_the_op(tmp_path: Path, other: Layout) -> None:
    comparison = compared(tmp_path, first_written(layout(4), other))
    assert divergence(comparison) == (Kind.ARGUMENT, 0)
    first = comparison.first_divergence
    assert first is not None and first.inputs_equal is None
    assert str(list(other.shape)) in first.detail
    if other.shape == (4,):
        assert other.dtype in first.detail and other.device in first.detail
    assert comparison.dead_differences == 0


def test_an_op_is_blamed_if_layouts_are_equal_or_it_chooses_the_size(tmp_path: Path) -> None:
    assert divergence(compared(tmp_path / "1", first_written(layout(4), layout(4)))) == (Kind.OP, 1)
    # An op that reads an input, such as `nonzero`, may choose the size of its result.
    assert divergence(compared(tmp_path / "2", first_written(layout(4), layout(5), reads=True))) == (Kind.OP, 2)
