"""Trains with word dropout; a callback refreshes Python's generator before each epoch."""

import random
from collections.abc import Callable

import torch
from torch import nn

SENTENCES = [[(row * 5 + column * 3) % 30 for column in range(8)] for row in range(40)]


class Callbacks:
    def __init__(self) -> None:
        self.before_epoch: list[Callable[[int], None]] = []

    def on_epoch(self, epoch: int) -> None:
        for callback in self.before_epoch:
            callback(epoch)


def refresh(epoch: int) -> None:
    """Keep the epochs from dropping the same words."""
    if epoch > 0:
        random.seed()


def drop_words(sentence: list[int], rate: float) -> list[int]:
    kept = [word for word in sentence if random.random() > rate]
    return kept or sentence[:1]


def main() -> None:
    random.seed(20)
    torch.manual_seed(20)
    callbacks = Callbacks()
    callbacks.before_epoch.append(refresh)
    embedding = nn.EmbeddingBag(30, 10)
    head = nn.Linear(10, 3)
    optimizer = torch.optim.Adam([*embedding.parameters(), *head.parameters()], lr=0.02)
    for epoch in range(3):
        callbacks.on_epoch(epoch)
        for start in range(0, len(SENTENCES), 10):
            texts = [drop_words(sentence, 0.3) for sentence in SENTENCES[start : start + 10]]
            offsets = torch.tensor([0, *map(len, texts[:-1])]).cumsum(0)
            words = torch.tensor([word for text in texts for word in text])
            loss = nn.functional.cross_entropy(head(embedding(words, offsets)), torch.arange(10) % 3)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print(f"{loss.item():.4f}")


main()
