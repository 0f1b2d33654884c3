"""`determinism golden` on programs that are the same, that changed at a known place, and that are nondeterministic."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import MadeOnce
from tests.e2e.commands import Finished, run

PROGRAM = """\
import torch

torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.1), torch.nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
inputs, targets = torch.randn(8, 4), torch.randn(8, 1)
for step in range(4):
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(inputs), targets)
    loss.backward()
    optimizer.step()
"""


def write(folder: Path, *changes: tuple[str, str]) -> None:
    """Write the program with replacements."""
    text = PROGRAM
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    (folder / "train.py").write_text(text, encoding="utf-8")


def golden(folder: Path, word: str, *options: str) -> Finished:
    """Run `determinism golden` on the program."""
    return run(folder, "golden", word, "train.golden", *options, "--", sys.executable, "train.py")


@pytest.fixture
def made(made_once: MadeOnce) -> str:
    """Return the golden of the program."""

    def fill(folder: Path) -> None:
        write(folder)
        finished = run(
            folder, "golden", "create", "new/folder/train.golden", "--steps", "3", "--", sys.executable, "train.py"
        )
        assert finished.status == 0, finished.text

    return (made_once("golden", fill) / "new" / "folder" / "train.golden").read_text(encoding="utf-8")


def keep(folder: Path, text: str) -> None:
    """Write the golden."""
    (folder / "train.golden").write_text(text, encoding="utf-8")


def test_the_same_program_is_the_same(made: str, tmp_path: Path) -> None:
    write(tmp_path)
    keep(tmp_path, made)
    finished = golden(tmp_path, "check")
    assert finished.status == 0
    assert "Same: 3 steps as in the golden" in finished.text
    assert sorted(file.name for file in tmp_path.iterdir()) == ["train.golden", "train.py"]


def test_a_changed_program_differs_at_its_step_op_and_line(made: str, tmp_path: Path) -> None:
    write(tmp_path, ("lr=0.1", "lr=0.2"))
    keep(tmp_path, made)
    finished = golden(tmp_path, "check", "--json", "result.json")
    assert finished.status == 1
    assert "the parameters differ at step 0, train.py:11" in finished.text
    assert "determinism golden create --steps 3 --update train.golden -- " in finished.text
    result = json.loads((tmp_path / "result.json").read_text(encoding="utf-8"))
    assert (result["verdict"], result["nondeterministic"], result["environment"]) == ("different", False, [])
    assert result["op"]["site"]["line"] == 11
    assert result["op"]["is_first"] is True


def test_a_program_that_varies_from_run_to_run_is_called_nondeterministic(made: str, tmp_path: Path) -> None:
    write(tmp_path, ("torch.manual_seed(0)", "torch.seed()"))
    keep(tmp_path, made)
    finished = golden(tmp_path, "check")
    assert finished.status == 1
    assert "the program is nondeterministic" in finished.text
    assert "determinism check --steps 3 -- " in finished.text


def test_an_unwritable_path_is_rejected_before_anything_runs(tmp_path: Path) -> None:
    write(tmp_path, ("import torch", "open('ran', 'w'); import torch"))
    (tmp_path / "file").touch()
    finished = run(tmp_path, "golden", "create", "file/train.golden", "--", sys.executable, "train.py")
    assert finished.status == 2
    assert "file is not a folder), so nothing was changed" in " ".join(finished.text.split())
    assert not (tmp_path / "ran").exists()


def test_no_golden_is_created_for_a_program_that_varies(tmp_path: Path) -> None:
    write(tmp_path, ("torch.manual_seed(0)", "torch.seed()"))
    finished = golden(tmp_path, "create")
    assert finished.status == 1
    assert "No golden was written: two runs differ" in finished.text
    assert not (tmp_path / "train.golden").exists()


def test_a_golden_from_a_different_machine_is_recognized(made: str, tmp_path: Path) -> None:
    write(tmp_path, ("lr=0.1", "lr=0.2"))
    keep(tmp_path, made.replace("machine = ", "machine = other-"))
    finished = golden(tmp_path, "check")
    assert finished.status == 1
    assert "the environment changed, which may be why" in finished.text
    assert "machine: other-" in finished.text


def test_a_failing_program_and_a_damaged_golden_give_no_verdict(made: str, tmp_path: Path) -> None:
    write(tmp_path, ("optimizer.step()", "raise SystemExit(3)"))
    keep(tmp_path, made)
    failed = golden(tmp_path, "check")
    assert failed.status == 2
    assert "the program ended with exit status 3, so nothing was compared" in failed.text
    keep(tmp_path, made.replace("[environment]", "environment"))
    damaged = golden(tmp_path, "check")
    assert damaged.status == 2
    assert "is damaged at line" in damaged.text


def test_an_existing_golden_is_kept_and_nothing_is_run(made: str, tmp_path: Path) -> None:
    write(tmp_path, ("import torch", "open('ran', 'w'); import torch"))
    keep(tmp_path, made)
    finished = golden(tmp_path, "create")
    assert finished.status == 2
    assert "--update" in finished.text
    assert not (tmp_path / "ran").exists()
    assert (tmp_path / "train.golden").read_text(encoding="utf-8") == made


def test_interrupting_a_check_ends_with_130_and_keeps_the_golden(made: str, tmp_path: Path) -> None:
    code = "import os, signal; os.kill(os.getppid(), signal.SIGINT); import time; time.sleep(30); import torch"
    write(tmp_path, ("import torch\n", f"{code}\n"))
    keep(tmp_path, made)
    command = [sys.executable, "-m", "determinism", "golden", "check", "train.golden", "--", sys.executable, "train.py"]
    # The signal is ignored if a shell started the tests in the background.
    ended = subprocess.run(
        [sys.executable, "-c", "import os, signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); os.execv(sys.argv[1], sys.argv[1:])", *command],
        cwd=tmp_path, capture_output=True, timeout=60, check=False,
    )  # fmt: skip
    assert ended.returncode == 130, ended.stderr
    assert (tmp_path / "train.golden").read_text(encoding="utf-8") == made
