"""Trains a classifier; from the third epoch on, samples are mixed."""

import numpy as np
import torch
from torch import Tensor, nn


class Mixup:
    """Mixes each sample of a batch with another one."""

    def __init__(self, alpha: float, warmup: int) -> None:
        self.alpha = alpha
        self.warmup = warmup

    def __call__(self, inputs: Tensor, targets: Tensor, epoch: int) -> tuple[Tensor, Tensor]:
        if epoch < self.warmup:
            return inputs, targets
        share = float(np.random.beta(self.alpha, self.alpha))
        other = inputs.flip(0)
        return share * inputs + (1 - share) * other, share * targets + (1 - share) * targets.flip(0)


torch.manual_seed(28)
inputs = torch.randn(80, 10)
targets = nn.functional.one_hot((inputs[:, 0] > 0).long() + (inputs[:, 1] > 0).long(), 3).float()
model = nn.Sequential(nn.Linear(10, 20), nn.ReLU(), nn.Dropout(0.1), nn.Linear(20, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
mixup = Mixup(alpha=0.4, warmup=2)
for epoch in range(4):
    for batch in torch.randperm(80).split(20):
        mixed, wanted = mixup(inputs[batch], targets[batch], epoch)
        loss = nn.functional.cross_entropy(model(mixed), wanted)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(epoch, loss.item())
