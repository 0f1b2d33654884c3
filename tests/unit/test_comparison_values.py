"""How far apart the values of two stored runs are, determined from the elements that they keep."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from determinism.comparison.divergence import Likeness
from determinism.comparison.result import Comparison, ValuesApart
from determinism.comparison.runs import compare
from determinism.trace.kept_values import sampled_places
from determinism.types import Kind, Role
from tests.traces import TraceBuilder, layout

ONE_ABOVE = float(np.nextafter(np.float32(1), np.float32(2)))


def training(
    folder: Path,
    *,
    weights: list[tuple[float, ...]],
    kept: int | None = 4,
    losses: list[float] | None = None,
    **facts: Any,
) -> Path:
    """Write a trace in which each step computes a loss from the parameter and then a new value of the parameter."""
    trace = TraceBuilder(folder, values=kept, **facts)
    held = trace.add("aten::ones", (), ["ones"])
    trace.values(held, 1, 1, 1, 1)
    for number, weight in enumerate(weights):
        value = losses[number] if losses else 1.0
        loss = trace.add("aten::mean", [held], [f"loss {value}"], layouts=[layout()])
        trace.values(loss, value)
        trace.add("determinism::backward", [loss], (), role=Role.LOSS)
        held = trace.add("aten::add_", [held], [f"weight {weight}"])
        trace.values(held, *weight)
        trace.step({"weight": held})
    return trace.close()


def compared(folder: Path, first: dict[str, Any], second: dict[str, Any]) -> Comparison:
    return compare(training(folder / "first", **first), training(folder / "second", **second))


def found_in(comparison: Comparison) -> ValuesApart:
    assert comparison.values is not None
    return comparison.values


def test_the_size_of_a_rounding_difference_is_measured(tmp_path: Path) -> None:
    comparison = compared(tmp_path, {"weights": [(1, 2, 3, 4)] * 2}, {"weights": [(ONE_ABOVE, 2, 3, 4), (1, 2, 3, 4)]})
    values, first = found_in(comparison), comparison.first_divergence
    assert first is not None and first.kind is Kind.OP
    assert values.first is not None and values.beyond_rounding is None and not values.note
    assert (values.first.op, values.first.step, values.first.looks_like) == ("aten::add_", 0, Likeness.ROUNDING)
    [output] = first.outputs
    assert (output.elements_different, output.max_ulp, output.elements_sampled) == (1, 1, None)
    assert output.max_relative == pytest.approx(2**-23 / 4)
    assert [(step.step, step.parameters_ulp, step.parameter) for step in values.steps] == [
        (0, 1, "weight"),
        (1, 0, "weight"),
    ]


def test_the_step_where_a_difference_exceeds_rounding_is_found(tmp_path: Path) -> None:
    comparison = compared(
        tmp_path,
        {"weights": [(1, 2, 3, 4)] * 3, "losses": [1, 1, 1]},
        {"weights": [(ONE_ABOVE, 2, 3, 4), (1.001, 2, 3, 4), (7, 2, 3, 4)], "losses": [1, ONE_ABOVE, 1.5]},
    )
    values = found_in(comparison)
    assert values.beyond_rounding is not None
    assert (values.beyond_rounding.step, values.beyond_rounding.looks_like) == (1, Likeness.COARSER)
    assert [step.loss_ulp for step in values.steps] == [None, 1, 1 << 22]
    assert values.steps[2].loss_relative == pytest.approx(1 / 3)
    assert values.steps[2].parameters_relative == pytest.approx(6 / 7)


def test_unrelated_numbers_are_not_mistaken_for_rounding(tmp_path: Path) -> None:
    values = found_in(compared(tmp_path, {"weights": [(1, 2, 3, 4)]}, {"weights": [(-1, 2, 3, 4)]}))
    assert values.first is not None
    assert values.first.looks_like is Likeness.OTHER


def test_nan_is_not_mistaken_for_rounding(tmp_path: Path) -> None:
    values = found_in(compared(tmp_path, {"weights": [(1, 2, 3, 4)]}, {"weights": [(float("nan"), 2, 3, 4)]}))
    assert values.first is not None
    assert values.first.looks_like is Likeness.OTHER


def test_a_sample_of_a_large_tensor_is_compared(tmp_path: Path) -> None:
    places = sampled_places(40, 4)
    traces = []
    for name, third in (("first", 1.0), ("second", ONE_ABOVE)):
        trace = TraceBuilder(tmp_path / name, values=4)
        made = trace.add("aten::mm", (), [name], layouts=[layout(4, 10)])
        trace.values(made, 1, 1, third, 1)
        trace.step({"weight": made})
        traces.append(trace.close())
    comparison = compare(*traces)
    assert comparison.first_divergence is not None
    [output] = comparison.first_divergence.outputs
    assert (output.elements, output.elements_sampled, output.elements_different) == (40, 4, 1)
    assert output.examples is not None
    assert output.examples[0].index == divmod(places[2], 10)
    assert output.extent is None


def test_values_are_compared_despite_records_in_only_one_run(tmp_path: Path) -> None:
    traces = []
    for name, weight in (("first", 1.0), ("second", ONE_ABOVE)):
        trace = TraceBuilder(tmp_path / name, values=4)
        ones = trace.add("aten::ones", (), ["ones"])
        if name == "second":
            ones = trace.add("aten::clone", [ones], ["ones"])
        made = trace.add("aten::mul", [ones], [name])
        trace.values(made, weight, 2, 3, 4)
        trace.step({"weight": made})
        traces.append(trace.close())
    comparison = compare(*traces)
    values = found_in(comparison)
    assert comparison.first_divergence is not None and values.first is not None
    assert comparison.first_divergence.kind is Kind.STRUCTURE
    assert (values.first.op, values.first.looks_like, values.alone) == ("aten::mul", Likeness.ROUNDING, (0, 1))


@pytest.mark.parametrize(
    ("kept", "text"),
    [
        ((None, None), "the traces hold digests only. Record both with `determinism record --values 64`"),
        ((4, None), "the trace of run 2 holds digests only. Record both with `determinism record --values 64`"),
        ((None, 4), "the trace of run 1 holds digests only. Record both with `determinism record --values 64`"),
        ((4, 8), "4 elements of each tensor were kept in run 1, and 8 in run 2. Record both with"),
    ],
)
def test_traces_without_values_say_how_to_record_them(
    kept: tuple[int | None, int | None], text: str, tmp_path: Path
) -> None:
    weights = [[(1, 2, 3, 4)], [(5, 2, 3, 4)]]
    first, second = ({"weights": one, "kept": number} for one, number in zip(weights, kept, strict=True))
    values = found_in(compared(tmp_path, first, second))
    assert text in values.note
    assert (values.first, values.steps) == (None, ())


def test_values_of_nonexistent_outputs_are_ignored(tmp_path: Path) -> None:
    traces = []
    for name in ("first", "second"):
        trace = TraceBuilder(tmp_path / name, values=4)
        made = trace.add("aten::mul", (), [name])
        trace.values(made, 1, 2, 3, output=9)
        trace.values(made, 1, 2, 3)
        trace.step({"weight": made})
        traces.append(trace.close())
    values = found_in(compare(*traces))
    assert (values.first, [step.parameter for step in values.steps]) == (None, [])
    assert "none of the kept values differ" in values.note


def test_tensorflow_runs_have_no_values(tmp_path: Path) -> None:
    weights = [[(1, 2, 3, 4)], [(5, 2, 3, 4)]]
    first, second = ({"weights": one, "kept": None, "framework": "tensorflow"} for one in weights)
    assert "only for PyTorch tensors" in found_in(compared(tmp_path, first, second)).note


def test_equal_runs_have_nothing_to_measure(tmp_path: Path) -> None:
    assert compared(tmp_path, {"weights": [(1, 2, 3, 4)]}, {"weights": [(1, 2, 3, 4)]}).values is None


def test_facts_unknown_to_an_earlier_version_are_not_differences(tmp_path: Path) -> None:
    earlier = {"environment": {"python": "3.11", "package torch": "2.12.0"}}
    later = {
        "environment": {"python": "3.11", "package torch": "2.13.0", "gpus": "none", "variable OMP_NUM_THREADS": "1"}
    }
    comparison = compared(tmp_path, {"weights": [(1, 2, 3, 4)], **earlier}, {"weights": [(1, 2, 3, 4)], **later})
    assert [*comparison.environment] == [
        ("variable OMP_NUM_THREADS", "not set", "1"),
        ("package torch", "2.12.0", "2.13.0"),
    ]
