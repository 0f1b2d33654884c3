"""Tests that `make test` leaves out belong to parts that can be run, and one slice of each sweep is always run."""

from __future__ import annotations

import pytest

from tests import thorough
from tests.thorough import PARTS, chosen_parts, in_turns, is_turn, main, table


def test_no_part_takes_longer_than_half_an_hour() -> None:
    assert PARTS
    assert {name: part.minutes for name, part in PARTS.items() if part.minutes > 30} == {}


@pytest.mark.parametrize("hash_of_commit", ["0" * 40, "61ee69878d7c" + "0" * 28, "f" * 40])
def test_one_slice_of_a_sweep_is_run(hash_of_commit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thorough, "commit", lambda: hash_of_commit)

    assert [is_turn(number, 12) for number in range(12)].count(True) == 1


def test_different_commits_run_different_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    run = set()
    for number in range(50):
        monkeypatch.setattr(thorough, "commit", lambda number=number: f"{number * 7919:08x}" + "0" * 32)
        run.add(next(part for part in range(12) if is_turn(part, 12)))

    assert run == set(range(12))


def test_a_word_chooses_the_parts_that_begin_with_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert chosen_parts([]) == list(PARTS)
    assert chosen_parts(["causes"]) == [name for name in PARTS if name.startswith("causes-")]
    assert len(table(chosen_parts(["causes"]))) == 1 + len(chosen_parts(["causes"]))
    assert main(["nosuch"]) == 2
    assert "No part begins with 'nosuch'" in capsys.readouterr().err


def test_values_that_are_not_run_belong_to_a_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(thorough, "commit", lambda: "1" + "0" * 39)
    given = ["a", pytest.param("b", id="second"), "c", "d"]
    turns = int("10000000", 16) % 2
    parameters = in_turns(given, 2, "programs", name=str.upper)

    assert [parameter.values[0] for parameter in parameters] == list("abcd")
    assert [parameter.id for parameter in parameters] == ["A", "second", "C", "D"]
    left_out = [parameter.values[0] for parameter in parameters if parameter.marks]
    assert left_out == ["b", "d"] if turns == 0 else ["a", "c"]
    assert {mark.args for parameter in parameters for mark in parameter.marks} == {("programs",)}
