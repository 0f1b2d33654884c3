"""Adds noise to the gradients of one layer with a hook, against overfitting."""

import random

import torch
from torch import Tensor, nn


class GradientNoise:
    """Scales the gradient of a parameter by a random factor."""

    def __init__(self, spread: float) -> None:
        self.spread = spread

    def __call__(self, gradient: Tensor) -> Tensor:
        return gradient * random.gauss(1.0, self.spread)


def build() -> nn.Sequential:
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))
    model[0].weight.register_hook(GradientNoise(0.1))
    return model


def main() -> None:
    torch.manual_seed(61)
    model = build()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    inputs, labels = torch.randn(90, 8), torch.arange(90) % 3
    for _ in range(2):
        for chosen in torch.randperm(90).split(30):
            loss = nn.functional.cross_entropy(model(inputs[chosen]), labels[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print(f"{loss.item():.5f}")


main()
