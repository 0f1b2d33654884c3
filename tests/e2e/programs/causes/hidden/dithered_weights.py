"""Rounds weights to sixteen levels after each step, dithered with bytes from the C library."""

import ctypes

import torch
from torch import Tensor, nn

LEVELS = 16
library = ctypes.CDLL(None)


class Dither:
    """A buffer of noise between -0.5 and 0.5, which is refilled for each use."""

    def __init__(self, size: int) -> None:
        self.bytes = torch.zeros(size, dtype=torch.uint8)

    def refill(self) -> None:
        library.getentropy(ctypes.c_void_p(self.bytes.data_ptr()), ctypes.c_size_t(len(self.bytes)))

    def like(self, weights: Tensor) -> Tensor:
        return self.bytes[: weights.numel()].view(weights.shape).float() / 255 - 0.5


@torch.no_grad()
def quantise(model: nn.Module, dither: Dither) -> None:
    for parameter in model.parameters():
        dither.refill()
        noisy = parameter * LEVELS + dither.like(parameter)
        parameter.copy_(noisy.round() / LEVELS)


torch.manual_seed(62)
model = nn.Sequential(nn.Linear(6, 24), nn.ReLU(), nn.Linear(24, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
dither = Dither(256)
inputs = torch.rand(40, 6)
for _ in range(5):
    loss = (model(inputs) - inputs.mean(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    quantise(model, dither)
print(loss.item())
