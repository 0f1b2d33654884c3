"""Fetches shards of a corpus with several threads, and counts word pairs over them as they arrive."""

import zlib
from concurrent.futures import Future, ThreadPoolExecutor, as_completed

import torch
from torch import nn


def fetch(shard: int) -> list[int]:
    """Unpack a shard of word numbers; shards differ in size."""
    size = 200_000 if shard % 4 == 0 else 40_000
    packed = zlib.compress(bytes((shard * 31 + place * place) % 97 for place in range(size)), 1)
    return list(zlib.decompress(packed)[:64])


def load_corpus(shards: int) -> torch.Tensor:
    words: list[int] = []
    with ThreadPoolExecutor(max_workers=4) as pool:
        futures: list[Future[list[int]]] = [pool.submit(fetch, shard) for shard in range(shards)]
        for future in as_completed(futures):
            words.extend(future.result())
    return torch.tensor(words)


torch.manual_seed(3)
corpus = load_corpus(16)
model = nn.Sequential(nn.Embedding(97, 16), nn.Linear(16, 97))
optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
for piece in corpus.split(128):
    loss = nn.functional.cross_entropy(model(piece[:-1]), piece[1:])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
