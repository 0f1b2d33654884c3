"""The seed that each iterator of a data loader draws and reads is not a result of the program; draws made with it are."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, Sampler

from determinism.comparison.runs import compare
from determinism.types import Verdict
from tests.torch_recorders import RECORDERS, record_with

ROWS = torch.arange(96.0).reshape(24, 4)


class Noisy(Dataset[torch.Tensor]):
    """Adds random numbers to its rows."""

    def __len__(self) -> int:
        return len(ROWS)

    def __getitem__(self, index: int) -> torch.Tensor:
        return ROWS[index] + torch.rand(4)


class Shuffled(Sampler[int]):
    """Reads the order as soon as the loader's iterator is made."""

    def __init__(self) -> None:
        pass

    def __len__(self) -> int:
        return len(ROWS)

    def __iter__(self) -> Iterator[int]:
        return iter(int(index.item()) for index in list(torch.randperm(len(ROWS))))


def evaluated(loader: DataLoader[torch.Tensor]) -> Callable[[], float]:
    """A program without a seed."""

    def program() -> float:
        torch.seed()
        total = 0.0
        for batch in loader:
            total = total * 0.5 + batch.sum().item()
        return total

    return program


def verdict(loader: DataLoader[torch.Tensor], recorder: str, folder: Path) -> Verdict:
    runs = [folder / "first", folder / "second"]
    for run in runs:
        record_with(recorder, evaluated(loader), run)
    return compare(*runs).verdict


@pytest.mark.parametrize("recorder", RECORDERS)
@pytest.mark.parametrize("num_workers", [0, 2])
def test_data_in_order_are_the_same_even_without_a_seed(num_workers: int, recorder: str, tmp_path: Path) -> None:
    loader: DataLoader[torch.Tensor] = DataLoader(ROWS, batch_size=2, num_workers=num_workers)  # type: ignore[arg-type]
    assert verdict(loader, recorder, tmp_path) is Verdict.SAME


@pytest.mark.parametrize("recorder", RECORDERS)
@pytest.mark.parametrize(
    "loader",
    [
        pytest.param(DataLoader(ROWS, batch_size=2, shuffle=True), id="shuffled"),  # type: ignore[arg-type]
        pytest.param(DataLoader(ROWS, batch_size=None, sampler=Shuffled()), id="shuffled when the iterator is made"),  # type: ignore[arg-type]
        pytest.param(DataLoader(Noisy(), batch_size=2), id="noise"),
        pytest.param(DataLoader(Noisy(), batch_size=2, num_workers=2), id="noise of workers"),
    ],
)
def test_draws_without_a_seed_differ(loader: DataLoader[torch.Tensor], recorder: str, tmp_path: Path) -> None:
    assert verdict(loader, recorder, tmp_path) is Verdict.DIFFERENT
