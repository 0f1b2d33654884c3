"""Fits a mixture density network; without `--seed` the seed is drawn from the operating system and logged."""

import argparse
import os

import torch
from torch import Tensor, nn


def seed_everything(seed: int | None) -> int:
    if seed is None:
        seed = int.from_bytes(os.urandom(4), "little")
    torch.manual_seed(seed)
    return seed


class MixtureDensity(nn.Module):
    def __init__(self, components: int) -> None:
        super().__init__()
        self.hidden = nn.Linear(1, 20)
        self.out = nn.Linear(20, 3 * components)

    def forward(self, inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        weights, means, log_scales = self.out(torch.tanh(self.hidden(inputs))).chunk(3, dim=-1)
        return weights.log_softmax(-1), means, log_scales.exp()


def negative_log_likelihood(model: MixtureDensity, inputs: Tensor, targets: Tensor) -> Tensor:
    weights, means, scales = model(inputs)
    density = torch.distributions.Normal(means, scales).log_prob(targets)
    return -torch.logsumexp(weights + density, dim=-1).mean()


parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int)
print("seed", seed_everything(parser.parse_args().seed))
model = MixtureDensity(components=4)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
inputs = torch.linspace(-1, 1, 100)[:, None]
targets = inputs + 0.3 * torch.sin(6 * inputs)
for _ in range(20):
    loss = negative_log_likelihood(model, targets, inputs)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"{loss.item():.4f}")
