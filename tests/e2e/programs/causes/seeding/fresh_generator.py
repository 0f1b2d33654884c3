"""Forecasts a series; its windows are sampled with NumPy's new generators, although the old one was seeded."""

import numpy as np
import torch
from torch import Tensor, nn

np.random.seed(0)
torch.manual_seed(0)


class Windows:
    """Windows of a series, in a random order in each epoch."""

    def __init__(self, series: np.ndarray, length: int, batch: int) -> None:
        self.series = series
        self.length = length
        self.batch = batch
        self.rng = np.random.default_rng()

    def epoch(self) -> list[Tensor]:
        starts = self.rng.permutation(len(self.series) - self.length - 1)
        windows = np.lib.stride_tricks.sliding_window_view(self.series, self.length + 1)[starts]
        return list(torch.from_numpy(windows.copy()).split(self.batch))


class Forecaster(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.cell = nn.GRU(1, size, batch_first=True)
        self.out = nn.Linear(size, 1)

    def forward(self, past: Tensor) -> Tensor:
        states, _ = self.cell(past[..., None])
        return self.out(states[:, -1]).squeeze(-1)


series = np.sin(np.arange(200) / 5).astype(np.float32) + 0.1 * np.cos(np.arange(200)).astype(np.float32)
windows = Windows(series, length=12, batch=32)
model = Forecaster(16)
optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
for _ in range(2):
    for batch in windows.epoch():
        loss = (model(batch[:, :-1]) - batch[:, -1]).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print(loss.item())
