"""Processes that use the framework but that recording cannot reach are blind spots; other processes are not."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest
import torch

from tests.e2e.commands import Finished, check, tiny_code

RECORDED = tiny_code("frame.full(3, 1.0)")
USES_TORCH = "import torch; torch.rand(3)"
FINDS_TORCH = f"import sys; sys.path[:0] = {[path for path in sys.path if path]!r}; {USES_TORCH}"


def checked(folder: Path, *options: str, code: str = USES_TORCH, before: str = "") -> Finished:
    """Check a shell script that runs a recorded process, and then another process with these options."""
    other = shlex.join([sys.executable, *options, "-c", code])
    script = f"{shlex.join(RECORDED)}; {before} {other}"
    return check(folder, "--", "sh", "-c", script)


@pytest.mark.parametrize(
    ("option", "code"),
    [
        ("-I", USES_TORCH),
        pytest.param("-E", USES_TORCH, marks=pytest.mark.thorough("launching")),
        pytest.param("-S", FINDS_TORCH, marks=pytest.mark.thorough("launching")),
    ],
)
def test_a_hidden_process_is_a_blind_spot(option: str, code: str, tmp_path: Path) -> None:
    finished = checked(tmp_path, option, code=code)

    assert finished.status == 0
    (spot,) = finished.report["recorded"]["blind_spots"]
    assert (spot["id"], spot["count"]) == ("unrecorded-process", 1)
    assert spot["what"].startswith(f"python {option} -c import") or option in spot["what"]
    assert option in spot["reason"]
    assert "blind spots" in finished.text


def test_a_process_without_the_programs_environment_is_a_blind_spot(tmp_path: Path) -> None:
    finished = checked(tmp_path, before="env -u PYTHONPATH")

    (spot,) = finished.report["recorded"]["blind_spots"]
    assert "PYTHONPATH" in spot["reason"]


def test_a_compile_worker_of_inductor_is_not_a_blind_spot(tmp_path: Path) -> None:
    """PyTorch starts it with its own module search path, and it forks one worker per processor."""
    script = tmp_path / "torch" / "_inductor" / "compile_worker" / "__main__.py"
    script.parent.mkdir(parents=True)
    script.write_text("import sys; sys.path.pop(0)\nimport os, time, torch; os.fork(); time.sleep(1)\n")
    worker = shlex.join([sys.executable, str(script)])
    finished = check(tmp_path, "--", "sh", "-c", f"{shlex.join(RECORDED)}; env -u PYTHONPATH {worker}")
    assert finished.report is not None and finished.status == 0, finished.text
    assert finished.report["recorded"]["blind_spots"] == []


def test_a_process_that_notes_why_it_was_not_recorded_is_a_blind_spot(tmp_path: Path) -> None:
    (tmp_path / "old" / "torch").mkdir(parents=True)
    (tmp_path / "old" / "torch" / "__init__.py").write_text("__version__ = '1.0'\ndef rand(size): pass\n")
    finished = checked(tmp_path, before=f"PYTHONPATH=$PYTHONPATH:{tmp_path}/old")

    (spot,) = finished.report["recorded"]["blind_spots"]
    assert spot["id"] == "unrecorded-process"
    assert "torch 1.0 is installed" in spot["reason"]


@pytest.mark.parametrize(("options", "code"), [(["-s"], USES_TORCH), (["-I"], "import time; time.sleep(1)")])
def test_other_processes_are_not_blind_spots(options: list[str], code: str, tmp_path: Path) -> None:
    finished = checked(tmp_path, *options, code=code)

    assert finished.report["recorded"]["blind_spots"] == []


def test_if_nothing_is_recorded_the_hidden_process_is_named(tmp_path: Path) -> None:
    finished = check(tmp_path, "--", "sh", "-c", shlex.join([sys.executable, "-I", "-c", USES_TORCH]) + "; true")

    assert finished.trouble == ["nothing-recorded"]
    assert "imported a framework, but it was started with -I" in finished.text


def test_the_frameworks_libraries_are_visible_in_the_memory_map() -> None:
    torch.ones(1)
    assert "/libtorch_" in Path("/proc/self/maps").read_text()
