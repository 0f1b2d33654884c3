"""Mixed precision with a scaler that skips a step, gradients accumulated over two parts, and recomputed activations.

python mixed.py [bit|recomputed]
"""

import sys

import torch
from planting import hand_on
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    def __init__(self, *, reentrant: bool) -> None:
        super().__init__()
        self.reentrant = reentrant
        self.inner = nn.Sequential(nn.Linear(8, 8), nn.GELU(), nn.Dropout(0.3))
        self.calls = 0

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs + checkpoint(self.run, inputs, use_reentrant=self.reentrant)

    def run(self, inputs: Tensor) -> Tensor:
        """Run the forward pass, and again during the backward pass."""
        self.calls += 1
        if self.calls == 6 and not self.reentrant and "recomputed" in sys.argv:
            inputs = hand_on(inputs)  # SITE recomputed
        return self.inner(inputs)


torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 8), Block(reentrant=True), Block(reentrant=False), nn.Linear(8, 1))
optimizer = torch.optim.AdamW(net.parameters())
scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=2)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.9**step)
for step in range(4):
    optimizer.zero_grad()
    for part in range(2):
        inputs = torch.randn(8, 4)
        if step == 2 and part == 1 and "bit" in sys.argv:
            inputs = hand_on(inputs)  # SITE bit
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = net(inputs).float().square().mean() / 2
        if step == 3 and part == 0:
            loss = loss * torch.inf
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    schedule.step()
    print(scaler.get_scale(), [parameter.sum().item() for parameter in net.parameters()])
