"""Classifies points on two rings; the seed for the data is an argument."""

import argparse
import math
import random

import numpy as np
import torch
from torch import Tensor, nn


def make_rings(count: int) -> tuple[Tensor, Tensor]:
    angle = np.random.uniform(0, 2 * math.pi, count)
    ring = np.random.randint(0, 2, count)
    radius = 1 + ring + np.random.normal(0, 0.1, count)
    points = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1)
    return torch.from_numpy(points).float(), torch.from_numpy(ring)


def build_model(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(2, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 2))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--width", type=int, default=32)
    options = parser.parse_args()
    random.seed(options.seed)
    np.random.seed(options.seed)

    points, rings = make_rings(256)
    model = build_model(options.width)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for epoch in range(5):
        order = random.sample(range(256), 256)
        for start in range(0, 256, 64):
            chosen = order[start : start + 64]
            loss = nn.functional.cross_entropy(model(points[chosen]), rings[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        print(f"epoch {epoch}: {loss.item():.4f}")


if __name__ == "__main__":
    main()
