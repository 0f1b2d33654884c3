"""Deterministic training compares as the same: optimizers, and the code around a step."""

from __future__ import annotations

import copy
import io
import itertools
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from determinism.types import Verdict
from tests.thorough import in_turns
from tests.torch_runs import check_deterministic
from tests.torch_training import batches, mlp, train

PROGRAMS: list[Any] = []


def program(function: Callable[..., Any], *arguments: Any, name: str = "") -> Callable[..., Any]:
    PROGRAMS.append(pytest.param(lambda: function(*arguments), id=name or function.__name__))
    return function


def optimize(make: Callable[[Iterator[nn.Parameter]], Any]) -> Any:
    net = mlp()
    return train(net, batches(), lambda x, y: F.cross_entropy(net(x), y), make(net.parameters()))


for name, options in {
    "plain": {}, "foreach": {"foreach": True}, "fused": {"fused": True}, "for loop": {"foreach": False},
    "maximize": {"maximize": True, "foreach": True}, "differentiable off, amsgrad": {"amsgrad": True},
    "weight decay": {"weight_decay": 0.1, "foreach": True}, "tensor rate": {"lr": torch.tensor(0.01), "foreach": False},
}.items():  # fmt: skip
    for kind in (torch.optim.Adam, torch.optim.AdamW):
        program(optimize, lambda p, kind=kind, options=options: kind(p, **options), name=f"{kind.__name__} {name}")
for name, options in {"plain": {}, "foreach": {"foreach": True}, "fused": {"fused": True}}.items():
    options = {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01, **options}
    program(optimize, lambda p, options=options: torch.optim.SGD(p, **options), name=f"SGD {name}")
for kind in (torch.optim.RMSprop, torch.optim.Adagrad, torch.optim.Adadelta, torch.optim.Adamax, torch.optim.NAdam,
             torch.optim.RAdam, torch.optim.Rprop, torch.optim.ASGD, torch.optim.Adafactor):  # fmt: skip
    program(optimize, kind, name=kind.__name__)


TURN = itertools.count()


def in_another_order(make: Callable[[list[nn.Parameter]], Any]) -> Any:
    """Give the optimizer its parameters in a different order each time, as if they came from a set."""
    parameters = list((net := mlp()).parameters())
    shift = next(TURN) % len(parameters)
    optimizer = make([*parameters[shift:], *parameters[:shift]])
    train(net, batches(), lambda x, y: F.cross_entropy(net(x), y), optimizer)
    return net.state_dict()


for name, make in {
    "SGD foreach": lambda p: torch.optim.SGD(p, 0.1, momentum=0.9, foreach=True),
    "AdamW foreach": lambda p: torch.optim.AdamW(p, foreach=True),
    "Adam for loop": lambda p: torch.optim.Adam(p, foreach=False),
}.items():
    program(in_another_order, make, name=f"{name} in another order each time")


@program
def lbfgs_with_closure() -> Any:
    net, (x, y) = mlp().eval(), batches(1)[0]
    optimizer = torch.optim.LBFGS(net.parameters(), max_iter=4, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = F.cross_entropy(net(x), y)
        loss.backward()
        return loss

    return [optimizer.step(closure) for _ in range(2)], net.state_dict()


@program
def sparse_gradients() -> Any:
    torch.manual_seed(0)
    table = nn.Embedding(20, 4, sparse=True)
    optimizer = torch.optim.SparseAdam(table.parameters())
    ids = [(torch.randint(20, (5,)),) for _ in range(3)]
    return train(table, ids, lambda x: table(x).pow(2).sum(), optimizer)


@program
def clipping_accumulation_and_schedules() -> Any:
    net = mlp()
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.01, weight_decay=0.1)
    schedules = [
        torch.optim.lr_scheduler.StepLR(optimizer, 1),
        torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 5),
    ]
    norms = []
    for number, (x, y) in enumerate(batches(4)):
        (F.cross_entropy(net(x), y) / 2).backward()
        if number % 2:
            norms += [
                nn.utils.clip_grad_norm_(net.parameters(), 0.1),
                nn.utils.get_total_norm([p.grad for p in net.parameters()]),
            ]
            nn.utils.clip_grad_value_(net.parameters(), 0.05)
            optimizer.step()
            optimizer.zero_grad(set_to_none=number == 1)
            for schedule in schedules:
                schedule.step()
    return norms, net.state_dict(), torch.tensor(schedules[0].get_last_lr())


@program
def scaler_and_autocast() -> Any:
    net = mlp()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=4.0, growth_interval=1)
    for number, (x, y) in enumerate(batches()):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = F.cross_entropy(net(x), y)
        optimizer.zero_grad()
        scaler.scale(loss * float("inf") if number == 1 else loss).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
    return net.state_dict(), torch.tensor(scaler.get_scale())


@program
def averaged_copy_of_a_model() -> Any:
    net = mlp()
    ema = copy.deepcopy(net)
    swa = torch.optim.swa_utils.AveragedModel(net)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    for x, y in batches():
        train(net, [(x, y)], lambda x, y: F.cross_entropy(net(x), y), optimizer)
        with torch.no_grad():
            for mine, theirs in zip(ema.parameters(), net.parameters(), strict=True):
                mine.mul_(0.9).add_(theirs, alpha=0.1)
        swa.update_parameters(net)
    return ema.state_dict(), swa.state_dict()


@program
def initialisation_that_is_loaded_over() -> Any:
    state = mlp().state_dict()
    torch.seed()
    net, other, third = (
        nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 3)) for _ in range(3)
    )
    skipped = nn.utils.skip_init(nn.Linear, 6, 16)
    torch.manual_seed(1)
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    net.load_state_dict(torch.load(file))
    other.load_state_dict(state, assign=True)
    with torch.no_grad():
        for mine, theirs in zip(third.parameters(), state.values(), strict=True):
            mine.copy_(theirs)
        for parameter in skipped.parameters():
            parameter.fill_(0.1)
    return [train(n, batches(), lambda x, y, n=n: F.cross_entropy(n(x), y)) for n in (net, other, third)], skipped(
        torch.ones(6)
    )


@program
def saved_and_loaded_in_a_temporary_folder() -> Any:
    net = mlp()
    optimizer = torch.optim.Adam(net.parameters())
    train(net, batches(2), lambda x, y: F.cross_entropy(net(x), y), optimizer)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "last.pt"
        torch.save({"net": net.state_dict(), "optimizer": optimizer.state_dict(), "folder": folder}, file)
        held = torch.load(file)
        mapped = torch.load(file, mmap=True)["net"]["0.weight"].sum()
    net.load_state_dict(held["net"])
    optimizer.load_state_dict(held["optimizer"])
    return mapped, train(net, batches(2), lambda x, y: F.cross_entropy(net(x), y), optimizer)


@program
def data_loader_in_this_process() -> Any:
    net = mlp()
    data = TensorDataset(torch.randn(20, 6), torch.randint(3, (20,)))
    own = DataLoader(data, 8, shuffle=True, generator=torch.Generator().manual_seed(3))
    shared = DataLoader([{"x": x, "y": int(y), "name": f"row {i}"} for i, (x, y) in enumerate(data)], 8, shuffle=True)
    first = train(net, list(own), lambda x, y: F.cross_entropy(net(x), y))
    second = train(net, [(b["x"], b["y"]) for b in shared], lambda x, y: F.cross_entropy(net(x), y))
    return first, second


@program
def hooks() -> Any:
    net, seen = mlp(), []
    net[0].register_forward_hook(lambda module, inputs, output: output * 2)
    net[0].register_forward_pre_hook(lambda module, inputs: (inputs[0] + 1,))
    net[3].register_full_backward_hook(lambda module, given, made: (given[0] * 0.5,))
    net[3].weight.register_hook(lambda gradient: gradient.clamp(-0.01, 0.01))
    net[0].bias.register_post_accumulate_grad_hook(lambda parameter: seen.append(parameter.grad.norm()))
    return train(net, batches(), lambda x, y: F.cross_entropy(net(x), y)), seen


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("function", in_turns(PROGRAMS, 5, "programs"))
def test_same(function: Callable[[], Any], tmp_path: Path) -> None:
    comparison = check_deterministic(function, tmp_path)
    assert comparison.verdict is Verdict.SAME, comparison.first_divergence
    assert comparison.recorded.records > 0
