"""If only batches count the steps, batches in a different order are the same work unless a result depends on the order."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from determinism.comparison.result import Comparison
from determinism.types import Kind, Phase, Role, Verdict
from tests.streams import compared
from tests.traces import Ref, TraceBuilder


def score(builder: TraceBuilder, name: str) -> int:
    """Load and evaluate a batch."""
    batch = builder.add(
        "determinism::batch",
        [Ref(-1, digest=name)],
        [f"batch {name}"],
        role=Role.BATCH,
        phase=Phase.DATA,
        site=("/work/eval.py", 5),
    )
    return builder.add("op::score", [batch], [f"score {name}"], site=("/work/eval.py", 6))


def read(builder: TraceBuilder, made: int, value: str) -> None:
    """Let the program read a number."""
    builder.add("aten::item", [made], [value], role=Role.ESCAPE, site=("/work/eval.py", 9))


def evaluated(folder: Path, orders: tuple[str, str], *, adds_up: bool) -> Comparison:
    def write(b: TraceBuilder, run: int) -> None:
        scores = {name: score(b, name) for name in orders[run]}
        if not adds_up:
            made = b.add("op::stack", [scores[name] for name in sorted(scores)], ["all"], site=("/work/eval.py", 8))
            read(b, made, "all")
            return
        total, text = scores[orders[run][0]], orders[run][0]
        for name in orders[run][1:]:
            text += name
            total = b.add("op::add", [total, scores[name]], [f"sum {text}"], site=("/work/eval.py", 7))
        read(b, total, text)

    return compared(folder, write)


def orders(comparison: Comparison) -> Sequence[object]:
    first = comparison.first_divergence
    return (comparison.verdict, None if first is None else first.kind)


def test_scores_that_are_sorted_again_are_the_same(tmp_path: Path) -> None:
    assert orders(evaluated(tmp_path, ("abcd", "cabd"), adds_up=False)) == (Verdict.SAME, None)


def test_a_sum_in_the_order_of_the_batches_is_different(tmp_path: Path) -> None:
    assert orders(evaluated(tmp_path, ("abcd", "cabd"), adds_up=True)) == (Verdict.DIFFERENT, Kind.ORDER)


def test_a_batch_that_only_one_run_has_is_different(tmp_path: Path) -> None:
    assert orders(evaluated(tmp_path, ("abc", "abd"), adds_up=False))[0] is Verdict.DIFFERENT
