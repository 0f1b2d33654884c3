"""The request to record travels through the environment as it is."""

import os
from pathlib import Path

from determinism.launch.options import RecordingConfiguration
from determinism.launch.program import BOOTSTRAP_FOLDER, child_environment
from determinism.launch.reading import EARLIER_RUNS_VARIABLE
from determinism.session.record import claim_process_folder


def test_request_survives_the_environment(tmp_path: Path) -> None:
    captured, copied = {"record": 4, "process": "main"}, ("/copy", "/original")
    request = RecordingConfiguration(tmp_path / "a b é", "module", 3, 10**9, True, captured, copied)
    assert RecordingConfiguration.from_environment(request.to_environment()) == request


def test_environment_has_the_same_variables_in_every_run(tmp_path: Path) -> None:
    first = RecordingConfiguration(tmp_path).to_environment()
    later = RecordingConfiguration(tmp_path, earlier_runs=[(1, 2), (30, 40)]).to_environment()
    assert first[EARLIER_RUNS_VARIABLE] == ""
    assert later == {**first, EARLIER_RUNS_VARIABLE: "1:2,30:40"}


def test_folder_becomes_absolute() -> None:
    request = RecordingConfiguration.from_environment(RecordingConfiguration(Path("here")).to_environment())
    assert request is not None
    assert request.trace_folder == Path.cwd() / "here"


def test_environment_without_a_request() -> None:
    assert RecordingConfiguration.from_environment({"PATH": "/bin"}) is None


def test_python_path_is_prepended_and_the_rest_unchanged(tmp_path: Path) -> None:
    request = RecordingConfiguration(tmp_path)
    before = {"PYTHONPATH": f"/one{os.pathsep}/two", "HOME": "/home/me", "DETERMINISM_PROCESS": "main.3"}
    after = child_environment(before, request)
    assert after.pop("PYTHONPATH") == f"{BOOTSTRAP_FOLDER}{os.pathsep}/one{os.pathsep}/two"
    assert after == {"HOME": "/home/me", **request.to_environment()}
    assert child_environment({}, request)["PYTHONPATH"] == str(BOOTSTRAP_FOLDER)
    assert child_environment({"PYTHONPATH": ""}, request)["PYTHONPATH"] == str(BOOTSTRAP_FOLDER)


def test_keys_of_processes(tmp_path: Path) -> None:
    (tmp_path / "processes").mkdir()
    parents = [None, None, "main", "main", "main.1", None]
    keys = [claim_process_folder(tmp_path, parent).name for parent in parents]
    assert keys == ["main", "main-2", "main.1", "main.2", "main.1.1", "main-3"]
