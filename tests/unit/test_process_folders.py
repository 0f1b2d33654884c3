"""Each framework that a process uses has its own folder in the trace."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from determinism.process_name import own_name
from determinism.run_spec import PROCESS_VARIABLE
from determinism.session.record import Folders
from determinism.trace.schema import PROCESSES_FOLDER


@pytest.fixture(autouse=True)
def nothing_claimed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PROCESS_VARIABLE, raising=False)
    monkeypatch.setattr(Folders, "_claimed_in", None)
    assert own_name("main") is None


def folders(trace: Path, framework: str) -> Folders:
    (trace / PROCESSES_FOLDER).mkdir(exist_ok=True)
    return Folders(trace, framework, pytest.fail)


def test_each_framework_of_a_process_has_its_own_folder(tmp_path: Path) -> None:
    assert folders(tmp_path, "torch").claim(None).name == "main"
    assert folders(tmp_path, "jax").claim(None).name == "main.jax"
    assert folders(tmp_path, "tensorflow").claim(None).name == "main.tensorflow"


def test_children_are_named_after_the_process_not_its_second_framework(tmp_path: Path) -> None:
    folders(tmp_path, "torch").claim(None)
    folders(tmp_path, "jax").claim(None)
    assert os.environ[PROCESS_VARIABLE] == "main"


def test_a_forked_child_has_its_own_folder(tmp_path: Path) -> None:
    held = folders(tmp_path, "torch")
    held.claim(None)
    if (child := os.fork()) == 0:
        os._exit(0 if held.claim("worker").name == "main.worker" else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
