"""A bag-of-words classifier of short reviews; the vocabulary consists of their words."""

import torch
from torch import Tensor, nn

REVIEWS = [
    ("a warm and funny film with a great cast", 1),
    ("dull story and a very weak ending", 0),
    ("the best thing about it was the music", 1),
    ("i left before the ending it was that dull", 0),
    ("great music great story and a great ending", 1),
    ("a weak cast in a film that is not funny", 0),
]


def build_vocabulary(texts: list[str]) -> dict[str, int]:
    words = set()
    for text in texts:
        words.update(text.split())
    return {word: number for number, word in enumerate(words)}


def encode(text: str, vocabulary: dict[str, int]) -> Tensor:
    return torch.tensor([vocabulary[word] for word in text.split()])


class BagOfWords(nn.Module):
    def __init__(self, words: int, size: int) -> None:
        super().__init__()
        self.embedding = nn.EmbeddingBag(words, size, mode="mean")
        self.score = nn.Linear(size, 1)

    def forward(self, words: Tensor, offsets: Tensor) -> Tensor:
        return self.score(self.embedding(words, offsets)).squeeze(-1)


def main() -> None:
    torch.manual_seed(0)
    vocabulary = build_vocabulary([text for text, _ in REVIEWS])
    encoded = [encode(text, vocabulary) for text, _ in REVIEWS]
    offsets = torch.tensor([0, *[len(words) for words in encoded[:-1]]]).cumsum(0)
    words, liked = torch.cat(encoded), torch.tensor([float(liked) for _, liked in REVIEWS])
    model = BagOfWords(len(vocabulary), 12)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(8):
        loss = nn.functional.binary_cross_entropy_with_logits(model(words, offsets), liked)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"{len(vocabulary)} words, loss {loss.item():.4f}")


main()
