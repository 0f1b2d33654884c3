"""Trains with the Trainer of Transformers, saves checkpoints, and prints a digest of the weights that it ends with.

    python hugging_face_training.py FOLDER [CHECKPOINT]

The data set and the collator draw random numbers for each batch, and the model has dropout.
"""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments

from determinism.integrations.hugging_face import DeterminismCallback

os.environ["HF_HUB_OFFLINE"] = "1"


class Images(Dataset[Any]):
    def __len__(self) -> int:
        return 22

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        image = torch.full((6,), index / 24.0).sin() + 0.1 * torch.randn(6)
        return {"image": image, "target": image.sum().tanh()}


def collate(samples: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    images = torch.stack([one["image"] for one in samples])
    return {
        "image": images * (torch.rand(images.shape) > 0.1),
        "target": torch.stack([one["target"] for one in samples]),
    }


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1))

    def forward(self, image: torch.Tensor, target: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"loss": torch.nn.functional.mse_loss(self.layers(image).squeeze(-1), target)}


def train(folder: Path, checkpoint: Path | None = None, *, with_callback: bool = True, **options: Any) -> str:
    """Train, and give the digest of the weights; checkpoints go to the folder."""
    callbacks = [DeterminismCallback(seed=1)] if with_callback else []
    if not with_callback:
        torch.manual_seed(1)
    model = Model()
    given: dict[str, Any] = {"save_strategy": "steps", "save_steps": 2, "num_train_epochs": 3, **options}
    arguments = TrainingArguments(
        str(folder), per_device_train_batch_size=4, learning_rate=0.01, full_determinism=True, report_to=[],
        remove_unused_columns=False, disable_tqdm=True, logging_strategy="no", use_cpu=True, **given,
    )  # fmt: skip
    trainer = Trainer(model, arguments, train_dataset=Images(), data_collator=collate, callbacks=callbacks)
    trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    weights = b"".join(value.numpy().tobytes() for value in model.state_dict().values())
    return hashlib.sha256(weights).hexdigest()[:16]


if __name__ == "__main__":
    print(train(Path(sys.argv[1]), Path(sys.argv[2]) if len(sys.argv) > 2 else None))
