"""Compile caches, and kernels chosen by timing: differences due to them are explained, and equal runs stay equal."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from determinism.compile_caches import COMPILE_CACHES
from determinism.launch.program import child_environment
from determinism.run_spec import FactorRequest, RunSpec
from tests.e2e.checking import PROGRAMS
from tests.e2e.commands import TINY, check

CACHES = {cache.owner: cache.variable for cache in COMPILE_CACHES}


def choosing(how: str, place: str) -> list[str]:
    return ["--", sys.executable, str(TINY / "choosing.py"), how, place]


@pytest.mark.parametrize("owner", CACHES)
def test_a_choice_found_in_a_compile_cache_is_the_cause_and_a_pin_is_its_fix(owner: str, tmp_path: Path) -> None:
    variable = CACHES[owner]
    finished = check(
        tmp_path, "--budget", "60", *choosing("flips", variable), environment={variable: str(tmp_path / "cache")}
    )
    assert finished.report is not None and finished.status == 1, finished.text
    (cause,) = finished.report["causes"]
    assert (cause["id"], cause["status"]) == ("warm-compile-cache", "confirmed")
    assert any("product.autotune.json" in text for text in cause["evidence"])
    assert any(f"compile cache of {owner}" in text for text in cause["evidence"])
    assert [site["function"] for site in cause["sites"]][:1] == ["chosen"]
    (fix,) = finished.report["fixes"]
    assert fix["verified"] and "TORCHINDUCTOR_CACHE_DIR=$(mktemp -d)" in fix["code"]
    assert f"of the compile cache of {owner} that run 1 had changed" in finished.text


@pytest.mark.parametrize("owner", CACHES)
def test_a_choice_that_is_the_same_in_a_warm_cache_is_not_a_difference(owner: str, tmp_path: Path) -> None:
    variable = CACHES[owner]
    finished = check(tmp_path, "-n", "3", *choosing("keeps", variable), environment={variable: str(tmp_path / "cache")})
    assert finished.status == 0, finished.text


def test_the_programs_own_registry_is_a_leftover_file(tmp_path: Path) -> None:
    finished = check(tmp_path, "--budget", "60", *choosing("flips", "registry"))
    assert finished.report is not None and finished.status == 1, finished.text
    assert [cause["id"] for cause in finished.report["causes"]] == ["leftover-file"]
    assert finished.report["fixes"][0]["verified"]


def test_an_already_warm_cache_is_found_when_perturbed(tmp_path: Path) -> None:
    place = tmp_path / "cache"
    environment = {"TRITON_CACHE_DIR": str(place)}
    command = choosing("flips", "TRITON_CACHE_DIR")
    check(tmp_path, *command, environment=environment)

    assert check(tmp_path, *command, environment=environment).status == 0, "both runs find it warm"
    varied = check(tmp_path, "--vary", "compile-caches", *command, environment=environment)
    assert varied.report is not None and varied.status == 1, varied.text
    assert varied.report["varied"] == ["compile-caches"]


@pytest.mark.parametrize(
    ("action", "number", "is_own"), [("fixed", 1, True), ("perturbed", 1, False), ("perturbed", 2, True)]
)
def test_a_runs_own_caches_are_in_its_trace_folder(action: str, number: int, is_own: bool, tmp_path: Path) -> None:
    spec = RunSpec(trace_folder=tmp_path / "run", factors=FactorRequest({"compile-caches": action}, number))
    environment = child_environment({"HOME": os.fspath(tmp_path)}, spec)
    folders = [environment.get(variable) for variable in CACHES.values()]
    assert all(folder is not None and Path(folder).is_relative_to(tmp_path / "run") for folder in folders) is is_own
    assert any(folders) is is_own


TIMED = str(PROGRAMS / "compilers" / "timed_choice.py")


@pytest.mark.thorough("programs")
def test_a_kernel_that_inductor_chose_by_timing_is_the_cause_and_a_pin_is_its_fix(tmp_path: Path) -> None:
    for _ in range(24):
        finished = check(tmp_path, "--budget", "300", "--", sys.executable, TIMED, "flips", timeout=1200)
        assert finished.report is not None
        if finished.status:
            break
    (cause,) = finished.report["causes"]
    assert (cause["id"], cause["status"]) == ("kernel-choice", "confirmed")
    evidence = " ".join(cause["evidence"])
    assert all(part in evidence for part in ("product of 64x64, 64x64 by Inductor", "whole_mm", "halves_mm"))
    (fix,) = finished.report["fixes"]
    assert fix["verified"] and fix["env"] == [{"name": "TORCHINDUCTOR_DETERMINISTIC", "value": "1"}]


@pytest.mark.thorough("programs")
def test_a_kernel_that_is_always_faster_is_not_a_difference(tmp_path: Path) -> None:
    finished = check(tmp_path, "--", sys.executable, TIMED, "keeps")
    assert finished.status == 0, finished.text
