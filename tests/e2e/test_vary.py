"""`determinism check --vary`: a rare difference is provoked, and is named by factor and line."""

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


def test_an_unsorted_listing_is_named_when_it_is_perturbed(folder: Path) -> None:
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


UNWRITTEN = """
import torch
# So large a block is new memory of the system, which is zero.
values = torch.empty(1_000_000)
FILLED
print(RESULT)
"""


@pytest.mark.parametrize(
    ("filled", "result", "verdict", "varied"),
    [
        pytest.param("", "(values * 2).sum().item()", "different", ["memory"], id="nothing"),
        pytest.param("values[:-1] = 1; values[-1:] = 2", "(values * 2).sum().item()", "same", [], id="in parts"),
        *(
            pytest.param(*case, marks=pytest.mark.thorough("kinds"), id=name)
            for name, case in {
                "a part": ("values[:-1] = 1", "(values * 2).sum().item()", "different", ["memory"]),
                "grown": (
                    "values.resize_(2_000_000)",
                    "torch.cat([values, values]).sum().item()",
                    "different",
                    ["memory"],
                ),
                "as an output": ("torch.add(torch.ones(1_000_000), 1, out=values)", "values.mean().item()", "same", []),
                "never looked at": ("", "values.numpy().shape", "same", []),
                "of no consequence": (
                    "",
                    "torch.where(torch.tensor(False), values, 1.0).sum().item()",
                    "same",
                    ["memory"],
                ),
            }.items()
        ),
    ],
)
def test_uninitialized_memory_that_is_read_is_perturbed_by_default(
    tmp_path: Path, filled: str, result: str, verdict: str, varied: list[str]
) -> None:
    path = tmp_path / "read.py"
    path.write_text(UNWRITTEN.replace("FILLED", filled).replace("RESULT", result))
    report = check_command(tmp_path, [sys.executable, str(path)], options=("--budget", "0")).report
    assert (report["verdict"], report["varied"]) == (verdict, varied)
    if verdict == "different":
        first = report["first_divergence"]
        assert (first["kind"], first["site"]["file"], first["site"]["line"]) == ("uninitialized", str(path), 6)


def test_no_run_is_added_to_two_requested_runs(tmp_path: Path) -> None:
    path = tmp_path / "read.py"
    path.write_text(UNWRITTEN.replace("FILLED", "").replace("RESULT", "(values * 2).sum().item()"))
    report = check_command(tmp_path, [sys.executable, str(path)], options=("-n", "2")).report
    assert (report["verdict"], len(report["runs"]), report["varied"]) == ("same", 2, [])
