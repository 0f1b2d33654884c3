"""Programs with a known cause: the verdict is right, and the report names the cause, its line and a fix."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.cause_programs import ALL, CONTROLS, GUILTY, LOADING, ORDERING, SEEDING
from tests.e2e.checking import SEARCH, check_command
from tests.e2e.expected_causes import PATIENCE, SURROUNDINGS, CauseProgram, is_at, lines_of, named, strangers
from tests.thorough import is_turn

CAUSES = {
    *(
        "seed-missing-python",
        "seed-missing-numpy",
        "seed-missing-torch",
        "seed-lost-by-fork",
        "seed-too-late",
        "seed-varies",
    ),
    *("generator-unseeded", "hash-order", "hash-value", "address-order", "listing-order", "clock", "entropy"),
    *(
        "process-id",
        "program-output",
        "query-result",
        "completion-order",
        "queue-order",
        "thread-race",
        "shared-generator",
    ),
    *("uninitialized-memory", "nondeterministic-op"),
    *("memory-alignment", "leftover-file", "torn-checkpoint", "recomputed-randomness", "changed-behind"),
}

OFTEN_MORE_THAN_A_LINE = {"clock", "entropy", "process-id"}
"""Causes whose fix usually changes more than one line, so it cannot be tried."""
TRIES = 10
"""A program that varies only with some probability is checked again until it does, at most this many times."""

IN_TURNS = ("seeding/missing_torch", "kernels/message_passing")
"""One of these and of those in `test_planted_causes` is checked at each commit; each takes half a minute of processor time."""
ALWAYS = {
    "controls/filled_buffers",
    *(path for number, path in enumerate(IN_TURNS) if is_turn(number, 2 * len(IN_TURNS))),
}

needs_two_cores = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core: threads cannot race")


def part_of(program: CauseProgram) -> str:
    """Return the thorough part that a program belongs to."""
    if program in CONTROLS:
        return "causes-controls"
    if program in SEEDING:
        return "causes-seeding"
    return "causes-order" if program in (*ORDERING, *LOADING) else "causes-others"


def some(programs: Iterable[CauseProgram]) -> list[Any]:
    """Return programs as parameters. Each takes ten or more runs, so by default only a few very different ones are checked."""
    return [
        pytest.param(one, id=one.path, marks=() if one.path in ALWAYS else pytest.mark.thorough(part_of(one)))
        for one in programs
    ]


def checked(program: CauseProgram, folder: Path, *options: str) -> dict[str, Any]:
    """Check a program and return the report."""
    options = (*SEARCH, *program.options, *options)
    return check_command(
        folder,
        program.words,
        options=options,
        environment=SURROUNDINGS,
        exit_status=program.exit_status,
        patience=PATIENCE,
    ).report


def assert_cause(document: dict[str, Any], program: CauseProgram) -> None:
    """Assert that the report names exactly the causes of the program, each with the required certainty, its line and a verified fix."""
    for cause in program.causes:
        found = named(document, cause)
        assert found is not None, (cause.identifier, document["causes"])
        assert found["status"] in cause.statuses, found
        assert found["evidence"], found
        if found["status"] == "confirmed":
            assert any(experiment["runs"] for experiment in found["experiments"]), found
        assert is_at(found, program, cause), (cause.code, found["sites"])
    assert strangers(document, program) == []
    assert not any(fix["verified"] for fix in document["fixes"] if not (fix["code"] or fix["env"])), document["fixes"]
    if all(cause.is_fixed and cause.identifier not in OFTEN_MORE_THAN_A_LINE for cause in program.causes):
        assert any(fix["verified"] for fix in document["fixes"]), document["fixes"]


@needs_two_cores
@pytest.mark.parametrize("program", some(GUILTY))
def test_the_cause_is_found(program: CauseProgram, tmp_path: Path) -> None:
    for number in range(TRIES):
        folder = tmp_path / str(number)
        folder.mkdir()
        document = checked(program, folder)
        if document["verdict"] == program.verdict:
            break
    assert document["verdict"] == "different"
    first = document["first_divergence"]
    assert program.kind in (None, first["kind"]), first
    assert_cause(document, program)


@pytest.mark.parametrize("program", some(CONTROLS))
def test_a_deterministic_program_has_no_cause(program: CauseProgram, tmp_path: Path) -> None:
    document = checked(program, tmp_path)
    assert document["verdict"] == "same", document["first_divergence"]
    assert document["causes"] == document["fixes"] == []


@pytest.mark.parametrize("program", some(program for program in GUILTY if program.is_plainly_same))
def test_two_plain_runs_agree(program: CauseProgram, tmp_path: Path) -> None:
    document = check_command(tmp_path, program.words, environment=SURROUNDINGS).report
    assert document["verdict"] == "same", document["first_divergence"]


def test_the_programs_that_are_always_checked_exist() -> None:
    assert set(ALL) >= {*ALWAYS, *IN_TURNS} and ALWAYS


def test_each_piece_of_text_identifies_one_line() -> None:
    for program in GUILTY:
        for cause in program.causes:
            for code in (cause.code, *cause.or_code):
                assert len(lines_of(program.file_of(cause), code)) >= 1


def test_each_cause_that_needs_no_accelerator_has_a_program() -> None:
    shown = {cause.identifier for program in GUILTY for cause in program.causes}
    assert shown >= CAUSES


def test_no_program_says_what_is_wrong_with_it() -> None:
    for path, program in ALL.items():
        text = program.program_file.read_text(encoding="utf-8").lower()
        assert re.search(r"nondetermin|unseeded|guilty|\b(cause|race|bug|fault)", text) is None, path
