"""Ctrl-C ends the program and keeps what was recorded."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import NamedTuple

import pytest

from determinism.trace.opening import open_trace
from tests.e2e.commands import COMMAND, check, compare, program, tiny_code, torch_program


class Ended(NamedTuple):
    """How an interrupted command ended."""

    status: int
    stderr: str
    stdout: str


def interrupt(
    folder: Path, *arguments: str, group: bool = True, at: str = "waiting", number: int = signal.SIGINT
) -> Ended:
    """Start a command, and send a signal as soon as a file or folder exists, such as one that the program creates."""
    process = subprocess.Popen(
        [*COMMAND, *arguments], cwd=folder, start_new_session=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    deadline = time.monotonic() + 120
    while not (folder / at).exists() and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    assert process.poll() is None, process.communicate()
    if group:
        os.killpg(process.pid, number)
    else:
        process.send_signal(number)
    stdout, stderr = process.communicate(timeout=60)
    assert b"src/determinism" not in stderr, stderr.decode()
    return Ended(process.returncode, stderr.decode(), stdout.decode())


def script(folder: Path, text: str) -> list[str]:
    """Return the command that runs a program with this text."""
    file = folder / "program.py"
    file.write_text(textwrap.dedent(text))
    return [sys.executable, str(file)]


@pytest.mark.parametrize(
    ("words", "group"),
    [(program("wait"), True), (program("wait"), False), (torch_program("wait"), True)],
    ids=["process group", "parent only", "PyTorch"],
)
def test_interrupted_check_is_inconclusive_and_keeps_its_trace(words: list[str], group: bool, tmp_path: Path) -> None:
    ended = interrupt(tmp_path, "check", "--json", "r.json", "--output", "out", "--", *words, group=group)

    assert ended.status == 128 + signal.SIGINT
    assert "into run 1, before there was a verdict; kept in out: run-1 (incomplete)." in ended.stderr
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["verdict"] == "inconclusive"
    assert [trouble["id"] for trouble in report["trouble"]] == ["interrupted"]
    assert [run["stopped_by"] for run in report["runs"]] == ["interrupt"]
    trace = open_trace(tmp_path / "out" / "run-1")
    (process,) = trace.processes
    assert process.extent[1] == 2
    assert trace.manifest["stopped_by"] == "interrupt"
    assert subprocess.run(["pgrep", "-f", str(tmp_path)], capture_output=True, check=False).stdout == b""


def test_interrupted_record_keeps_its_trace(tmp_path: Path) -> None:
    ended = interrupt(tmp_path, "record", "-o", "cut", "--", *program("wait"))
    assert ended.status == 128 + signal.SIGINT
    assert "The trace recorded so far is kept in cut." in ended.stderr

    assert (
        subprocess.run([*COMMAND, "record", "-o", "whole", "--", *program()], cwd=tmp_path, check=False).returncode == 0
    )
    for order in (("cut", "whole"), ("whole", "cut")):
        finished = compare(tmp_path, *order)
        assert "interrupted" in finished.trouble
        assert finished.report["first_divergence"] is None


def test_a_different_signal_determines_the_exit_status(tmp_path: Path) -> None:
    ended = interrupt(tmp_path, "check", "--output", "out", "--", *program("wait"), group=False, number=signal.SIGTERM)
    assert ended.status == 128 + signal.SIGTERM


@pytest.mark.parametrize("recorder", ["native", "python"])
def test_programs_interrupted_at_different_steps_do_not_differ(
    recorder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The signal ends them as `timeout -s INT 60 python train.py` would."""
    monkeypatch.setenv("DETERMINISM_RECORDER", recorder)
    words = script(
        tmp_path,
        """
        import os, signal, torch
        first = not os.path.exists("ran")
        open("ran", "w").close()
        torch.manual_seed(0)
        weight = torch.randn(3, 3, requires_grad=True)
        optimizer = torch.optim.SGD([weight], 0.1)
        for step in range(10):
            optimizer.zero_grad()
            (torch.randn(3) @ weight).sum().backward()
            if step == (4 if first else 6):
                signal.raise_signal(signal.SIGINT)
            optimizer.step()
        """,
    )
    found = check(tmp_path, "--", *words)
    assert (found.report["verdict"], found.report["first_divergence"]) == ("inconclusive", None)
    assert "interrupted" in found.trouble


UNSEEDED = tiny_code("import time; frame.mean(frame.randn(3)).item(); time.sleep(2)")
RESUMED = """
    import sys, time
    import torch
    torch.manual_seed(0)
    file, mode = sys.argv[1:]
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5))
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    done = 0
    if mode == "resumed":
        held = torch.load(file)
        model.load_state_dict(held["model"])
        done = held["done"]
    for step in range(done, 2 if mode == "first" else 4):
        optimizer.zero_grad()
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
    if mode == "first":
        torch.save({"model": model.state_dict(), "done": 2}, file)
    time.sleep(1)
"""


def test_interrupting_the_search_for_causes_keeps_the_verdict(tmp_path: Path) -> None:
    words = ("check", "--json", "r.json", "--output", "out", "--budget", "60", "--")
    ended = interrupt(tmp_path, *words, *UNSEEDED, at="out/experiment-1-run-1")

    assert ended.status == 128 + signal.SIGINT
    assert "determinism: Interrupted during the search for the cause; its findings so far are kept.\n" in ended.stderr
    report = json.loads((tmp_path / "r.json").read_text())
    assert (report["verdict"], report["first_divergence"]["kind"]) == ("different", "rng")
    # The report was printed before the search; since then nothing was found, so it is not printed again.
    assert ended.stdout.count("Different: ") == 1
    assert [line.split()[0] for line in ended.stdout.rstrip().splitlines()[-2:]] == ["report", "details"]


@pytest.mark.parametrize(
    ("number", "search"), [(signal.SIGTERM, "run"), (signal.SIGHUP, "run"), (signal.SIGTERM, "_probe")]
)
def test_a_signal_between_runs_of_the_search_keeps_the_verdict(number: int, search: str, tmp_path: Path) -> None:
    """As `timeout` and batch systems send it; while the runs are compared, no program is there to end first."""
    command = f"""
        import os, signal, sys
        from determinism.__main__ import main
        from determinism.diagnose.investigation import Investigation

        # The tests may run where it is ignored, as under nohup.
        signal.signal({int(number)}, signal.SIG_DFL)
        Investigation.{search} = lambda *_: os.kill(os.getpid(), {int(number)})
        sys.argv[0] = "determinism"
        main()
    """
    words = ("check", "--json", "r.json", "--output", "out", "--budget", "60", "--", *UNSEEDED)
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(command), *words],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ended.returncode == 128 + number, ended.stderr
    assert "Interrupted during the search for the cause; its findings so far are kept.\n" in ended.stderr
    report = json.loads((tmp_path / "r.json").read_text())
    assert report["verdict"] == "different"
    assert report["diagnosis"] == "The search for the cause was interrupted; the report shows what it had found."
    assert (tmp_path / "out" / "report.html").exists()


def test_interrupting_the_runs_for_evidence_keeps_the_verdict(tmp_path: Path) -> None:
    words = ("check", "--json", "r.json", "--output", "out", "--budget", "60", "--")
    ended = interrupt(tmp_path, *words, *UNSEEDED, at="out/evidence-run-1")

    assert ended.status == 128 + signal.SIGINT
    assert "determinism: Interrupted before values were compared; the findings so far are kept.\n" in ended.stderr
    assert "was stopped by SIGINT" not in ended.stderr
    assert json.loads((tmp_path / "r.json").read_text())["verdict"] == "different"


def test_a_check_killed_during_the_search_has_already_reported_the_verdict(tmp_path: Path) -> None:
    words = ("check", "--json", "r.json", "--html", "r.html", "--output", "out", "--budget", "60", "--", *UNSEEDED)
    with (tmp_path / "out.txt").open("wb") as output:
        process = subprocess.Popen(
            [*COMMAND, *words], cwd=tmp_path, start_new_session=True, stdout=output, stderr=subprocess.DEVNULL
        )
        deadline = time.monotonic() + 120
        while not (tmp_path / "out/experiment-1-run-1").exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        os.killpg(process.pid, signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL, "the search had ended"

    report = json.loads((tmp_path / "r.json").read_text())
    assert (report["verdict"], report["causes"]) == ("different", [])
    assert report["diagnosis"] == "The search for the cause has not ended."
    assert "Different: random numbers differ" in (tmp_path / "out.txt").read_text()
    assert "Different: random numbers differ" in (tmp_path / "r.html").read_text()


def test_interrupting_the_search_of_check_resume_keeps_the_verdict(tmp_path: Path) -> None:
    python, file = script(tmp_path, RESUMED)
    parts = [f"--{mode}={python} {file} c.pt {mode}" for mode in ("full", "first", "resumed")]
    ended = interrupt(tmp_path, "check-resume", "--json", "r.json", "--output", "out", *parts, at="out/trial-1-first")

    assert ended.status == 128 + signal.SIGINT
    assert json.loads((tmp_path / "r.json").read_text())["verdict"] == "different"


def test_interrupt_raised_by_the_program_ends_it_as_without_recording(tmp_path: Path) -> None:
    words = script(tmp_path, "import torch\n(torch.ones(2) + 1).sum().item()\nraise KeyboardInterrupt\n")
    plain = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    recorded = subprocess.run(
        [*COMMAND, "record", "-o", "trace", "--", *words], cwd=tmp_path, capture_output=True, text=True, check=False
    )

    assert (plain.returncode, recorded.returncode) == (-signal.SIGINT, 128 + signal.SIGINT)
    assert recorded.stderr.startswith(plain.stderr)
    assert "src/determinism" not in recorded.stderr


def test_interrupt_caught_by_the_program_does_not_end_it(tmp_path: Path) -> None:
    text = "import torch\ntry:\n    raise KeyboardInterrupt\nexcept KeyboardInterrupt:\n    (torch.ones(2) + 1).sum().item()\n"
    ended = subprocess.run(
        [*COMMAND, "record", "-o", "trace", "--", *script(tmp_path, text)],
        cwd=tmp_path,
        capture_output=True,
        check=False,
    )
    assert ended.returncode == 0


def test_interrupt_during_an_import_shows_only_frames_of_the_program(tmp_path: Path) -> None:
    (tmp_path / "waits.py").write_text("import os\nopen('waiting', 'w').close()\nwhile True:\n    os.stat('.')\n")
    words = script(tmp_path, "import torch\nimport waits\n")
    ended = interrupt(tmp_path, "check", "--output", "out", "--", *words)
    assert ended.status == 128 + signal.SIGINT
    assert "in <module>" in ended.stderr
