"""The folder of a check stays out of the program's repository, and is removed if it is empty."""

from __future__ import annotations

from pathlib import Path

import pytest

from determinism.launch.io import OutputFolder


def test_a_repository_does_not_see_the_traces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    OutputFolder(None)
    assert (tmp_path / ".determinism" / ".gitignore").read_text() == "*\n"


def test_nothing_is_added_to_a_folder_that_the_user_gave(tmp_path: Path) -> None:
    OutputFolder(tmp_path / "traces")
    assert not list((tmp_path / "traces").iterdir())


def test_nothing_remains_if_nothing_was_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    OutputFolder(None).remove_if_empty()
    assert not list(tmp_path.iterdir())


def test_traces_of_other_checks_are_kept_and_still_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    earlier = OutputFolder(None)
    earlier.log("run-1").touch()
    OutputFolder(None).remove_if_empty()
    assert earlier.log("run-1").exists()
    assert (tmp_path / ".determinism" / ".gitignore").exists()
