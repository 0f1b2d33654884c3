"""Classifies messages by topic with the hashing trick; batches are padded to the longest message."""

import zlib

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

BUCKETS, TOPICS = 211, 4


class Messages(Dataset):
    """Messages of different lengths, each with words of one topic."""

    def __init__(self, count: int) -> None:
        self.texts = [
            " ".join(f"{'abcd'[number % TOPICS]}{place * place % 37}" for place in range(5 + number * 37 % 180))
            for number in range(count)
        ]

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        numbers = [zlib.crc32(word.encode()) for word in self.texts[index].split()]
        return torch.tensor(numbers), index % TOPICS


def collate(samples: list[tuple[Tensor, int]]) -> tuple[Tensor, Tensor]:
    longest = max(len(words) for words, _ in samples)
    padded = torch.empty(len(samples), longest, dtype=torch.long)
    for row, (words, _) in enumerate(samples):
        padded[row, : len(words)] = words
    return padded, torch.tensor([topic for _, topic in samples])


class HashedBag(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(BUCKETS, size)
        self.out = nn.Linear(size, TOPICS)

    def forward(self, words: Tensor) -> Tensor:
        return self.out(self.embed(words.remainder(BUCKETS)).mean(1))


torch.manual_seed(2)
model = HashedBag(16)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for _ in range(2):
    for words, topics in DataLoader(Messages(96), batch_size=6, collate_fn=collate):
        loss = nn.functional.cross_entropy(model(words), topics)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print(loss.item())
