"""Views that differ: a different index is an argument, the same views in a different order are an order."""

from __future__ import annotations

from pathlib import Path

import torch

import determinism
from determinism.comparison.result import Comparison
from determinism.types import Kind, Verdict


def compared(folder: Path, rows: tuple[list[int], list[int]]) -> Comparison:
    for run, chosen in enumerate(rows):
        with determinism.record(folder / str(run)):
            data = torch.arange(40.0).reshape(10, 4)
            total = torch.zeros(4)
            for row in chosen:
                total = total + data[row].exp()
            total.tolist()
    return determinism.compare(folder / "0", folder / "1")


def kind(comparison: Comparison) -> Kind | None:
    assert comparison.verdict is Verdict.DIFFERENT and comparison.first_divergence is not None
    return comparison.first_divergence.kind


def test_a_different_row_is_an_argument(tmp_path: Path) -> None:
    comparison = compared(tmp_path, ([1, 5], [1, 7]))

    assert kind(comparison) is Kind.ARGUMENT
    assert comparison.first_divergence is not None
    assert comparison.first_divergence.inputs_equal is False
    assert "from element 20 on, run 2 shape [4] from element 28 on" in comparison.first_divergence.detail


def test_the_same_rows_in_a_different_order_are_an_order(tmp_path: Path) -> None:
    assert kind(compared(tmp_path, ([1, 5, 7], [5, 7, 1]))) is Kind.ORDER


def test_the_same_rows_are_the_same(tmp_path: Path) -> None:
    assert compared(tmp_path, ([1, 5], [1, 5])).verdict is Verdict.SAME
