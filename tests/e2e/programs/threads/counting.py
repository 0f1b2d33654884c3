"""Two threads count words into one tensor.

    python counting.py [lost]

With a lock each thread waits for the other. Without it they take turns, except that in every second run one of them
adds to a value that it read before the other one wrote.
"""

import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

import torch
from planting import passed_before

LINES = 3
LOST = "lost" in sys.argv
OVERTAKEN = 1 if LOST and passed_before() % 2 else None

counts = torch.zeros(16, dtype=torch.int64)
lock: AbstractContextManager = nullcontext() if LOST else threading.Lock()
has_read, *has_written = ([threading.Event() for _ in range(LINES)] for _ in range(3))


def add(words: torch.Tensor, read: Callable[[], None] = lambda: None) -> None:
    """Count words; calls `read` between reading and writing."""
    with lock:
        seen = counts[words]
        read()
        counts[words] = seen + 1  # SITE lost


def count_first() -> None:
    """Count the words of the first half."""
    for line in range(LINES):
        if LOST and line:
            has_written[1][line - 1].wait()
        add(torch.arange(8) * 2 % 16, lambda line=line: let_pass(line))
        has_written[0][line].set()


def let_pass(line: int) -> None:
    """Let the other thread count, if it must overtake at this line."""
    has_read[line].set()
    if line == OVERTAKEN:
        has_written[1][line].wait()


def count_second() -> None:
    """Count the words of the second half."""
    for line in range(LINES):
        if LOST:
            (has_read if line == OVERTAKEN else has_written[0])[line].wait()
        add(torch.arange(8) * 3 % 16)
        has_written[1][line].set()


threads = [
    threading.Thread(target=count, name=f"half-{number}") for number, count in enumerate([count_first, count_second])
]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
weights = torch.ones(16, requires_grad=True)
optimizer = torch.optim.SGD([weights], lr=0.1)
for _ in range(2):
    optimizer.zero_grad()
    (weights * counts).sum().backward()
    optimizer.step()
print(counts.tolist(), weights.sum().item())
