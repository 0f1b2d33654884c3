"""The dataflow around the first divergence: which records are shown, and which of them differ."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from determinism.comparison.divergence import Dataflow
from determinism.comparison.runs import compare
from determinism.types import Role
from tests.traces import Ref, TraceBuilder

Writer = Callable[[TraceBuilder, int], None]


def around(folder: Path, write: Writer) -> Dataflow | None:
    """Return the dataflow around the first divergence of two runs, each written by a call with its number."""
    folders = []
    for run in range(2):
        builder = TraceBuilder(folder / str(run))
        write(builder, run)
        folders.append(builder.close())
    return compare(*folders).dataflow


def looks(found: Dataflow | None) -> dict[str, tuple[int, bool | None]]:
    """Distance and whether it differs, by op."""
    assert found is not None
    return {node.op: (node.distance, node.differs) for node in found.nodes}


def edges(found: Dataflow | None) -> set[tuple[str, str, bool | None]]:
    assert found is not None
    names = {node.identifier: node.op for node in found.nodes}
    return {(names[edge.source], names[edge.target], edge.differs) for edge in found.edges}


def chain(builder: TraceBuilder, run: int) -> None:
    """Write five ops in a row, which differ from the third on, and two other ops that do not differ."""
    first = builder.add("op::one", outputs=["1"], module="layer", site=("/work/train.py", 7))
    second = builder.add("op::two", [first], ["2"])
    third = builder.add("op::three", [second], [f"3 in {run}"])
    fourth = builder.add("op::four", [third, second], [f"4 in {run}"])
    builder.add("op::sign", [third], ["+"])
    builder.add("op::five", [fourth], [f"5 in {run}"], role=Role.ESCAPE)
    builder.add("op::six", outputs=["6"])


def test_inputs_are_above_and_readers_below(tmp_path: Path) -> None:
    found = around(tmp_path, chain)
    assert looks(found) == {
        "op::one": (-2, False),
        "op::two": (-1, False),
        "op::three": (0, True),
        "op::four": (1, True),
        "op::sign": (1, False),
        "op::five": (2, True),
    }
    assert edges(found) == {
        ("op::one", "op::two", False),
        ("op::two", "op::three", False),
        ("op::two", "op::four", False),
        ("op::three", "op::four", True),
        ("op::three", "op::sign", True),
        ("op::four", "op::five", True),
    }


def test_a_record_has_its_place_and_its_outputs(tmp_path: Path) -> None:
    found = around(tmp_path, chain)
    assert found is not None
    node = next(node for node in found.nodes if node.op == "op::one")
    assert (node.module, node.step, node.phase) == ("layer", 0, "forward")
    assert node.site is not None and (node.site.file, node.site.line) == ("/work/train.py", 7)
    assert [(made.dtype, made.shape, made.device) for made in node.outputs] == [("float32", (4,), "cpu")]


def test_records_of_earlier_steps_are_above(tmp_path: Path) -> None:
    def write(builder: TraceBuilder, run: int) -> None:
        weight = builder.add("op::weight", outputs=["w"])
        builder.step({"w": weight})
        made = builder.add("op::use", [weight], [f"{run}"])
        builder.add("determinism::tolist", [made], [f"{run}"], role=Role.ESCAPE)

    found = around(tmp_path, write)
    assert looks(found)["op::weight"] == (-1, False)
    assert found is not None
    assert [(node.op, node.step) for node in found.nodes][:2] == [("op::weight", 0), ("op::use", 1)]


def test_the_state_at_the_end_of_a_step_is_not_a_reader(tmp_path: Path) -> None:
    def write(builder: TraceBuilder, run: int) -> None:
        made = builder.add("op::make", outputs=[f"{run}"])
        kept = builder.add("op::keep", [made], [f"kept {run}"])
        builder.step({"w": kept})

    assert set(looks(around(tmp_path, write))) == {"op::make", "op::keep"}


def test_differing_readers_are_shown_among_many(tmp_path: Path) -> None:
    def write(builder: TraceBuilder, run: int) -> None:
        made = builder.add("op::make", outputs=[f"{run}"])
        for number in range(20):
            text = f"{number} in {run}" if number in (7, 13) else f"{number}"
            builder.add(f"op::use{number}", [made], [text], role=Role.ESCAPE)

    found = around(tmp_path, write)
    shown = looks(found)
    assert len(shown) == 6
    assert shown["op::use7"] == shown["op::use13"] == (1, True)
    assert found is not None and found.left_out == 15


def test_a_record_that_only_the_second_run_has(tmp_path: Path) -> None:
    def write(builder: TraceBuilder, run: int) -> None:
        made = builder.add("op::make", outputs=["x"])
        if run:
            made = builder.add("op::extra", [made], ["y"])
        builder.add("determinism::tolist", [Ref(made)], ["y" if run else "x"], role=Role.ESCAPE)

    found = around(tmp_path, write)
    assert looks(found)["op::extra"] == (0, True)
    assert looks(found)["op::make"] == (-1, False)


def test_an_isolated_divergence_has_no_dataflow(tmp_path: Path) -> None:
    def write(builder: TraceBuilder, run: int) -> None:
        builder.add("determinism::tolist", outputs=[f"{run}"], role=Role.ESCAPE)

    assert around(tmp_path, write) is None


def test_equal_runs_have_no_dataflow(tmp_path: Path) -> None:
    assert around(tmp_path, lambda builder, run: chain(builder, 0)) is None
