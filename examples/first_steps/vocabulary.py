"""Train a bag-of-words classifier whose vocabulary is built from a set."""

import torch
from torch import nn

POSITIVE = [
    "a great film with a fine cast",
    "fine acting and a great story",
    "a warm and funny film",
    "great fun from start to end",
]
NEGATIVE = [
    "a dull film with a weak cast",
    "weak acting and a dull story",
    "a cold and slow film",
    "slow going from start to end",
]


def main():
    torch.manual_seed(0)
    texts = POSITIVE + NEGATIVE
    words = set()
    for text in texts:
        words.update(text.split())
    vocabulary = {word: number for number, word in enumerate(words)}
    labels = torch.tensor([1.0] * len(POSITIVE) + [0.0] * len(NEGATIVE))
    embed = nn.EmbeddingBag(len(vocabulary), 16)
    head = nn.Linear(16, 1)
    optimizer = torch.optim.Adam([*embed.parameters(), *head.parameters()], lr=0.05)
    for step in range(50):
        logits = torch.cat([head(embed(torch.tensor([[vocabulary[word] for word in text.split()]]))) for text in texts])
        loss = nn.functional.binary_cross_entropy_with_logits(logits[:, 0], labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 10 == 9:
            print(f"step {step} loss {loss.item():.6f}")


if __name__ == "__main__":
    main()
