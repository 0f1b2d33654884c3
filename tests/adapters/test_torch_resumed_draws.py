"""Unequal numbers of draws: the lost state is named, and generators that differ only as a consequence are not."""

from __future__ import annotations

import base64
import json
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from determinism.resume.torch import WatchedGenerators
from determinism.resume.unsaved import unsaved
from determinism.run_spec import RunSpec
from determinism.session import seeding
from determinism.session.record import recording
from determinism.trace.files import read_document
from determinism.trace.opening import open_trace
from determinism.trace.schema import GENERATORS_FILE, PROCESSES_FOLDER, PUT_BACK_FILE, Table
from tests.resumed_runs import compared, lacking


@pytest.fixture(autouse=True)
def put_back() -> Iterator[None]:
    restore = seeding.capture_states()
    yield
    restore()


def replaying(file: Path, run: str, fault: str) -> object:
    """Collect samples in a buffer, their number drawn by Python and their values by NumPy, and train on two of them."""
    random.seed(3)
    np.random.seed(3)
    # Draws before the states are restored do not matter.
    random.random(), np.random.rand(), torch.rand(2 if run == "resumed" else 1)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.2), torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    buffer: list[np.ndarray] = []
    own = np.random.default_rng(3)
    if run == "resumed":
        saved = torch.load(file, weights_only=False)
        model.load_state_dict(saved["model"])
        buffer = [] if fault == "buffer" else saved["buffer"]
        own.bit_generator.state = own.bit_generator.state if fault == "own" else saved["own"]
        setters = {"python": random.setstate, "numpy": np.random.set_state, "torch": torch.set_rng_state}
        for name, set_state in setters.items():
            if name != fault:
                set_state(saved[name])
        if fault == "drawn":
            np.random.rand()
    for _ in range(3 if run == "resumed" else 0, 3 if run == "first" else 6):
        buffer += [np.random.rand(4) for _ in range(random.randrange(2, 5))]
        chosen = np.stack(random.sample(buffer, 2)) + own.random()
        optimizer.zero_grad()
        model(torch.from_numpy(chosen.astype(np.float32))).pow(2).mean().backward()
        optimizer.step()
    if run == "first":
        states = {"python": random.getstate(), "numpy": np.random.get_state(), "torch": torch.get_rng_state()}
        kept = {"model": model.state_dict(), "buffer": buffer, "own": own.bit_generator.state}
        torch.save({**kept, **states}, file)
    return model


def test_states_restored_after_the_first_step_do_not_count_as_resuming(tmp_path: Path) -> None:
    watched = WatchedGenerators(tmp_path)
    try:
        random.seed(1)
        random.setstate(random.getstate())
        watched.step_ended()
        random.seed(2)
        random.setstate(random.getstate())
        watched.close()
    finally:
        for undo in watched.undo():
            undo()
    noted = json.loads((tmp_path / PUT_BACK_FILE).read_text())
    assert {name: len(states) for name, states in noted.items()} == {"python": 1, "numpy": 0, "torch": 0}


def test_draws_before_the_states_are_restored_are_not_a_difference(tmp_path: Path) -> None:
    process = compared(tmp_path, replaying)

    assert process.result.divergence is None, process.result.divergence
    assert lacking(process) == []


@pytest.mark.parametrize("generator", ["python", "numpy", "torch"])
def test_only_the_lost_one_of_several_generators_is_named(tmp_path: Path, generator: str) -> None:
    """The numbers of draws from the others depend on it."""
    (missing,) = unsaved(compared(tmp_path, replaying, generator))

    assert (missing.identifier, missing.is_put_back) == (f"rng-{generator}", False)


@pytest.mark.parametrize("fault", ["buffer", "own"])
def test_lost_data_that_are_not_tensors_are_named(tmp_path: Path, fault: str) -> None:
    """A restored generator may differ as a consequence, which only an additional run can show."""
    found = unsaved(compared(tmp_path, replaying, fault))

    assert found[0].identifier == "own-data"
    assert all(one.is_put_back for one in found[1:])


def test_a_draw_from_a_generator_after_it_was_restored_is_recognized(tmp_path: Path) -> None:
    found = {one.identifier: one for one in unsaved(compared(tmp_path, replaying, "drawn"))}

    assert found["rng-numpy"].is_put_back
    assert "restore it last" in found["rng-numpy"].fix


def test_generators_are_kept_as_they_were_at_saving(tmp_path: Path) -> None:
    """An evaluation that draws between the last step and saving is not repeated by a resumed run."""
    parameter = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([parameter], lr=0.1)
    torch.manual_seed(5)
    saved: list[torch.Tensor] = []
    with recording(RunSpec(tmp_path / "run", generators={"keep": True, "steps": 2})):
        for _ in range(3):
            (parameter * torch.rand(2)).sum().backward()
            optimizer.step()
            torch.rand(3)
            saved.append(torch.get_rng_state())
            torch.save(parameter, tmp_path / "checkpoint")
            torch.rand(3)

    kept = read_document(tmp_path / "run" / PROCESSES_FOLDER / "main" / GENERATORS_FILE)
    assert base64.b64decode(kept["torch"]["cpu"]) == bytes(saved[1].tolist())
    (process,) = open_trace(tmp_path / "run").processes
    assert "aten::clone" not in process.names.texts(Table.OP), "what is kept is not recorded"
