"""Three threads prepare batches and put them into one queue, from which the training takes them."""

import queue
import threading
from collections.abc import Iterator

import numpy as np
import torch
from torch import nn


class Prefetcher:
    """Prepares the batches of an epoch in the background."""

    def __init__(self, batches: int, workers: int) -> None:
        self.batches = batches
        self.workers = workers
        self.ready: queue.Queue[torch.Tensor] = queue.Queue(maxsize=4)

    def prepare(self, worker: int) -> None:
        for number in range(worker, self.batches, self.workers):
            generator = np.random.default_rng(number)
            raw = generator.normal(size=(48 + 200 * (number % 3), 40))
            _, _, basis = np.linalg.svd(raw - raw.mean(0), full_matrices=False)
            self.ready.put(torch.from_numpy(raw[:16] @ basis.T).float())

    def __iter__(self) -> Iterator[torch.Tensor]:
        for worker in range(self.workers):
            threading.Thread(target=self.prepare, args=(worker,), daemon=True).start()
        for _ in range(self.batches):
            yield self.ready.get()


torch.manual_seed(5)
model = nn.Sequential(nn.Linear(40, 20), nn.ReLU(), nn.Linear(20, 40))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for batch in Prefetcher(batches=30, workers=3):
    loss = (model(batch) - batch).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
