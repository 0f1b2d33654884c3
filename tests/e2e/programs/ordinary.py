"""Trains a small language model with PyTorch ops only."""

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

STEPS = 3
SIZE = 16


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(SIZE)
        self.mix = nn.Linear(SIZE, SIZE)
        self.drop = nn.Dropout(0.1)

    def forward(self, hidden: Tensor) -> Tensor:
        mixed = self.mix(self.norm(hidden)).tanh()  # SITE block
        return hidden + self.drop(mixed)


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(SIZE, SIZE)
        self.blocks = nn.Sequential(Block(), Block())

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embed(tokens)  # SITE embed
        hidden = self.blocks(hidden)
        return hidden @ self.embed.weight.T  # SITE out


def train() -> float:
    """Train for some steps."""
    torch.manual_seed(0)
    model = Model()
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    tokens = torch.arange(STEPS * 4 * 8).view(STEPS * 4, 8) * 5 % SIZE
    for batch in DataLoader(list(tokens), batch_size=4):  # SITE batch
        scores = model(batch[:, :-1])
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), batch[:, 1:].flatten())  # SITE loss
        optimizer.zero_grad()
        loss.backward()  # SITE backward
        optimizer.step()  # SITE step
    return loss.item()
