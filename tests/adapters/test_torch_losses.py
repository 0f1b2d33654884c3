"""The losses of PyTorch programs as numbers: where a backward started, and the results of `item()`."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import determinism
from determinism.comparison.runs import losses
from determinism.trace.opening import open_trace
from determinism.trace.process import ProcessTrace
from determinism.trace.schema import Meaning


def recorded(folder: Path, program: Callable[[], Any], **options: Any) -> ProcessTrace:
    with determinism.record(folder / "trace", **options):
        program()
    [process] = open_trace(folder / "trace").processes
    return process


def train(num_steps: int = 3, dtype: torch.dtype = torch.float32, *, reads: bool = False) -> list[float]:
    """Train a small model; returns its losses."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1, dtype=dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = []
    for _ in range(num_steps):
        optimizer.zero_grad()
        loss = model(torch.ones(2, 4, dtype=dtype)).square().mean()
        loss.backward()
        optimizer.step()
        found.append(loss.item() if reads else float(loss.detach().double().numpy()))
    return found


def shown(process: ProcessTrace) -> list[float | None]:
    return [loss.first for loss in losses([(process, process)]) or []]


@pytest.mark.parametrize("level", ["op", "module", "step"])
def test_each_step_has_its_loss(level: str, tmp_path: Path) -> None:
    expected = train()
    assert shown(recorded(tmp_path, train, level=level)) == expected


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_losses_of_every_precision_are_kept(dtype: torch.dtype, tmp_path: Path) -> None:
    assert shown(recorded(tmp_path, lambda: train(dtype=dtype))) == train(dtype=dtype)


def test_the_result_of_item_is_kept_with_its_producer(tmp_path: Path) -> None:
    numbers = recorded(tmp_path, lambda: train(reads=True)).numbers
    meant = [numbers[numbers["meaning"] == meaning] for meaning in (Meaning.LOSS, Meaning.READ)]
    assert [rows["value"].tolist() for rows in meant] == [train()] * 2
    assert meant[0]["producer"].tolist() == meant[1]["producer"].tolist()


def test_a_loss_that_is_not_available_is_known_from_item(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from determinism.frameworks.torch import hooks

    # As on a GPU, for which the recorder does not wait.
    monkeypatch.setattr(hooks, "_number", lambda loss: None)
    assert shown(recorded(tmp_path, lambda: train(reads=True))) == train()


def test_a_loss_of_several_elements_is_unknown(tmp_path: Path) -> None:
    def program() -> None:
        model = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model(torch.ones(1, 4)).backward(torch.ones(1, 2))
        optimizer.step()

    process = recorded(tmp_path, program)
    assert process.numbers["meaning"].tolist() == [Meaning.UNKNOWN_LOSS]
    assert losses([(process, process)]) is None


def test_a_loss_that_is_nan_is_kept(tmp_path: Path) -> None:
    def program() -> None:
        weight = nn.Parameter(torch.ones(1))
        optimizer = torch.optim.SGD([weight], lr=0.1)
        (weight.sum() * math.nan).backward()
        optimizer.step()

    assert math.isnan(recorded(tmp_path, program).numbers["value"][0])


def test_reading_the_loss_is_not_recorded(tmp_path: Path) -> None:
    process = recorded(tmp_path, train)
    assert "aten::_local_scalar_dense" not in process.names.texts(0)  # type: ignore[arg-type]


def test_integers_and_booleans_are_not_losses(tmp_path: Path) -> None:
    def program() -> None:
        torch.ones(3).sum().bool().item()
        torch.ones(3, dtype=torch.int64).sum().item()
        determinism.step()

    assert len(recorded(tmp_path, program).numbers) == 0
