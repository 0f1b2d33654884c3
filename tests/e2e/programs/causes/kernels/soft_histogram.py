"""Matches the histogram of an image to that of another, with weights that fall off from the centre."""

import torch
from torch import Tensor

BINS = 64


def histogram(image: Tensor, weights: Tensor) -> Tensor:
    bins = (image.flatten() * BINS).long().clamp(0, BINS - 1)
    counts = torch.zeros(BINS).put_(bins, weights.flatten(), accumulate=True)
    return counts / counts.sum()


def falloff(size: int) -> Tensor:
    axis = torch.linspace(-1, 1, size)
    return torch.exp(-(axis[:, None] ** 2 + axis[None] ** 2))


def main() -> None:
    torch.manual_seed(1)
    torch.set_num_threads(2)
    wanted, image = torch.rand(512, 512), torch.rand(512, 512).square()
    weights = falloff(512)
    target = histogram(wanted, weights).cumsum(0)
    for step in range(6):
        own = histogram(image, weights).cumsum(0)
        shift = (target - own)[(image.flatten() * BINS).long().clamp(0, BINS - 1)].view_as(image)
        image = (image - 0.5 * shift).clamp(0, 1)
        print(step, float((target - own).abs().mean()))


main()
