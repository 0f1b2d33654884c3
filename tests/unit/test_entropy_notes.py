"""Requests for random bytes in a run are noted: the line of the program, and the library that made the request."""

from __future__ import annotations

import json
import os
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from determinism.launch.enabling_child import ENTROPY_PREFIX, EntropyNotes
from determinism.run_spec import RunSpec

LIBRARY = str(Path(sysconfig.get_paths()["purelib"]) / "drawing.py")


@pytest.fixture
def notes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> EntropyNotes:
    for name, value in RunSpec(tmp_path).added_to({}).items():
        monkeypatch.setenv(name, value)
    return EntropyNotes()


def in_a_library(function: Callable[[], Any]) -> None:
    """Call a function from code in a library."""
    names: dict[str, Any] = {}
    exec(compile("def draw(function):\n    function()\n", LIBRARY, "exec"), names)
    names["draw"](function)


def written(folder: Path) -> list[list[tuple[str, str]]]:
    """File and function of each frame of each note."""
    file = folder / f"{ENTROPY_PREFIX}{os.getpid()}.jsonl"
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    return [[(Path(frame[0]).name, frame[2]) for frame in json.loads(line)] for line in lines]


def test_a_line_of_the_program_is_noted_once(notes: EntropyNotes, tmp_path: Path) -> None:
    for _ in range(3):
        notes.asked()

    (frames,) = written(tmp_path)
    assert frames == [(Path(__file__).name, "test_a_line_of_the_program_is_noted_once")]


def test_for_a_library_the_calling_line_is_noted_too(notes: EntropyNotes, tmp_path: Path) -> None:
    in_a_library(notes.asked)

    (frames,) = written(tmp_path)
    assert frames == [("drawing.py", "draw"), (Path(__file__).name, "in_a_library")]


def test_without_a_trace_nothing_is_noted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in RunSpec(tmp_path).added_to({}):
        monkeypatch.delenv(name, raising=False)

    EntropyNotes().asked()

    assert list(tmp_path.iterdir()) == []
