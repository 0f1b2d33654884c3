"""Saves checkpoints in the background while training continues, and averages them at the end."""

import threading
from pathlib import Path

import torch
from torch import nn


class BackgroundSaver:
    """Writes checkpoints without making the training wait."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.folder.mkdir(exist_ok=True)
        self.threads: list[threading.Thread] = []

    def save(self, state: dict[str, torch.Tensor], step: int) -> None:
        thread = threading.Thread(target=torch.save, args=(state, self.folder / f"step-{step}.pt"))
        thread.start()
        self.threads.append(thread)

    def wait(self) -> None:
        for thread in self.threads:
            thread.join()


def average(folder: Path, steps: list[int]) -> dict[str, torch.Tensor]:
    states = [torch.load(folder / f"step-{step}.pt") for step in steps]
    return {name: torch.stack([state[name] for state in states]).mean(0) for name in states[0]}


def main() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 2048), nn.ReLU(), nn.Linear(2048, 512), nn.ReLU(), nn.Linear(512, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    saver = BackgroundSaver(Path("checkpoints"))
    inputs = torch.rand(16, 32)
    for step in range(10):
        loss = (model(inputs) - inputs.sum(1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 3 == 2:
            saver.save(model.state_dict(), step)
    saver.wait()
    model.load_state_dict(average(Path("checkpoints"), [2, 5, 8]))
    print(model(inputs).mean().item())


main()
