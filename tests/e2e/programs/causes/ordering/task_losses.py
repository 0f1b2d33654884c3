"""Learns several properties of molecules at once; the losses of the tasks that are switched on are summed."""

import torch
from torch import Tensor, nn


class Heads(nn.Module):
    def __init__(self, tasks: list[str]) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(30, 40), nn.SiLU())
        self.heads = nn.ModuleDict({task: nn.Linear(40, 1) for task in tasks})

    def forward(self, inputs: Tensor) -> dict[str, Tensor]:
        hidden = self.trunk(inputs)
        return {task: head(hidden) for task, head in self.heads.items()}


class Objective:
    def __init__(self, weights: dict[str, float], switched_off: frozenset[str]) -> None:
        self.weights = weights
        self.active = frozenset(weights) - switched_off

    def __call__(self, outputs: dict[str, Tensor], targets: dict[str, Tensor]) -> Tensor:
        total = torch.zeros(())
        for task in self.active:
            total = total + self.weights[task] * nn.functional.smooth_l1_loss(outputs[task], targets[task])
        return total


WEIGHTS = {"energy": 0.37, "dipole": 1.13, "gap": 0.71, "volume": 0.29, "charge": 0.53, "radius": 1.7, "mass": 0.11}
torch.manual_seed(12)
model = Heads(list(WEIGHTS))
objective = Objective(WEIGHTS, switched_off=frozenset({"mass"}))
optimizer = torch.optim.AdamW(model.parameters())
molecules = torch.randn(64, 30)
targets = {task: molecules[:, :5].sum(1, keepdim=True) * weight for task, weight in WEIGHTS.items()}
for _ in range(10):
    loss = objective(model(molecules), targets)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
