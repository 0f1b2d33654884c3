"""A difference read from memory that processes share began in the process that wrote different values there."""

from __future__ import annotations

from pathlib import Path

from determinism.types import Kind, Role
from tests.streams import compared
from tests.traces import Ref, TraceBuilder, layout

WHOLE = layout(4)._replace(is_shared=True)
PART = layout(2, elements=4)._replace(is_shared=True)


def origins(folder: Path, *, prints: bool, writes: bool) -> dict[str, tuple[Kind | None, str | None]]:
    """Each process that differs, in order, with the kind and the process from which it received the difference.

    The parent reads different numbers in each run from memory that it shares with a child. The child draws different numbers
    in each run, and prints them or writes them there.
    """

    def write(b: TraceBuilder, run: int) -> None:
        child = b.beside("main.finder-0", stream="process")
        drawn = child.add("aten::randn", (), [f"noise {run}"])
        if prints:
            child.add("aten::item", [drawn], [f"said {run}"], role=Role.ESCAPE, layouts=[None])
        if writes:
            child.add("aten::copy_", [Ref(-1, layout=PART), drawn], [f"written {run}"], layouts=[PART])
        else:
            child.add("aten::fill_", [Ref(-1, layout=PART)], ["written"], layouts=[PART])
        b.step({"sum": b.add("aten::sum", [Ref(-1, layout=WHOLE, digest=f"all {run}")], [f"sum {run}"])})

    comparison = compared(folder, write)
    found = [comparison.first_divergence, *comparison.divergences]
    return {one.process: (one.kind, one.received_from) for one in found if one is not None}


def test_a_child_that_writes_and_prints_different_values_is_the_origin(tmp_path: Path) -> None:
    found = origins(tmp_path, prints=True, writes=True)
    assert list(found) == ["main.finder-0", "main"] and found["main"] == (Kind.DATA, "main.finder-0")


def test_a_child_that_only_writes_different_values_is_the_origin(tmp_path: Path) -> None:
    found = origins(tmp_path, prints=False, writes=True)
    assert list(found) == ["main.finder-0", "main"] and found["main"] == (Kind.DATA, "main.finder-0")


def test_a_child_that_only_prints_different_values_does_not_explain_what_others_read(tmp_path: Path) -> None:
    assert origins(tmp_path, prints=True, writes=False)["main"][1] is None


def kind_of_read(folder: Path, *, is_shared: bool, writes: bool) -> Kind | None:
    """The kind if another process writes equal numbers in both runs, and an op gives different ones from equal inputs."""

    def write(b: TraceBuilder, run: int) -> None:
        child = b.beside("main.finder-0", stream="process")
        held = PART if writes else layout(2)
        child.add("aten::fill_", [Ref(-1, layout=held)], ["written"], layouts=[held])
        read = WHOLE if is_shared else layout(4)
        b.step({"sum": b.add("aten::sum", [Ref(-1, layout=read, digest="all")], [f"sum {run}"])})

    first = compared(folder, write).first_divergence
    assert first is not None and first.process == "main"
    return first.kind


def test_an_op_with_a_different_result_from_memory_that_others_write_raced_with_them(tmp_path: Path) -> None:
    # The inputs were digested before the op ran, and were equal then.
    assert kind_of_read(tmp_path / "raced", is_shared=True, writes=True) is Kind.MUTATION
    assert kind_of_read(tmp_path / "unshared", is_shared=False, writes=True) is Kind.OP
    assert kind_of_read(tmp_path / "unwritten", is_shared=True, writes=False) is Kind.OP
