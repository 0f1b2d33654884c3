"""Threads count words into one table of integers, each holding a lock; the counts are the same in any order."""

import threading
import zlib
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

WORDS = 40
counts = torch.zeros(WORDS, dtype=torch.int64)
lock = threading.Lock()


def count(document: int) -> None:
    text = zlib.decompress(zlib.compress(bytes(range(256)) * (50 + 400 * (document % 3))))
    words = torch.tensor([(letter * (document + 1)) % WORDS for letter in text[:200]])
    own = torch.bincount(words, minlength=WORDS)
    with lock:
        counts.add_(own)


def main() -> None:
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(count, range(24)))
    torch.manual_seed(6)
    frequencies = counts / counts.sum()
    model = nn.Linear(WORDS, WORDS)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    for _ in range(5):
        loss = nn.functional.kl_div(model(frequencies).log_softmax(-1), frequencies, reduction="sum")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(loss.item())


main()
