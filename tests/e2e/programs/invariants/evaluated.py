"""Calls a network with grad and under no_grad on the same inputs.

python evaluated.py HOW
"""

import sys

import torch
from torch import Tensor, nn

HOW = sys.argv[1]


class Net(nn.Module):
    """An encoder, which has a fast path for inference, or layers that have none."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, norm_first=False)
        self.head = nn.Linear(8, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        """Encode and classify."""
        hidden = self.encoder(tokens) if HOW in ("fast path", "training") else tokens.tanh()  # SITE fast path
        if HOW == "rounded" and not torch.is_grad_enabled():
            hidden = hidden.bfloat16().float()  # SITE rounded
        return self.head(hidden)


torch.manual_seed(0)
net = Net()
optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
inputs = torch.randn(4, 5, 8)
for _ in range(2):
    net.train(HOW == "training")
    with torch.no_grad():
        before = net(inputs)
    net(inputs).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
print(before.sum().item())
