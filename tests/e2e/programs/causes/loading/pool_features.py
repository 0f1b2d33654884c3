"""Computes features of many short sounds in a pool of processes, then clusters them."""

import math
from multiprocessing import get_context

import numpy as np
import torch


def features(number: int) -> list[float]:
    """Return the energy in eight bands of a sound; some sounds are longer."""
    length = 256 if number % 5 else 40_000
    times = np.arange(length) / 8000
    sound = np.sin(2 * math.pi * (200 + 12 * number) * times) * np.exp(-times * number)
    spectrum = np.abs(np.fft.rfft(sound))
    return [float(np.log1p(band.sum())) for band in np.array_split(spectrum, 8)]


def cluster(points: torch.Tensor, count: int, rounds: int) -> torch.Tensor:
    centres = points[:count].clone()
    for _ in range(rounds):
        nearest = torch.cdist(points, centres).argmin(1)
        for number in range(count):
            if (nearest == number).any():
                centres[number] = points[nearest == number].mean(0)
    return centres


if __name__ == "__main__":
    torch.manual_seed(0)
    with get_context("fork").Pool(3) as pool:
        table = list(pool.imap_unordered(features, range(150)))
    points = torch.tensor(table)
    print(cluster(points, count=4, rounds=5).norm().item())
