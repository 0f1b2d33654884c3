"""The output of a shown run goes to its usual destination and to its log, without the program noticing."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from determinism.launch.program import failed_run_text

_RUN = """
import subprocess, sys
from pathlib import Path
from determinism.launch.io import OutputLog
log, is_shown, program = Path(sys.argv[1]), sys.argv[2] == "shown", sys.argv[3]
with OutputLog(log, is_shown=is_shown) as output:
    process = subprocess.Popen([sys.executable, "-c", program], stdout=output.stdout, stderr=output.stderr)
    output.started()
    status = process.wait()
sys.exit(status)
"""
_BOTH = """
import os
for number in range(300):
    os.write(1, b"out %d\\n" % number)
    os.write(2, b"err %d\\n" % number)
"""
_LINES = [f"{stream} {number}" for number in range(300) for stream in ("out", "err")]


def start(log: Path, program: str, stdout: int, stderr: int, *, how: str = "shown") -> subprocess.Popen[bytes]:
    """Start a process that runs a program and keeps its output."""
    return subprocess.Popen([sys.executable, "-c", _RUN, str(log), how, program], stdout=stdout, stderr=stderr)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "run-1.log"


def test_one_pipe_for_both_streams_keeps_their_order(log: Path) -> None:
    with start(log, _BOTH, subprocess.PIPE, subprocess.STDOUT) as run:
        shown = run.communicate()[0].decode()
    assert shown.splitlines() == _LINES
    assert log.read_text() == shown


def test_two_pipes_stay_apart(log: Path) -> None:
    with start(log, _BOTH, subprocess.PIPE, subprocess.PIPE) as run:
        out, err = (text.decode().splitlines() for text in run.communicate())
    assert (out, err) == (_LINES[::2], _LINES[1::2])
    assert sorted(log.read_text().splitlines()) == sorted(_LINES)


@pytest.mark.parametrize("mode", ["w", "a"])
def test_a_file_is_written_by_the_program_itself_and_copied_afterwards(mode: str, log: Path, tmp_path: Path) -> None:
    file = tmp_path / "all.txt"
    file.write_text("before\n")
    with file.open(mode) as opened:
        if mode == "w":
            os.write(opened.fileno(), b"before\n")
        program = f"import os; print(os.path.sameopenfile(1, os.open({str(file)!r}, os.O_RDONLY)))"
        assert start(log, program, opened.fileno(), opened.fileno()).wait() == 0
    assert file.read_text() == "before\nTrue\n"
    assert log.read_text() == "True\n"


def read_until_closed(terminal: int) -> str:
    """The output of a terminal until no process has it open for writing."""
    text = b""
    while True:
        try:
            data = os.read(terminal, 4096)
        except OSError:
            return text.decode()
        if not data:
            return text.decode()
        text += data


def test_a_program_on_a_terminal_gets_a_terminal_of_the_same_size(log: Path) -> None:
    terminal, program_end = os.openpty()
    fcntl.ioctl(program_end, termios.TIOCSWINSZ, b"\x28\x00\x64\x00\x00\x00\x00\x00")
    program = "import os, sys; print(sys.stdout.isatty(), sys.stderr.isatty(), *os.get_terminal_size(1))"
    run = start(log, program, program_end, program_end)
    os.close(program_end)
    shown = read_until_closed(terminal)
    assert run.wait() == 0
    assert shown == "True True 100 40\r\n"
    assert log.read_text() == "True True 100 40\n"


def test_a_resized_terminal_is_resized_for_the_program(log: Path) -> None:
    terminal, program_end = os.openpty()
    fcntl.ioctl(program_end, termios.TIOCSWINSZ, b"\x28\x00\x64\x00\x00\x00\x00\x00")
    program = """
import os, time
print("began", flush=True)
deadline = time.monotonic() + 300
while os.get_terminal_size(1).columns != 70:
    assert time.monotonic() < deadline
    time.sleep(0.01)
"""
    run = start(log, program, program_end, program_end)
    assert os.read(terminal, 100).startswith(b"b")
    fcntl.ioctl(program_end, termios.TIOCSWINSZ, b"\x28\x00\x46\x00\x00\x00\x00\x00")
    assert run.wait(600) == 0
    os.close(program_end)
    os.close(terminal)


def test_a_program_notices_that_its_reader_is_gone(log: Path) -> None:
    program = "import os\ntry:\n  while True: os.write(1, b'x' * 1000)\nexcept BrokenPipeError: os._exit(7)"
    with start(log, program, subprocess.PIPE, subprocess.DEVNULL) as run:
        assert run.stdout is not None
        assert run.stdout.read(10) == b"x" * 10
        run.stdout.close()
        assert run.wait(600) == 7


def test_a_slow_reader_of_a_nonblocking_pipe_gets_everything(log: Path) -> None:
    read, write = os.pipe()
    os.set_blocking(write, False)
    run = start(log, "import os\nfor _ in range(300): os.write(1, b'x' * 1000)", write, subprocess.DEVNULL)
    os.close(write)
    time.sleep(0.5)
    size = 0
    while data := os.read(read, 4096):
        size += len(data)
    assert (run.wait(), size, log.stat().st_size) == (0, 300_000, 300_000)
    os.close(read)


def test_a_process_that_outlives_the_program_does_not_delay_the_run(log: Path) -> None:
    end = log.with_name("end")
    program = (
        "import os, time\nif os.fork():\n  print('done', flush=True)\nelse:\n  for _ in range(9000):\n"
        f"    time.sleep(0 if os.path.exists({str(end)!r}) else 0.1)"
    )
    with start(log, program, subprocess.PIPE, subprocess.DEVNULL) as run:
        try:
            assert run.wait(300) == 0
        finally:
            end.touch()
    assert log.read_text() == "done\n"


def test_hidden_output_goes_only_to_the_log(log: Path) -> None:
    with start(log, _BOTH, subprocess.PIPE, subprocess.PIPE, how="hidden") as run:
        assert run.communicate() == (b"", b"")
    assert log.read_text().splitlines() == _LINES


def test_without_a_pseudo_terminal_the_program_gets_the_terminal_itself(log: Path) -> None:
    terminal, program_end = os.openpty()
    broken = "import os\ndef openpty(): raise OSError('none left')\nos.openpty = openpty\n" + _RUN
    program = "import os; print(os.ttyname(1))"
    run = subprocess.Popen([sys.executable, "-c", broken, str(log), "shown", program], stdout=program_end)
    name = os.ttyname(program_end)
    os.close(program_end)
    assert read_until_closed(terminal) == f"{name}\r\n"
    assert run.wait() == 0
    assert not log.exists()


@pytest.mark.parametrize(
    ("printed", "quoted"),
    [
        ("Traceback (most recent call last):\n  ...\nKeyError: 'model'\n\n", "KeyError: 'model'"),
        ("x" * 9_000 + "\n" + "y" * 900, "y" * 200),
        ("\x1b[31mfailed\x1b[0m\n", r"\x1b[31mfailed\x1b[0m"),
        ("", "nothing"),
    ],
)
def test_the_message_about_a_failed_run_quotes_its_last_output(log: Path, printed: str, quoted: str) -> None:
    log.write_text(printed)
    text = failed_run_text("resumed run", 1, log)
    assert text.startswith("The resumed run ended with exit status 1, so there is no complete run to compare.")
    assert text.endswith(f'Its output is in {log}, and ends with "{quoted}".')


def test_output_that_was_shown_is_not_quoted(log: Path) -> None:
    assert failed_run_text("full run", 3, None).endswith("Its output is above.")
    # The log is gone.
    assert failed_run_text("full run", 3, log).endswith(f"Its output is in {log}.")
