"""The end of a process is described by its exit status, or by the signal that ended it."""

from __future__ import annotations

import pytest

from determinism.errors import exit_phrase


@pytest.mark.parametrize(
    ("status", "phrase"),
    [(0, "exit status 0"), (3, "exit status 3"), (-2, "signal SIGINT"), (-11, "signal SIGSEGV"), (-63, "signal SIG63")],
)
def test_the_end_of_a_process_is_described(status: int, phrase: str) -> None:
    assert exit_phrase(status) == phrase
