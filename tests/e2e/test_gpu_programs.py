"""Whole programs on a GPU: those that vary are explained by op, line and a verified fix; one that does not is the same."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.e2e.commands import Finished, check

pytestmark = [pytest.mark.gpu, pytest.mark.triton]

BEGIN = """
import torch
from torch import nn
import torch.nn.functional as F

torch.manual_seed(0)
device = torch.device("cuda")
"""
GRAPH = """
layer = nn.Linear(32, 32).to(device)
optimizer = torch.optim.Adam(layer.parameters())
x = torch.randn(500, 32, device=device)
source, target = torch.randint(0, 500, (2, 40000), device=device)
for _ in range(5):
    hidden = layer(x)
    sums = torch.zeros_like(hidden).index_add(0, target, hidden[source])  # SITE
    loss = sums.tanh().square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
"""
UPSAMPLING = """
layer = nn.Conv2d(3, 8, 3).to(device)
optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
x = torch.randn(4, 3, 66, 66, device=device)
for _ in range(5):
    images = F.interpolate(layer(x), scale_factor=3, mode="bilinear")  # SITE
    loss = images.square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(loss.item())
"""
TRITON = """
import triton
import triton.language as tl

@triton.jit
def scatter(x, places, sums, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = at < n
    value, place = tl.load(x + at, mask=inside), tl.load(places + at, mask=inside)
    tl.atomic_add(sums + place, value, mask=inside)

x = torch.randn(1_000_000, device=device)
places = torch.randint(0, 32, (1_000_000,), device=device)
sums = torch.zeros(32, device=device)
scatter[(1_000_000 // 256 + 1,)](x, places, sums, 1_000_000, BLOCK=256)  # SITE
print(sums.tolist())
"""
PLAIN = """
model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.LayerNorm(256), nn.Dropout(0.1), nn.Linear(256, 8)).to(device)
optimizer = torch.optim.AdamW(model.parameters())
scaler = torch.amp.GradScaler("cuda")
for _ in range(10):
    x = torch.randn(64, 64).pin_memory().to(device, non_blocking=True)
    with torch.autocast("cuda", torch.float16):
        loss = model(x).square().mean()
    optimizer.zero_grad()
    scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
print(loss.item())
"""


def checked(folder: Path, program: str) -> Finished:
    (folder / "train.py").write_text(BEGIN + program)
    return check(folder, "--budget", "150", "--", sys.executable, "train.py", timeout=400)


def site(program: str) -> int:
    lines = (BEGIN + program).splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith("# SITE"))


def test_an_op_that_adds_atomically_is_confirmed_and_its_fix_verified(tmp_path: Path) -> None:
    finished = checked(tmp_path, GRAPH)
    assert finished.report is not None and finished.status == 1, finished.text
    first = finished.report["first_divergence"]
    assert (first["op"], first["site"]["line"]) == ("aten::index_add", site(GRAPH))
    assert [(one["id"], one["status"]) for one in finished.report["causes"]] == [("nondeterministic-op", "confirmed")]
    assert finished.report["fixes"][0]["verified"]
    assert finished.report["leftovers"] == []


def test_an_op_of_the_backward_pass_is_reported_with_its_forward_line(tmp_path: Path) -> None:
    finished = checked(tmp_path, UPSAMPLING)
    assert finished.report is not None and finished.status == 1, finished.text
    first = finished.report["first_divergence"]
    assert (first["op"], first["phase"]) == ("aten::upsample_bilinear2d_backward", "backward")
    assert first["forward_site"]["line"] == site(UPSAMPLING)
    assert "loss.backward()" in first["stack"][0]["code"]
    assert [(one["id"], one["status"]) for one in finished.report["causes"]] == [("nondeterministic-op", "confirmed")]
    assert finished.report["fixes"][0]["verified"]


def test_a_triton_kernel_that_adds_atomically_is_the_cause(tmp_path: Path) -> None:
    finished = checked(tmp_path, TRITON)
    assert finished.report is not None and finished.status == 1, finished.text
    first = finished.report["first_divergence"]
    assert (first["op"], first["site"]["line"]) == ("triton::scatter", site(TRITON))
    assert [(one["id"], one["status"]) for one in finished.report["causes"]] == [("varying-triton-kernel", "confirmed")]


def test_a_training_run_with_mixed_precision_is_the_same_without_blind_spots(tmp_path: Path) -> None:
    finished = checked(tmp_path, PLAIN)
    assert finished.report is not None and finished.status == 0, finished.text
    assert [one for one in finished.report["recorded"]["blind_spots"] if one["id"] != "formulas-unaudited"] == []
