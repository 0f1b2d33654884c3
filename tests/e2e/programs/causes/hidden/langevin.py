"""Samples the weights of a Bayesian regression by stochastic gradient Langevin dynamics."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn


class Langevin(torch.optim.Optimizer):
    """Gradient descent with noise whose spread follows from the learning rate."""

    def __init__(self, parameters: Iterable[Tensor], lr: float, temperature: float = 1.0) -> None:
        super().__init__(parameters, {"lr": lr, "temperature": temperature})
        self.noise = torch.Generator()
        self.noise.seed()

    @torch.no_grad()
    def step(self, closure: None = None) -> None:
        for group in self.param_groups:
            spread = (2 * group["lr"] * group["temperature"]) ** 0.5
            for parameter in group["params"]:
                drift = group["lr"] * parameter.grad
                parameter.add_(spread * torch.randn(parameter.shape, generator=self.noise) - drift)


torch.manual_seed(50)
inputs = torch.randn(100, 4)
targets = inputs @ torch.tensor([[1.0], [-2.0], [0.5], [0.0]]) + 0.1 * torch.randn(100, 1)
model = nn.Linear(4, 1)
optimizer = Langevin(model.parameters(), lr=1e-3)
samples = []
for step in range(20):
    loss = 0.5 * (model(inputs) - targets).square().sum() / 0.1
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step >= 10:
        samples.append(model.weight.detach().clone())
print(torch.stack(samples).mean(0).tolist())
