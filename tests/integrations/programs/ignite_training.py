"""Trains with PyTorch Ignite, saves a checkpoint every few iterations, and prints a digest of the weights that it ends with.

    python ignite_training.py FOLDER [CHECKPOINT]

The data set draws random numbers for each sample, and the model has dropout.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path
from typing import Any

import torch
from ignite.engine import Engine, Events
from ignite.handlers import Checkpoint, DiskSaver
from torch.utils.data import DataLoader, Dataset

import determinism
from determinism.integrations.ignite import DeterminismHandler


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
    with_handler: bool = True,
    num_workers: int = 0,
    accumulate: int = 1,
) -> str:
    """Train, and give the digest of the weights; checkpoints go to the folder."""
    loader: Any = DataLoader(Images(), batch_size=4, shuffle=True, num_workers=num_workers)
    if with_handler:
        loader = determinism.state.resumable(loader)
        handler = DeterminismHandler(seed=1, loader=loader)
    else:
        determinism.enable(seed=1)
    model = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

    def update(engine: Engine, batch: Any) -> float:
        loss = torch.nn.functional.mse_loss(model(batch[0]).squeeze(-1), batch[1])
        loss.backward()
        if engine.state.iteration % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
        return loss.item()

    trainer = Engine(update)
    saved: dict[str, Any] = {"model": model, "optimizer": optimizer, "trainer": trainer}
    if with_handler:
        handler.attach(trainer, model)
        saved["determinism"] = handler
    saver = DiskSaver(str(folder), create_dir=True, require_empty=False)
    trainer.add_event_handler(Events.ITERATION_COMPLETED(every=2), Checkpoint(saved, saver, n_saved=None))
    if checkpoint is not None:
        Checkpoint.load_objects(saved, torch.load(checkpoint, weights_only=True))
    trainer.run(loader, max_epochs=3)
    weights = b"".join(value.numpy().tobytes() for value in model.state_dict().values())
    return hashlib.sha256(weights).hexdigest()[:16]


if __name__ == "__main__":
    print(train(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None))
