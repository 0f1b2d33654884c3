"""Deterministic programs compare as the same, even though paths, addresses and unread numbers differ in every run."""

from __future__ import annotations

import gc
import io
import itertools
import os
import random
import sys
import tempfile
import time
import uuid
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import determinism
from determinism.types import Verdict
from tests.thorough import in_turns
from tests.torch_runs import check_deterministic

PROGRAMS: list[Callable[[], Any]] = []
runs = itertools.count()


def program(function: Callable[[], Any]) -> Callable[[], Any]:
    PROGRAMS.append(function)
    return function


@pytest.mark.parametrize("function", in_turns(PROGRAMS, 2, "programs", lambda function: function.__name__))
def test_same(function: Callable[[], Any], tmp_path: Path) -> None:
    comparison = check_deterministic(function, tmp_path)
    assert comparison.verdict is Verdict.SAME, comparison.first_divergence
    assert comparison.recorded.records > 0


def train(report: Callable[..., Any], steps: int = 4) -> Any:
    """Train, calling `report` in every step."""
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(net.parameters())
    for step in range(steps):
        x = torch.randn(8, 4)
        loss = net(x).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        report(step, loss, x, net)
        optimizer.step()
    return net.state_dict(), loss


def every_other_run() -> bool:
    """True in every second run, as a condition on the clock may be."""
    return next(runs) % 2 == 0


@program
def temporary_paths_and_process_numbers() -> Any:
    name = f"{os.getpid()}-{uuid.uuid4()}-{id(object())}"
    with tempfile.TemporaryDirectory(prefix=name) as folder:
        file = Path(folder) / f"{name}.pt"
        torch.save({"x": torch.ones(3), "path": str(file), "pid": os.getpid()}, file)
        loaded = torch.load(file)
        np.save(Path(folder) / "a.npy", np.arange(4.0))
        array = torch.from_numpy(np.load(Path(folder) / "a.npy"))
    print(name)
    return loaded["x"] * 2, array + 1


def saved(**tensors: Tensor) -> io.BytesIO:
    """A checkpoint that was made before anything is recorded."""
    torch.save(tensors, file := io.BytesIO())
    return file


READ, LONG = torch.arange(6.0), torch.arange(600.0)
FILES = [
    saved(read=READ, unread=torch.ones(4), partly=LONG),
    saved(read=READ, unread=torch.zeros(4), partly=LONG + (LONG > 99)),
]


@program
def loaded_tensors_that_nothing_reads() -> Any:
    file = FILES[every_other_run()]
    file.seek(0)
    loaded = torch.load(file)
    return loaded["read"] * 2, loaded["partly"][:50].sum()


@program
def a_loaded_list_that_holds_itself() -> Any:
    torch.manual_seed(0)
    own: list[Any] = [torch.ones(3), nn.Linear(2, 2)]
    own.append(own)
    torch.save(own, file := io.BytesIO())
    file.seek(0)
    return torch.load(file, weights_only=False)[0] * 2


@program
def code_run_from_a_temporary_file() -> Any:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"generated_{uuid.uuid4().hex}.py"
        file.write_text("import torch\ndef work(x):\n    return (x * 2).exp()\n")
        scope: dict[str, Any] = {"__name__": "generated"}
        exec(compile(file.read_text(), str(file), "exec"), scope)
        return scope["work"](torch.arange(3.0)), eval("x + 1", {"x": torch.ones(2)})


@program
def random_draws_that_nothing_reads() -> Any:
    torch.seed()
    torch.randn(10)
    torch.randperm(5)
    nn.Linear(3, 3)
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    return torch.randn(3)


@program
def unseeded_generators_that_nothing_reads() -> Any:
    own = torch.Generator()
    own.seed()
    torch.manual_seed(0)
    noise = torch.randn(4, generator=own)
    torch.rand(4, generator=own) + noise
    np.random.default_rng().normal(size=3)
    torch.from_numpy(np.random.default_rng().normal(size=3)).add(1)
    return torch.randn(4)


@program
def unread_differences_in_memory() -> Any:
    torch.tensor(time.time() % 1).mul(2)
    torch.tensor([os.getpid(), id(object())]).float().mean()
    torch.empty(100).sum()
    kept = torch.zeros(2)
    kept[0].fill_(time.time() % 1)
    return kept[1:].exp()


@program
def sets_and_addresses() -> Any:
    things = {object() for _ in range(20)}
    table = {id(thing): torch.ones(2) for thing in things}
    return sum(table.values()), torch.tensor(len(things)) * 2, torch.tensor(sorted({"b", "a"}) == ["a", "b"])


@program
def garbage_collected_at_another_time() -> Any:
    moment = every_other_run()

    class Cyclic(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.full((2,), 0.5))
            self.register_buffer("held", torch.ones(2))
            self.owner = [self]

        def forward(self, x: Tensor) -> Tensor:
            return x * self.weight + self.held

    gc.disable()
    try:
        for _ in range(3):
            cyclic = Cyclic()
            torch.optim.SGD(cyclic.parameters(), lr=0.1).register_step_post_hook(lambda *_: None)
            cyclic(torch.ones(2)).sum().backward()
            del cyclic
            if moment:
                gc.collect()
        return train(lambda *_: None)
    finally:
        gc.enable()
        gc.collect()


@program
def many_short_lived_tensors_of_one_size() -> Any:
    total = torch.zeros(3)
    moment = every_other_run()
    kept = []
    for number in range(200):
        part = torch.full((3,), float(number))
        if moment and number % 3 == 0:
            kept.append(object())
        total = total + part
        del part
    return total


@program
def optimizers_one_after_the_other() -> Any:
    padding = [object() for _ in range(next(runs) * 7 % 50)]
    del padding
    return [train(lambda *_: None, 2) for _ in range(4)]


@program
def warnings_and_exceptions() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        if every_other_run():
            warnings.warn("only in one run", stacklevel=1)
    try:
        torch.ones(2) @ torch.ones(3)
    except RuntimeError as error:
        print(error)
    return torch.ones(2) + len(sys.argv) * 0


@program
def arrays_handed_back_and_forth() -> Any:
    array = np.arange(6.0)
    x = torch.from_numpy(array)
    array *= 2
    y = x + 1
    shared = y.numpy()
    shared += 1
    return y.sum(), x * 3, torch.as_tensor(shared).exp(), torch.tensor(shared), torch.utils.dlpack.from_dlpack(y) * 2


@program
def explicit_steps() -> Any:
    x = torch.zeros(3)
    for number in range(4):
        x += number
        determinism.step()
    return x
