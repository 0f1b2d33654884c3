"""`determinism check --vary`: what differs only now and then is made to show, and is named by factor and line."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.e2e.checking import check_command

LISTING = """
import os, torch
order = LISTED
numbers = torch.tensor([float(len(name)) for name in order])
weights = torch.arange(1.0, 1.0 + len(order), requires_grad=True)
for _ in range(2):
    loss = (weights * numbers).sum()
    (slope,) = torch.autograd.grad(loss, weights)
    weights = (weights - 0.1 * slope).detach().requires_grad_()
print(loss.item())
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("a", "bb", "ccc", "dddd", "eeeee"):
        (tmp_path / "data" / name).mkdir(parents=True)
    return tmp_path


def program(folder: Path, listed: str) -> Path:
    path = folder / "train.py"
    path.write_text(LISTING.replace("LISTED", listed))
    return path


def test_an_unsorted_listing_that_came_out_alike_twice_is_named_when_it_is_perturbed(folder: Path) -> None:
    path = program(folder, 'os.listdir("data")')
    checked = check_command(
        folder, [sys.executable, str(path)], options=("--vary", "listings,clock", "--budget", "600")
    )
    report = checked.report
    assert report["verdict"] == "different"
    assert report["varied"] == ["listings"]
    [cause] = report["causes"]
    assert (cause["id"], cause["status"]) == ("listing-order", "confirmed")
    assert (cause["sites"][0]["file"], cause["sites"][0]["line"]) == (str(path), 3)
    assert [fix["code"] for fix in report["fixes"]] == ['order = sorted(os.listdir("data"))']
    assert report["fixes"][0]["verified"]


def test_a_program_that_sorts_is_the_same_with_everything_perturbed(folder: Path) -> None:
    path = program(folder, 'sorted(os.listdir("data"))')
    report = check_command(folder, [sys.executable, str(path)], options=("--vary", "all", "--budget", "600")).report
    assert report["verdict"] == "same"
    assert "listings" in report["varied"] and report["causes"] == []
