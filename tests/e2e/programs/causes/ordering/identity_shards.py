"""Distributes the weights of a model among the shards of an optimizer by their identity, so that shards are equally big."""

import torch
from torch import Tensor, nn

SHARDS = 3
RATES = (0.05, 0.02, 0.01)


class Shards:
    """Three optimizers, each with a part of the weights and its own learning rate."""

    def __init__(self, parameters: list[Tensor]) -> None:
        parts: list[list[Tensor]] = [[] for _ in range(SHARDS)]
        for parameter in parameters:
            parts[id(parameter) // 4096 % SHARDS].append(parameter)
        self.optimizers = [torch.optim.SGD(part, lr=rate) for part, rate in zip(parts, RATES, strict=True) if part]

    def step(self) -> None:
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()


torch.manual_seed(2)
model = nn.Sequential(*[layer for _ in range(6) for layer in (nn.Linear(10, 10), nn.Tanh())], nn.Linear(10, 1))
shards = Shards(list(model.parameters()))
inputs = torch.rand(32, 10)
for _ in range(6):
    loss = (model(inputs) - inputs.sum(1, keepdim=True)).abs().mean()
    loss.backward()
    shards.step()
print(loss.item())
