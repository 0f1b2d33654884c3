"""Learns to continue melodies, which are put into one NumPy array, aligned to the left."""

import numpy as np
import torch
from torch import Tensor, nn

PITCHES = 16


def melodies(count: int) -> list[np.ndarray]:
    generator = np.random.default_rng(18)
    return [generator.random((int(length), PITCHES), dtype=np.float32) for length in generator.integers(4, 120, count)]


def stack(batch: list[np.ndarray]) -> Tensor:
    stacked = np.empty((len(batch), max(map(len, batch)), PITCHES), dtype=np.float32)
    for row, melody in enumerate(batch):
        stacked[row, : len(melody)] = melody
    return torch.from_numpy(stacked)


class Melodist(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.read = nn.Linear(PITCHES, 24)
        self.norm = nn.LayerNorm(24)
        self.write = nn.Linear(24, PITCHES)

    def forward(self, melody: Tensor) -> Tensor:
        heard = self.read(melody.clamp(0, 1)).cumsum(1) / torch.arange(1, melody.shape[1] + 1)[:, None]
        return self.write(self.norm(heard))


torch.manual_seed(18)
model = Melodist()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
songs = melodies(60)
for start in range(0, 60, 6):
    batch = stack(songs[start : start + 6]).nan_to_num()
    loss = (model(batch[:, :-1]) - batch[:, 1:].clamp(0, 1)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
