"""Options of the command line, its messages, and what happens when its own output cannot be written."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from determinism.cli.options import Size
from tests.unit.test_trace_damage import write

COMMAND = [sys.executable, "-m", "determinism"]


@pytest.mark.parametrize(
    ("text", "size"),
    [("1", 1), ("500M", 500_000_000), ("2GiB", 2 * 2**30), ("1.5k", 1500), ("10 kb", 10_000), ("3Ti", 3 * 2**40)],
)
def test_a_size_is_parsed(text: str, size: int) -> None:
    assert Size().convert(text, None, None) == size


@pytest.mark.parametrize("text", ["", "M", "much", "-1", "0", "1X", "nan", "inf", "1e999", "0.2"])
def test_an_invalid_size_is_refused(text: str) -> None:
    with pytest.raises(click.BadParameter):
        Size().convert(text, None, None)


@pytest.mark.parametrize(
    ("arguments", "processes", "is_refused"),
    [
        (["check"], "2", True),
        (["golden", "create", "a.golden"], "2", True),
        (["record", "-o", "trace"], "2", True),
        (["record", "-o", "trace", "--part", "0"], "2", False),
        (["check"], "1", False),
        (["run"], "2", False),
    ],
)
def test_runs_are_not_made_by_each_rank_of_a_launcher(
    arguments: list[str], processes: str, is_refused: bool, tmp_path: Path
) -> None:
    program = ["--", sys.executable, "-c", "print('started')"]
    rank = {**os.environ, "TORCHELASTIC_RUN_ID": "none", "WORLD_SIZE": processes, "RANK": "1"}
    ended = subprocess.run(
        [*COMMAND, *arguments, *program], cwd=tmp_path, env=rank, capture_output=True, text=True, check=False
    )
    assert ("nothing was run. Start torchrun with it instead: " in ended.stderr) is is_refused
    assert ("-- torchrun ... -c " in ended.stderr) is is_refused
    assert ("started" in ended.stdout) is not is_refused
    if is_refused:
        assert ended.returncode == 2
        assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("launched", "launcher"),
    [
        ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "4"}, "mpirun"),
        ({"PMI_RANK": "0", "PMI_SIZE": "4"}, "mpirun"),
        ({"SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "4"}, "srun"),
        # The script of a batch job is one process, although the job has several tasks.
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, None),
    ],
)
def test_the_launcher_that_started_a_command_in_each_rank_is_named(
    launched: dict[str, str], launcher: str | None, tmp_path: Path
) -> None:
    program = ["--", sys.executable, "-c", "print('started')"]
    ended = subprocess.run(
        [*COMMAND, "check", *program],
        cwd=tmp_path,
        env={**os.environ, **launched},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ("started" in ended.stdout) is (launcher is None)
    if launcher is not None:
        assert f"{launcher} started this command in each of 4 processes" in ended.stderr
        assert f"-- {launcher} ... {sys.executable} -c " in ended.stderr


@pytest.fixture
def traces(tmp_path: Path) -> list[str]:
    return [str(write(tmp_path / "one")), str(write(tmp_path / "two"))]


def test_exit_statuses_match_the_reports(traces: list[str], tmp_path: Path) -> None:
    other = str(write(tmp_path / "three", records=30))
    for arguments, status in ((traces, 0), ([traces[0], other], 1), ([traces[0]], 2), ([traces[0], "nowhere"], 2)):
        report = tmp_path / "report.json"
        ended = subprocess.run([*COMMAND, "compare", "--json", report, *arguments], capture_output=True, check=False)
        assert ended.returncode == status
        assert json.loads(report.read_text())["verdict"] == ["same", "different", "inconclusive"][status]
        assert b"Traceback" not in ended.stderr
        report.unlink()


@pytest.mark.parametrize("redirection", [">/dev/full", ">&-", "2>&-", ">&- 2>&-", ">/dev/full 2>/dev/full", "| true"])
def test_output_that_cannot_be_written_causes_no_traceback(redirection: str, traces: list[str], tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    line = f'"$@" {redirection}'
    ended = subprocess.run(
        ["bash", "-c", line, "bash", *COMMAND, "compare", "--json", str(report), *traces],
        capture_output=True,
        check=False,
    )
    assert b"Traceback" not in ended.stderr
    assert b"Exception ignored" not in ended.stderr
    assert json.loads(report.read_text())["verdict"] == "same"
    assert ended.returncode == (2 if "/dev/full" in redirection and redirection.startswith(">") else 0)


@pytest.fixture
def unread() -> Iterator[int]:
    """A pipe whose reader is gone."""
    reading, writing = os.pipe()
    os.close(reading)
    yield writing
    os.close(writing)


def test_a_report_that_cannot_be_written_is_an_error_whatever_the_verdict(
    traces: list[str], tmp_path: Path, unread: int
) -> None:
    for command in (["compare", *traces], ["show", traces[0]]):
        ended = subprocess.run([*COMMAND, *command], stdout=unread, stderr=subprocess.PIPE, check=False)
        assert (ended.returncode, ended.stderr) == (2, b"")


def test_a_program_that_fails_without_a_reader_is_not_said_to_vary(tmp_path: Path, unread: int) -> None:
    program = tmp_path / "program.py"
    # More than a pipe holds, so that the program cannot end before it learns that nothing reads.
    program.write_text("print('much ' * 1_000_000)")
    command = [*COMMAND, "check", "--output", str(tmp_path / "traces"), "--", sys.executable, str(program)]
    ended = subprocess.run(command, stdout=unread, stderr=subprocess.PIPE, check=False, text=True)
    assert ended.returncode == 2
    assert "the reader of its output is gone" in " ".join(ended.stderr.split())
    assert "run 2" not in ended.stderr.replace("run 1 of 2", "")


@pytest.mark.parametrize("command", [["check", "--json", "--", "python", "a.py"], ["doctor", "--json", "-"]])
def test_an_argument_that_looks_like_an_option_is_not_a_file(command: list[str], tmp_path: Path) -> None:
    ended = subprocess.run([*COMMAND, *command], capture_output=True, check=False, text=True, cwd=tmp_path)
    assert ended.returncode == 2 and "expected a file path, got" in ended.stderr
    assert not list(tmp_path.iterdir())


def test_output_to_an_ascii_terminal_is_ascii(traces: list[str]) -> None:
    ended = subprocess.run(
        [*COMMAND, "show", traces[0]], env={"PYTHONIOENCODING": "ascii", "PATH": ""}, capture_output=True, check=False
    )
    assert ended.returncode == 0
    assert ended.stdout.isascii()


def test_a_process_without_records_has_no_size_of_a_record_and_no_table(tmp_path: Path) -> None:
    ended = subprocess.run(
        [*COMMAND, "show", str(write(tmp_path / "empty", records=0, ended=False))],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0
    assert "records      0 in 0 steps" in ended.stdout
    assert "per record" not in ended.stdout and "count" not in ended.stdout


def test_an_internal_error_causes_no_traceback(traces: list[str], tmp_path: Path) -> None:
    code = (
        "import determinism.session.check as check, determinism.__main__ as cli\n"
        "def fail(*a, **k): raise ZeroDivisionError('one')\n"
        "check.open_trace = fail\ncli.main()"
    )
    report = tmp_path / "report.json"
    ended = subprocess.run(
        [sys.executable, "-c", code, "compare", "--json", report, *traces], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 2
    assert "Traceback" not in ended.stderr
    assert "ZeroDivisionError" in ended.stderr
    assert json.loads(report.read_text())["trouble"][0]["id"] == "internal-error"


@pytest.mark.parametrize("command", ["check", "compare", "record", "show"])
def test_help_begins_with_the_usage(command: str) -> None:
    ended = subprocess.run([*COMMAND, command, "--help"], capture_output=True, text=True, check=False)
    assert ended.returncode == 0
    assert ended.stdout.startswith(f"Usage: determinism {command} ")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("check", "--vary", "", "--", "python"), "no factor is named. Give all, or some of: hash-seed"),
        (("check", "--vary", "hash-seed,moon", "--", "python"), "moon cannot be perturbed. Give all"),
        (("check", "--from-step", "3", "--level", "step", "--", "python"), "--level step records none"),
        (("record", "-o", "a", "--from-step", "3", "--level", "module", "--", "python"), "--level module records none"),
        (("run", "--seed", "-1", "--", "python", "-c", "open('began', 'w')"), "-1 is not in the range x>=0"),
        (("report", "."), "has no report.json, so there is nothing to print"),
        (("lint", "."), "There is no Python file or notebook here"),
    ],
)
def test_options_that_cannot_do_anything_are_refused_and_say_what_to_give(
    arguments: tuple[str, ...], said: str, tmp_path: Path
) -> None:
    done = subprocess.run([*COMMAND, *arguments], cwd=tmp_path, capture_output=True, text=True, check=False)

    assert done.returncode == (0 if arguments[0] == "lint" else 2)
    assert said in " ".join((done.stdout + done.stderr).split())
    assert not list(tmp_path.iterdir())


def test_a_window_that_begins_after_the_last_step_is_refused_before_anything_runs(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text("open('began', 'w')")
    command = [
        *COMMAND,
        "record",
        "--from-step",
        "3",
        "--steps",
        "3",
        "-o",
        "trace",
        "--",
        sys.executable,
        str(program),
    ]

    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    assert done.returncode == 2
    assert "--steps 3 ends before step 3 begins" in " ".join(done.stderr.split())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["train.py"]
