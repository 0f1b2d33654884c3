"""Ten programs for each class of cause that is hard to name: the cause, its line and a fix are named; the deterministic twins are the same."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.planted_causes import CLASSES
from tests.e2e.planted_causes.checking import checked, faults
from tests.e2e.planted_causes.planted import Planted
from tests.thorough import is_turn

TRIES = 6
"""A program that varies only with some probability is checked again until it does, at most this many times."""
IN_TURNS = ("libraries/time and process in a stage", "arrivals/a running mean")
"""Programs that take turns from commit to commit, since each takes ten or more runs; only these cover something that no other test does."""
NEEDS_TENSORFLOW = "pipelines"

needs_two_cores = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core: threads cannot race")


def planted(*, of_tensorflow: bool, with_all: bool) -> list[Any]:
    """Return the programs as parameters."""
    part = "tensorflow" if of_tensorflow else "causes-twins" if not with_all else "causes-planted"
    parameters = []
    for kind, programs in CLASSES.items():
        for program in programs if (kind == NEEDS_TENSORFLOW) is of_tensorflow else ():
            path = f"{kind}/{program.name}"
            is_always = path in IN_TURNS and is_turn(len(IN_TURNS) + IN_TURNS.index(path), 2 * len(IN_TURNS))
            marks = () if is_always and with_all else pytest.mark.thorough(part)
            parameters.append(pytest.param(program, id=path.replace(" ", "-"), marks=marks))
    return parameters


def assert_cause(program: Planted, folder: Path) -> None:
    for number in range(TRIES):
        place = folder / str(number)
        place.mkdir()
        report = checked(program, place)
        if report["verdict"] == "different":
            break
    assert faults(program, report) == [], report["causes"]


@needs_two_cores
@pytest.mark.parametrize("program", planted(of_tensorflow=False, with_all=True))
def test_cause_line_and_fix_are_named(program: Planted, tmp_path: Path) -> None:
    assert_cause(program, tmp_path)


@pytest.mark.parametrize("program", planted(of_tensorflow=False, with_all=False))
def test_the_twin_is_the_same(program: Planted, tmp_path: Path) -> None:
    report = checked(program, tmp_path, twin=True)
    assert report["verdict"] == "same", report["first_divergence"]
    assert report["causes"] == report["fixes"] == []


def test_each_class_has_ten_programs_with_identifiable_lines_and_twins() -> None:
    for kind, programs in CLASSES.items():
        assert len(programs) == len({program.name for program in programs}) == 10, kind
        for program in programs:
            assert program.named_lines()
            assert program.twin != program.source
