"""Learns to read handwritten digits, with a learned brightness curve in front of a small network.

Every random generator is seeded, and the data is always the same, so one would expect the same numbers every time.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset


class Reader(nn.Module):
    """Turns the 17 grey levels of a scanned digit into learned brightnesses, and classifies the picture."""

    def __init__(self) -> None:
        super().__init__()
        self.brightness = nn.Parameter(torch.linspace(-1, 1, 17))
        self.classify = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Dropout(0.1), nn.Linear(128, 10))

    def forward(self, levels: torch.Tensor) -> torch.Tensor:
        pixels = self.brightness[levels]
        return self.classify(pixels)


def load(batch_size: int) -> tuple[DataLoader, torch.Tensor, torch.Tensor]:
    """1,797 pictures of 8 x 8 pixels, the last 261 of which are for testing.

    They are of E. Alpaydin and C. Kaynak: Optical Recognition of Handwritten Digits, UCI, 1998, CC BY 4.0.
    Each picture for training is there five times: as it is, and moved by one pixel in each direction.
    """
    table = torch.from_numpy(np.loadtxt(Path(__file__).with_name("digits.csv.gz"), delimiter=",")).long()
    levels, labels = table[:, :-1].reshape(-1, 8, 8), table[:, -1]
    moved = [levels[:1536], *(levels[:1536].roll(by, axis) for axis in (1, 2) for by in (-1, 1))]
    training = TensorDataset(torch.cat(moved).flatten(1), labels[:1536].repeat(len(moved)))
    return DataLoader(training, batch_size, shuffle=True), levels[1536:].flatten(1), labels[1536:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=3840)
    parser.add_argument("--deterministic", action="store_true", help="use deterministic algorithms")
    options = parser.parse_args()

    torch.manual_seed(0)
    torch.set_num_threads(2)
    if options.deterministic:
        torch.use_deterministic_algorithms(True)

    batches, test_levels, test_labels = load(options.batch_size)
    model = Reader()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    for epoch in range(options.epochs):
        model.train()
        for levels, labels in batches:
            loss = functional.cross_entropy(model(levels), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        model.eval()
        with torch.no_grad():
            accuracy = (model(test_levels).argmax(1) == test_labels).float().mean()
        print(f"epoch {epoch}: loss {loss.item():.8f}, accuracy {accuracy.item():.3f}")


if __name__ == "__main__":
    main()
