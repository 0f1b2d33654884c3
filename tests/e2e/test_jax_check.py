"""`determinism check` on JAX programs: the verdict, the first divergence, its cause and its fix."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.checking import PROGRAMS, check_command, line, site_of
from tests.e2e.running import ENVIRONMENT


def checked(folder: Path, *words: str, options: tuple[str, ...] = ("--budget", "600")) -> dict[str, Any]:
    """The report on the program."""
    command = [sys.executable, str(PROGRAMS / "compiled_by_xla" / "regression.py"), *words]
    return check_command(folder, command, options=options, environment=ENVIRONMENT).report


def test_a_seeded_program_is_the_same(tmp_path: Path) -> None:
    report = checked(tmp_path)
    assert report["verdict"] == "same"
    assert report["recorded"]["blind_spots"] == []
    assert report["recorded"]["records"] >= 13


def test_a_key_of_the_clock_is_found_and_its_fix_verified(tmp_path: Path) -> None:
    report = checked(tmp_path, "key")
    assert report["first_divergence"]["kind"] == "data"
    assert site_of(report) == ("compiled_by_xla/regression", line("compiled_by_xla/regression", "SITE key"))
    assert [(cause["id"], cause["status"]) for cause in report["causes"]] == [("seed-varies", "confirmed")]
    assert report["fixes"][0]["verified"]


def test_a_batch_in_the_order_of_a_set_is_found(tmp_path: Path) -> None:
    report = checked(tmp_path, "order")
    assert [(cause["id"], cause["status"]) for cause in report["causes"]] == [("hash-order", "confirmed")]


@pytest.mark.thorough
def test_numpy_without_a_seed_is_found(tmp_path: Path) -> None:
    report = checked(tmp_path, "numpy")
    assert [(cause["id"], cause["status"]) for cause in report["causes"]] == [("seed-missing-numpy", "confirmed")]


def test_a_rate_that_was_baked_into_the_program_is_an_argument(tmp_path: Path) -> None:
    report = checked(tmp_path, "rate", options=("--no-explain",))
    assert report["first_divergence"]["kind"] == "argument"
    assert report["first_divergence"]["op"] == "jax::jit(step)"
    assert site_of(report) == ("compiled_by_xla/regression", line("compiled_by_xla/regression", "SITE step"))
