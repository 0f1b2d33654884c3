"""A dataset that creates its generator when the first sample is requested, which happens in a worker."""

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset


class JitteredCurves(Dataset):
    def __init__(self, count: int) -> None:
        self.count = count
        self._generator: np.random.Generator | None = None

    @property
    def generator(self) -> np.random.Generator:
        if self._generator is None:
            self._generator = np.random.default_rng()
        return self._generator

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        slope = index / self.count
        curve = slope * np.linspace(0, 1, 20) + self.generator.normal(0, 0.01, 20)
        return torch.from_numpy(curve).float(), torch.tensor([slope])


torch.manual_seed(6)
model = nn.Sequential(nn.Linear(20, 8), nn.Softplus(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for curves, slopes in DataLoader(JitteredCurves(60), batch_size=10, shuffle=True, num_workers=1):
    optimizer.zero_grad()
    nn.functional.l1_loss(model(curves), slopes).backward()
    optimizer.step()
print(float(model(torch.linspace(0, 1, 20))))
