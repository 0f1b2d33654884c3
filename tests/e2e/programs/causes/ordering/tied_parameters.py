"""A deep network with tied layers; tied weights must count once in the norm of the gradients."""

import torch
from torch import Tensor, nn


class TiedStack(nn.Module):
    """Layers in which every second one shares the weight of the previous one."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        for even, odd in zip(self.layers[::2], self.layers[1::2], strict=True):
            odd.weight = even.weight

    def forward(self, hidden: Tensor) -> Tensor:
        for layer in self.layers:
            hidden = hidden + 0.1 * torch.tanh(layer(hidden))
        return hidden


def clip_gradients(model: nn.Module, limit: float) -> Tensor:
    parameters = {parameter for layer in model.layers for parameter in layer.parameters(recurse=False)}
    total = torch.zeros(())
    for parameter in parameters:
        total += parameter.grad.square().sum()
    norm = total.sqrt()
    for parameter in model.parameters():
        parameter.grad.mul_(limit / norm)
    return norm


torch.manual_seed(0)
model = TiedStack(width=8, depth=240)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
inputs = torch.randn(16, 8)
for _ in range(2):
    loss = (model(inputs) - inputs.flip(0)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    norm = clip_gradients(model, limit=1.0)
    optimizer.step()
print(loss.item(), norm.item())
