"""Trains for an epoch with each of several data loaders.

    python epochs.py MODES [bit|seed|order]

MODES are keys of `LOADERS`, separated by commas.
"""

import os
import sys
import time
import warnings

import torch
from planting import hand_on, passed_before
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

SIZE = 24


def sample(index: int, generator: torch.Generator | None = None) -> tuple[int, Tensor]:
    """Return a sample, with noise from the worker's own generator by default."""
    noisy = torch.randn(4, generator=generator) + index  # SITE seed
    if index == 5 and "bit" in sys.argv:
        noisy = hand_on(noisy)  # SITE bit
    return index, noisy


class Samples(Dataset):
    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> tuple[int, Tensor]:
        return sample(index)


class SlowSamples(Samples):
    """One worker is slower: without an order it gets fewer batches, so the noise must not depend on the worker."""

    def __init__(self, slow_worker: int) -> None:
        self.slow_worker = slow_worker

    def __getitem__(self, index: int) -> tuple[int, Tensor]:
        if get_worker_info().id == self.slow_worker:
            time.sleep(0.2)
        return sample(index, torch.Generator().manual_seed(index))


class Stream(IterableDataset):
    def __iter__(self):
        worker = get_worker_info()
        start, step = (0, 1) if worker is None else (worker.id, worker.num_workers)
        return map(sample, range(start, SIZE, step))


def seed_from_system(worker: int) -> None:
    """Seed one worker in a way that cannot be repeated."""
    if worker == 1:
        torch.manual_seed(int.from_bytes(os.urandom(4), "little"))


def loader(mode: str) -> DataLoader:
    """Return the loader of a mode."""
    options = {"batch_size": 4, "worker_init_fn": seed_from_system if "seed" in sys.argv else None}
    if mode == "unordered":
        return DataLoader(SlowSamples(passed_before() % 2), num_workers=2, in_order=False, **options)
    samples = Stream() if mode in ("iterable", "stream") else Samples()
    return DataLoader(samples, **options, **LOADERS[mode])


LOADERS = {
    "main": {},
    "shuffled": {"shuffle": True},
    "stream": {},
    "fork": {"num_workers": 2},
    "pinned": {"num_workers": 2, "pin_memory": True, "prefetch_factor": 4},
    "iterable": {"num_workers": 2},
    "persistent": {"num_workers": 2, "persistent_workers": True, "shuffle": True},
    "spawn": {"num_workers": 2, "multiprocessing_context": "spawn"},
    "forkserver": {"num_workers": 2, "multiprocessing_context": "forkserver"},
    "unordered": {},
}


def main() -> None:
    # Without an accelerator nothing is pinned, and PyTorch warns about it.
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.001)
    for mode in sys.argv[1].split(","):
        batches = loader(mode)
        for _ in range(2 if mode == "persistent" else 1):
            if mode == "unordered" and "order" not in sys.argv:
                # Batches that come in a different order are sorted.
                scores = {int(indices[0]): net(inputs).sum() for indices, inputs in batches}
                print(mode, torch.stack([scores[index] for index in sorted(scores)]).tolist())
                continue
            for _, inputs in batches:  # SITE order
                loss = net(inputs).square().mean()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                print(mode, loss.item())


if __name__ == "__main__":
    main()
