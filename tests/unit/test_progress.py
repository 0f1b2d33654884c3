"""How long a step takes, and when that cannot be told."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from determinism.cli.ending import ProgressLine
from determinism.frameworks import progress
from determinism.frameworks.progress import Progress


def step_seconds(monkeypatch: pytest.MonkeyPatch, *moments: float) -> float | None:
    clock = iter(moments)
    monkeypatch.setattr(progress.time, "perf_counter", lambda: next(clock))
    steps = Progress(lambda _: None)
    for _ in moments:
        steps.explicit()
    return steps.step_seconds


def test_mean_of_the_steps_after_the_first_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert step_seconds(monkeypatch, 100.0, 101.0, 104.0) == 2.0


@pytest.mark.parametrize("moments", [(), (100.0,), (100.0, 100.01, 100.03)])
def test_too_few_or_too_short_steps_tell_nothing(monkeypatch: pytest.MonkeyPatch, moments: tuple[float, ...]) -> None:
    assert step_seconds(monkeypatch, *moments) is None


def test_a_path_cannot_begin_a_line_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    ProgressLine().announce("run 1 of 2", Path("/tmp/a\n::error::b\x1b[2J/run.log"))
    assert capsys.readouterr().err == (
        "determinism: run 1 of 2, its output goes to /tmp/a\\n::error::b\\x1b[2J/run.log\n"
    )


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_no_message_runs_into_the_progress_line_and_none_wraps(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setenv("COLUMNS", "80")
    line = ProgressLine()
    show = line.announce(f"experiment 1: {'a-very-long-name ' * 9}fixed", Path("/tmp/run.log"))
    assert show is not None
    show(1_234_567, 89)
    line.say("A message.")
    shown = [part.rpartition("\x1b[2K")[2] for part in stream.getvalue().replace("\r", "\n").split("\n")]
    assert all(len(part) < 80 for part in shown)
    assert stream.getvalue().endswith("\r\x1b[2Kdeterminism: A message.\n")
