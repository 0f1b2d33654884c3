"""The elements of PyTorch's tensors that are kept, and how they differ between two numbers of threads."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import determinism
from determinism.comparison.divergence import Likeness
from determinism.comparison.result import Comparison
from determinism.errors import UsageError
from determinism.trace.kept_values import ValuesReader, sampled_places
from determinism.trace.opening import open_trace
from determinism.trace.process import ProcessTrace
from determinism.trace.schema import VALUES_FILE
from tests.torch_runs import bits

KEPT = 16


@pytest.fixture(autouse=True)
def threads_as_before() -> Iterator[None]:
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)


def recorded(folder: Path, program: Callable[[], Any], *, values: int | None = KEPT, **options: Any) -> ProcessTrace:
    with determinism.record(folder, values=values, **options):
        program()
    [process] = open_trace(folder).processes
    return process


def kept(folder: Path, program: Callable[[], Any]) -> list[bytes]:
    """The elements that were kept of each output, in order."""
    return list(ValuesReader(recorded(folder, program).folder).between(0, 1000).values())


def with_threads(number: int, program: Callable[[], Any]) -> Callable[[], Any]:
    def run() -> None:
        torch.set_num_threads(number)
        program()

    return run


def compared(folder: Path, first: Callable[[], Any], second: Callable[[], Any], **options: Any) -> Comparison:
    for name, program in (("first", first), ("second", second)):
        recorded(folder / name, program, **options)
    return determinism.compare(folder / "first", folder / "second")


def train() -> None:
    """Train for two steps with a layer norm that sums over more rows than one thread takes."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.LayerNorm(64), nn.Linear(64, 1))
    optimizer = torch.optim.Adam(model.parameters())
    features = torch.randn(4096, 32)
    for _ in range(2):
        optimizer.zero_grad()
        model(features).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.float64, torch.bfloat16, torch.complex64, torch.int64, torch.bool]
)
@pytest.mark.parametrize("view", ["whole", "turned", "small"])
def test_the_same_elements_are_kept_of_every_dtype_and_layout(dtype: torch.dtype, view: str, tmp_path: Path) -> None:
    size = (3, 4) if view == "small" else (50, 30)
    given = (torch.arange(size[0] * size[1]).reshape(size) % 200).to(dtype)
    given = given.t() if view == "turned" else given
    [elements] = kept(tmp_path / "trace", lambda: given.clone())
    places = sampled_places(given.numel(), KEPT)
    assert elements == bits(given.contiguous().reshape(-1)[places])


def test_conjugated_tensors_are_kept_with_their_conjugated_values(tmp_path: Path) -> None:
    given = torch.complex(torch.ones(3), torch.arange(3.0)).conj()
    found = kept(tmp_path / "trace", lambda: given + 0)
    assert found[-1] == struct.pack("<6f", 1, 0, 1, -1, 1, -2)


def test_uninitialized_memory_is_not_kept(tmp_path: Path) -> None:
    assert kept(tmp_path / "trace", lambda: torch.empty(8)) == []


def test_nothing_is_kept_unless_it_is_requested(tmp_path: Path) -> None:
    process = recorded(tmp_path / "trace", train, values=None)
    assert not (process.folder / VALUES_FILE).exists()
    assert process.description["values"] is None


@pytest.mark.parametrize("number", [0, -3])
def test_fewer_than_one_value_is_refused(number: int, tmp_path: Path) -> None:
    with (
        pytest.raises(UsageError, match="nothing would be kept"),
        determinism.record(tmp_path / "trace", values=number),
    ):
        pass


def test_keeping_values_changes_no_record(tmp_path: Path) -> None:
    recorded(tmp_path / "without", train, values=None)
    recorded(tmp_path / "with", train)
    comparison = determinism.compare(tmp_path / "without", tmp_path / "with")
    assert comparison.verdict == "same"
    assert not comparison.recorded.blind_spots


@pytest.mark.parametrize("level", ["op", "module", "step"])
def test_a_different_number_of_threads_is_named_with_the_size_of_its_effect(level: str, tmp_path: Path) -> None:
    # Keep all elements: which of them differ first depends on the processor's kernels.
    comparison = compared(tmp_path, with_threads(1, train), with_threads(2, train), level=level, values=1 << 18)
    values = comparison.values
    assert comparison.verdict == "different"
    assert ("torch.get_num_threads()", "1", "2") in comparison.environment
    assert values is not None and values.first is not None
    assert values.first.looks_like is Likeness.ROUNDING
    assert [step.step for step in values.steps] == [0, 1]
    assert all(step.parameters_relative is not None and 0 < step.parameters_relative < 0.1 for step in values.steps)
    if level == "op":
        assert comparison.first_divergence is not None
        assert values.first.op == comparison.first_divergence.op
        assert all(output.elements_different for output in comparison.first_divergence.outputs)


def test_the_same_number_of_threads_twice_is_the_same(tmp_path: Path) -> None:
    comparison = compared(tmp_path, with_threads(2, train), with_threads(2, train))
    assert (comparison.verdict, comparison.environment, comparison.values) == ("same", (), None)


def test_a_different_seed_does_not_look_like_rounding(tmp_path: Path) -> None:
    def draws(seed: int) -> Callable[[], Any]:
        return lambda: (torch.manual_seed(seed), torch.randn(100).sum().item())

    values = compared(tmp_path, draws(0), draws(1)).values
    assert values is not None and values.first is not None
    assert values.first.looks_like is Likeness.OTHER


def test_agreement_to_three_digits_is_coarser_than_rounding(tmp_path: Path) -> None:
    def scale(factor: float) -> Callable[[], Any]:
        return lambda: (torch.arange(9.0) * factor).tolist()

    comparison = compared(tmp_path, scale(2.0), scale(2.001))
    assert comparison.first_divergence is not None and comparison.first_divergence.kind == "argument"
    assert comparison.values is not None and comparison.values.first is not None
    assert comparison.values.first.looks_like is Likeness.COARSER


def test_dtypes_without_an_op_that_picks_elements_are_at_most_a_blind_spot(tmp_path: Path) -> None:
    process = recorded(tmp_path / "trace", lambda: torch.ones(100).to(torch.float8_e4m3fn))
    assert {spot["id"] for spot in process.description["blind_spots"]} <= {"values-not-kept"}
