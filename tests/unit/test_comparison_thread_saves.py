"""A checkpoint that a thread saved while others changed it is recognised by the values read back from it."""

from __future__ import annotations

from pathlib import Path

from determinism.comparison.divergence import Divergence
from determinism.types import Kind, Phase, Role
from tests.streams import compared, first_of, threads
from tests.traces import Ref, TraceBuilder


def save(builder: TraceBuilder, value: str, line: int = 4) -> None:
    """Save a tensor in a thread."""
    builder.add(
        "determinism::save",
        [Ref(-1, digest=value)],
        [value],
        role=Role.CHECKPOINT,
        phase=Phase.CHECKPOINT,
        site=("/work/saver.py", line),
    )


def trained_and_read_back(folder: Path, read: tuple[str, str], *, saves: bool) -> Divergence:
    """The first divergence if a thread saves or copies a weight, and the main thread continues with values from a file."""

    def write(b: TraceBuilder, run: int) -> None:
        beside = threads(b)
        b.step({"weight": b.add("op::train", outputs=["weight"], site=("/work/train.py", 1))})
        if saves:
            save(beside, "weight")
        else:
            beside.add("op::copy", [Ref(-1, digest="weight")], ["weight"], site=("/work/saver.py", 4))
        loaded = b.add("op::stack", [Ref(-1, digest=read[run])], [f"mean {run}"], site=("/work/train.py", 9))
        b.step({"mean": loaded})

    return first_of(compared(folder, write))


def test_values_read_from_a_torn_checkpoint_point_to_the_line_that_saved_it(tmp_path: Path) -> None:
    first = trained_and_read_back(tmp_path, ("weight", "half of the next weight"), saves=True)
    assert (first.kind, first.op) == (Kind.DATA, "op::stack")
    assert first.saved_at is not None and (first.saved_at.file, first.saved_at.line) == ("/work/saver.py", 4)
    assert "In run 2" in first.detail and "run 1" not in first.detail


def test_different_data_has_no_saving_line_if_no_thread_saves(tmp_path: Path) -> None:
    first = trained_and_read_back(tmp_path, ("weight", "half of the next weight"), saves=False)
    assert first.kind is Kind.DATA and first.saved_at is None
