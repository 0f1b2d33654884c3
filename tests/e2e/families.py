"""Shared assertions for tests of program families: clean programs are the same, and planted faults are named."""

from __future__ import annotations

import re
import zlib
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from _pytest.mark.structures import ParameterSet

from tests.e2e.checking import check_command, line, run_command, site_of
from tests.e2e.clean_programs import Program
from tests.thorough import is_turn


class Fault(NamedTuple):
    """A fault planted in a program, and what a report must name."""

    name: str
    program: Program
    kind: str
    step: int
    site: str
    """The path of the file within `programs/`, a space and the mark of its line."""
    process: str = "main"
    """The key of the process, or a pattern for it if any of several may have done the work."""
    is_in_thread: bool = False
    """Whether it is in a thread other than the main one."""


def assert_same(program: Program, folder: Path) -> dict[str, Any]:
    """Assert that the program behaves the same with and without recording, and that two runs are the same; return the report."""
    plain = run_command(folder, program.words)
    assert plain.returncode == program.exit_status, plain.stdout + plain.stderr
    options = ["--runs", "2", *(["--allow-failure"] if program.exit_status else [])]
    report, output = check_command(folder, program.words, options=options, exit_status=program.exit_status)
    assert report["verdict"] == "same", report["first_divergence"]
    # The unbuffered output of several processes may be interleaved.
    in_order = sorted if program.processes > 1 else list
    own, reported = output[: len(plain.stdout)], output[len(plain.stdout) :]
    assert (in_order(own), reported[:6]) == (in_order(plain.stdout), "Same: "), (plain.stdout, output)
    assert sorted({spot["id"] for spot in report["recorded"]["blind_spots"]}) == sorted(program.blind_spots)
    assert report["recorded"]["processes"] == program.processes
    return report


def assert_named(fault: Fault, folder: Path, environment: Mapping[str, str] | None = None) -> dict[str, Any]:
    """Assert that the report names the kind, process, step and line of the fault; return the report."""
    report = check_command(folder, fault.program.words, options=["--no-explain"], environment=environment).report
    assert report["verdict"] == "different"
    first = report["first_divergence"]
    program, _, mark = fault.site.partition(" ")
    assert (first["kind"], first["step"]) == (fault.kind, fault.step), first
    assert re.fullmatch(fault.process, first["process"]), first
    assert site_of(report) == (program, line(program, re.escape(mark))), first
    assert (first["thread"] is not None) == fault.is_in_thread, first
    return report


def only(always: Collection[str], faults: Iterable[Fault], part: str = "programs") -> list[ParameterSet]:
    """Return faults as parameters with their names as ids; those not tested at this commit are left to a thorough part.

    Args:
        always: Names of the faults that take turns; `make test` never tests the others.
        faults: All faults.
        part: The part of the thorough tests that the others belong to.
    """
    return [
        pytest.param(one, id=one.name, marks=_unless(one.name in always and _has_turn(one.name), part))
        for one in faults
    ]


def only_named(always: Collection[str], names: Iterable[str], part: str = "programs") -> list[ParameterSet]:
    """Return names as parameters; those not tested at this commit are left to a thorough part, as in `only`."""
    return [pytest.param(name, id=name, marks=_unless(name in always and _has_turn(name), part)) for name in names]


def _has_turn(name: str) -> bool:
    return is_turn(zlib.crc32(name.encode()), 2)


def _unless(is_always: bool, part: str) -> tuple[pytest.MarkDecorator, ...]:
    return () if is_always else (pytest.mark.thorough(part),)
