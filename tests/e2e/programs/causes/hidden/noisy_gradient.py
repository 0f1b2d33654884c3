"""Trains a network with binary activations, whose gradient is estimated with noise from NumPy."""

import numpy as np
import torch
from torch import Tensor, nn


class StochasticSign(torch.autograd.Function):
    """The sign, with a noisy gradient."""

    noise = np.random.RandomState()

    @staticmethod
    def forward(ctx, inputs: Tensor) -> Tensor:
        ctx.save_for_backward(inputs)
        return inputs.sign()

    @staticmethod
    def backward(ctx, gradient: Tensor) -> Tensor:
        (inputs,) = ctx.saved_tensors
        scale = StochasticSign.noise.uniform(0.8, 1.2, inputs.shape).astype(np.float32)
        return gradient * (inputs.abs() < 1) * torch.from_numpy(scale)


class BinaryLayer(nn.Module):
    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)

    def forward(self, inputs: Tensor) -> Tensor:
        return StochasticSign.apply(self.linear(inputs))


np.random.seed(5)
torch.manual_seed(5)
model = nn.Sequential(BinaryLayer(10, 32), BinaryLayer(32, 16), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
inputs = torch.randn(64, 10)
for _ in range(6):
    loss = nn.functional.mse_loss(model(inputs), inputs[:, :1])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
