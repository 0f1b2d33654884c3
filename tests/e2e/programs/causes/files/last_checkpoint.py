"""Continues where the last run ended, if there was one; otherwise it starts from the beginning."""

from pathlib import Path

import torch
from torch import nn

LAST = Path("last.pt")


def train(model: nn.Module, optimizer: torch.optim.Optimizer, inputs: torch.Tensor, steps: int) -> float:
    for _ in range(steps):
        loss = (model(inputs) - inputs.prod(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    if LAST.exists():
        saved = torch.load(LAST)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    loss = train(model, optimizer, torch.rand(32, 3), steps=10)
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, LAST)
    print(loss)


main()
