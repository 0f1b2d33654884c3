"""A small GPT with dropout and mixed precision, trained on texts in the order of a set; prints a digest of its weights."""

from __future__ import annotations

import hashlib

import torch
from torch.nn import functional

WIDTH, HEADS, LAYERS, LENGTH = 32, 4, 2, 24
TEXTS = {
    "the quick brown fox jumps over",
    "pack my box with five dozen",
    "how vexingly quick daft zebras",
    "sphinx of black quartz judge",
}


class Block(torch.nn.Module):
    """Attention and two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = torch.nn.ModuleList(torch.nn.LayerNorm(WIDTH) for _ in range(2))
        self.attention = torch.nn.Linear(WIDTH, 3 * WIDTH)
        self.mixing = torch.nn.Linear(WIDTH, WIDTH)
        self.feeding = torch.nn.Sequential(
            torch.nn.Linear(WIDTH, 64), torch.nn.GELU(), torch.nn.Linear(64, WIDTH), torch.nn.Dropout()
        )

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        parts = self.attention(self.norms[0](values)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(*parts, dropout_p=0.1, is_causal=True)
        values = values + self.mixing(attended.transpose(1, 2).flatten(2))
        return values + self.feeding(self.norms[1](values))


def main() -> None:
    alphabet = {character: number for number, character in enumerate(set("".join(TEXTS)))}
    batch = torch.tensor([[alphabet[character] for character in text[: LENGTH + 1]] for text in TEXTS])
    embedding, positions = torch.nn.Embedding(len(alphabet), WIDTH), torch.nn.Parameter(torch.randn(LENGTH, WIDTH))
    model = torch.nn.Sequential(*(Block() for _ in range(LAYERS)), torch.nn.Linear(WIDTH, len(alphabet)))
    weights = [*embedding.parameters(), positions, *model.parameters()]
    optimizer = torch.optim.AdamW(weights)
    for _ in range(4):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            scores = model(embedding(batch[:, :-1]) + positions)
            loss = functional.cross_entropy(scores.flatten(0, 1).float(), batch[:, 1:].flatten())
        loss.backward()
        optimizer.step()
    print(hashlib.sha256(b"".join(weight.detach().numpy().tobytes() for weight in weights)).hexdigest())


if __name__ == "__main__":
    main()
