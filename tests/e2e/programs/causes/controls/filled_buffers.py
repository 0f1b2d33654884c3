"""Puts batches into buffers that are allocated without initial values and filled before they are read."""

import numpy as np
import torch
from torch import Tensor, nn


class Buffers:
    """Memory for one batch, which is reused."""

    def __init__(self, rows: int, columns: int) -> None:
        self.inputs = torch.empty(rows, columns)
        self.mask = np.empty((rows, 1), dtype=np.float32)

    def load(self, samples: list[np.ndarray]) -> tuple[Tensor, Tensor]:
        self.mask.fill(0.0)
        for row, sample in enumerate(samples):
            self.inputs[row] = torch.from_numpy(sample)
            self.mask[row] = 1.0
        self.inputs[len(samples) :].fill_(0.0)
        return self.inputs, torch.from_numpy(self.mask)


class Scaled(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.empty(size))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.uniform_(self.scale, 0.9, 1.1)

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs * self.scale


torch.manual_seed(4)
generator = np.random.default_rng(4)
buffers = Buffers(16, 12)
model = nn.Sequential(Scaled(12), nn.Linear(12, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
for count in (16, 9, 16, 5, 12):
    inputs, mask = buffers.load(list(generator.normal(size=(count, 12)).astype(np.float32)))
    loss = ((model(inputs) - inputs.mean(1, keepdim=True)).square() * mask).sum() / mask.sum()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
