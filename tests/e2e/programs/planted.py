"""Trains a small network that passes tensors through custom ops in many places; any of these can flip one bit.

    python planted.py SPOT ELEMENT BIT MARKER

flips the bit in every run except the one that creates the file MARKER.
"""

import sys
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

STEPS = 3
SIZE = 8


class Plant(NamedTuple):
    spot: str
    element: int
    bit: int


plant: Plant | None = None
"""The bit to be flipped in this run."""


def flip(tensor: Tensor, spot: str) -> None:
    """Flip the planted bit, if it is planted here."""
    if plant is not None and plant.spot == spot:
        element = tensor.view(-1)[plant.element].view(1).view(torch.uint8)
        element[plant.bit // 8] ^= 1 << plant.bit % 8


@torch.library.custom_op("lab::identity", mutates_args=())
def identity(tensor: Tensor, spot: str) -> Tensor:
    result = tensor.clone(memory_format=torch.contiguous_format)
    flip(result, spot)
    return result


identity.register_autograd(lambda context, gradient: (gradient, None))


@torch.library.custom_op("lab::both", mutates_args=())
def both(tensor: Tensor, spot: str) -> tuple[Tensor, Tensor]:
    results = tensor.clone(), tensor.to(torch.float64, copy=True)
    flip(results[1], spot)
    return results


@torch.library.custom_op("lab::count_", mutates_args=("counter",))
def count_(counter: Tensor, spot: str) -> None:
    counter += 1
    flip(counter, spot)


class Bridge(torch.autograd.Function):
    @staticmethod
    def forward(ctx, tensor, step):
        ctx.step = step
        return tensor * 2  # SITE bridge

    @staticmethod
    def backward(ctx, gradient):
        gradient = gradient * 2
        return torch.ops.lab.identity(gradient, f"function@{ctx.step}"), None  # SITE function


class Gate(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros(4, dtype=torch.int64))

    def forward(self, hidden: Tensor, step: int) -> Tensor:
        torch.ops.lab.count_(self.calls, f"buffer@{step}")  # SITE buffer
        mask = torch.ops.lab.identity(hidden > 0, f"mask@{step}")  # SITE mask
        return hidden * mask


class Net(nn.Module):
    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.embed = nn.Embedding(2 * SIZE, SIZE, dtype=dtype)
        self.stages = nn.ModuleList([nn.ModuleDict({"gate": Gate()})])
        self.out = nn.Linear(SIZE, SIZE, dtype=dtype)

    def forward(self, tokens: Tensor, step: int) -> Tensor:
        hidden = self.embed(tokens)
        hidden = torch.ops.lab.identity(hidden, f"forward@{step}")  # SITE forward
        hidden = Bridge.apply(hidden, step)
        if hidden.requires_grad:
            hidden.register_hook(lambda gradient: torch.ops.lab.identity(gradient, f"hook@{step}"))  # SITE hook
        hidden = self.stages[0]["gate"](hidden, step)
        _, second = torch.ops.lab.both(hidden.detach(), f"second@{step}")  # SITE second
        return self.out(hidden + second.mean().to(hidden.dtype))


class Descent(torch.optim.Optimizer):
    def __init__(self, parameters) -> None:
        super().__init__(parameters, {"rate": 0.05})
        self.calls = 0

    @torch.no_grad()
    def step(self, closure=None):
        for index, parameter in enumerate(self.param_groups[0]["params"]):
            spot = f"optimizer@{self.calls}" if index == 1 else ""
            update = torch.ops.lab.identity(parameter.grad, spot)  # SITE optimizer
            parameter.add_(update, alpha=-0.05)
        self.calls += 1


class Collate:
    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, samples):
        tokens = torch.stack([torch.tensor(sample) for sample in samples])
        tokens = torch.ops.lab.identity(tokens, f"batch@{self.calls}")  # SITE batch
        self.calls += 1
        return tokens


def train(dtype: torch.dtype = torch.float32) -> list[float]:
    """Train for some steps, and evaluate."""
    torch.manual_seed(0)
    model = Net(dtype)
    weight = torch.ops.lab.identity(model.out.weight.detach(), "init@0")  # SITE init
    model.out.weight.data.copy_(weight)
    optimizer = Descent(model.parameters())
    samples = [[2 * ((5 * row + column) % SIZE) for column in range(4)] for row in range(2 * STEPS)]
    for step, tokens in enumerate(DataLoader(samples, batch_size=2, collate_fn=Collate())):
        loss = nn.functional.cross_entropy(model(tokens, step).flatten(0, 1), tokens.flatten() // 2)
        loss = torch.ops.lab.identity(loss, f"loss@{step}")  # SITE loss
        torch.ops.lab.identity(loss.detach(), f"unread@{step}")
        optimizer.zero_grad()
        loss.backward()  # SITE backward
        optimizer.step()
    with torch.no_grad():
        scores = model(tokens, STEPS)
        scores = torch.ops.lab.identity(scores, f"evaluation@{STEPS}")  # SITE evaluation
        return scores.flatten().tolist()


if __name__ == "__main__":
    spot, element, bit, marker = sys.argv[1:5]
    if Path(marker).exists():
        plant = Plant(spot, int(element), int(bit))
    Path(marker).touch()
    print(train())
