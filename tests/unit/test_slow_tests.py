"""Tests that take long are dealt out so that each commit runs about as many seconds of them, and each test comes to its turn."""

from __future__ import annotations

from tests.slow_tests import LEAST, PARTS, TURNS, dealt, merged, stored_seconds
from tests.thorough import PARTS as THOROUGH_PARTS
from tests.thorough import ROOT


def test_each_hand_holds_about_as_many_seconds() -> None:
    seconds = stored_seconds()
    hands = dealt(seconds)

    held = [sum(seconds[name] for name in seconds if hands[name] == hand) for hand in range(TURNS)]
    assert hands.keys() == seconds.keys()
    assert max(held) - min(held) <= max(seconds.values())
    assert min(held) > 0


def test_files_of_the_slow_tests_are_there() -> None:
    assert {name for name in stored_seconds() if not (ROOT / name.split("::")[0]).is_file()} == set()
    assert set(PARTS.values()) <= THOROUGH_PARTS.keys()


def test_what_was_not_run_keeps_its_seconds_and_what_became_fast_is_always_run() -> None:
    stored = {"a": 9.0, "b": 8.0, "c": 7.0}
    measured = {"b": LEAST - 0.1, "c": 5.0, "d": LEAST, "e": 0.2}

    assert merged(stored, measured) == {"a": 9.0, "c": 5.0, "d": LEAST}
