"""Fine-tunes a classifier: the backbone comes from a file, the head is new; the trainer sets the seed."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

BACKBONE = Path("backbone.pt")


@dataclass
class TrainingArguments:
    seed: int = 42
    epochs: int = 2
    learning_rate: float = 0.01


class Classifier(nn.Module):
    def __init__(self, classes: int) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(16, 32), nn.Tanh())
        self.dropout = nn.Dropout(0.1)
        self.head = nn.Linear(32, classes)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.head(self.dropout(self.backbone(inputs)))

    @classmethod
    def from_pretrained(cls, file: Path, classes: int) -> "Classifier":
        model = cls(classes)
        model.backbone.load_state_dict(torch.load(file))
        return model


class Trainer:
    def __init__(self, model: nn.Module, arguments: TrainingArguments) -> None:
        torch.manual_seed(arguments.seed)
        self.model = model
        self.arguments = arguments
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=arguments.learning_rate)

    def train(self, inputs: Tensor, targets: Tensor) -> float:
        for _ in range(self.arguments.epochs):
            for batch in torch.randperm(len(inputs)).split(16):
                loss = nn.functional.cross_entropy(self.model(inputs[batch]), targets[batch])
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
        return loss.item()


def write_backbone() -> None:
    """Write the file of an earlier job, which does not depend on this program's generators."""
    weights = torch.sin(torch.arange(512.0)).view(32, 16) / 4
    torch.save({"0.weight": weights, "0.bias": torch.zeros(32)}, BACKBONE)


write_backbone()
model = Classifier.from_pretrained(BACKBONE, classes=4)
features = np.random.default_rng(0).normal(size=(64, 16)).astype(np.float32)
trainer = Trainer(model, TrainingArguments())
print(trainer.train(torch.from_numpy(features), torch.arange(64) % 4))
