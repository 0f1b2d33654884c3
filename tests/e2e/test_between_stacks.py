"""Two recordings of a program with different kernels, as on two machines: the report has stack, then value differences."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.commands import Finished, compare, run

pytest.importorskip("torch")

PROGRAM = """
import torch
torch.manual_seed(0)
torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.GELU(), torch.nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
features = torch.randn(64, 64)
for _ in range(3):
    optimizer.zero_grad()
    model(features).square().mean().backward()
    optimizer.step()
"""


def record(folder: Path, name: str, *options: str, **environment: str) -> Finished:
    (folder / "train.py").write_text(PROGRAM)
    command = ["record", *options, "-o", name, "--", sys.executable, "train.py"]
    finished = run(
        folder, *command, environment={"ATEN_CPU_CAPABILITY": "default", "OMP_NUM_THREADS": "2", **environment}
    )
    assert finished.status == 0, finished.text
    return finished


def report_of(finished: Finished) -> dict[str, Any]:
    assert finished.report is not None
    return finished.report


@pytest.mark.thorough("programs")
def test_different_instructions_are_reported_before_the_differences_of_values(tmp_path: Path) -> None:
    record(tmp_path, "a", "--values", "32")
    record(tmp_path, "b", "--values", "32")
    record(tmp_path, "c", "--values", "32", ATEN_CPU_CAPABILITY="avx2", OMP_NUM_THREADS="1")

    same = compare(tmp_path, "a", "b")
    assert same.status == 0
    assert "stack" not in same.text
    assert (report_of(same)["environment"], report_of(same)["values"]) == ([], None)

    different = compare(tmp_path, "a", "c")
    report = report_of(different)
    if report["verdict"] == "same":
        pytest.skip("this processor has one sort of kernels only")
    assert different.status == 1
    assert [difference["part"] for difference in report["environment"]] == ["threads", "libraries", "settings"]
    assert "variable ATEN_CPU_CAPABILITY was default in run 1, avx2 in run 2" in different.text
    assert different.text.index("stack") < different.text.index("first difference")
    assert "sampled elements" in different.text
    assert "looks like rounding" in different.text
    assert report["values"]["kept"] == [32, 32]
    assert [step["step"] for step in report["values"]["by_step"]] == [0, 1, 2]
    assert {entry["label"] for entry in report["story"]} >= {"stack", "looks like", "loss", "parameters"}
