"""Tokenises texts in a pool of threads, in whatever order they finish, and pretrains an embedding on them."""

import re
import zlib
from multiprocessing.pool import ThreadPool

import torch
from torch import nn

TEXTS = [
    " ".join(f"w{(place * place + text * 7) % 53}" for place in range(20 + 400 * (text % 3))) for text in range(36)
]


def tokenize(text: str) -> list[int]:
    packed = zlib.compress(text.encode() * 40, 9)
    words = re.findall(r"w(\d+)", zlib.decompress(packed).decode())
    return [int(word) for word in words[:24]]


def main() -> None:
    torch.manual_seed(53)
    with ThreadPool(4) as pool:
        corpus = [tokens[:20] for tokens in pool.imap_unordered(tokenize, TEXTS)]
    embedding = nn.Embedding(53, 8)
    context = nn.Linear(8, 53)
    optimizer = torch.optim.Adagrad([*embedding.parameters(), *context.parameters()], lr=0.1)
    for first in range(0, len(corpus), 6):
        batch = torch.tensor(corpus[first : first + 6])
        scores = context(embedding(batch[:, :-1]))
        loss = nn.functional.cross_entropy(scores.flatten(0, 1), batch[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(loss.item())


if __name__ == "__main__":
    main()
