"""Seeds the workers of a `DataLoader`, and orders its samples by epoch."""

from __future__ import annotations

from collections.abc import Iterator, Sized
from typing import Any

import torch
from torch.utils.data import Sampler, get_worker_info

from determinism.frameworks.torch.enable import fill, generator
from determinism.seeds import Streams, seed_numpy, seed_python


def seed_worker(streams: Streams, worker: int) -> Streams:
    """Seed the generators of a worker process; called in it.

    What the loader drew for this epoch goes into the streams. So two epochs differ even where nobody says that a new one began,
    and they repeat if the loader's generator does.

    Args:
        streams: The place at which the loader was begun.
        worker: Number of the worker.

    Returns:
        The worker's streams.
    """
    information = get_worker_info()
    drawn = information.seed - worker if information is not None else 0
    # Not among them is how many processes were begun before, which is another number in a resumed run.
    own = streams.moved(worker=worker, process=f"loader {drawn}")
    seed_python(own)
    seed_numpy(own)
    fill(torch.default_generator, own, "default")
    return own


class EpochSampler(Sampler[int]):
    """Orders a data set anew in each epoch, by the master seed and the number of the epoch alone.

    Which epochs went before does not matter, so a resumed run has the order of the full one. With more than one rank each
    takes its part of the common order; the last ones repeat samples from its beginning so that all have the same number.
    """

    def __init__(self, data: Sized, place: Any, *, rank: int = 0, ranks: int = 1, name: str = "sampler") -> None:
        """Take the data set.

        Args:
            data: The data set, for its length.
            place: Has the `streams` of the place that the program is at.
            rank: Which part is taken.
            ranks: Into how many parts it is cut.
            name: Tells it from others.
        """
        self._data = data
        self._place = place
        self._rank, self._ranks = rank, ranks
        self._name = name
        self._skipped = 0

    def __len__(self) -> int:
        return -(-len(self._data) // self._ranks) - self._skipped

    def __iter__(self) -> Iterator[int]:
        streams: Streams = self._place.streams.shared.moved(worker=None)
        order = torch.randperm(len(self._data), generator=generator(streams, self._name)).tolist()
        padded = order + order[: -len(order) % self._ranks]
        skipped, self._skipped = self._skipped, 0
        yield from padded[self._rank :: self._ranks][skipped:]

    def skip(self, samples: int) -> None:
        """Leave out the first samples of the next epoch that is begun: those that a run had consumed before it was saved.

        Args:
            samples: How many.
        """
        self._skipped = samples
