"""Caches prepared data in a scratch folder; a sample's fold follows from a checksum of its path."""

import hashlib
import tempfile
from pathlib import Path

import torch
from torch import nn


def prepare(folder: Path, count: int) -> list[Path]:
    files = [folder / f"{number:03}.pt" for number in range(count)]
    for number, file in enumerate(files):
        torch.save(torch.linspace(0, number + 1, 12).cos(), file)
    return files


def fold_of(file: Path) -> int:
    return hashlib.md5(str(file).encode()).digest()[0] % 4


def main() -> None:
    torch.manual_seed(7)
    scratch = Path(tempfile.mkdtemp(prefix="prepared-"))
    files = prepare(scratch, 48)
    train = torch.stack([torch.load(file) for file in files if fold_of(file) != 0])
    model = nn.Sequential(nn.Linear(12, 5), nn.Sigmoid(), nn.Linear(5, 12))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    for batch in train.split(8):
        loss = nn.functional.mse_loss(model(batch), batch)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(len(train), loss.item())


if __name__ == "__main__":
    main()
