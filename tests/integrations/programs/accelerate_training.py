"""Trains with Accelerate, saves its state every few steps, and prints a digest of the weights that it ends with.

    python accelerate_training.py FOLDER [CHECKPOINT]

The data set draws random numbers for each sample, and the model has dropout.
"""

from __future__ import annotations

import hashlib
import sys
from itertools import repeat
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator, DataLoaderConfiguration
from torch.utils.data import DataLoader, Dataset

import determinism
from determinism.integrations import accelerate


class Images(Dataset[Any]):
    def __len__(self) -> int:
        return 22

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        image = torch.full((6,), index / 24.0).sin() + 0.1 * torch.randn(6)
        return image, image.sum().tanh()


def train(
    folder: Path,
    checkpoint: Path | None = None,
    *,
    registered: bool = True,
    num_workers: int = 0,
    accumulate: int = 1,
    seedable: bool = False,
    pairs: bool = False,
) -> str:
    """Train, and give the digest of the weights; checkpoints go to the folder."""
    determinism.enable(seed=1)
    loading = DataLoaderConfiguration(use_seedable_sampler=seedable)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=accumulate, dataloader_config=loading)
    model: Any = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1))
    optimizer: Any = torch.optim.AdamW(model.parameters(), lr=0.01)
    loader: Any = DataLoader(Images(), batch_size=4, shuffle=True, num_workers=num_workers)
    other: Any = DataLoader(Images(), batch_size=5, shuffle=True)
    model, optimizer, loader, other = accelerator.prepare(model, optimizer, loader, other)
    values: dict[str, Any] = {"epoch": 0, "step": 0}
    if registered:
        loaders = {"loader": loader, "other": other} if pairs else {"loader": loader}
        run = accelerate.register(accelerator, **loaders, **values)
        values = run.values
    if checkpoint is not None:
        accelerator.load_state(str(checkpoint))
        values = run.values if registered else {"epoch": int(checkpoint.name) // 6, "step": int(checkpoint.name)}
    for epoch in range(values["epoch"], 3):
        values["epoch"] = epoch
        for (images, targets), further in zip(loader, other if pairs else repeat(None), strict=False):
            with accelerator.accumulate(model):
                loss = torch.nn.functional.mse_loss(model(images).squeeze(-1), targets)
                if further is not None:
                    loss = loss + model(further[0]).mean()
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()
            values["step"] += 1
            if values["step"] % 2 == 0:
                accelerator.save_state(str(folder / str(values["step"])))
    weights = b"".join(value.numpy().tobytes() for value in model.state_dict().values())
    return hashlib.sha256(weights).hexdigest()[:16]


if __name__ == "__main__":
    print(train(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None))
