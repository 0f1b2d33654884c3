"""Stages of tf.data that return whatever is ready first: the cause is at the line of the stage, and its fix is verified."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.planted_causes.checking import checked
from tests.e2e.planted_causes.planted import Planted
from tests.e2e.test_planted_causes import assert_cause, planted

PROGRAMS = list(planted(of_tensorflow=True, with_all=False))


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_stage_is_reported(program: Planted, tmp_path: Path) -> None:
    assert_cause(program, tmp_path)


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_twin_is_the_same(program: Planted, tmp_path: Path) -> None:
    report = checked(program, tmp_path, twin=True)
    assert report["verdict"] == "same", report["first_divergence"]
