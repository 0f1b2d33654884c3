"""LBFGS calls a closure several times per step; a custom optimizer with hooks follows.

python closures.py [bit|rate]
"""

import sys
import time

import torch
from planting import hand_on
from torch import Tensor, nn


class Momentum(torch.optim.Optimizer):
    def __init__(self, parameters, rate: float) -> None:
        super().__init__(parameters, {"rate": rate})

    @torch.no_grad()
    def step(self, closure=None) -> None:
        for group in self.param_groups:
            for parameter in group["params"]:
                held = self.state[parameter].setdefault("held", torch.zeros_like(parameter))
                held.mul_(0.9).add_(parameter.grad)
                parameter.sub_(held * group["rate"])  # SITE rate


torch.manual_seed(0)
net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1))
inputs, targets = torch.randn(16, 4), torch.randn(16, 1)
lbfgs = torch.optim.LBFGS(net.parameters(), max_iter=4, line_search_fn="strong_wolfe")
calls = 0


def closure() -> Tensor:
    """Compute the loss at each point that LBFGS evaluates."""
    global calls
    calls += 1
    lbfgs.zero_grad()
    loss = nn.functional.mse_loss(net(inputs), targets)
    loss.backward()
    return loss


for step in range(2):
    if step == 1 and "bit" in sys.argv:
        targets = hand_on(targets)  # SITE bit
    print(lbfgs.step(closure).item(), calls > step)


def limit(optimizer: torch.optim.Optimizer, arguments: tuple, keywords: dict) -> None:
    """Clip all gradients before a step."""
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)


def keep_small(parameter: Tensor) -> None:
    """Limit a gradient as soon as it is accumulated."""
    parameter.grad.clamp_(-1, 1)


rate = 0.1 + (time.time_ns() % 1_000_000) * 1e-9 if "rate" in sys.argv else 0.1
momentum = Momentum(net.parameters(), rate)
momentum.register_step_pre_hook(limit)
net[2].register_full_backward_hook(lambda module, given, made: (given[0] * 0.5,))
for parameter in net.parameters():
    parameter.register_post_accumulate_grad_hook(keep_small)
for _ in range(2):
    momentum.zero_grad()
    closure()
    momentum.step()
print([parameter.sum().item() for parameter in net.parameters()])
