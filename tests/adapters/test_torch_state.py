"""`determinism.state` with PyTorch: a run that goes on from a saved state draws and computes what the full one did."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import determinism
from determinism.errors import StateError
from determinism.session import seeding


@pytest.fixture(autouse=True)
def put_back() -> Iterator[None]:
    restore = seeding.capture_states()
    yield
    restore()


class Training:
    """A model with everything that has a state."""

    def __init__(self) -> None:
        self.seeds = determinism.seed(1)
        self.own = self.seeds.register(np.random.default_rng(), name="own")
        self.noise = self.seeds.register(torch.Generator(), name="noise")
        self.model = torch.nn.Sequential(
            torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(), torch.nn.Linear(8, 1)
        )
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.1)
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 2)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=256.0, growth_interval=2)

    @property
    def objects(self) -> dict[str, Any]:
        return {"model": self.model, "optimizer": self.optimizer, "scheduler": self.scheduler, "scaler": self.scaler}

    def steps(self, count: int) -> None:
        for _ in range(count):
            batch = torch.randn(8, 4) + random.random() + np.random.rand() + self.own.random()
            batch = batch + torch.rand(1, generator=self.noise)
            self.optimizer.zero_grad()
            self.scaler.scale(self.model(batch).square().mean()).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
            self.scheduler.step()

    def weights(self) -> list[bytes]:
        return [value.numpy().tobytes() for value in self.model.state_dict().values()]


def test_a_run_that_goes_on_ends_as_the_full_one(tmp_path: Path) -> None:
    full = Training()
    full.steps(7)
    half = Training()
    half.steps(3)
    determinism.state.save(determinism.state.capture(epoch=0, step=3, **half.objects), tmp_path / "a.state")
    resumed = Training()
    resumed.steps(1)
    place = determinism.state.restore(determinism.state.load(tmp_path / "a.state"), **resumed.objects)
    resumed.steps(4)

    assert place == {"epoch": 0, "step": 3}
    assert resumed.weights() == full.weights()
    assert resumed.scaler.state_dict() == full.scaler.state_dict()
    assert resumed.scheduler.get_last_lr() == full.scheduler.get_last_lr()


@pytest.mark.parametrize("leave_out", ["optimizer", "scheduler", "scaler", "model"])
def test_what_is_left_out_is_missed(leave_out: str) -> None:
    training = Training()
    state = determinism.state.capture(**training.objects)
    before = (training.weights(), torch.get_rng_state())
    training.objects.pop(leave_out)
    given = {name: thing for name, thing in training.objects.items() if name != leave_out}

    with pytest.raises(StateError, match=f"{leave_out} was captured and is not given"):
        determinism.state.restore(state, **given)
    assert training.weights() == before[0] and torch.equal(torch.get_rng_state(), before[1])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"versions": {"torch": "1.0"}}, "versions were"),
        ({"rank": 3}, "rank was 3 and is 0"),
        ({"ranks": "8"}, "ranks were 8 and are 1"),
        ({"devices": {"torch": {"cuda": 2}}}, "devices were"),
    ],
)
def test_another_process_than_it_was_made_in_is_refused(change: dict[str, Any], said: str) -> None:
    determinism.seed(1)
    state = determinism.state.capture()
    state["made with"].update(change)
    expected = torch.rand(3)
    torch.rand(5)

    with pytest.raises(StateError, match=said):
        determinism.state.restore(state)
    determinism.state.restore(state, ignore=tuple(change))
    assert torch.equal(torch.rand(3), expected)


def test_a_registered_generator_that_is_gone_is_missed() -> None:
    seeds = determinism.seed(1)
    own = seeds.register(random.Random(), name="own")
    state = determinism.state.capture()
    seeds.unregister(own)

    with pytest.raises(StateError, match="the generators own were registered and are not"):
        determinism.state.restore(state)


def test_a_state_does_not_change_with_what_it_was_taken_of() -> None:
    training = Training()
    state = determinism.state.capture(**training.objects)
    before = state["objects"]["model"]["0.weight"].clone()
    training.steps(2)

    assert torch.equal(state["objects"]["model"]["0.weight"], before)


def test_an_object_without_a_state_is_refused() -> None:
    with pytest.raises(StateError, match="loader is a list"):
        determinism.state.capture(loader=[])


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6, dtype=torch.bfloat16).reshape(2, 3), torch.zeros(0, 3), torch.tensor(1 + 2j), torch.tensor(True),
        torch.arange(4.0).to(torch.float8_e4m3fn), torch.arange(6.0).reshape(2, 3).T, torch.ones(3, requires_grad=True),
    ],
    ids=lambda tensor: f"{tensor.dtype} {tuple(tensor.shape)}",
)  # fmt: skip
def test_tensors_of_every_kind_come_back(tensor: torch.Tensor, tmp_path: Path) -> None:
    determinism.state.save({"a": tensor}, tmp_path / "a.state")
    found = determinism.state.load(tmp_path / "a.state")["a"]

    assert found.dtype == tensor.dtype and found.shape == tensor.shape
    assert (
        found.contiguous().view(-1).view(torch.uint8).tolist()
        == tensor.detach().contiguous().view(-1).view(torch.uint8).tolist()
    )


def test_a_made_up_dtype_is_refused(tmp_path: Path) -> None:
    from safetensors.numpy import save

    document = json.dumps({"a": {"$array": "0", "library": "torch", "dtype": "load", "shape": [1]}})
    metadata = {"format": "determinism.state/1", "state": document}
    (tmp_path / "a.state").write_bytes(save({"0": np.zeros(4, "uint8")}, metadata=metadata))

    with pytest.raises(StateError, match="no whole state"):
        determinism.state.load(tmp_path / "a.state")
