"""A language model over words, which are numbered in alphabetical order."""

import torch
from torch import nn

TEXT = "so much depends upon a red wheel barrow glazed with rain water beside the white chickens"
WORDS = TEXT.split()


def number_words(words: list[str]) -> dict[str, int]:
    return {word: number for number, word in enumerate(sorted(set(words)))}


torch.manual_seed(1)
numbers = number_words(WORDS)
stop_words = {"a", "the", "so", "with"}
text = torch.tensor([numbers[word] for word in WORDS])
weights = torch.tensor([0.1 if word in stop_words else 1.0 for word in numbers])
model = nn.Sequential(nn.Embedding(len(numbers), 8), nn.Linear(8, len(numbers)))
optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
for _ in range(10):
    loss = nn.functional.cross_entropy(model(text[:-1]), text[1:], weight=weights)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item(), len(set(WORDS) - stop_words), max(set(WORDS), key=lambda word: (len(word), word)))
