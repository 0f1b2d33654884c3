"""Draws points into a depth image; if several fall on one pixel, one of them stays."""

import torch
from torch import Tensor

HEIGHT, WIDTH = 48, 64


def rotation(angle: float) -> Tensor:
    cosine, sine = torch.cos(torch.tensor(angle)), torch.sin(torch.tensor(angle))
    zero, one = torch.zeros(()), torch.ones(())
    return torch.stack([cosine, zero, sine, zero, one, zero, -sine, zero, cosine]).view(3, 3)


def draw(points: Tensor) -> Tensor:
    columns = ((points[:, 0] + 1) * WIDTH / 2).long().clamp(0, WIDTH - 1)
    rows = ((points[:, 1] + 1) * HEIGHT / 2).long().clamp(0, HEIGHT - 1)
    depth = torch.zeros(HEIGHT * WIDTH)
    depth[rows * WIDTH + columns] = points[:, 2]
    return depth.view(HEIGHT, WIDTH)


torch.manual_seed(13)
torch.set_num_threads(2)
cloud = torch.randn(400_000, 3) / 3
total = 0.0
for view in range(24):
    image = draw(cloud @ rotation(view / 10))
    total += float(image.mean())
print(total)
