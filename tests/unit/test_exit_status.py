"""The end of a process is told by its status, or by the signal that ended it."""

from __future__ import annotations

import pytest

from determinism.errors import exit_phrase


@pytest.mark.parametrize(
    ("status", "phrase"),
    [(0, "exit status 0"), (3, "exit status 3"), (-2, "signal SIGINT"), (-11, "signal SIGSEGV"), (-63, "signal SIG63")],
)
def test_how_a_process_ended(status: int, phrase: str) -> None:
    assert exit_phrase(status) == phrase
