"""A process that cannot open any more files gets an error message, and can record later."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from determinism.trace.opening import open_trace

BEFORE_THE_RECORDING = """
    import os, resource, sys, torch, determinism
    record = determinism.record
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))

    def open_all_but(count):
        opened = []
        try:
            while True:
                opened.append(os.open(os.devnull, os.O_RDONLY))
        except OSError:
            for descriptor in opened[len(opened) - count:]:
                os.close(descriptor)
        return opened[:len(opened) - count]
"""


def run(program: str, folder: Path) -> str:
    file = folder / "program.py"
    file.write_text(textwrap.dedent(BEFORE_THE_RECORDING) + textwrap.dedent(program))
    ended = subprocess.run([sys.executable, str(file)], cwd=folder, capture_output=True, text=True, timeout=600)
    assert ended.returncode == 0, ended.stderr
    assert not ended.stderr
    return ended.stdout


def num_records(trace: Path) -> int:
    (process,) = open_trace(trace).processes
    return sum(len(chunk.columns["op"]) for chunk in process.chunks())


@pytest.mark.parametrize(
    "left", [pytest.param(n, marks=() if n in (0, 3) else pytest.mark.thorough("launching")) for n in range(6)]
)
def test_recording_that_cannot_start_says_why_and_can_start_later(left: int, tmp_path: Path) -> None:
    program = f"""
        opened = open_all_but({left})
        try:
            with record("trace"):
                torch.ones(2) + 1
            print("recorded")
        except determinism.DeterminismError as error:
            print(error.identifier, "|", error)
        for descriptor in opened:
            os.close(descriptor)
        if error_was := not os.path.exists("trace/manifest.json"):
            with record("trace"):
                torch.ones(2) + 1
        """

    said = run(program, tmp_path)

    assert said == "recorded\n" or (said.startswith("too-many-open-files | ") and "ulimit -n" in said), said
    assert left > 1 or said != "recorded\n"
    assert num_records(tmp_path / "trace") > 0


def test_a_program_that_uses_up_descriptors_is_still_recorded(tmp_path: Path) -> None:
    run(
        """
        with record("trace"):
            torch.ones(2) + 1
            opened = open_all_but(0)
            torch.ones(2) + 2
            for descriptor in opened:
                os.close(descriptor)
            torch.ones(2) + 3
        """,
        tmp_path,
    )

    assert num_records(tmp_path / "trace") >= 6
