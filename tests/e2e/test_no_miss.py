"""A single flipped bit in one element of one output is found, and its record is named as the first that differs in execution order."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

import determinism
from determinism.comparison.result import Comparison
from determinism.report.document import document
from determinism.types import Kind, Verdict
from tests.e2e.checking import VALIDATOR, check, line, site_of
from tests.e2e.programs import planted

LAST = planted.STEPS - 1
GATE = "stages.0.gate"


class Place(NamedTuple):
    """The place of a flipped bit, and what a report must name."""

    name: str
    op: str
    phase: str
    module: str | None
    site: str
    forward_site: str | None = None


TRAINING = [
    Place("forward", "lab::identity", "forward", "", "SITE forward"),
    Place("mask", "lab::identity", "forward", GATE, "SITE mask"),
    Place("buffer", "lab::count_", "forward", GATE, "SITE buffer"),
    Place("second", "lab::both", "forward", "", "SITE second"),
    Place("loss", "lab::identity", "forward", None, "SITE loss"),
    Place("function", "lab::identity", "backward", "", "SITE function", "SITE bridge"),
    Place("hook", "lab::identity", "backward", "", "SITE hook", "SITE bridge"),
    Place("optimizer", "lab::identity", "optimizer", None, "SITE optimizer"),
    Place("batch", "lab::identity", "data", None, "SITE batch"),
]
PLACES = {place.name: place for place in TRAINING}
INIT = Place("init", "lab::identity", "init", None, "SITE init")
EVALUATION = Place("evaluation", "lab::identity", "forward", None, "SITE evaluation")


def record(folder: Path, dtype: torch.dtype, plant: planted.Plant | None = None) -> Path:
    """Record a training run in its own thread, so that traces have the same stacks whichever test makes them."""

    def run() -> None:
        with determinism.record(folder):
            planted.train(dtype)

    planted.plant = plant
    with ThreadPoolExecutor(1) as thread:
        thread.submit(run).result()
    return folder


@pytest.fixture(scope="module")
def unplanted(tmp_path_factory: pytest.TempPathFactory) -> dict[torch.dtype, Path]:
    folder = tmp_path_factory.mktemp("unplanted")
    dtypes = (torch.float32, torch.float64, torch.bfloat16)
    return {dtype: record(folder / str(dtype), dtype) for dtype in dtypes}


def compare_planted(first: Path, folder: Path, dtype: torch.dtype, plant: planted.Plant | None) -> Comparison:
    comparison = determinism.compare(first, record(folder / "planted", dtype, plant))
    VALIDATOR.validate(document(comparison))
    assert not comparison.recorded.blind_spots
    return comparison


def assert_found(comparison: Comparison, place: Place, step: int, dtype: str | None = None) -> None:
    assert comparison.verdict is Verdict.DIFFERENT
    first = comparison.first_divergence
    assert first is not None
    assert (first.kind, first.op, first.step, first.phase) == (Kind.OP, place.op, step, place.phase)
    assert first.module == place.module
    assert first.site is not None
    assert (Path(first.site.file).stem, first.site.line) == ("planted", line("planted", place.site))
    forward = None if first.forward_site is None else first.forward_site.line
    assert forward == (None if place.forward_site is None else line("planted", place.forward_site))
    (output,) = first.outputs
    assert dtype in (None, output.dtype)
    assert comparison.dead_differences == 0


@pytest.mark.parametrize("step", [0, 1, LAST])
@pytest.mark.parametrize("place", TRAINING, ids=lambda place: place.name)
def test_flipped_bit_is_found_at_each_place_and_step(
    place: Place, step: int, unplanted: dict[torch.dtype, Path], tmp_path: Path
) -> None:
    plant = planted.Plant(f"{place.name}@{step}", 0, 0)
    comparison = compare_planted(unplanted[torch.float32], tmp_path, torch.float32, plant)
    assert_found(comparison, place, step)


@pytest.mark.parametrize(("place", "step"), [(INIT, 0), (EVALUATION, planted.STEPS)])
def test_flipped_bit_is_found_before_and_after_training(
    place: Place, step: int, unplanted: dict[torch.dtype, Path], tmp_path: Path
) -> None:
    plant = planted.Plant(f"{place.name}@{step}", 0, 0)
    comparison = compare_planted(unplanted[torch.float32], tmp_path, torch.float32, plant)
    assert_found(comparison, place, step)


SIGNS = {torch.float32: 31, torch.float64: 63, torch.bfloat16: 15}


@pytest.mark.parametrize("name", ["forward", "function", "optimizer"])
@pytest.mark.parametrize("element", [0, "middle", -1])
@pytest.mark.parametrize("is_sign", [False, True], ids=["lowest bit", "sign"])
@pytest.mark.parametrize("dtype", SIGNS, ids=str)
def test_flipped_bit_is_found_in_each_float_dtype_and_position(
    name: str, element: int | str, is_sign: bool, dtype: torch.dtype, unplanted: dict[torch.dtype, Path], tmp_path: Path
) -> None:
    at = 19 if element == "middle" else int(element)
    plant = planted.Plant(f"{name}@1", at, SIGNS[dtype] if is_sign else 0)
    comparison = compare_planted(unplanted[dtype], tmp_path, dtype, plant)
    assert_found(comparison, PLACES[name], 1, str(dtype).removeprefix("torch."))


@pytest.mark.parametrize(("name", "dtype", "elements"), [("batch", "int64", (0, 3, -1)), ("mask", "bool", (0, 30, -1)),
                                                         ("buffer", "int64", (1, -1))])  # fmt: skip
def test_flipped_bit_is_found_in_integers_and_booleans(
    name: str, dtype: str, elements: tuple[int, ...], unplanted: dict[torch.dtype, Path], tmp_path: Path
) -> None:
    for element in elements:
        plant = planted.Plant(f"{name}@1", element, 0)
        comparison = compare_planted(unplanted[torch.float32], tmp_path / str(element), torch.float32, plant)
        assert_found(comparison, PLACES[name], 1, dtype)


def test_unplanted_runs_are_the_same(unplanted: dict[torch.dtype, Path], tmp_path: Path) -> None:
    for dtype, first in unplanted.items():
        comparison = compare_planted(first, tmp_path / str(dtype), dtype, None)
        assert (comparison.verdict, comparison.dead_differences) == (Verdict.SAME, 0)


def test_flipped_bit_that_nothing_reads_is_a_dead_difference(
    unplanted: dict[torch.dtype, Path], tmp_path: Path
) -> None:
    comparison = compare_planted(unplanted[torch.float32], tmp_path, torch.float32, planted.Plant("unread@1", 0, 0))
    assert (comparison.verdict, comparison.dead_differences) == (Verdict.SAME, 1)


@pytest.mark.parametrize(
    ("name", "step", "element", "bit"),
    [
        pytest.param("batch", 0, 0, 0, marks=pytest.mark.thorough("kinds")),
        pytest.param("function", 1, 19, 0, marks=pytest.mark.thorough("kinds")),
        pytest.param("optimizer", LAST, -1, 31, marks=pytest.mark.thorough("kinds")),
    ],
)
def test_flipped_bit_is_found_across_separate_processes(
    name: str, step: int, element: int, bit: int, tmp_path: Path
) -> None:
    place = PLACES[name]
    explains = name == "function"
    options = ("--explain",) if explains else ("--no-explain",)
    report = check(tmp_path, "planted", f"{name}@{step}", str(element), str(bit), "marker", options=options)
    first = report["first_divergence"]
    assert (first["kind"], first["op"], first["step"], first["phase"]) == ("op", place.op, step, place.phase)
    assert first["module"] == place.module
    assert site_of(report) == ("planted", line("planted", place.site))
    assert site_of(report, "forward_site") == (place.forward_site and ("planted", line("planted", place.forward_site)))
    # Within a run the planted op returns one result for equal inputs.
    (output,) = first["outputs"]
    assert (first["inputs_equal"], output["distinct"]) == ((True, 1) if explains else (None, None))
