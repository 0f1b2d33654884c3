"""A network with a custom layer whose gains and shifts are learnt."""

import torch
from torch import Tensor, nn


class ScaledLinear(nn.Module):
    """A linear layer whose outputs are scaled and shifted separately."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.gain = nn.Parameter(torch.ones(outputs))
        self.shift = nn.Parameter(torch.empty(outputs))
        nn.init.kaiming_uniform_(self.weight)

    def forward(self, inputs: Tensor) -> Tensor:
        return nn.functional.linear(inputs, self.weight) * self.gain + self.shift


def main() -> None:
    torch.manual_seed(15)
    images = torch.rand(64, 784)
    labels = torch.randint(10, (64,))
    model = nn.Sequential(ScaledLinear(784, 128), nn.ReLU(), ScaledLinear(128, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(4):
        loss = nn.functional.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(loss.item())


main()
