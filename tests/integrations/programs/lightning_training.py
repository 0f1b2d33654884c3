"""Trains with Lightning, saves a checkpoint every few steps, and prints a digest of the weights that it ends with.

    python lightning_training.py FOLDER [CHECKPOINT]

The data set draws random numbers for each sample, the model has dropout, and the loss of the validation draws, too.
"""

from __future__ import annotations

import hashlib
import random
import sys
import warnings
from pathlib import Path
from typing import Any

import lightning.pytorch as lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, Dataset

import determinism
from determinism.integrations.lightning import DeterminismCallback


class Images(Dataset[Any]):
    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        image = torch.full((6,), index / 24.0).sin() + 0.1 * torch.randn(6) + random.random()
        return image, image.sum().tanh()


class Model(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1))

    def loss(self, batch: Any) -> torch.Tensor:
        images, targets = batch
        return torch.nn.functional.mse_loss(self.layers(images).squeeze(-1), targets)

    def training_step(self, batch: Any, number: int) -> torch.Tensor:
        return self.loss(batch)

    def validation_step(self, batch: Any, number: int) -> None:
        self.log("loss", self.loss(batch) + 0.0 * torch.rand(()))

    def configure_optimizers(self) -> Any:
        optimizer = torch.optim.AdamW(self.parameters(), lr=0.01)
        return [optimizer], [{"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 4), "interval": "step"}]


def train(
    folder: Path, checkpoint: Path | None = None, *, with_callback: bool = True, resumable: bool = True, **options: Any
) -> str:
    """Train, and give the digest of the weights; checkpoints go to the folder."""
    callbacks: list[Any] = [ModelCheckpoint(folder, filename="{step}", every_n_train_steps=2, save_top_k=-1)]
    if with_callback:
        callbacks.append(DeterminismCallback(seed=1))
    else:
        lightning.seed_everything(1, workers=True, verbose=False)
    model = Model()
    loader: Any = DataLoader(Images(), batch_size=4, shuffle=True, num_workers=options.pop("num_workers", 0))
    if resumable:
        loader = determinism.state.resumable(loader)
    trainer = lightning.Trainer(
        max_epochs=options.pop("max_epochs", 3), deterministic=True, callbacks=callbacks, accelerator="cpu", logger=False, enable_progress_bar=False,
        enable_model_summary=False, **options,
    )  # fmt: skip
    trainer.fit(model, loader, DataLoader(Images(), batch_size=8), ckpt_path=checkpoint)
    weights = b"".join(value.numpy().tobytes() for value in model.state_dict().values())
    return hashlib.sha256(weights).hexdigest()[:16]


if __name__ == "__main__":
    warnings.filterwarnings("ignore", category=UserWarning, module="lightning")
    print(train(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None))
