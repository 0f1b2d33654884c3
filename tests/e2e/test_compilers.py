"""Programs that are compiled, transformed, exported or scripted."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.e2e.checking import PROGRAMS, check_command
from tests.e2e.clean_programs import COMPILERS, Program, python
from tests.e2e.families import Fault, assert_named, assert_same, only, only_named

CLEAN = {"eager and aot_eager": python("compilers/compiled", "eager,aot_eager"),
         **{name: COMPILERS[name] for name in ("inductor", "transformed")}}  # fmt: skip


@pytest.mark.parametrize("name", only_named(["eager and aot_eager"], CLEAN))
def test_a_clean_program_is_the_same(name: str, tmp_path: Path) -> None:
    assert_same(CLEAN[name], tmp_path)


MODELS = (
    "attention", "backward", "breaks", "convolutions", "default", "half", "optimizer", "recomputed", "recurrence", "reduce-overhead",
    "shapes", "transforms", "whole graph",
)  # fmt: skip


@pytest.mark.thorough("programs")
@pytest.mark.parametrize("name", MODELS)
def test_a_model_compiled_by_inductor_is_the_same(name: str, tmp_path: Path) -> None:
    words = [sys.executable, str(PROGRAMS / "compilers" / "models.py"), name]
    report = check_command(tmp_path, words, options=("--runs", "2"), exit_status=0).report
    assert (report["verdict"], report["recorded"]["blind_spots"]) == ("same", [])


def compiled(backend: str, fault: str, kind: str, step: int) -> Fault:
    """A fault in a compiled network."""
    program: Program = python("compilers/compiled", backend, fault)
    return Fault(f"{backend}, {fault}", program, kind, step, f"compilers/compiled SITE {fault}")


FAULTS = [
    compiled("eager", "bit", "op", 1),
    compiled("inductor", "bit", "op", 1),
    # For random draws inside a graph that Inductor compiled, only the function is known.
    Fault(
        "inductor, seed", python("compilers/compiled", "inductor", "seed"), "rng", 0, "compilers/compiled SITE graph"
    ),
    Fault("transformed", python("compilers/transformed", "bit"), "op", 1, "compilers/transformed SITE"),
]


@pytest.mark.parametrize("fault", only(["inductor, seed"], FAULTS))
def test_a_fault_is_located(fault: Fault, tmp_path: Path) -> None:
    assert_named(fault, tmp_path)
