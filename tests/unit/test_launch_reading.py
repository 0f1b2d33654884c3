"""What counts as reading what an earlier run left."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest

from determinism.launch.leftovers import RunTimes
from determinism.launch.reading import Readings


class Stage:
    """A run that is over and one that goes on."""

    def __init__(self, folder: Path) -> None:
        self.times = RunTimes(1)
        self.trace = folder / "out" / "run-2"
        self.trace.mkdir(parents=True)
        time.sleep(0.02)

    def begin(self) -> None:
        """The second run."""
        request = json.dumps({"trace_folder": str(self.trace)})
        self.readings = Readings(self.times.ended, request)

    def open(self, file: Any, flags: int = os.O_RDONLY) -> None:
        """What Python audits when a file is about to be opened."""
        self.readings.look("open", (file, None, flags))

    def found(self) -> list[str]:
        """Names of the leftovers."""
        self.times.ended.append((0, 0))
        return [Path(left.file).name for left in self.times.leftovers(self.trace, fresh_copy=False)]


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    stage = Stage(tmp_path)
    (tmp_path / "before").write_text("x")
    time.sleep(0.02)
    with stage.times.run():
        time.sleep(0.02)
        for name in ("left", "rewritten", "module.pyc", "out/run-1.log"):
            (tmp_path / name).write_text("x")
        (tmp_path / "empty").touch()
    (tmp_path / "between").write_text("x")
    stage.begin()
    (tmp_path / "rewritten").write_text("y")
    return stage


def test_only_what_the_earlier_run_changed_last_is_left(stage: Stage, tmp_path: Path) -> None:
    for name in ("before", "left", "rewritten", "between", "empty", "module.pyc", "out/run-1.log", "missing", "."):
        stage.open(str(tmp_path / name))
    assert stage.found() == ["left"]


@pytest.mark.parametrize("kind", [os.fspath, os.fsencode, Path])
def test_every_way_to_name_a_file(kind: Any, stage: Stage, tmp_path: Path) -> None:
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


def test_link_leads_to_what_it_means(stage: Stage, tmp_path: Path) -> None:
    (tmp_path / "latest").symlink_to("left")
    stage.open(str(tmp_path / "latest"))
    assert stage.found() == ["latest"]


def test_cut_notes_do_not_hinder(stage: Stage, tmp_path: Path) -> None:
    stage.open(str(tmp_path / "left"))
    (note,) = stage.trace.glob("leftovers-*.jsonl")
    note.write_text(note.read_text() + '{"run": 0, "fi')
    assert stage.found() == ["left"]
