"""The duration of a step, when it is unknown, and the progress line."""

from __future__ import annotations

import io
import time
from pathlib import Path

import pytest

from determinism.cli.ending import ProgressLine, _reading_texts, say
from determinism.frameworks import progress
from determinism.frameworks.progress import Progress, ThreadProgress
from determinism.trace.process import ReadSoFar
from determinism.trace.reader import recorded_records
from determinism.types import Phase


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
def test_too_few_or_too_short_steps_give_no_duration(
    monkeypatch: pytest.MonkeyPatch, moments: tuple[float, ...]
) -> None:
    assert step_seconds(monkeypatch, *moments) is None


def test_a_thread_is_in_the_step_of_its_process_until_it_ends_its_own_step() -> None:
    process = Progress(lambda _: None)
    at_end: list[int] = []
    thread = ThreadProgress(process, lambda _: at_end.append(thread.step))
    process.explicit()
    process.explicit()
    assert (process.step, thread.step) == (2, 2)

    thread.explicit()
    process.explicit()
    assert (process.step, thread.step, at_end) == (3, 1, [0])


def test_the_place_is_available_as_numbers() -> None:
    steps, optimizer = Progress(lambda _: None), Terminal()
    assert list(steps.place) == [0, Phase.INIT, 0, -1]
    steps.backward_begins(7)
    assert list(steps.place) == [0, Phase.INIT, 0, 7]
    steps.optimizer_begins(optimizer)
    with steps.in_phase(Phase.DATA):
        assert list(steps.place) == [0, Phase.DATA, 1, -1]
    steps.optimizer_ends(optimizer)
    assert list(steps.place) == [1, Phase.OTHER, 0, -1]


def test_an_update_by_the_program_itself_ends_a_step_as_long_as_nothing_else_does() -> None:
    steps, optimizer = Progress(lambda _: None), Terminal()
    steps.process_ends()
    for num_records in (7, 8, 9):
        steps.backward_begins(num_records)
        steps.backward_begins(num_records + 1)
        assert steps.updates_from == num_records
        steps.updated()
    assert (steps.step, steps.steps_by, steps.updates_from) == (3, "update", -1)
    steps.backward_begins(10)
    steps.process_ends()
    assert steps.step == 4
    steps.optimizer_begins(optimizer)
    steps.optimizer_ends(optimizer)
    steps.backward_begins(11)
    steps.updated()
    assert (steps.step, steps.steps_by, steps.updates_from) == (5, "optimizer", -1)


def test_a_path_cannot_start_a_new_line(capsys: pytest.CaptureFixture[str]) -> None:
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


def test_the_line_says_how_much_time_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr("determinism.cli.ending.time.monotonic", lambda: 0.0)
    line = ProgressLine()
    for seconds, is_limit in ((30.0, False), (200.0, True)):
        show = line.announce("run", Path("run.log"), part="run 2 of 3", seconds=seconds, is_limit=is_limit)
        assert show is not None
        show(1234, 5)
    assert "determinism: run, run 2 of 3, step 5, 0 s, about 30 s left" in stream.getvalue()
    assert "determinism: run, run 2 of 3, step 5, 0 s, at most 3 min left" in stream.getvalue()


@pytest.mark.parametrize(
    ("columns", "shown"),
    [
        (100, "determinism: experiment 1: torch-seed fixed, run 2 of 3, step 5, 0 s, at most 3 min left"),
        (84, "determinism: experiment 1: torch-seed fixed, run 2 of 3, 0 s, at most 3 min left"),
        (80, "determinism: experiment 1: torch-seed fixed, 0 s, at most 3 min left"),
        (50, "determinism: experi..., 0 s, at most 3 min left"),
    ],
)
def test_a_narrow_terminal_keeps_the_factor_of_an_experiment_as_long_as_anything_fits_after_it(
    monkeypatch: pytest.MonkeyPatch, columns: int, shown: str
) -> None:
    stream = Terminal()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setattr("determinism.cli.ending.time.monotonic", lambda: 0.0)
    show = ProgressLine().announce(
        "experiment 1: torch-seed fixed", Path("run.log"), part="run 2 of 3", seconds=200.0, is_limit=True
    )
    assert show is not None
    show(1234, 5)
    assert stream.getvalue().rpartition("\x1b[2K")[2] == shown


def test_without_a_terminal_runs_of_one_experiment_are_announced_once(capsys: pytest.CaptureFixture[str]) -> None:
    line = ProgressLine()
    for title, number in (("experiment 1", 1), ("experiment 1", 2), ("experiment 2", 1)):
        assert line.announce(title, Path("run.log"), part=f"run {number} of 2") is None
    assert capsys.readouterr().err == "determinism: experiment 1\ndeterminism: experiment 2\n"


def test_the_progress_and_duration_of_a_comparison_are_shown() -> None:
    shown = ", 250 of 1,000 records, 3 s"
    assert _reading_texts(250, 1000, 3.0) == [f"{shown}, about 9 s left", shown]
    assert _reading_texts(1500, 1000, 3.0) == [", 1,500 records, 3 s"], "some are read again: how many is not known"


def test_a_comparison_that_takes_long_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setattr("determinism.cli.ending._QUIET_SECONDS", 0.0)
    monkeypatch.setattr("determinism.cli.ending._LOOK_SECONDS", 0.01)
    with ProgressLine() as line:
        line.expect(10**9)
        deadline = time.monotonic() + 20
        while "comparing the runs" not in stream.getvalue() and time.monotonic() < deadline:
            ReadSoFar.records += 1000
            time.sleep(0.01)
        assert "of 1,000,000,000 records" in stream.getvalue()
    assert "comparing the runs" in stream.getvalue(), "what is going on is not cut"
    assert stream.getvalue().endswith("\r\x1b[2K"), "the line is taken away"


def test_the_records_of_a_trace_are_counted_before_it_is_read(tmp_path: Path) -> None:
    for key, text in (("a", '{"records": 7}'), ("b", '{"records": 5}'), ("c", "broken"), ("d", "[1]")):
        folder = tmp_path / "processes" / key
        folder.mkdir(parents=True)
        (folder / "process.json").write_text(text)
    assert recorded_records(tmp_path) == 12
    assert recorded_records(tmp_path / "none") == 0


def test_a_message_is_folded_between_its_words_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    monkeypatch.setattr("sys.stderr", stream)
    monkeypatch.setenv("COLUMNS", "40")
    say("Looking for the cause for at most 60 s (--budget).", "a second line stays as it is, however long it is")
    assert stream.getvalue() == (
        "determinism: Looking for the cause for\nat most 60 s (--budget).\na second line stays as it is, however long it is\n"
    )


class Optimizer:
    def step(self, steps: Progress, *, is_counted_by_hand: bool) -> None:
        steps.optimizer_begins(self)
        steps.optimizer_ends(self)
        if is_counted_by_hand:
            steps.explicit()


def test_a_step_that_an_optimizer_ended_is_not_ended_again_by_the_first_call() -> None:
    steps, earlier, trained = Progress(lambda _: None), Optimizer(), Optimizer()
    for _ in range(3):
        earlier.step(steps, is_counted_by_hand=False)
    assert steps.step == 3
    for _ in range(2):
        trained.step(steps, is_counted_by_hand=True)
    assert (steps.step, steps.steps_by) == (5, "determinism.step")


def test_an_optimizer_step_and_its_explicit_step_count_once() -> None:
    steps, optimizer = Progress(lambda _: None), Optimizer()
    for _ in range(3):
        optimizer.step(steps, is_counted_by_hand=False)
    for _ in range(2):
        optimizer.step(steps, is_counted_by_hand=True)
    assert steps.step == 5
