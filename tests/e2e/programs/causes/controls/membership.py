"""Freezes the layers that are named in a set, decays all weights except those in another set, and counts a third one."""

import torch
from torch import nn

FROZEN = {"embed.weight", "first.bias"}
NO_DECAY = frozenset({"norm.weight", "norm.bias", "first.bias", "out.bias"})


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, 8)
        self.first = nn.Linear(8, 16)
        self.norm = nn.LayerNorm(16)
        self.out = nn.Linear(16, 20)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.out(self.norm(self.first(self.embed(words)).relu()))


torch.manual_seed(18)
net = Net()
for name, parameter in net.named_parameters():
    parameter.requires_grad_(name not in FROZEN)
trained = {name: parameter for name, parameter in net.named_parameters() if parameter.requires_grad}
missing = FROZEN - {name for name, _ in net.named_parameters()}
assert not missing, missing
groups = [
    {"params": [parameter for name, parameter in trained.items() if name not in NO_DECAY], "weight_decay": 0.1},
    {"params": [parameter for name, parameter in trained.items() if name in NO_DECAY], "weight_decay": 0.0},
]
optimizer = torch.optim.AdamW(groups, lr=0.01)
words = torch.arange(60) * 7 % 20
seen: set[int] = set()
for batch in words.split(12):
    seen |= set(batch.tolist())
    loss = nn.functional.cross_entropy(net(batch[:-1]), batch[1:])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(len(seen), all(number in seen for number in range(20)), loss.item())
