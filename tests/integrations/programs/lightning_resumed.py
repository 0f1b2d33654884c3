"""Trains with Lightning up to a step, from the beginning or from a checkpoint; in step 60 a number is used that nobody seeded.

python lightning_resumed.py STEPS SAVE [LOAD]
"""

from __future__ import annotations

import random
import sys
import warnings
from typing import Any

import lightning.pytorch as lightning
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset

import determinism
from determinism.integrations.lightning import DeterminismCallback

unseeded = random.SystemRandom()


class Model(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1))

    def training_step(self, batch: Any, number: int) -> torch.Tensor:
        images, targets = batch
        loss = torch.nn.functional.mse_loss(self.layers(images), targets)
        if self.global_step == 60:
            loss = loss * unseeded.random()  # SITE
        return loss

    def configure_optimizers(self) -> Any:
        return torch.optim.AdamW(self.parameters(), lr=0.01)


warnings.filterwarnings("ignore", category=UserWarning, module="lightning")
steps, save, load = int(sys.argv[1]), sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else ""
callbacks = [DeterminismCallback(seed=1), ModelCheckpoint(save, filename="last", every_n_train_steps=steps)]
images = torch.linspace(0, 1, 96 * 6).reshape(96, 6).sin()
loader = determinism.state.resumable(DataLoader(TensorDataset(images, images.sum(1, keepdim=True)), 4, shuffle=True))
trainer = lightning.Trainer(
    max_steps=steps, deterministic=True, callbacks=callbacks, accelerator="cpu", logger=False, enable_progress_bar=False,
    enable_model_summary=False,
)  # fmt: skip
trainer.fit(Model(), loader, ckpt_path=f"{load}/last.ckpt" if load else None)
