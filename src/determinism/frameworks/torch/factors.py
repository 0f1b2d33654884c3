"""Holds what PyTorch has of an experiment's factors still, or stirs it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from determinism.factors.request import FactorRequest

_DELAYS = (0.0, 0.02, 0.005, 0.03, 0.0, 0.01)


def start(request: FactorRequest) -> None:
    """Do what is asked for; PyTorch was just imported.

    Args:
        request: The factors.
    """
    if request.is_fixed("torch-seed"):
        torch.manual_seed(0)
    if request.is_fixed("threads"):
        _compute_with_one_thread()
    if request.is_fixed("deterministic-algorithms"):
        _use_deterministic_algorithms()
    if request.is_fixed("workers"):
        _load_without_workers()
    elif request.is_stirred("workers"):
        _delay_workers(request.number)


def _use_deterministic_algorithms() -> None:
    # Filling memory is a factor of its own.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.use_deterministic_algorithms(True, warn_only=True)

    def keep(mode: bool, *, warn_only: bool = False) -> None:
        """The program asks for something else; the experiment is about deterministic algorithms."""

    torch.use_deterministic_algorithms = keep


def _compute_with_one_thread() -> None:
    torch.set_num_threads(1)

    def keep(nthreads: int) -> None:
        """The program asks for another number; the experiment is about one thread."""

    torch.set_num_threads = keep


def _load_without_workers() -> None:
    from torch.utils.data import DataLoader

    make = DataLoader.__init__

    def make_without_workers(self: Any, dataset: Any, *args: Any, **kwargs: Any) -> None:
        if len(args) > 4:
            args = (*args[:4], 0, *args[5:])
        else:
            kwargs["num_workers"] = 0
        for name in ("prefetch_factor", "multiprocessing_context", "worker_init_fn"):
            kwargs.pop(name, None)
        kwargs["persistent_workers"] = False
        kwargs["timeout"] = 0
        make(self, dataset, *args, **kwargs)

    DataLoader.__init__ = make_without_workers  # type: ignore[method-assign]


def _delay_workers(number: int) -> None:
    from torch.utils.data._utils import fetch

    for name in ("_MapDatasetFetcher", "_IterableDatasetFetcher"):
        kind = getattr(fetch, name)
        kind.fetch = _delayed(kind.fetch, number)


def _delayed(run: Callable[..., Any], number: int) -> Callable[..., Any]:
    count = iter(range(1 << 62))

    def run_late(self: Any, indices: Any) -> Any:
        worker = torch.utils.data.get_worker_info()
        if worker is not None:
            time.sleep(_DELAYS[(next(count) * (number + 1) + worker.id * (number + 3) + number) % len(_DELAYS)])
        return run(self, indices)

    return run_late
