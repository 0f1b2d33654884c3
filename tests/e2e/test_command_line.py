"""The command as users see it: output, progress, options, and the commands `show` and `record`."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import struct
import subprocess
import termios
from collections.abc import Callable
from pathlib import Path

import pytest

from determinism.trace.opening import open_trace
from tests.conftest import MadeOnce
from tests.e2e.commands import COMMAND, check, compare, program, run, tiny_code, torch_program

BYTES = bytes(range(256)) * 3


Recorded = Callable[[str], Path]


@pytest.fixture
def traces(made_once: MadeOnce) -> Recorded:
    """Return the trace of a program at a level: with PyTorch, or with the tiny framework if the level begins with `tiny-`."""

    def recorded(level: str) -> Path:
        def fill(folder: Path) -> None:
            command = program() if level.startswith("tiny-") else torch_program()
            ended = run(folder, "record", "--level", level.removeprefix("tiny-"), "-o", "trace", "--", *command)
            assert ended.status == 0, ended.text

        return made_once(f"command-line-{level}", fill) / "trace"

    return recorded


def test_output_of_the_first_run_passes_through(tmp_path: Path) -> None:
    code = (
        "frame.full(3, 1.0); data = bytes(range(256)) * 3; sys.stdout.buffer.write(data); sys.stderr.buffer.write(data)"
    )
    command = [*COMMAND, "check", "--keep", "--output", "out", "--", *tiny_code(code)]
    finished = subprocess.run(command, cwd=tmp_path, capture_output=True, check=False)

    assert finished.returncode == 0
    assert finished.stdout.startswith(BYTES)
    assert finished.stdout[len(BYTES) :].startswith(b"\nSame: "), "it ends within a line"
    assert finished.stderr.count(BYTES) == 1
    assert (tmp_path / "out" / "run-2.log").read_bytes() == BYTES * 2


@pytest.mark.parametrize("into", ["pipe", "file", "other stream"])
@pytest.mark.parametrize(("end", "between"), [("", b"\n"), ("\n", b"")])
def test_the_report_begins_on_a_new_line_even_after_an_unfinished_line(
    end: str, between: bytes, into: str, tmp_path: Path
) -> None:
    code = tiny_code(f"frame.full(3, 1.0); print('begin', 'loss 0.5', sep=chr(10), end={end!r})")
    command = [*COMMAND, "check", "--output", "out", "--", *code]
    with (tmp_path / "shown").open("w+b") as file:
        stdout = file if into == "file" else subprocess.PIPE
        stderr = subprocess.STDOUT if into == "other stream" else subprocess.DEVNULL
        ended = subprocess.run(command, cwd=tmp_path, stdout=stdout, stderr=stderr, check=False)
    shown = (tmp_path / "shown").read_bytes() if into == "file" else ended.stdout
    if into == "other stream":
        # stderr shares the pipe and cannot know whether stdout ended within a line.
        assert re.search(rb"\nloss 0.5\n?determinism: run 2 of 2, .*\nSame: ", shown), shown
    else:
        assert shown.startswith(b"begin\nloss 0.5" + between + end.encode() + b"Same: "), shown
    assert ended.returncode == 0


def _screen(written: bytes, columns: int) -> list[str]:
    """Return the lines that a terminal shows after these bytes are written to it."""
    lines, row, column = [[" "] * columns], 0, 0
    text = re.sub(r"\x1b\[[0-9;]*m", "", written.decode()).replace("\x1b[2K", "\0")
    for character in text:
        if character == "\r":
            column = 0
        elif character == "\0":
            lines[row] = [" "] * columns
        else:
            # In the last column, the line wraps only when the next character is written.
            if character == "\n" or column == columns:
                row, column = row + 1, 0 if column == columns and character != "\n" else column
                lines += [[" "] * columns] if row == len(lines) else []
            if character != "\n":
                lines[row][column] = character
                column += 1
    return ["".join(line).rstrip() for line in lines]


@pytest.mark.parametrize("end", ["", "\n"])
@pytest.mark.parametrize("is_found", [False, True])
def test_an_unfinished_line_of_the_program_stays_on_the_terminal(end: str, is_found: bool, tmp_path: Path) -> None:
    columns = 70
    main, other = pty.openpty()
    fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    seeds = "frame.seed(); " if is_found else ""
    code = f"{seeds}y = frame.randn(3) if {is_found} else frame.full(3, 1.0); frame.step(weight=y); print('loss 0.5', end={end!r})"
    command = [*COMMAND, "check", "--no-explain", "--", *tiny_code(code)]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=other, stderr=other, stdin=other)
    os.close(other)
    seen = b""
    while True:
        try:
            seen += (part := os.read(main, 65536))
        except OSError:
            break
        if not part:
            break
    os.close(main)
    assert process.wait() == int(is_found), seen
    shown = _screen(seen, columns)
    at = shown.index("loss 0.5")
    assert shown[at + 1].startswith("Different: " if is_found else "Same: "), shown


def test_progress_is_shown_on_a_terminal(tmp_path: Path) -> None:
    main, other = pty.openpty()
    command = [*COMMAND, "check", "--", *program("hold", "2", "3")]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=other, stderr=other, stdin=other)
    os.close(other)
    seen = b""
    while process.poll() is None or select.select([main], [], [], 0.2)[0]:
        try:
            seen += os.read(main, 65536) if select.select([main], [], [], 0.2)[0] else b""
        except OSError:
            break
        if b"run 2 of 2, step 2," in seen:
            (tmp_path / "released").touch()
    os.close(main)

    assert process.wait() == 0
    assert b"determinism: run 1 of 2\r\n" in seen
    first, _, rest = seen.partition(b"finished 3")
    assert b"\x1b[2K" not in first
    progress = [part for part in rest.split(b"\r\x1b[2K") if b"run 2 of 2, step 2," in part and b" left" in part]
    assert progress
    assert rest.rpartition(b"\x1b[2K")[2].lstrip(b"\x1b[0123456789;m").startswith(b"Same: ")
    assert b"finished" not in rest


def test_options_after_the_program_belong_to_it(tmp_path: Path) -> None:
    code = tiny_code("frame.full(2, 1.0); print(sys.argv[1:])")
    finished = run(tmp_path, "check", *code, "--keep", "-h", "--json", "x")

    assert finished.status == 0
    assert b"['--keep', '-h', '--json', 'x']" in finished.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("level", [pytest.param("module", marks=pytest.mark.thorough("launching")), "step"])
def test_coarser_levels_are_recorded_and_compared(level: str, traces: Recorded, tmp_path: Path) -> None:
    same = check(tmp_path, "--runs-from", traces(level), "--level", level, "--", *torch_program())
    assert same.status == 0
    assert f"recorded at level {level}, which does not record single ops" in same.text

    unseeded = torch_program("unseeded")
    different = check(tmp_path, "--no-explain", "--runs-from", traces(level), "--level", level, "--", *unseeded)
    assert different.status == 1
    if level == "step":
        assert different.report["first_divergence"]["kind"] is None
        assert "--level op" in different.text


def test_levels_do_not_mix(traces: Recorded, tmp_path: Path) -> None:
    assert compare(tmp_path, traces("tiny-op"), traces("tiny-step")).trouble == ["levels-differ"]
    finished = check(tmp_path, "--runs-from", traces("tiny-step"), "--", *program())
    assert finished.trouble == ["levels-differ"]
    assert "Give --level step" in finished.text
    assert finished.report["runs"] == []
    assert not (tmp_path / ".determinism").exists()


def test_show_prints_a_whole_trace_or_a_step(traces: Recorded, tmp_path: Path) -> None:
    whole = run(tmp_path, "show", traces("op"))
    assert whole.status == 0
    assert "in 3 steps" in whole.text
    assert "aten::addmm" in whole.text

    step = run(tmp_path, "show", "--step", "1", traces("op")).stdout.decode().splitlines()[1:]
    assert len(step) > 5
    assert all(" step 1 " in line for line in step)
    assert any("programs/breaking.py:" in line for line in step)
    shown = run(tmp_path, "show", "--records", "4", traces("op")).stdout.decode().splitlines()
    assert len(shown) == 6 and " more; --records" in shown[-1]
    assert "no records of step 9; it has 3 steps" in run(tmp_path, "show", "--step", "9", traces("op")).text


def test_existing_output_is_kept(traces: Recorded, tmp_path: Path) -> None:
    for command in (["check", "--output"], ["check", "-o"], ["narrow", "-o"], ["record", "-o"]):
        finished = run(tmp_path, *command, traces("tiny-op"), "--", *program("raise", "0"))
        assert finished.status == 2
        assert "already exists and is not empty" in finished.text
        assert "broken" not in finished.text
    assert json.loads((traces("tiny-op") / "manifest.json").read_text())["exit_status"] == 0


def test_unwritable_report_is_an_error_before_the_program_runs(tmp_path: Path) -> None:
    finished = run(tmp_path, "check", "--json", "missing/report.json", "--", *program("raise", "0"))
    assert finished.status == 2
    assert "missing does not exist" in finished.text
    assert "broken" not in finished.text


@pytest.mark.parametrize(("how", "status"), [("exit", 3), ("kill", 137), ("finish", 0)])
def test_record_exits_with_the_status_of_the_program(how: str, status: int, tmp_path: Path) -> None:
    finished = run(tmp_path, "record", "-o", "trace", "--", *program(how))
    assert finished.status == status
    assert finished.stdout == (b"finished 3\n" if how == "finish" else b"")


def test_wrong_options_are_reported(tmp_path: Path) -> None:
    assert check(tmp_path, "--max-disk", "much", "--", "true").trouble == ["usage"]
    assert check(tmp_path).trouble == ["usage"]
    assert check(tmp_path, "-n", "1", "--", "true").trouble == ["usage"]


@pytest.mark.parametrize(
    "words",
    [
        ("compare", "{path}", "{path}"),
        ("show", "{path}"),
        ("report", "{path}", "--html", "r.html"),
        ("record", "-o", "{path}", "--", *program()),
        ("check", "--runs-from", "{path}", "--", *program()),
        ("check", "--before", "false", "--output", "{path}/out", "--", *program()),
        ("run", "--", "{path}/python"),
        ("doctor", "--", "{path}/python", "train.py"),
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_line_break_in_a_path_cannot_start_a_new_line_of_a_message(words: tuple[str, ...], tmp_path: Path) -> None:
    folder = tmp_path / "a\n::error::b"
    folder.mkdir()
    (folder / "file").touch()
    finished = run(tmp_path, *[word.replace("{path}", str(folder)) for word in words])

    assert finished.status == 2
    assert b"a\\n::error::b" in finished.stdout + finished.stderr.encode()
    assert b"\n::error::" not in finished.stdout + finished.stderr.encode()


@pytest.mark.parametrize("words", [("record", "-o", "out/run-1", "--"), ("check", "--keep", "--output", "out", "--")])
def test_paranoid_also_digests_inputs_made_by_recorded_ops(words: tuple[str, ...], tmp_path: Path) -> None:
    digests = []
    for option in ([], ["--paranoid"]):
        folder = tmp_path / f"with{len(option)}"
        folder.mkdir()
        assert run(folder, words[0], *option, *words[1:], *program()).status == 0
        trace = open_trace(folder / "out" / "run-1")
        assert trace.manifest["paranoid"] is bool(option)
        (process,) = trace.processes
        digests.append(sum(int(chunk.children["input_digests"].starts[-1]) for chunk in process.chunks()))
    assert digests[1] > digests[0]
