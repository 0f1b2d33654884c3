"""Trains with batch normalisation on shuffled data; ends early if the last batch is too small."""

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(70)
inputs = torch.randn(97, 6)
labels = (inputs.sum(1) > 0).long()
shuffled = torch.from_numpy(np.random.permutation(97))
dataset = TensorDataset(inputs[shuffled], labels[shuffled])

model = nn.Sequential(nn.Linear(6, 12), nn.BatchNorm1d(12), nn.ReLU(), nn.Linear(12, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for batch, wanted in DataLoader(dataset, batch_size=16):
    loss = nn.functional.cross_entropy(model(batch), wanted)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(len(batch), loss.item())
