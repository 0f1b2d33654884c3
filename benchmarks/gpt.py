"""The model that the overhead is measured on: a small GPT with AdamW on random tokens."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional


class Size(NamedTuple):
    """Sizes of a model and of its batches."""

    layers: int
    width: int
    heads: int
    tokens: int
    batch: int
    vocabulary: int


SIZES = {
    "1M": Size(4, 128, 4, 64, 8, 1000),
    "12M": Size(6, 384, 6, 128, 8, 2000),
    "12M-batch": Size(6, 384, 6, 256, 16, 2000),
}
"""The last one has batches of a usual size for such a model: 4,096 tokens."""


class Block(nn.Module):
    """Attention and a feed-forward layer."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads = size.heads
        self.first_norm, self.second_norm = nn.LayerNorm(size.width), nn.LayerNorm(size.width)
        self.attention = nn.Linear(size.width, 3 * size.width)
        self.projection = nn.Linear(size.width, size.width)
        self.feed_forward = nn.Sequential(
            nn.Linear(size.width, 4 * size.width), nn.GELU(), nn.Linear(4 * size.width, size.width), nn.Dropout(0.1)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, tokens, width = x.shape
        parts = self.attention(self.first_norm(x)).split(width, dim=2)
        query, key, value = (p.view(batch, tokens, self.heads, width // self.heads).transpose(1, 2) for p in parts)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.projection(attended.transpose(1, 2).reshape(batch, tokens, width))
        return x + self.feed_forward(self.second_norm(x))


class GPT(nn.Module):
    """Embeddings, blocks, and a linear head."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.size = size
        self.token = nn.Embedding(size.vocabulary, size.width)
        self.position = nn.Embedding(size.tokens, size.width)
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.width)
        self.head = nn.Linear(size.width, size.vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Trainer:
    """Makes training steps."""

    def __init__(self, size: Size) -> None:
        torch.manual_seed(0)
        self.size = size
        self.model = GPT(size)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)

    def step(self) -> float:
        """One step; returns the loss."""
        size = self.size
        tokens = torch.randint(0, size.vocabulary, (size.batch, size.tokens + 1))
        logits = self.model(tokens[:, :-1])
        loss = functional.cross_entropy(logits.reshape(-1, size.vocabulary), tokens[:, 1:].reshape(-1))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()
