"""Trains with the Trainer of Transformers up to a step, from the beginning or from a checkpoint; in step 60 a number is used that nobody seeded.

python hugging_face_resumed.py STEPS SAVE [LOAD]
"""

from __future__ import annotations

import os
import random
import sys
from typing import Any

import torch
from torch.utils.data import Dataset
from transformers import Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from determinism.integrations.hugging_face import DeterminismCallback

os.environ["HF_HUB_OFFLINE"] = "1"
unseeded = random.SystemRandom()


class Images(Dataset[Any]):
    def __len__(self) -> int:
        return 96

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        image = torch.full((6,), index / 96.0).sin()
        return {"image": image, "target": image.sum().tanh()}


class Model(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(6, 8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 1))
        self.steps = 0

    def forward(self, image: torch.Tensor, target: torch.Tensor) -> dict[str, torch.Tensor]:
        loss = torch.nn.functional.mse_loss(self.layers(image).squeeze(-1), target)
        if trainer.state.global_step == 60:
            loss = loss * unseeded.random()  # SITE
        return {"loss": loss}


steps, save, load = int(sys.argv[1]), sys.argv[2], sys.argv[3] if len(sys.argv) > 3 else ""
torch.manual_seed(1)
arguments = TrainingArguments(
    save, max_steps=steps, save_strategy="steps", save_steps=steps, per_device_train_batch_size=4, learning_rate=0.01, lr_scheduler_type="constant",
    full_determinism=True, report_to=[], remove_unused_columns=False, disable_tqdm=True, logging_strategy="no", use_cpu=True,
)  # fmt: skip
trainer = Trainer(Model(), arguments, train_dataset=Images(), callbacks=[DeterminismCallback(seed=1)])
trainer.train(resume_from_checkpoint=get_last_checkpoint(load) if load else None)
