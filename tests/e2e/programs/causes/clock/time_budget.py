"""Trains a variational autoencoder for a limited time, at the end of which the learning rate reaches zero."""

import argparse
import time

import torch
from torch import Tensor, nn


class Autoencoder(nn.Module):
    def __init__(self, size: int, latent: int) -> None:
        super().__init__()
        self.encode = nn.Linear(size, 2 * latent)
        self.decode = nn.Linear(latent, size)

    def forward(self, inputs: Tensor) -> Tensor:
        mean, log_variance = self.encode(inputs).chunk(2, dim=-1)
        latent = mean + torch.randn_like(mean) * (0.5 * log_variance).exp()
        divergence = 0.5 * (mean.square() + log_variance.exp() - log_variance - 1).sum(-1).mean()
        return (self.decode(latent) - inputs).square().sum(-1).mean() + 0.1 * divergence


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=0.6)
    budget = parser.parse_args().seconds
    torch.manual_seed(0)
    model = Autoencoder(20, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    inputs = torch.rand(64, 20)
    start, steps = time.perf_counter(), 0
    while (share := (time.perf_counter() - start) / budget) < 1:
        optimizer.param_groups[0]["lr"] = 0.01 * (1 - share)
        loss = model(inputs)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        steps += 1
    print(f"{steps} steps, loss {loss.item():.3f}")


main()
