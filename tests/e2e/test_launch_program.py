"""Running real programs: exit statuses, output, terminals, input, signals."""

import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import textwrap
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from determinism.errors import LaunchError
from determinism.launch.io import StandardInput
from determinism.launch.program import ProgramExit, run_program
from determinism.run_spec import RunSpec


@pytest.fixture
def spec(tmp_path: Path) -> RunSpec:
    (tmp_path / "trace" / "processes").mkdir(parents=True)
    return RunSpec(tmp_path / "trace")


def python(code: str) -> list[str]:
    return [sys.executable, "-c", textwrap.dedent(code)]


@pytest.mark.parametrize(
    ("command", "status", "stopped_by"),
    [
        (["true"], 0, None),
        (["sh", "-c", "exit 7"], 7, None),
        (python("raise SystemExit(3)"), 3, None),
        (python("1 / 0"), 1, None),
        (["sh", "-c", "kill -KILL $$"], -9, "SIGKILL"),
        (["sh", "-c", "kill -ABRT $$"], -6, "SIGABRT"),
        (["sh", "-c", "sh -c 'kill -SEGV $$'; exit $?"], 139, None),
    ],
)
def test_exit_status_passes_through(
    command: list[str], status: int, stopped_by: str | None, spec: RunSpec, tmp_path: Path
) -> None:
    found = run_program(command, spec, log=tmp_path / "log")
    assert (found.exit_status, found.stopped_by) == (status, stopped_by)
    assert 0 < found.seconds < 60


def test_output_goes_to_the_log_in_order(spec: RunSpec, tmp_path: Path, capfd) -> None:
    command = ["sh", "-c", "echo one; echo two >&2; echo three"]
    run_program(command, spec, log=tmp_path / "log")
    assert (tmp_path / "log").read_text() == "one\ntwo\nthree\n"
    assert capfd.readouterr() == ("", "")


def test_output_passes_through_without_a_log(spec: RunSpec, capfd) -> None:
    run_program(["sh", "-c", "echo one; echo two >&2"], spec)
    assert capfd.readouterr() == ("one\n", "two\n")


def test_environment_folder_and_descriptors_reach_the_program(spec: RunSpec, tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    os.set_inheritable(write_end, True)
    code = f"""
        import os
        os.write({write_end}, b"through")
        print(os.getcwd(), os.environ["MINE"], os.environ["PYTHONPATH"].split(os.pathsep)[1:], "HOME" in os.environ)
    """
    environment = {"PATH": os.environ["PATH"], "MINE": "kept", "PYTHONPATH": "/one:/two"}
    spec = replace(spec, copied=(str(tmp_path), "/original"))
    run_program(python(code), spec, log=tmp_path / "log", environment=environment)
    assert (tmp_path / "log").read_text() == f"{tmp_path} kept ['/one', '/two'] False\n"
    assert os.read(read_end, 100) == b"through"
    os.close(read_end)
    os.close(write_end)


def test_command_that_cannot_be_started_is_an_error(spec: RunSpec, tmp_path: Path) -> None:
    with pytest.raises(LaunchError, match="'no-such-command' could not be started") as caught:
        run_program(["no-such-command"], spec)
    assert caught.value.identifier == "command-unstartable"
    text = tmp_path / "text"
    text.write_text("hello")
    text.chmod(0o755)
    with pytest.raises(LaunchError, match="Exec format error"):
        run_program([str(text)], spec)


def test_progress_is_read_from_the_spools_and_kept_after_the_end(spec: RunSpec, tmp_path: Path) -> None:
    code = f"""
        import pathlib, sys, time
        sys.path.insert(0, {str(Path(__file__).parents[2] / "src")!r})
        from determinism.trace.spool import Spool
        for name, records in (("main", 5), ("main.1", 7)):
            folder = pathlib.Path({str(spec.trace_folder)!r}, "processes", name)
            folder.mkdir()
            spool = Spool(folder / "records.spool", 64, 64)
            for step in range(1, records + 1):
                spool.append((0, step, 0, 0, 0, -1, -1, -1, -1, -1), (), (), (), ())
        until = time.monotonic() + 60
        while not pathlib.Path({str(tmp_path / "seen")!r}).exists() and time.monotonic() < until: time.sleep(0.01)
        for path in pathlib.Path({str(spec.trace_folder)!r}).glob("*/*/records.spool"): path.unlink()
    """
    seen: list[tuple[int, int]] = []

    def see(*now: int) -> None:
        seen.append(now)
        if now == (12, 7):
            (tmp_path / "seen").touch()

    run_program(python(code), spec, log=tmp_path / "log", on_progress=see)
    assert (tmp_path / "log").read_text() == ""
    assert seen[-1] == (12, 7)


def test_no_program_is_left_behind_when_watching_fails(spec: RunSpec, tmp_path: Path) -> None:
    def break_off(records: int, step: int) -> None:
        raise RuntimeError("no progress")

    started = time.monotonic()
    with pytest.raises(RuntimeError, match="no progress"):
        run_program(["sleep", "90"], spec, log=tmp_path / "log", on_progress=break_off)
    assert time.monotonic() - started < 60


READ_ALL = python("import sys; text = sys.stdin.read(); print(len(text), text[:5])")


def runs(command: list[str], stdin: StandardInput, spec: RunSpec, folder: Path) -> Iterator[str]:
    for index in range(3):
        log = folder / f"log{index}"
        assert run_program(command, spec, log=log, stdin=stdin).exit_status == 0
        yield log.read_text()


def test_file_as_input_is_read_from_the_same_offset_in_every_run(spec: RunSpec, tmp_path: Path) -> None:
    (tmp_path / "input").write_text("skip me: " + "x" * 100_000)
    with (tmp_path / "input").open() as file:
        os.lseek(file.fileno(), 9, os.SEEK_SET)
        with StandardInput(file.fileno()) as stdin:
            assert list(runs(READ_ALL, stdin, spec, tmp_path)) == ["100000 xxxxx\n"] * 3


def test_piped_input_is_fed_to_every_run(spec: RunSpec, tmp_path: Path) -> None:
    read_end, write_end = os.pipe()

    def write() -> None:
        with open(write_end, "wb") as file:
            for _ in range(30):
                file.write(b"y" * 10_000)
                time.sleep(0.001)

    threading.Thread(target=write).start()
    with StandardInput(read_end) as stdin:
        assert list(runs(READ_ALL, stdin, spec, tmp_path)) == ["300000 yyyyy\n"] * 3
    os.close(read_end)


def test_an_open_pipe_that_is_not_read_does_not_block(spec: RunSpec, tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    os.write(write_end, b"nobody reads this")
    with StandardInput(read_end) as stdin:
        started = time.monotonic()
        assert list(runs(["true"], stdin, spec, tmp_path)) == [""] * 3
        assert time.monotonic() - started < 60
    os.close(read_end)
    os.close(write_end)


def test_an_endless_pipe_is_consumed_only_as_far_as_it_is_read(spec: RunSpec, tmp_path: Path) -> None:
    with subprocess.Popen(["yes"], stdout=subprocess.PIPE) as endless:
        assert endless.stdout is not None
        with StandardInput(endless.stdout.fileno()) as stdin:
            found = list(runs(["sh", "-c", "head -c 200000 | wc -c"], stdin, spec, tmp_path))
            assert os.fstat(stdin._spool.fileno()).st_size < 1_000_000
        endless.kill()
    assert [text.strip() for text in found] == ["200000"] * 3


def test_later_run_may_read_further_than_the_first(spec: RunSpec, tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    os.write(write_end, b"one\ntwo\n")
    with StandardInput(read_end) as stdin:
        run_program(["sh", "-c", "read a; echo $a"], spec, log=tmp_path / "first", stdin=stdin)
        os.write(write_end, b"three\n")
        os.close(write_end)
        run_program(["cat"], spec, log=tmp_path / "second", stdin=stdin)
    os.close(read_end)
    assert (tmp_path / "first").read_text() == "one\n"
    assert (tmp_path / "second").read_text() == "one\ntwo\nthree\n"


def test_input_may_be_a_device_or_closed(spec: RunSpec, tmp_path: Path) -> None:
    with open(os.devnull) as null, StandardInput(null.fileno()) as stdin:
        assert list(runs(READ_ALL, stdin, spec, tmp_path)) == ["0 \n"] * 3
    driver = f"""
        from pathlib import Path
        from determinism.run_spec import RunSpec
        from determinism.launch.program import run_program
        from determinism.launch.io import StandardInput
        with StandardInput() as stdin:
            spec = RunSpec(Path({str(tmp_path)!r}))
            print(run_program(["true"], spec, stdin=stdin).exit_status)
    """
    found = subprocess.run(["sh", "-c", '"$@" <&-', "sh", *python(driver)], capture_output=True, text=True)
    assert (found.stdout, found.stderr) == ("0\n", "")


DRIVER = """
    import json, os, sys
    from pathlib import Path
    from determinism.launch import processes
    from determinism.run_spec import RunSpec
    from determinism.launch.program import Interrupted, run_program
    request = json.loads(sys.argv[1])
    processes.GRACE_SECONDS = request["grace"]
    processes._WITNESS_SECONDS = request["witness"] or processes._WITNESS_SECONDS
    if "terminal" in request:
        terminal = os.open(request["terminal"], os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(terminal, stream)
    log = Path(request["log"]) if request["log"] else None
    try:
        end = run_program(request["command"], RunSpec(Path(request["trace"])), log=log)
        document = {"interrupted": None, "exit": vars(end)}
    except Interrupted as interrupted:
        document = {"interrupted": interrupted.message, "exit": vars(interrupted.program_exit)}
    Path(request["result"]).write_text(json.dumps(document))
"""


PATIENCE = 60.0
"""Seconds that a busy machine may take; a test that would otherwise hang fails after this time."""


class Driver:
    """Runs a program under recording from a process that can be interrupted, optionally on a terminal."""

    def __init__(
        self,
        folder: Path,
        command: list[str],
        *,
        log: bool,
        terminal: bool,
        grace: float = PATIENCE,
        witness: float | None = None,
    ) -> None:
        self.folder = folder
        request = {"command": command, "trace": str(folder / "trace"), "result": str(folder / "result"),
                   "log": str(folder / "log") if log else None, "grace": grace, "witness": witness}  # fmt: skip
        self.terminal = pty.openpty() if terminal else ()
        self.master = self.terminal[0] if terminal else -1
        if terminal:
            slave = self.terminal[1]
            fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 33, 77, 0, 0))
            request["terminal"] = os.ttyname(slave)
        self.process = subprocess.Popen([*python(DRIVER), json.dumps(request)], start_new_session=True)
        self.screen = b""

    def wait_for(self, path: Path) -> None:
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            if path.exists():
                return
            time.sleep(0.01)
        raise AssertionError(f"{path} did not appear")

    def end(self) -> dict:
        # Not `select`, which rejects descriptors of 1024 and above.
        screen = select.poll()
        if self.master >= 0:
            screen.register(self.master, select.POLLIN)
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            ended = self.process.poll() is not None
            if self.master >= 0 and screen.poll(20):
                self.screen += os.read(self.master, 10_000)
            elif ended:
                break
            elif self.master < 0:
                time.sleep(0.02)
        assert self.process.wait(1) == 0
        for descriptor in self.terminal:
            os.close(descriptor)
        document = json.loads((self.folder / "result").read_text())
        document["exit"] = ProgramExit(**document["exit"])
        return document


LOOK = python("""
    import os, sys
    size = os.get_terminal_size() if sys.stdout.isatty() else None
    print(sys.stdin.isatty(), sys.stdout.isatty(), sys.stderr.isatty(), size and tuple(size))
    print("error", file=sys.stderr)
""")


def test_terminal_stays_a_terminal(tmp_path: Path) -> None:
    driver = Driver(tmp_path, LOOK, log=False, terminal=True)
    assert driver.end()["exit"].exit_status == 0
    assert driver.screen == b"True True True (77, 33)\r\nerror\r\n"


def test_logged_run_sees_a_terminal_of_the_same_size(tmp_path: Path) -> None:
    driver = Driver(tmp_path, LOOK, log=True, terminal=True)
    driver.end()
    assert (tmp_path / "log").read_bytes() == b"True True True (77, 33)\nerror\n"


def test_logged_run_loses_no_output(tmp_path: Path) -> None:
    driver = Driver(tmp_path, python("print('x' * 99, *range(100_000), sep='\\n')"), log=True, terminal=True)
    driver.end()
    assert (tmp_path / "log").read_text().splitlines()[1:] == [str(number) for number in range(100_000)]


def sleeper(folder: Path, on_interrupt: str, number: int = signal.SIGINT) -> list[str]:
    """Return a program that sleeps and counts every SIGINT, or another signal, that it receives."""
    return python(f"""
        import pathlib, signal, sys, time
        count = 0
        def interrupted(number, frame):
            global count
            count += 1
            pathlib.Path({str(folder / "interrupts")!r}).write_text(str(count))
            {on_interrupt}
        signal.signal({number:d}, interrupted)
        pathlib.Path({str(folder / "ready")!r}).touch()
        end = time.monotonic() + 90
        while time.monotonic() < end: time.sleep(0.05)
    """)


@pytest.mark.parametrize("log", [False, True])
def test_ctrl_c_on_the_terminal_reaches_the_program_once(tmp_path: Path, log: bool) -> None:
    driver = Driver(tmp_path, sleeper(tmp_path, "time.sleep(0.6); sys.exit(5)"), log=log, terminal=True)
    driver.wait_for(tmp_path / "ready")
    os.write(driver.master, b"\x03")
    document = driver.end()
    assert (tmp_path / "interrupts").read_text() == "1"
    assert document["interrupted"].startswith("The program was stopped by SIGINT")
    assert (document["exit"].exit_status, document["exit"].stopped_by) == (5, "SIGINT")


def test_second_ctrl_c_ends_a_program_that_ignores_the_first(tmp_path: Path) -> None:
    driver = Driver(tmp_path, sleeper(tmp_path, "pass"), log=True, terminal=True)
    driver.wait_for(tmp_path / "ready")
    os.write(driver.master, b"\x03")
    driver.wait_for(tmp_path / "interrupts")
    time.sleep(1)
    started = time.monotonic()
    os.write(driver.master, b"\x03")
    document = driver.end()
    assert time.monotonic() - started < PATIENCE / 2, "it was ended before its grace was over"
    assert document["exit"].exit_status == -signal.SIGTERM


SIGNALS = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["interrupt", "termination"])


@SIGNALS
def test_a_signal_to_this_process_alone_is_forwarded_once(tmp_path: Path, number: int) -> None:
    driver = Driver(tmp_path, sleeper(tmp_path, "time.sleep(2); sys.exit(6)", number), log=True, terminal=False)
    driver.wait_for(tmp_path / "ready")
    driver.process.send_signal(number)
    assert driver.end()["exit"].exit_status == 6
    assert (tmp_path / "interrupts").read_text() == "1"


@SIGNALS
def test_a_signal_to_the_whole_group_is_not_repeated_while_the_program_saves(tmp_path: Path, number: int) -> None:
    # The program ends after the time at which a signal to this process alone would be forwarded; the machine may be busy.
    on_signal = "time.sleep(4); sys.exit(6)"
    driver = Driver(tmp_path, sleeper(tmp_path, on_signal, number), log=True, terminal=False, witness=3.0)
    driver.wait_for(tmp_path / "ready")
    os.killpg(driver.process.pid, number)
    assert driver.end()["exit"].exit_status == 6
    assert (tmp_path / "interrupts").read_text() == "1"


def test_a_signal_to_the_whole_group_is_forwarded_to_a_program_that_left_it(tmp_path: Path) -> None:
    code = sleeper(tmp_path, "sys.exit(6)")[-1]
    command = python(f"import os\nos.setsid()\nexec({code!r})")
    driver = Driver(tmp_path, command, log=True, terminal=False)
    driver.wait_for(tmp_path / "ready")
    os.killpg(driver.process.pid, signal.SIGINT)
    assert driver.end()["exit"].exit_status == 6
    assert (tmp_path / "interrupts").read_text() == "1"


def test_the_process_that_watched_for_signals_is_not_left_behind(tmp_path: Path) -> None:
    driver = Driver(tmp_path, python("import time; time.sleep(0.5)"), log=True, terminal=False)
    driver.end()
    with pytest.raises(ProcessLookupError):
        os.killpg(driver.process.pid, 0)


def test_stubborn_program_is_killed(tmp_path: Path) -> None:
    code = "signal.signal(signal.SIGTERM, signal.SIG_IGN)"
    driver = Driver(tmp_path, sleeper(tmp_path, code), log=True, terminal=False, grace=1.0)
    driver.wait_for(tmp_path / "ready")
    driver.process.send_signal(signal.SIGINT)
    document = driver.end()
    assert document["exit"].exit_status == -signal.SIGKILL
    assert document["exit"].seconds < PATIENCE


def test_termination_reaches_a_process_started_by_a_shell(tmp_path: Path) -> None:
    inner = tmp_path / "inner.py"
    inner.write_text(sleeper(tmp_path, "sys.exit(0)")[-1])
    command = ["sh", "-c", f"{sys.executable} {inner}; echo $? > {tmp_path}/status; exit 4"]
    driver = Driver(tmp_path, command, log=True, terminal=False)
    driver.wait_for(tmp_path / "ready")
    driver.process.send_signal(signal.SIGTERM)
    document = driver.end()
    assert document["exit"].stopped_by == "SIGTERM"
    until = time.monotonic() + 20
    while found := subprocess.run(["pgrep", "-f", str(inner)], capture_output=True, text=True).stdout:
        assert time.monotonic() < until, found


_COMPUTING = """
    import os, time
    os.sched_setaffinity(0, {0})
    while time.process_time() < 0.5:
        pass
"""


@pytest.mark.skipif(
    not os.path.exists("/proc/self/schedstat"), reason="the system does not count waits: no /proc/*/schedstat"
)
def test_time_spent_waiting_for_a_busy_processor_does_not_count(spec: RunSpec, tmp_path: Path) -> None:
    others = [subprocess.Popen(python(_COMPUTING.replace("0.5", "60"))) for _ in range(3)]
    try:
        found = run_program(python(_COMPUTING), spec, log=tmp_path / "log", most_seconds=30)
    finally:
        for other in others:
            other.kill()
            other.wait()
    assert found.stopped_by is None
    assert 0 < found.waited < found.seconds
    assert found.seconds > found.seconds - found.waited > 0.3


def test_a_program_that_takes_too_long_is_stopped(spec: RunSpec, tmp_path: Path) -> None:
    found = run_program(["sleep", "60"], spec, log=tmp_path / "log", most_seconds=0.3)
    assert found.stopped_by == "time-limit"
    assert found.seconds - found.waited < 30
