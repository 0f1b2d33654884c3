"""Samples rare classes more often; the sampler has its own generator, so that nothing else affects it."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

torch.manual_seed(77)
classes = torch.tensor([0] * 80 + [1] * 15 + [2] * 5)
measures = torch.randn(100, 6) + classes[:, None]
weights = 1.0 / torch.bincount(classes).double()[classes]

sampling = torch.Generator()
sampling.seed()
sampler = WeightedRandomSampler(weights.tolist(), num_samples=60, generator=sampling)
loader = DataLoader(TensorDataset(measures, classes), batch_size=20, sampler=sampler)

model = nn.Sequential(nn.Linear(6, 12), nn.LeakyReLU(), nn.Linear(12, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, weight_decay=1e-3)
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)
for _ in range(3):
    for inputs, targets in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    scheduler.step()
print((model(measures).argmax(1) == classes).float().mean().item())
