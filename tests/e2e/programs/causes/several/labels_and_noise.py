"""Classifies words by language from their letters; letters are dropped at random."""

import numpy as np
import torch
from torch import Tensor, nn

WORDS = {
    "german": ["hund", "katze", "baum", "wasser"],
    "dutch": ["hond", "kat", "boom", "water"],
    "danish": ["hund", "kat", "trae", "vand"],
    "latin": ["canis", "feles", "arbor", "aqua"],
    "spanish": ["perro", "gato", "arbol", "agua"],
    "finnish": ["koira", "kissa", "puu", "vesi"],
}


def letters(word: str, rate: float) -> Tensor:
    counts = np.zeros(26, dtype=np.float32)
    for letter in word:
        if np.random.random() >= rate:
            counts[ord(letter) - 97] += 1
    return torch.from_numpy(counts)


def class_numbers(words: dict[str, list[str]]) -> dict[str, int]:
    languages = set(words)
    return dict(zip(languages, range(len(languages)), strict=True))


torch.manual_seed(25)
numbers = class_numbers(WORDS)
samples = [(word, numbers[language]) for language, words in WORDS.items() for word in words]
model = nn.Sequential(nn.Linear(26, 16), nn.Tanh(), nn.Linear(16, len(numbers)))
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
for _ in range(6):
    inputs = torch.stack([letters(word, 0.1) for word, _ in samples])
    loss = nn.functional.cross_entropy(model(inputs), torch.tensor([number for _, number in samples]))
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
