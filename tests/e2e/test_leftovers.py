"""Files that one run leaves for the next are reported, and each run can be made to start like the first."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.commands import TINY, check

PROGRAM = f"import sys; sys.path.append({str(TINY)!r})\n{(TINY / 'resuming.py').read_text(encoding='utf-8')}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A project with the program in it."""
    project = tmp_path / "project"
    project.mkdir()
    (project / "train.py").write_text(PROGRAM)
    return project


def command(*arguments: str) -> list[str]:
    """Return the arguments that start the program by a relative path."""
    return ["--", sys.executable, "train.py", *arguments]


def leftovers(report: dict[str, Any]) -> list[tuple[str, int, int]]:
    """Return the name of each file, and the runs that changed and read it."""
    return [(Path(found["file"]).name, found["changed_in"], found["read_in"]) for found in report["leftovers"]]


def test_file_read_by_a_program_that_resumes_is_reported(folder: Path) -> None:
    finished = check(folder, *command("resume"))

    assert finished.status == 1
    assert finished.report["leftovers"] == [
        {"file": str(folder / "last.pt"), "changed_in": 1, "read_in": 2, "change": "created"}
    ]
    assert "The runs did not start from the same files: run 2 read last.pt, which run 1 had left" in finished.text
    assert "--before 'rm -f last.pt', or --fresh-copy" in finished.text


def test_a_copy_is_not_suggested_for_a_file_outside_the_folder(folder: Path, tmp_path: Path) -> None:
    finished = check(folder, *command("resume", str(tmp_path)))

    assert leftovers(finished.report) == [("last.pt", 1, 2)]
    assert "--before" in finished.text
    assert "--fresh-copy" not in finished.text


@pytest.mark.parametrize(("how", "file"), [("rates", "rates.db"), ("child", "scale.txt")])
def test_databases_and_processes_without_a_framework_are_seen(how: str, file: str, folder: Path) -> None:
    finished = check(folder, *command(how))

    assert finished.status == 1
    assert leftovers(finished.report) == [(file, 1, 2)]


def test_removal_is_not_suggested_for_an_input_edited_during_a_run(folder: Path) -> None:
    (folder / "config.yaml").write_text("1.0")
    finished = check(folder, *command("edited"))

    assert finished.status == 1
    assert [found["change"] for found in finished.report["leftovers"]] == ["unseen"]
    assert "run 2 read config.yaml, which changed during run 1, perhaps by another process" in finished.text
    assert "rm -f" not in finished.text + json.dumps(finished.report)


def test_leftovers_of_equal_runs_are_only_a_note(folder: Path) -> None:
    finished = check(folder, "-n", "3", *command("cached"))

    assert finished.status == 0
    assert leftovers(finished.report) == [("cache.json", 1, 2), ("cache.json", 2, 3)]
    assert "run 2 read cache.json, which run 1 had left" in finished.text
    assert "from the same files" not in finished.text


@pytest.mark.parametrize(("how", "status"), [("own", 0), ("random", 1)])
def test_a_file_written_by_the_run_itself_is_not_a_leftover(how: str, status: int, folder: Path) -> None:
    (folder / "old.pt").write_bytes(b"from before")
    finished = check(folder, *command(how))

    assert finished.status == status
    assert finished.report["leftovers"] == []
    assert "from the same files" not in finished.text


@pytest.mark.parametrize("option", [["--before", "rm -f last.pt; echo removed"], ["--fresh-copy"]])
def test_runs_that_start_from_the_same_files_are_the_same(option: list[str], folder: Path) -> None:
    finished = check(folder, *option, *command("resume"))

    assert finished.status == 0
    assert finished.report["leftovers"] == []
    assert b"removed" not in finished.stdout
    assert (folder / "last.pt").exists() == (option != ["--fresh-copy"])
    assert not (folder / ".determinism").exists()


def test_output_of_the_before_command_is_kept_with_the_traces(folder: Path) -> None:
    check(folder, "--output", "out", "--keep", "--before", "rm -f last.pt; pwd; echo wrong >&2", *command("resume"))

    logs = [(folder / "out" / f"run-{number}.before.log").read_text() for number in (1, 2)]
    assert logs == [f"{folder}\nwrong\n"] * 2


def test_no_run_is_made_after_a_failed_before_command(folder: Path) -> None:
    finished = check(folder, "--output", "out", "--before", "echo no such disk; exit 3", *command("resume"))

    assert finished.trouble == ["before-failed"]
    assert "ended with exit status 3, so run 1 of 2 was not made" in finished.text
    assert finished.report["runs"] == []
    assert (folder / "out" / "run-1.before.log").read_text() == "no such disk\n"
    assert not (folder / "last.pt").exists()


def test_second_run_is_not_made_if_its_before_command_fails(folder: Path) -> None:
    finished = check(folder, "--before", "test ! -e last.pt", *command("resume"))

    assert finished.trouble == ["before-failed"]
    assert len(finished.report["runs"]) == 1
