"""Applies transforms one after the other, with its own generator."""

import random
from collections.abc import Callable

from torch import Tensor

Transform = Callable[[Tensor, random.Random], Tensor]


class Compose:
    """Transforms that are applied in turn, each with some probability."""

    def __init__(self, transforms: list[Transform], probability: float = 0.5, seed: int | None = None) -> None:
        self.transforms = transforms
        self.probability = probability
        self.random = random.Random(seed)

    def __call__(self, image: Tensor) -> Tensor:
        for transform in self.transforms:
            if self.random.random() < self.probability:
                image = transform(image, self.random)
        return image
