"""Deterministic programs, checked unchanged by `determinism check`: the verdict is *same*."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

PRELUDE = """
    import os, random, tempfile, time
    import torch
    from torch import nn

    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(net.parameters())

    def step(x, loss=None):
        optimizer.zero_grad()
        loss = net(x).pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss
"""

PROGRAMS = {
    "workers": """
        from torch.utils.data import DataLoader, Dataset

        class Noise(Dataset):
            def __len__(self):
                return 24

            def __getitem__(self, index):
                return torch.randn(4) + index + random.random()

        if __name__ == "__main__":
            for epoch in range(2):
                for x in DataLoader(Noise(), 4, shuffle=True, num_workers=2):
                    print(step(x).item())
    """,
    "compiled": """
        net = torch.compile(net, backend="eager")
        for _ in range(3):
            print(step(torch.randn(8, 4)).item())
    """,
    "clock, process numbers, temporary files, memory that is overwritten": """
        with tempfile.TemporaryDirectory() as folder:
            for number in range(4):
                loss = step(torch.randn(8, 4))
                if time.time() % 0.02 < 0.01:
                    print(os.getpid(), loss.item(), [p.grad.norm() for p in net.parameters()])
                torch.save(net.state_dict(), f"{folder}/{os.getpid()}-{number}.pt")
            net.load_state_dict(torch.load(f"{folder}/{os.getpid()}-3.pt"))
            print(step(torch.ones(2, 4)).item())
        torch.seed()
        other = nn.Linear(4, 8)
        buffer = torch.empty(64, 64)
        torch.manual_seed(1)
        with torch.no_grad():
            other.weight.copy_(torch.randn(8, 4))
            other.bias.zero_()
        for number in range(3):
            buffer[number, :4] = torch.randn(4)
            copy = buffer.clone()
            print(step(copy[: number + 1, :4]).item(), other(copy[number, :4]).sum().item())
    """,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_deterministic_program_is_the_same(name: str, tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(textwrap.dedent(PRELUDE) + textwrap.dedent(PROGRAMS[name]))
    report = tmp_path / "report.json"
    command = [sys.executable, "-m", "determinism", "check", "--json", str(report), "--", sys.executable, str(program)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=600, check=False)
    assert report.exists(), done.stderr
    found = json.loads(report.read_text())
    assert found["verdict"] == "same", (found["first_divergence"], found["trouble"], done.stdout, done.stderr)
    assert done.returncode == 0
    assert found["recorded"]["records"] > 0
    assert [spot for spot in found["recorded"]["blind_spots"] if spot["id"] == "handler-failed"] == []
