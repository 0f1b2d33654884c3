"""The models for measuring the overhead on a GPU: GPT-2 small and ResNet-50, written out so that nothing has to be installed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from gpt import GPT, Size

GPT2_SMALL = Size(layers=12, width=768, heads=12, tokens=1024, batch=8, vocabulary=50257)
_STAGES = ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2))
"""Width, blocks and stride of the stages of ResNet-50."""


class Bottleneck(nn.Module):
    """A residual block of ResNet-50."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, 4 * width, 1, bias=False), nn.BatchNorm2d(4 * width),
        )  # fmt: skip
        self.shortcut = nn.Identity()
        if stride != 1 or channels != 4 * width:
            convolution = nn.Conv2d(channels, 4 * width, 1, stride, bias=False)
            self.shortcut = nn.Sequential(convolution, nn.BatchNorm2d(4 * width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return functional.relu(self.layers(x) + self.shortcut(x))


def resnet50() -> nn.Sequential:
    """ResNet-50 for a thousand classes."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, 2, 3, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(3, 2, 1),
    ]
    channels = 64
    for width, blocks, stride in _STAGES:
        for number in range(blocks):
            layers.append(Bottleneck(channels, width, stride if number == 0 else 1))
            channels = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000))


@dataclass
class Training:
    """A model in training on random data on the device."""

    title: str
    model: nn.Module
    optimizer: torch.optim.Optimizer
    inputs: torch.Tensor
    targets: torch.Tensor
    precision: torch.dtype

    def step(self) -> float:
        """One step; the loss is read, as training loops do."""
        with torch.autocast(self.inputs.device.type, self.precision, enabled=self.precision is not torch.float32):
            outputs = self.model(self.inputs)
            loss = functional.cross_entropy(outputs.reshape(-1, outputs.shape[-1]), self.targets.reshape(-1))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()


def gpt2_small(device: torch.device, precision: torch.dtype, size: Size = GPT2_SMALL) -> Training:
    """GPT-2 small with AdamW; its head has its own weights."""
    torch.manual_seed(0)
    with device:
        model = GPT(size)
        tokens = torch.randint(0, size.vocabulary, (size.batch, size.tokens + 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    return Training("GPT-2 small", model, optimizer, tokens[:, :-1], tokens[:, 1:].contiguous(), precision)


def resnet50_images(device: torch.device, precision: torch.dtype, batch: int = 64, pixels: int = 224) -> Training:
    """ResNet-50 with SGD, channels last."""
    torch.manual_seed(0)
    with device:
        model = resnet50().to(memory_format=torch.channels_last)
        images = torch.randn(batch, 3, pixels, pixels).to(memory_format=torch.channels_last)
        classes = torch.randint(0, 1000, (batch,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    return Training("ResNet-50", model, optimizer, images, classes, precision)


MODELS: dict[str, Callable[..., Any]] = {"gpt2-small": gpt2_small, "resnet50": resnet50_images}
