"""Trains for several epochs; when batches get slower than usual, some are skipped, so that jobs end in time."""

import time
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn


@dataclass
class Pace:
    """Measures how long batches take."""

    allowed: float = 1.0
    times: list[float] = field(default_factory=list)
    last: float = field(default_factory=time.monotonic)

    def is_behind(self) -> bool:
        now = time.monotonic()
        self.times.append(now - self.last)
        self.last = now
        recent = self.times[-5:]
        return sum(recent) / len(recent) > self.allowed * sum(self.times) / len(self.times)


def smooth(signal: Tensor, rounds: int) -> Tensor:
    for _ in range(rounds):
        signal = (signal + signal.roll(1, -1) + signal.roll(-1, -1)) / 3
    return signal


torch.manual_seed(29)
data = torch.randn(120, 64)
model = nn.Sequential(nn.Linear(64, 64), nn.CELU(), nn.Linear(64, 64))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
pace = Pace()
skipped = 0
for _ in range(4):
    for number, batch in enumerate(data.split(4)):
        if pace.is_behind() and number % 2:
            skipped += 1
            continue
        target = smooth(batch, rounds=20 + number)
        loss = nn.functional.mse_loss(model(batch), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print(skipped, loss.item())
