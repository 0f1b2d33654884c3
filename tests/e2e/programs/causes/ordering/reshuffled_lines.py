"""Reads a table in a different order in each epoch, shuffled by `sort`, since it may not fit into memory."""

import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import nn


def written(folder: str) -> Path:
    path = Path(folder) / "table.txt"
    path.write_text("".join(f"{n / 40} {n * 7 % 40 / 40} {n * 13 % 40 / 40}\n" for n in range(40)))
    return path


def lines(path: Path) -> Iterator[str]:
    with subprocess.Popen(
        ["sort", "--random-sort", path.name], cwd=path.parent, stdout=subprocess.PIPE, text=True
    ) as sorting:
        assert sorting.stdout is not None
        yield from sorting.stdout


def batches(path: Path, size: int) -> Iterator[torch.Tensor]:
    rows = [[float(word) for word in line.split()] for line in lines(path)]
    for begin in range(0, len(rows), size):
        yield torch.tensor(rows[begin : begin + size])


torch.manual_seed(3)
started = subprocess.run(["date", "+%s.%N"], capture_output=True, text=True, check=True).stdout
model = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
with tempfile.TemporaryDirectory() as folder:
    table = written(folder)
    for _ in range(2):
        for batch in batches(table, 8):
            loss = nn.functional.mse_loss(model(batch[:, :2]), batch[:, 2:])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
print(f"started at {started.strip()}, {sum(p.sum().item() for p in model.parameters()):.4f}")
