"""Triton kernels of a program: each launch is a record, and a kernel that varies is the cause, with its line.

Triton's interpreter runs them without a GPU.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from tests.e2e.commands import Finished, check

pytestmark = pytest.mark.triton

PROGRAM = """
import time
import torch
import triton
import triton.language as tl

@triton.jit
def add(first, second, out, n, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = places < n
    total = tl.load(first + places, mask=inside) + tl.load(second + places, mask=inside)
    tl.store(out + places, total{varying}, mask=inside)

first, second = torch.ones(1000), torch.arange(1000.0)
out = torch.empty(1000)
add[(4,)](first, second, out, 1000, BLOCK=256)
add[(4,)](first, out, out, 1000, BLOCK=256)
print(out.sum().item())
"""
LAUNCH = 1 + PROGRAM[: PROGRAM.index("add[(4,)](first, second")].count("\n")


def checked(folder: Path, program: str, recorder: str = "python") -> Finished:
    (folder / "train.py").write_text(program)
    environment = {"TRITON_INTERPRET": "1", "DETERMINISM_RECORDER": recorder}
    return check(folder, "--budget", "60", "--", sys.executable, "train.py", environment=environment)


@pytest.mark.parametrize("recorder", ["python", "native"])
def test_a_kernel_that_writes_into_uninitialized_memory_is_the_same(recorder: str, tmp_path: Path) -> None:
    finished = checked(tmp_path, PROGRAM.replace("{varying}", ""), recorder)
    assert finished.report is not None and finished.status == 0, finished.text
    assert finished.report["recorded"]["blind_spots"] == []
    # In addition to the two launches: ones, arange, empty, sum, item, and the end.
    assert finished.report["recorded"]["records"] == 8


def test_a_kernel_that_varies_on_equal_inputs_is_confirmed_by_its_repeats_alone(tmp_path: Path) -> None:
    finished = checked(tmp_path, PROGRAM.replace("{varying}", " + (time.time_ns() % 1000)"))
    assert finished.report is not None and finished.status == 1, finished.text
    first = finished.report["first_divergence"]
    assert (first["kind"], first["op"], first["site"]["line"]) == ("op", "triton::add", LAUNCH)
    (cause,) = finished.report["causes"]
    assert (cause["id"], cause["status"]) == ("varying-triton-kernel", "confirmed")
    # The number of repeats that fit into the time depends on the machine.
    (repeats,) = re.findall(
        r"triton::add gave (\d+) distinct results in (\d+) repeats on equal inputs\.", " ".join(cause["evidence"])
    )
    assert repeats[0] == repeats[1]
    # No setting could help, so none is tried.
    assert finished.report["experiments"] == []
    assert "add varies on equal inputs (confirmed)" in finished.text
    assert "Let each program of the kernel write its own results" in " ".join(finished.text.split())


def test_a_varying_input_of_a_deterministic_kernel_is_the_cause(tmp_path: Path) -> None:
    program = PROGRAM.replace("{varying}", "").replace("torch.ones(1000)", "torch.full((1000,), time.time() % 1)")
    finished = checked(tmp_path, program)
    assert finished.report is not None and finished.status == 1, finished.text
    assert [cause["id"] for cause in finished.report["causes"]] == ["clock"]


TUNED = """
import torch
import triton
import triton.language as tl

def timed(call, quantiles=None):
    # As often as time allows, which differs from run to run.
    for _ in range(1 + torch.initial_seed() % 5):
        call()
    return [1.0, 1.0, 1.0]

@triton.autotune([triton.Config({"BLOCK": 128}), triton.Config({"BLOCK": 256})], ["n"], reset_to_zero=["out"], do_bench=timed)
@triton.jit
def double(x, out, n, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = places < n
    tl.atomic_add(out + places, 2 * tl.load(x + places, mask=inside), mask=inside)

torch.seed()
x = torch.ones(1000)
for _ in range(2):
    out = torch.zeros_like(x)
    double[lambda chosen: (triton.cdiv(1000, chosen["BLOCK"]),)](x, out, 1000)
print(out.sum().item())
"""


def test_timing_launches_of_the_autotuner_are_not_recorded(tmp_path: Path) -> None:
    finished = checked(tmp_path, TUNED)
    assert finished.report is not None and finished.status == 0, finished.text
    # In addition to the two launches: ones, zeros_like twice, the reset before the first launch, sum, item, and the end.
    assert finished.report["recorded"]["records"] == 9


PARTLY = """
import torch
import triton
import triton.language as tl

@triton.jit
def double(x, out, n, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = places < n
    tl.store(out + places, 2 * tl.load(x + places, mask=inside), mask=inside)

x = torch.ones(500)
padded = torch.empty(1000)
double[(4,)](x, padded, 500, BLOCK=128)
print(padded[:READ].sum().item())
"""


@pytest.mark.parametrize("recorder", ["python", "native"])
def test_memory_that_a_kernel_leaves_unwritten_counts_only_if_it_is_read(recorder: str, tmp_path: Path) -> None:
    environment = {"TRITON_INTERPRET": "1", "DETERMINISM_RECORDER": recorder}
    for read, is_same in (("500", True), ("501", False)):
        (tmp_path / "train.py").write_text(PARTLY.replace("READ", read))
        finished = check(tmp_path, "--vary", "memory", "--", sys.executable, "train.py", environment=environment)
        assert finished.report is not None and finished.status == (0 if is_same else 1), finished.text
