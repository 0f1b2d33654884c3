"""The specification of a run is passed through the environment unchanged."""

import json
import os
from dataclasses import fields
from pathlib import Path

import pytest

from determinism.launch.interpreter import BOOTSTRAP_FOLDER
from determinism.launch.notes import RUN_VARIABLE as VARIABLE_OF_NOTES
from determinism.launch.notes import is_requested
from determinism.launch.program import child_environment
from determinism.run_spec import (
    EARLIER_RUNS_VARIABLE,
    RUN_VARIABLE,
    ChangedLines,
    CodeChange,
    EnablingRequest,
    FactorRequest,
    FixedSource,
    ProbeRequest,
    RunSpec,
)
from determinism.session.record import claim_process_folder

CHANGE = CodeChange("/p/é.py", (ChangedLines(5, 6, 'a = "x"', "a = 'y'"),), ("import zlib",))


def whole(folder: Path) -> RunSpec:
    """A specification in which every field differs from its default."""
    return RunSpec(
        trace_folder=folder / "a b é",
        level="module",
        steps=3,
        first_step=1,
        window=2,
        state_every=2,
        max_disk=10**9,
        keeps_newest=True,
        paranoid=True,
        invariants=True,
        values=64,
        capture={"record": 4, "process": "main"},
        rows={"batch": 2, "settings": ["one"]},
        generators={"watch": True},
        copied=("/copy", "/original"),
        enabling=EnablingRequest(1, True, 2, "highest", True),
        factors=FactorRequest({"memory": "fixed", "clock": "perturbed"}, 3),
        probes=ProbeRequest(folder / "notes", (FixedSource("/p/a.py", 3, "clock"),), ("set-order",), (CHANGE,)),
    )


def test_a_specification_survives_the_environment(tmp_path: Path) -> None:
    spec = whole(tmp_path)
    unset = {field.name for field in fields(spec) if getattr(spec, field.name) == getattr(RunSpec(), field.name)}
    assert unset == {"earlier_runs"}, "the fields that this test would not see"
    assert RunSpec.from_environment(spec.added_to({})) == spec


@pytest.mark.parametrize("part", ["recording", "enabling", "factors", "probes"])
def test_each_part_can_be_passed_alone(tmp_path: Path, part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = whole(tmp_path)
    alone = RunSpec(tmp_path) if part == "recording" else RunSpec(**{part: getattr(spec, part)})
    monkeypatch.setenv(RUN_VARIABLE, alone.added_to({})[RUN_VARIABLE])
    assert RunSpec.from_environment(os.environ) == alone
    asked_for = [name for name in ("recording", "enabling", "factors", "probes") if is_requested(name)]
    assert asked_for == [part]


def test_text_from_the_program_is_not_mistaken_for_a_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = RunSpec(tmp_path / '"probes": {', capture={"op": '"enabling": {'})
    monkeypatch.setenv(RUN_VARIABLE, spec.added_to({})[RUN_VARIABLE])
    assert [name for name in ("recording", "enabling", "probes") if is_requested(name)] == ["recording"]
    assert VARIABLE_OF_NOTES == RUN_VARIABLE


def test_a_command_within_a_command_adds_its_part(tmp_path: Path) -> None:
    check = RunSpec(tmp_path / "outer", level="step", capture={"record": 1})
    run = RunSpec(enabling=EnablingRequest(seed=1))
    both = RunSpec.from_environment(run.added_to(check.added_to({})))
    assert both == RunSpec(tmp_path / "outer", level="step", capture={"record": 1}, enabling=EnablingRequest(seed=1))
    inner = RunSpec.from_environment(RunSpec(tmp_path / "inner").added_to(check.added_to({})))
    assert inner == RunSpec(tmp_path / "inner"), "nothing is left of how the outer recording is made"


def test_the_environment_has_the_same_variables_in_every_run(tmp_path: Path) -> None:
    first = RunSpec(tmp_path).added_to({})
    later = RunSpec(tmp_path, earlier_runs=[(1, 2), (30, 40)]).added_to({})
    assert first[EARLIER_RUNS_VARIABLE] == ""
    assert later == {**first, EARLIER_RUNS_VARIABLE: "1:2,30:40"}


def test_the_folder_becomes_absolute() -> None:
    assert RunSpec.from_environment(RunSpec(Path("here")).added_to({})).trace_folder == Path.cwd() / "here"


def test_an_environment_without_a_specification_gives_the_defaults() -> None:
    assert RunSpec.from_environment({"PATH": "/bin"}) == RunSpec()


def test_the_python_path_is_extended_and_the_rest_unchanged(tmp_path: Path) -> None:
    spec = RunSpec(tmp_path)
    before = {"PYTHONPATH": f"/one{os.pathsep}/two", "HOME": "/home/me", "DETERMINISM_PROCESS": "main.3"}
    after = child_environment(before, spec)
    assert after.pop("PYTHONPATH") == f"{BOOTSTRAP_FOLDER}{os.pathsep}/one{os.pathsep}/two"
    assert after == {"HOME": "/home/me", **spec.added_to({})}
    assert child_environment({}, spec)["PYTHONPATH"] == str(BOOTSTRAP_FOLDER)
    assert child_environment({"PYTHONPATH": ""}, spec)["PYTHONPATH"] == str(BOOTSTRAP_FOLDER)


@pytest.mark.parametrize(("before", "after"), [({}, "0"), ({"PYTHONHASHSEED": "random"}, "0"), ({"PYTHONHASHSEED": "7"}, "7")])  # fmt: skip
def test_a_hash_seed_set_by_the_user_is_kept(before: dict[str, str], after: str) -> None:
    environ = child_environment(before, RunSpec(enabling=EnablingRequest()))
    assert environ["PYTHONHASHSEED"] == after
    assert json.loads(environ[RUN_VARIABLE])["enabling"]["seed"] is None


def test_the_key_of_a_process_follows_from_its_parent(tmp_path: Path) -> None:
    (tmp_path / "processes").mkdir()
    parents = [None, None, "main", "main", "main.1", None]
    keys = [claim_process_folder(tmp_path, parent).name for parent in parents]
    assert keys == ["main", "main-2", "main.1", "main.2", "main.1.1", "main-3"]
