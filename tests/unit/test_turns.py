"""Threads wait for their turn while another thread works, however long, but not while it waits for something unknown."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from determinism.factors import turns
from determinism.factors.turns import Turns


def _work(_: threading.Event) -> None:
    until = time.thread_time() + 2.5
    while time.thread_time() < until:
        pass


def _wait(for_other: threading.Event) -> None:
    for_other.wait(60.0)


@pytest.mark.parametrize(("does", "goes_first"), [(_work, "main"), (_wait, "other")])
def test_a_thread_keeps_its_turn_while_it_uses_the_processor(
    does: Callable[[threading.Event], None], goes_first: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a busy machine, a working thread may get only one tick of the clock in this time.
    monkeypatch.setattr(turns, "_PATIENCE_SECONDS", 2.0)
    monkeypatch.setattr(turns, "_WORKING", 0.001)
    taken, went, other_went = Turns(), [], threading.Event()

    def run(turn: turns.Turn) -> None:
        taken.enter(turn)
        went.append("other")
        other_went.set()
        taken.leave(turn)

    turn = taken.add()
    other = threading.Thread(target=run, args=(turn,))
    other.start()
    does(other_went)
    went.append("main")
    taken.leave(taken.mine)
    other.join()
    assert went[0] == goes_first
