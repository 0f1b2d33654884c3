"""The notes of the terminal report: what limits the verdict, and what else was observed."""

from __future__ import annotations

from typing import Any

import pytest

from determinism.comparison.divergence import DeadDifference
from determinism.comparison.result import BlindSpot, Trouble
from determinism.types import Kind, Verdict
from tests.builders import (
    make_comparison,
    make_different,
    make_divergence,
    make_frame,
    make_recorded,
    make_run,
)
from tests.rendered import lines_of, text_of


def test_only_the_most_frequent_blind_spots_are_listed() -> None:
    spots = [BlindSpot("a", f"spot {number}", "reason", number) for number in range(1, 9)]
    text = text_of(make_comparison(recorded=make_recorded(blind_spots=spots)))
    assert [f"spot {number}," in text for number in range(1, 9)] == [False] * 3 + [True] * 5
    assert "and 3 more blind spots" in text


@pytest.mark.parametrize(
    ("steps_by", "steps", "note"),
    [
        ("optimizer", 10, None),
        ("determinism.step", 10, None),
        ("batches", 10, "steps are batches, because no optimizer stepped"),
        (None, 0, "no steps were counted, because no optimizer stepped and no batch was loaded"),
    ],
)
def test_the_meaning_of_a_step_is_noted(steps_by: str | None, steps: int, note: str | None) -> None:
    text = text_of(make_comparison(recorded=make_recorded(steps_by=steps_by, steps=steps)))
    assert ("2 runs, 10 steps, 1,234 records" in text) == bool(steps)
    assert (note in text) if note else ("steps are" not in text and "no steps" not in text)


def test_the_verdict_at_a_lower_level() -> None:
    assert "recorded at level step" in text_of(make_comparison(level="step"))
    assert "recorded at level" not in text_of(make_comparison())


def test_other_processes() -> None:
    first = make_divergence(process="rank 0")
    other = make_divergence(process="rank 1", op="aten.add.Tensor", site=make_frame(9), kind=Kind.DATA)
    comparison = make_different(first_divergence=first, divergences=[first, other], recorded=make_recorded(processes=2))
    text = text_of(comparison)
    assert "where step 3, backward, process rank 0" in text
    assert (
        "1 other process differs too rank 1: step 3, backward, aten.add.Tensor at /home/ada/project/train.py:9" in text
    )
    assert "(data)" in text


def test_another_thread_is_called_a_thread() -> None:
    first, other = make_divergence(), make_divergence(process="main", thread="loader")
    text = text_of(make_different(first_divergence=first, divergences=[first, other]))
    assert "1 other process or thread differs too thread loader of main: step" in text


def test_dead_differences() -> None:
    dead = [DeadDifference(0, "init", f"aten.op_{number}", make_frame(number)) for number in range(5)]
    text = text_of(make_comparison(dead_differences=1200, dead_first=dead))
    assert "1,200 values that reached nothing kept or shown differ, first at" in text
    assert "they count with --strict only" in text
    assert "step 0, init, aten.op_2 at /home/ada/project/train.py:2" in text
    assert "aten.op_3" not in text


def test_dead_differences_that_count() -> None:
    lines = lines_of(make_comparison(verdict=Verdict.DIFFERENT, dead_differences=3))
    assert lines[0] == "Different: 3 values that reached nothing kept or shown differ"
    assert "not count" not in " ".join(lines)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"exit_status": 3}, "runs 1 and 2: exit status 3"),
        ({"exit_status": -9, "stopped_by": "SIGKILL"}, "runs 1 and 2: stopped by SIGKILL"),
        ({"stopped_by": "steps"}, "runs 1 and 2: ended by --steps"),
        ({"stopped_by": "interrupt", "exit_status": None}, "runs 1 and 2: interrupted"),
    ],
)
def test_how_runs_ended(changes: dict[str, Any], expected: str) -> None:
    assert expected in text_of(make_comparison(runs=[make_run(1, **changes), make_run(2, **changes)]))


def test_exit_statuses_that_differ() -> None:
    lines = lines_of(make_comparison(verdict=Verdict.DIFFERENT, runs=[make_run(1), make_run(2, exit_status=1)]))
    assert lines[0] == "Different: the runs ended with exit status 0 and exit status 1"
    assert "run 2: exit status 1" in lines[2]


def test_trouble_is_shown_with_a_verdict() -> None:
    text = text_of(make_different(trouble=[Trouble("disk-full", "The disk was full after step 3.")]))
    assert "trouble The disk was full after step 3." in text


def test_environment() -> None:
    differences = [("PYTHONHASHSEED", "", "0"), *((f"V{number}", "a", "b") for number in range(7))]
    text = text_of(make_comparison(environment=differences))
    assert "PYTHONHASHSEED was (empty) in run 1, 0 in run 2" in text
    assert "V3 was a in run 1, b in run 2" in text
    assert "V4" not in text
    assert "and 3 more differences" in text


def test_extra_runs() -> None:
    text = text_of(make_comparison(extra_runs=3, racy=["threads", "pools"]))
    assert (
        "3 runs were made beyond the first two: the result may depend on timing or chance (threads and pools)" in text
    )
    text = text_of(make_comparison(racy=["threads"]))
    assert "timing the result may depend on timing or chance (threads), and may differ next time; -n 5" in text
    assert "timing" not in text_of(make_comparison())


def test_settings_that_could_not_be_applied() -> None:
    text = text_of(make_comparison(open_settings=[("PYTHONHASHSEED", "needs a fresh process.")]))
    assert "not set" in text and "PYTHONHASHSEED needs a fresh process." in text
    assert "not set" not in text_of(make_comparison())


def test_dead_differences_at_one_line_are_listed_once() -> None:
    dead = [DeadDifference(0, "init", "aten::uniform_", make_frame(30))] * 3
    text = text_of(make_comparison(dead_differences=3, dead_first=dead))
    assert text.count("aten::uniform_") == 1
    assert ", 3 times" in text


def test_runs_of_different_commands_are_labelled_as_such() -> None:
    text = text_of(make_comparison(runs=[make_run(), make_run(2, command=["python", "other file.py"])]))
    assert "the runs have different commands" in text and "run 2: python 'other file.py'" in text
    assert "same command" not in text_of(make_comparison(runs=[make_run(), make_run(2)]))


@pytest.mark.parametrize(
    ("status", "stopped_by", "advised"), [(0, None, True), (1, None, False), (None, "interrupt", False)]
)
def test_determinism_step_is_not_suggested_for_a_program_that_ended_early(
    status: int | None, stopped_by: str | None, advised: bool
) -> None:
    runs = [make_run(exit_status=status, stopped_by=stopped_by)] * 2
    text = text_of(make_comparison(runs=runs, recorded=make_recorded(steps_by=None, steps=0)))
    assert ("determinism.step()" in text) == advised
