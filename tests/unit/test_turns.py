"""Threads that take turns wait for one that works, however long it takes, and not for one that waits for what nobody knows of."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from determinism.factors import turns
from determinism.factors.turns import Turns


def _work(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


@pytest.mark.parametrize(("does", "goes_first"), [(_work, "main"), (time.sleep, "other")])
def test_whoever_has_the_turn_keeps_it_while_it_uses_the_processor(
    does: Callable[[float], None], goes_first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a busy machine a thread that works may get one tick of the clock in this time.
    monkeypatch.setattr(turns, "_PATIENCE_SECONDS", 0.5)
    monkeypatch.setattr(turns, "_WORKING", 0.01)
    taken, went = Turns(), []

    def run(turn: turns.Turn) -> None:
        taken.enter(turn)
        went.append("other")
        taken.leave(turn)

    turn = taken.add()
    other = threading.Thread(target=run, args=(turn,))
    other.start()
    does(1.0)
    went.append("main")
    taken.leave(taken.mine)
    other.join()
    assert went[0] == goes_first
