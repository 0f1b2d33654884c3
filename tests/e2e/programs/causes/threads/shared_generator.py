"""Trains an ensemble in threads, which draw noise from one generator on a first-come, first-served basis."""

import threading

import torch
from torch import Tensor, nn


class Member(threading.Thread):
    """One network of the ensemble."""

    def __init__(self, number: int, inputs: Tensor, noise: torch.Generator) -> None:
        super().__init__(name=f"member-{number}")
        self.model = nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 1))
        self.inputs = inputs
        self.noise = noise

    def run(self) -> None:
        optimizer = torch.optim.SGD(self.model.parameters(), lr=0.02)
        for _ in range(25):
            noisy = self.inputs + 0.1 * torch.randn(self.inputs.shape, generator=self.noise)
            loss = (self.model(noisy) - self.inputs.mean(1, keepdim=True)).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


torch.manual_seed(33)
torch.set_num_threads(1)
inputs = torch.rand(256, 12)
generator = torch.Generator().manual_seed(33)
members = [Member(number, inputs, generator) for number in range(3)]
for member in members:
    member.start()
for member in members:
    member.join()
with torch.no_grad():
    print(torch.stack([member.model(inputs) for member in members]).mean().item())
