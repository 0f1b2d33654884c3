"""A program that is recorded and probed at the same time leaves the same trace as without probes."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from determinism.diagnose.sources import differing_sources
from determinism.run_spec import ProbeRequest, RunSpec
from tests.e2e.commands import run

PROGRAM = """
import os
import torch
from torch.utils.data import DataLoader, Dataset

class Words(Dataset):
    def __init__(self):
        self.words = [word for word in {"ant", "bee", "cat", "dog", "eel", "fox", "gnu", "hen"}]
    def __len__(self):
        return len(self.words)
    def __getitem__(self, index):
        return torch.tensor([float(ord(letter)) for letter in self.words[index]]) + torch.rand(3)

def main():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    for epoch in range(2):
        for batch in DataLoader(Words(), batch_size=4, num_workers=2, shuffle=True):
            loss = model(batch).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print(float(loss))
    for name in os.listdir("."):
        pass

if __name__ == "__main__":
    main()
"""


def recorded(folder: Path, name: str, **environment: str) -> Path:
    """Record one run and return its trace."""
    trace = folder / name
    finished = run(
        folder,
        "record",
        "--output",
        trace,
        "--",
        sys.executable,
        "train.py",
        environment={"PYTHONHASHSEED": "0", **environment},
    )
    assert finished.status == 0, finished.text
    return trace


def notes_of(folder: Path, name: str, **environment: str) -> Path:
    """Record one run and return its notes."""
    notes = folder / f"notes-{name}"
    notes.mkdir()
    recorded(folder, name, **RunSpec(probes=ProbeRequest(notes=notes)).added_to(environment))
    return notes


def test_the_trace_is_the_same_with_probes(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    plain = recorded(tmp_path, "plain")
    notes = notes_of(tmp_path, "probed")
    compared = run(tmp_path, "compare", plain, tmp_path / "probed")

    assert compared.status == 0, compared.text
    assert "different" not in compared.text.lower()
    lines = [json.loads(line) for line in (notes / "main.jsonl").read_text().splitlines()]
    counts = {line["source"]: line["records"] for line in lines if "digest" in line}
    assert counts["seed-value"] == 0 < counts["set-order"] < counts["listing"]


def test_the_first_difference_is_at_the_differing_source(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    one, other = (notes_of(tmp_path, seed, PYTHONHASHSEED=seed) for seed in "12")
    found = next(source for source in differing_sources(one, other) if not source.is_in_library)

    assert (found.source, found.site.line, found.differs) == ("set-order", 8, True)
    assert (found.counts, found.process, found.recorded_as) == ((2, 2), "main", "main")
    assert found.records[0] == found.records[1] > 0
