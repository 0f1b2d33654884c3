"""Programs that fail, are killed or stop early: their records up to that point are compared, and so is how they ended."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from determinism.errors import exit_phrase
from determinism.trace.opening import open_trace
from determinism.trace.schema import Table
from tests.e2e.commands import check, compare, program, run


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The trace of a successful run of three steps."""
    folder = tmp_path_factory.mktemp("whole")
    assert run(folder, "record", "-o", "trace", "--", *program()).status == 0
    return folder / "trace"


def ops(trace: Path) -> list[str]:
    """The ops of the only process, in order."""
    (process,) = open_trace(trace).processes
    names = process.names.texts(Table.OP)
    return [names[op] for chunk in process.chunks() for op in chunk.columns["op"]]


ENDINGS = [
    ("raise", 1, None),
    ("exit", 3, None),
    ("kill", -9, "SIGKILL"),
    ("segfault", -11, "SIGSEGV"),
    ("_exit", 5, None),
    ("abort", -6, "SIGABRT"),
]


@pytest.mark.parametrize(("how", "status", "stopped_by"), ENDINGS)
def test_every_record_before_the_end_is_kept(
    how: str, status: int, stopped_by: str | None, whole: Path, tmp_path: Path
) -> None:
    finished = check(tmp_path, "--output", "out", "--", *program(how))

    assert finished.report is not None
    assert finished.report["verdict"] == "inconclusive"
    assert finished.trouble == ["runs-failed"]
    assert f"All runs ended with {exit_phrase(status)}." in finished.text
    assert [(run["exit_status"], run["stopped_by"]) for run in finished.report["runs"]] == [(status, stopped_by)] * 2
    assert finished.report["recorded"]["steps"] == 2
    recorded = ops(tmp_path / "out" / "run-1")
    expected = ops(whole)
    ended_by_itself = ["determinism::end"] if how in ("raise", "exit") else []
    until = [number for number, op in enumerate(expected) if op == "determinism::step"][1] + 2
    assert expected[until - 1] == "tiny::randn"
    assert recorded == expected[:until] + ended_by_itself
    assert finished.report["recorded"]["records"] == len(recorded)


def test_equal_failures_are_the_same_if_allowed(tmp_path: Path) -> None:
    run(tmp_path, "record", "-o", "first", "--", *program("kill"))
    finished = check(tmp_path, "--allow-failure", "--runs-from", "first", "--", *program("kill"))

    assert finished.status == 0
    assert [run["exit_status"] for run in finished.report["runs"]] == [-9, -9]


def test_unequal_endings_differ(tmp_path: Path) -> None:
    finished = check(tmp_path, "--", *program("sometimes", "1"))

    assert finished.status == 1
    assert finished.report["first_divergence"]["kind"] == "structure"
    assert [run["exit_status"] for run in finished.report["runs"]] == [0, 4]
    assert "exit status 4" in finished.text


def test_tensors_decide_the_verdict_even_if_both_runs_failed(tmp_path: Path) -> None:
    commands = [*program("unseeded"), ";", "exit", "3"]
    finished = check(tmp_path, "--allow-failure", "--", "sh", "-c", f"{' '.join(commands)}")

    assert finished.status == 1
    assert finished.report["first_divergence"]["kind"] == "rng"
    assert [run["exit_status"] for run in finished.report["runs"]] == [3, 3]


def test_more_steps_in_one_run_are_aligned(tmp_path: Path) -> None:
    finished = check(tmp_path, "--no-explain", "--", *program("longer", "0"))

    assert finished.status == 1
    first = finished.report["first_divergence"]
    assert (first["kind"], first["step"]) == ("structure", 3)
    assert finished.report["recorded"]["steps"] == 3


def test_killed_and_complete_run_agree_until_the_kill(whole: Path, tmp_path: Path) -> None:
    run(tmp_path, "record", "-o", "killed", "--", *program("kill"))
    finished = compare(tmp_path, whole, "killed")

    assert finished.status == 1
    first = finished.report["first_divergence"]
    assert (first["kind"], first["step"]) == ("structure", 2)


def test_a_program_may_have_fewer_steps_than_requested(tmp_path: Path) -> None:
    finished = check(tmp_path, "--steps", "100", "-n", "3", "--", *program())

    assert finished.status == 0
    assert finished.report["recorded"]["steps"] == 3
    assert [run["stopped_by"] for run in finished.report["runs"]] == [None, None, None]
    assert "Same: 3 runs" in finished.text
    assert not (tmp_path / ".determinism").exists()


def test_the_steps_option_ends_the_program(whole: Path, tmp_path: Path) -> None:
    finished = check(tmp_path, "--steps", "2", "--output", "out", "--keep", "--", *program())

    assert finished.status == 0
    assert finished.report["recorded"]["steps"] == 2
    assert {run["stopped_by"] for run in finished.report["runs"]} == {"steps"}
    assert b"finished" not in finished.stdout

    mixed = compare(tmp_path, whole, "out/run-1")
    assert mixed.trouble == ["steps-differ"]


NOTHING: list[tuple[list[str], str]] = [
    (["true"], "torch"),
    ([*program()[:1], "-c", "print(1)"], "torch"),
    ([*program()[:1], "-c", "import torch"], "no op of it was recorded"),
]


@pytest.mark.parametrize(("command", "said"), NOTHING, ids=["true", "no torch", "no op"])
def test_a_program_without_records_is_reported(command: list[str], said: str, tmp_path: Path) -> None:
    finished = check(tmp_path, "--", *command)

    assert finished.trouble == ["nothing-recorded"]
    assert said in finished.text
    assert all(run["exit_status"] == 0 for run in finished.report["runs"])


@pytest.fixture
def startable(tmp_path: Path) -> Iterator[Path]:
    (tmp_path / "folder").mkdir()
    (tmp_path / "plain.sh").write_text("print(1)\n")
    return tmp_path


@pytest.mark.parametrize("command", ["nosuchcommand", "./folder", "./plain.sh", "./missing.py"])
def test_a_command_that_cannot_be_started_is_reported(command: str, startable: Path) -> None:
    finished = check(startable, "--", command, "--epochs", "2")

    assert finished.status == 2
    assert len(finished.trouble) == 1
    assert finished.trouble[0].startswith("command-")
    assert command in finished.text
    assert finished.report["runs"] == []
    assert not (startable / ".determinism").exists()
    assert run(startable, "record", "-o", "trace", "--", command).status == 2
    assert not (startable / "trace").exists()


def test_an_interpreter_without_the_required_packages_is_reported(tmp_path: Path) -> None:
    made = [*program()[:1], "-m", "venv", "--without-pip", str(tmp_path / "bare")]
    subprocess.run(made, check=True)
    python = tmp_path / "bare" / "bin" / "python"
    finished = check(tmp_path, "--", python, "-c", "print(1)")

    assert finished.trouble == ["interpreter-lacks-packages"]
    assert "numpy and pyarrow and xxhash" in finished.text
    assert f"{python} -m pip install" in finished.text
    assert finished.report["runs"] == []
