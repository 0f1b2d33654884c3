"""Two threads count words into one tensor.

    python counting.py [lost]

With a lock each waits for the other. Without it a thread may add to what it read before the other one wrote.
"""

import sys
import threading
import time
from contextlib import nullcontext

import torch
from planting import passed_before

LOST = "lost" in sys.argv
SLOW_RUN = passed_before() % 2 if LOST else 0

counts = torch.zeros(16, dtype=torch.int64)
lock = nullcontext() if LOST else threading.Lock()


def count(number: int) -> None:
    """Count the words of a half."""
    for line in range(3):
        words = torch.arange(8) * (number + 2) % 16
        with lock:
            seen = counts[words]  # SITE
            time.sleep(0.05 if number == 0 and line == 1 and SLOW_RUN else 0)
            counts[words] = seen + 1
        if LOST:
            time.sleep(0.02 * (number + 1))


threads = [threading.Thread(target=count, args=(number,), name=f"half-{number}") for number in range(2)]
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
