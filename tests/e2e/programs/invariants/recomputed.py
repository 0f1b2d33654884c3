"""Trains a network for three steps; its blocks are recomputed in the backward pass.

python recomputed.py HOW
"""

import sys

import torch
from torch import Tensor, nn
from torch.utils import checkpoint as checkpoints
from torch.utils.checkpoint import checkpoint

HOW = sys.argv[1]


class Block(nn.Module):
    """A block with dropout and normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm, self.second = nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 8)
        self.drop = nn.Dropout(0.2)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, hidden: Tensor) -> Tensor:
        """One residual block."""
        inner = torch.tanh(self.norm(self.first(hidden)))  # SITE weight
        if HOW == "buffer":
            self.calls += 1
            inner = inner * (1 + self.calls)  # SITE buffer
        if HOW == "branch" and not torch.is_grad_enabled():
            inner = inner.sin()
        if HOW == "branch" and torch.is_grad_enabled():
            inner = inner.cos()  # SITE branch
        inner = self.drop(inner)  # SITE dropout
        return hidden + self.second(inner)


def kept(context: object, op: object, *args: object, **kwargs: object) -> object:
    """Let selective checkpointing keep every second matrix product."""
    kept.calls += op == torch.ops.aten.addmm.default
    policy = checkpoints.CheckpointPolicy
    is_kept = op == torch.ops.aten.addmm.default and kept.calls % 2
    return policy.MUST_SAVE if is_kept else policy.PREFER_RECOMPUTE


def train() -> float:
    """Train for three steps."""
    kept.calls = 0
    torch.manual_seed(0)
    blocks = nn.ModuleList([Block(), Block()])
    optimizer = torch.optim.SGD(blocks.parameters(), lr=0.05)
    inputs = torch.randn(16, 8)
    how = {"use_reentrant": HOW in ("reentrant", "branch"), "preserve_rng_state": HOW != "dropout"}
    if HOW == "selective":
        how["context_fn"] = lambda: checkpoints.create_selective_checkpoint_contexts(kept)
    for step in range(3):
        hidden = inputs.clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16, enabled=HOW == "autocast"):
            for block in blocks:
                hidden = block(hidden) if HOW == "none" else checkpoint(block, hidden, **how)  # SITE call
        if HOW == "weight" and step == 1:
            with torch.no_grad():
                blocks[0].norm.bias.data.add_(0.5)
                blocks[1].second.weight.data.mul_(2)
        loss = hidden.float().square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss.item()


print(train())
