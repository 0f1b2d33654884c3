"""Snapshots of training with PyTorch: modules, optimizers, schedulers, loaders and generators."""

from __future__ import annotations

import copy
import random
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from determinism.errors import StateError
from determinism.session.snapshot import Snapshot

steps = 0

losses: list[torch.Tensor] = []


class Net(nn.Module):
    """Every kind of state that a module has: parameters, buffers, random layers, plain attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 1))
        self.calls = 0
        self.register_buffer("mean", torch.zeros(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        global steps
        steps += 1
        self.calls += 1
        self.last_input = x
        hidden = self.body[0](x)
        self.mean = 0.9 * self.mean + 0.1 * hidden.detach().mean(0)
        return self.body(x)


def bits(value: Any) -> Any:
    """A value with tensors and arrays as bytes."""
    if isinstance(value, torch.Tensor):
        return value.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    if isinstance(value, np.ndarray):
        return value.tobytes()
    if isinstance(value, list | tuple):
        return [bits(item) for item in value]
    return {key: bits(item) for key, item in value.items()} if isinstance(value, dict) else value


def twice(function: Callable[..., Any], *args: Any) -> tuple[Any, Any]:
    """The results of two calls; the state is restored before the second and after it."""
    snapshot = Snapshot.take(function, args, {})
    first = bits(function(*args))
    snapshot.restore()
    second = bits(function(*args))
    snapshot.restore()
    return first, second


def make_training() -> tuple[Net, torch.optim.Optimizer, Any]:
    net = Net()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)
    return net, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 2)


def test_training_repeats_bit_for_bit_and_only_with_restore() -> None:
    net, optimizer, scheduler = make_training()
    array = np.zeros(3)
    total = 0.0

    def train(rounds: int) -> Any:
        nonlocal total
        for _ in range(rounds):
            x = torch.randn(16, 4) + random.random() + np.random.rand()
            loss = net(x).pow(2).mean() + net.body[0].weight.sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            scheduler.step()
            losses.append(loss.detach())
            array[...] += loss.item()
            total += loss.item()
        return [net.state_dict(), optimizer.state_dict(), scheduler.state_dict(), list(losses), array, total, steps]

    train(1)
    parameters = [id(parameter) for parameter in net.parameters()]
    before = copy.deepcopy(bits([net.state_dict(), optimizer.state_dict(), scheduler.state_dict(), steps, net.calls]))
    snapshot = Snapshot.take(train, (3,), {})
    first = bits(train(3))
    without = bits(train(3))
    snapshot.restore()
    second = bits(train(3))
    assert first == second
    assert first != without
    snapshot.restore()
    after = bits([net.state_dict(), optimizer.state_dict(), scheduler.state_dict(), steps, net.calls])
    assert before == after
    assert parameters == [id(parameter) for parameter in net.parameters()]
    assert set(optimizer.state) == set(net.parameters()) and len(losses) == 1


@pytest.mark.parametrize("missing", ["first step", "gradients"])
def test_newly_created_state_is_removed(missing: str) -> None:
    net, optimizer, scheduler = make_training()
    if missing == "gradients":
        net(torch.ones(2, 4)).sum().backward()
        gradients = [parameter.grad for parameter in net.parameters()]

    def train(net: Net, optimizer: Any) -> Any:
        net(torch.randn(8, 4)).sum().backward()
        optimizer.step()
        scheduler.step()
        optimizer.zero_grad()
        return net.state_dict()

    first, second = twice(train, net, optimizer)
    assert first == second and not optimizer.state
    if missing == "gradients":
        pairs = zip(net.parameters(), gradients, strict=True)
        assert all(parameter.grad is gradient for parameter, gradient in pairs)
    else:
        assert all(parameter.grad is None for parameter in net.parameters())


def test_generators_are_restored() -> None:
    own = torch.Generator().manual_seed(5)

    def run() -> Any:
        return [torch.rand(3), torch.rand(3, generator=own)]

    first, second = twice(run)
    assert first == second
    assert bits(run()) == first, "put back after the last call"
    assert bits(run()) != first


def test_recurrent_attention_and_norm_layers_are_restored() -> None:
    modules = nn.ModuleList(
        [nn.LSTM(4, 4), nn.TransformerEncoderLayer(4, 2), nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))]
    )
    optimizer = torch.optim.SGD(modules.parameters(), lr=0.1, momentum=0.9)

    def run() -> Any:
        x = torch.randn(3, 2, 4)
        loss = modules[0](x)[0].sum() + modules[1](x).sum() + modules[2](x).pow(2).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return modules.state_dict()

    first, second = twice(run)
    assert first == second


def test_the_state_of_a_decorated_function_is_restored() -> None:
    seen = [0]

    @torch.no_grad()
    def run() -> Any:
        seen[0] += 1
        return seen[0], torch.rand(1)

    first, second = twice(run)
    assert first == second and seen == [0]


def test_a_compiled_module_can_be_copied() -> None:
    net = Net()
    compiled = torch.compile(net, backend="eager")

    def run() -> Any:
        return [compiled(torch.randn(4, 4)), net.calls]

    first, second = twice(run)
    assert first == second and net.calls == 0


def test_a_scaler_a_hook_and_a_loss_module_are_restored() -> None:
    net = nn.Linear(2, 2)
    scaler = torch.amp.GradScaler("cpu")
    criterion = nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(net.parameters())
    outputs: list[torch.Tensor] = []

    def run() -> Any:
        net.register_forward_hook(lambda module, args, output: outputs.append(output.detach()))
        with torch.autocast("cpu", torch.bfloat16):
            loss = criterion(net(torch.randn(4, 2)), torch.randint(2, (4,)))
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        return [net.state_dict(), outputs, len(net._forward_hooks), scaler.get_scale()]

    first, second = twice(run)
    assert first == second and not net._forward_hooks and outputs == []


class Items(torch.utils.data.Dataset[torch.Tensor]):
    """Counts how often it is read."""

    def __init__(self) -> None:
        self.asked = 0

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        self.asked += 1
        return torch.tensor([index + random.random(), self.asked])


def test_a_data_loader_is_restored() -> None:
    generator = torch.Generator().manual_seed(1)
    loader = torch.utils.data.DataLoader(Items(), batch_size=3, shuffle=True, generator=generator)

    def run() -> Any:
        return list(loader)

    first, second = twice(run)
    assert first == second
    assert bits(run()) == first and bits(run()) != first


@pytest.mark.parametrize("workers", [0, 1])
def test_an_iterator_of_a_data_loader_is_refused(workers: int) -> None:
    batches = iter(torch.utils.data.DataLoader(Items(), num_workers=workers))

    def run() -> Any:
        return next(batches)

    with pytest.raises(StateError, match=r"^closure\['batches'\] is of type .*DataLoaderIter, whose position"):
        Snapshot.take(run, (), {})


def test_an_unsupported_attribute_of_a_module_is_refused_with_its_path() -> None:
    net = Net()
    net.guard = threading.Lock()
    with pytest.raises(StateError, match=r"^args\[0\]\.guard is of type _thread.lock"):
        Snapshot.take(print, (net,), {})
