"""An image classifier or a small GPT, trained with dropout, augmentation, two workers and mixed precision; nothing is seeded.

Arguments: the model; `full`, `first` (stops in the middle of an epoch and saves) or `resumed` (continues from there); and the file.
Prints a digest of the weights.
"""

from __future__ import annotations

import hashlib
import random
import sys
from pathlib import Path

import numpy as np
import torch
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

import determinism

SAMPLES, BATCH, CLASSES, LENGTH, WIDTH, EPOCHS, SAVED_AT = 32, 8, 4, 12, 16, 3, 6


class Images(Dataset[tuple[torch.Tensor, int]]):
    """Noise around a brightness that depends on the class, flipped at random."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        image = torch.full((1, 8, 8), float(index % CLASSES)) + torch.from_numpy(np.random.randn(1, 8, 8)).float()
        return (image.flip(2) if random.random() < 0.5 else image) + 0.1 * torch.rand(1), index % CLASSES


class Texts(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Counting sequences from a random start, with words replaced at random."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        words = (torch.arange(LENGTH + 1) * (index % 3 + 1) + random.randrange(20)) % 20
        words = torch.where(torch.rand(LENGTH + 1) < 0.1, torch.tensor(int(np.random.randint(20))), words)
        return words[:-1], words[1:]


class Classifier(torch.nn.Sequential):
    def __init__(self) -> None:
        super().__init__(
            torch.nn.Conv2d(1, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Dropout(0.3),
            torch.nn.Linear(8 * 6 * 6, CLASSES),
        )  # fmt: skip


class SmallGPT(torch.nn.Module):
    """Two blocks of causal attention."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Embedding(20, WIDTH)
        self.positions = torch.nn.Parameter(torch.randn(LENGTH, WIDTH))
        self.blocks = torch.nn.ModuleList(
            torch.nn.TransformerEncoderLayer(WIDTH, 2, 32, dropout=0.2, batch_first=True, norm_first=True)
            for _ in range(2)
        )
        self.output = torch.nn.Linear(WIDTH, 20)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        mask = torch.nn.Transformer.generate_square_subsequent_mask(LENGTH)
        values = self.table(words) + self.positions
        for block in self.blocks:
            values = block(values, src_mask=mask, is_causal=True)
        return self.output(values).flatten(0, 1)


def main() -> None:
    which, how, file = sys.argv[1], sys.argv[2], Path(sys.argv[3])
    model, data = (Classifier(), Images()) if which == "classifier" else (SmallGPT(), Texts())
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**20, growth_interval=3)
    loader = determinism.state.resumable(DataLoader(data, batch_size=BATCH, shuffle=True, num_workers=2))
    parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler, "scaler": scaler, "loader": loader}
    first_epoch = step = 0
    if how == "resumed":
        state = determinism.state.load(file)
        determinism.state.restore(state, **parts)
        first_epoch, step = state.epoch, state.step
    for epoch in range(first_epoch, EPOCHS):
        for given, wanted in loader:
            optimizer.zero_grad()
            with torch.autocast("cpu", dtype=torch.bfloat16):
                scores = model(given)
            scaler.scale(functional.cross_entropy(scores.float(), wanted.flatten())).backward()
            scaler.step(optimizer)
            scaler.update()
            scheduler.step()
            step += 1
            if how == "first" and step == SAVED_AT:
                determinism.state.capture(epoch=epoch, step=step, **parts).save(file)
                return
    print(hashlib.sha256(b"".join(value.numpy().tobytes() for value in model.state_dict().values())).hexdigest(), step)


if __name__ == "__main__":
    main()
