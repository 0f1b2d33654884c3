"""When a file that a run reads counts as a leftover of an earlier run."""

from __future__ import annotations

import json
import os
import sqlite3
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from determinism.comparison.result import FileChange
from determinism.launch import reading, runs
from determinism.launch.reading import Readings
from determinism.launch.runs import RunTimes, changed_files


def let_file_times_pass() -> None:
    """Wait until files that change are later than now; the clock of file systems lags."""
    now = time.time_ns()
    with tempfile.TemporaryFile() as probe:
        while os.fstat(probe.fileno()).st_ctime_ns <= now:
            os.fchmod(probe.fileno(), 0o600)


class Stage:
    """A finished run and a run in progress."""

    def __init__(self, folder: Path) -> None:
        self.times = RunTimes(1)
        self.trace = folder / "out" / "run-2"
        self.trace.mkdir(parents=True)
        let_file_times_pass()

    def begin(self) -> None:
        """Begin the second run."""
        request = json.dumps({"recording": {"trace_folder": str(self.trace)}})
        self.readings = Readings(self.times.ended, request)

    def open(self, file: Any, flags: int = os.O_RDONLY) -> None:
        """Show the hook what Python audits when a file is about to be opened."""
        self.readings.look("open", (file, None, flags))

    def found(self) -> list[str]:
        """Names of the leftovers."""
        self.times.ended.append((0, 0))
        return [Path(left.file).name for left in self.times.leftovers(self.trace, fresh_copy=False)]


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    stage = Stage(tmp_path)
    (tmp_path / "before").write_text("x")
    let_file_times_pass()
    with stage.times.run():
        let_file_times_pass()
        for name in ("left", "rewritten", "module.pyc", "out/run-1.log"):
            (tmp_path / name).write_text("x")
        (tmp_path / "empty").touch()
    let_file_times_pass()
    (tmp_path / "between").write_text("x")
    stage.begin()
    (tmp_path / "rewritten").write_text("y")
    return stage


def test_only_files_last_changed_by_the_earlier_run_are_leftovers(stage: Stage, tmp_path: Path) -> None:
    for name in ("before", "left", "rewritten", "between", "empty", "module.pyc", "out/run-1.log", "missing", "."):
        stage.open(str(tmp_path / name))
    assert stage.found() == ["left"]


def test_a_file_of_the_package_itself_is_not_a_leftover(
    stage: Stage, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The tool may be reinstalled during the runs of a check."""
    monkeypatch.setattr(reading, "_OWN_FILES", f"{tmp_path}{os.sep}")
    stage.open(str(tmp_path / "left"))
    assert stage.found() == []


@pytest.mark.parametrize("name", ["native/torch-2.13.0-cpython-311.failed", "triton/WIU4/cuda_utils.so"])
def test_files_that_the_recorder_built_in_the_first_run_are_not_leftovers(name: str, tmp_path: Path) -> None:
    """The first says why the native recorder could not be built; Triton compiles the second along with the digest kernel."""
    stage = Stage(tmp_path)
    file = tmp_path / "determinism" / name
    with stage.times.run():
        file.parent.mkdir(parents=True)
        file.write_text("g++")
    stage.begin()
    stage.open(str(file))
    assert stage.found() == []


@pytest.mark.parametrize("kind", [os.fspath, os.fsencode, Path])
def test_a_file_is_found_however_its_path_is_given(kind: Any, stage: Stage, tmp_path: Path) -> None:
    stage.open(kind(tmp_path / "left"))
    stage.open(kind(tmp_path / "left"))
    assert stage.found() == ["left"]


@pytest.mark.parametrize(
    ("flags", "is_read"),
    [
        (os.O_RDONLY | os.O_CLOEXEC, True),
        (os.O_RDWR, True),
        (os.O_WRONLY | os.O_TRUNC, False),
        (os.O_RDWR | os.O_TRUNC, False),
        (os.O_WRONLY | os.O_APPEND, False),
        (os.O_RDWR | os.O_APPEND, False),
    ],
)
def test_opening_for_writing_is_not_reading(flags: int, is_read: bool, stage: Stage, tmp_path: Path) -> None:
    stage.open(str(tmp_path / "left"), flags | os.O_CREAT)
    assert stage.found() == (["left"] if is_read else [])


def test_nothing_that_a_program_audits_raises(stage: Stage, tmp_path: Path) -> None:
    for arguments in (
        (),
        (1, 2, 3),
        ("left",),
        (object(), None, 0),
        ("a\0b", None, 0),
        (5, "r", 0),
        ("x", "r", "flags"),
    ):
        stage.readings.look("open", arguments)
        stage.readings.look("sqlite3.connect", arguments)
        stage.readings.look("of my own", arguments)
    stage.readings.look("sqlite3.connect", (str(tmp_path / "left"),))
    assert stage.found() == ["left"]


def test_a_link_is_followed_to_its_target(stage: Stage, tmp_path: Path) -> None:
    (tmp_path / "latest").symlink_to("left")
    stage.open(str(tmp_path / "latest"))
    assert stage.found() == ["latest"]


def test_truncated_notes_are_tolerated(stage: Stage, tmp_path: Path) -> None:
    stage.open(str(tmp_path / "left"))
    (note,) = stage.trace.glob("leftovers-*.jsonl")
    note.write_text(note.read_text() + '{"run": 0, "fi')
    assert stage.found() == ["left"]


class Watched:
    """Runs of a check, whose actions are shown to the hook as Python would show them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.times = RunTimes(1)
        self.found: dict[str, FileChange] = {}
        self.folders: set[str] = set()

    def run(self, action: Callable[[Callable[..., None]], None]) -> None:
        """Make a run; the action gets the hook."""
        trace = self.folder / "out" / f"run-{len(self.times.ended) + 1}"
        trace.mkdir(parents=True)
        let_file_times_pass()
        readings = Readings(tuple(self.times.ended), json.dumps({"recording": {"trace_folder": str(trace)}}))
        with self.times.run():
            let_file_times_pass()
            action(lambda event, *arguments: readings.look(event, arguments))
        leftovers = self.times.leftovers(trace, fresh_copy=False)
        self.found = {Path(left.file).name: left.change for left in leftovers}
        self.folders = {Path(left.file).name for left in leftovers if left.is_folder}

    def read(self, look: Callable[..., None]) -> None:
        """Read every file in the folder."""
        for path in self.folder.rglob("*"):
            if path.is_file():
                look("open", str(path), "r", os.O_RDONLY)


def written(look: Callable[..., None], path: Path, text: str = "new") -> None:
    """Write a file as `open(path, "w")` does."""
    look("open", str(path), "w", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    path.write_text(text)


def test_only_files_that_a_run_created_are_its_own(tmp_path: Path) -> None:
    (tmp_path / "input").write_text("the user's")
    (tmp_path / "table").write_text("the user's")
    (tmp_path / "replaced").write_text("the user's")
    (tmp_path / "removed").write_text("the user's")
    (tmp_path / "links").symlink_to("input")
    (tmp_path / "site-packages").mkdir()
    watched = Watched(tmp_path)

    def first(look: Callable[..., None]) -> None:
        (tmp_path / "input").write_text("edited from another shell")
        (tmp_path / "unseen").write_text("of another process")
        written(look, tmp_path / "made")
        written(look, tmp_path / "table")
        written(look, tmp_path / "site-packages" / "module.py")
        written(look, tmp_path / "temporary")
        look("os.rename", str(tmp_path / "temporary"), str(tmp_path / "replaced"), -1, -1)
        (tmp_path / "temporary").rename(tmp_path / "replaced")
        written(look, tmp_path / "temporary")
        look("os.rename", str(tmp_path / "temporary"), str(tmp_path / "moved"), -1, -1)
        (tmp_path / "temporary").rename(tmp_path / "moved")
        look("os.remove", str(tmp_path / "removed"), -1)
        (tmp_path / "removed").unlink()
        written(look, tmp_path / "removed")
        look("determinism.write", str(tmp_path / "native"))
        (tmp_path / "native").write_text("new")
        look("sqlite3.connect", str(tmp_path / "rates.db"))
        (tmp_path / "rates.db").write_text("new")

    watched.run(first)
    watched.run(watched.read)

    own = {"made", "moved", "native", "rates.db"}
    overwritten = {"table", "replaced", "removed", "module.py"}
    assert {name for name, change in watched.found.items() if change is FileChange.CREATED} == own
    assert {name for name, change in watched.found.items() if change is FileChange.OVERWRITTEN} == overwritten
    assert watched.found["input"] is watched.found["unseen"] is FileChange.UNSEEN


def test_a_folder_is_a_runs_own_if_everything_in_it_is(tmp_path: Path) -> None:
    for name in ("the-users", "left-alone"):
        (tmp_path / name / "deep").mkdir(parents=True)
        (tmp_path / name / "deep" / "data").write_text("the user's")
    watched = Watched(tmp_path)

    def first(look: Callable[..., None]) -> None:
        (tmp_path / "temporary" / "deep").mkdir(parents=True)
        written(look, tmp_path / "temporary" / "deep" / "step")
        (tmp_path / "temporary" / "link").symlink_to(tmp_path / "left-alone")
        for old, new in (("temporary", "checkpoint"), ("the-users", "renamed")):
            look("os.rename", str(tmp_path / old), str(tmp_path / new), -1, -1)
            (tmp_path / old).rename(tmp_path / new)

    def second(look: Callable[..., None]) -> None:
        for name in ("checkpoint", "renamed"):
            look("open", str(tmp_path / name), None, os.O_RDONLY | os.O_DIRECTORY)

    watched.run(first)
    watched.run(second)
    assert watched.found == {"checkpoint": FileChange.CREATED, "renamed": FileChange.OVERWRITTEN}
    assert watched.folders == {"checkpoint", "renamed"}


def test_the_contents_of_a_folder_that_a_run_moved_into_place_came_with_it(tmp_path: Path) -> None:
    (tmp_path / "the-users").mkdir()
    (tmp_path / "the-users" / "kept").write_text("the user's")
    watched = Watched(tmp_path)

    def first(look: Callable[..., None]) -> None:
        (tmp_path / "temporary" / "deep").mkdir(parents=True)
        written(look, tmp_path / "temporary" / "deep" / "step")
        written(look, tmp_path / "the-users" / "kept")
        for old, new in (("temporary", "checkpoint"), ("the-users", "renamed")):
            look("os.rename", str(tmp_path / old), str(tmp_path / new), -1, -1)
            (tmp_path / old).rename(tmp_path / new)
        (tmp_path / "beside").write_text("of another process")

    watched.run(first)
    watched.run(watched.read)
    assert watched.found == {
        "step": FileChange.CREATED, "kept": FileChange.OVERWRITTEN, "beside": FileChange.UNSEEN
    }  # fmt: skip


def test_a_file_read_by_c_code_counts_if_the_read_is_announced(stage: Stage, tmp_path: Path) -> None:
    for name in ("before", "left", "rewritten", "missing"):
        stage.readings.look("determinism.read", (str(tmp_path / name),))
    assert stage.found() == ["left"]


def test_files_that_changed_in_a_folder_are_those_that_a_copy_would_hold(tmp_path: Path) -> None:
    (tmp_path / "before").write_text("x")
    let_file_times_pass()
    since = time.time()
    let_file_times_pass()
    for folder in ("deep", "out", "__pycache__", "environment"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "file").write_text("x")
    (tmp_path / "environment" / "pyvenv.cfg").touch()
    (tmp_path / "made").write_text("x")
    (tmp_path / "empty").touch()
    (tmp_path / "link").symlink_to("made")
    assert changed_files(tmp_path, tmp_path / "out", since) == ["deep/file", "made"]
    assert changed_files(tmp_path / "missing", tmp_path / "out", since) == []


def test_the_file_that_receives_the_commands_output_is_not_a_file_of_the_program(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "made").write_text("x")
    with capfd.disabled(), open(tmp_path / "log.txt", "w") as log:
        before = os.dup(1)
        os.dup2(log.fileno(), 1)
        try:
            os.write(1, b"run 1 of 2")
            found = changed_files(tmp_path, tmp_path / "out", 0.0)
        finally:
            os.dup2(before, 1)
            os.close(before)
    assert found == ["made"]
    assert changed_files(tmp_path, tmp_path / "out", 0.0) == ["log.txt", "made"]


def test_a_file_that_is_deleted_meanwhile_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("kept", "gone"):
        (tmp_path / name).write_text("x")
    listed = runs._entries(tmp_path)
    monkeypatch.setattr(runs, "_entries", lambda folder: listed)
    (tmp_path / "gone").unlink()
    assert changed_files(tmp_path, tmp_path / "out", 0.0) == ["kept"]


def test_a_run_that_only_reads_is_not_blamed_for_a_change(tmp_path: Path) -> None:
    database = tmp_path / "given.db"
    with sqlite3.connect(database) as connection:
        connection.execute("create table t (x)")
    watched = Watched(tmp_path)

    def first(look: Callable[..., None]) -> None:
        watched.read(look)
        look("sqlite3.connect", str(database))
        with sqlite3.connect(database) as connection:
            connection.execute("insert into t values (1)")

    watched.run(first)
    watched.run(watched.read)
    assert watched.found == {"given.db": FileChange.UNSEEN}


def test_a_file_that_one_run_created_and_another_process_changed_later_is_unseen(tmp_path: Path) -> None:
    watched = Watched(tmp_path)
    watched.run(lambda look: written(look, tmp_path / "made"))
    watched.run(lambda look: (tmp_path / "made").write_text("edited") and None)
    watched.run(watched.read)
    assert watched.found == {"made": FileChange.UNSEEN}


def test_a_relative_path_in_another_folder_is_not_taken_for_a_local_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    watched = Watched(tmp_path)

    def first(look: Callable[..., None]) -> None:
        look("open", "here", None, os.O_WRONLY | os.O_CREAT)
        look("os.rename", "there", "here", 5, 5)
        (tmp_path / "here").write_text("of another process")

    watched.run(first)
    watched.run(watched.read)
    assert watched.found == {"here": FileChange.UNSEEN}


def test_files_made_by_runs_are_distinguished_from_existing_ones(tmp_path: Path) -> None:
    kept = tmp_path / "kept.txt"
    kept.write_text("mine")
    watched = Watched(tmp_path)

    def act(look: Callable[..., None]) -> None:
        written(look, tmp_path / "epoch-1.pt")
        written(look, kept)

    watched.run(act)
    assert watched.times.made == {str(tmp_path / "epoch-1.pt")}
