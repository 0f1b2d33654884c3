"""A training run that is stopped in the middle of an epoch and resumed from its state ends like one that was not stopped."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.e2e.checking import PROGRAMS, run_command


def trained(folder: Path, *arguments: str) -> str:
    finished = run_command(folder, [sys.executable, str(PROGRAMS / "resumed" / "states.py"), *arguments])
    assert finished.returncode == 0, finished.stderr
    return finished.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("states")


@pytest.fixture(scope="module")
def whole(folder: Path) -> str:
    return trained(folder)


@pytest.fixture(scope="module")
def state(folder: Path) -> str:
    assert trained(folder, "--save", "middle") == ""
    return "middle"


@pytest.mark.parametrize("form", ["file", pytest.param("torch.save", marks=pytest.mark.thorough("resume-and-batch"))])
def test_a_resumed_run_ends_with_the_same_bits(folder: Path, whole: str, state: str, form: str) -> None:
    assert trained(folder, "--load", state, "--form", form) == whole


@pytest.mark.parametrize("part", ["loader", pytest.param("everything", marks=pytest.mark.thorough("resume-and-batch"))])
def test_a_run_resumed_without_a_part_of_its_state_ends_differently(
    folder: Path, whole: str, state: str, part: str
) -> None:
    assert trained(folder, "--load", state, "--without", part) != whole
