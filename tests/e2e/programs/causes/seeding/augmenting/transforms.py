"""The transforms."""

import random

from torch import Tensor


class Flip:
    """Swaps left and right."""

    def __call__(self, image: Tensor, generator: random.Random) -> Tensor:
        return image.flip(-1)


class Brightness:
    """Makes an image darker or brighter."""

    def __init__(self, limit: float) -> None:
        self.limit = limit

    def __call__(self, image: Tensor, generator: random.Random) -> Tensor:
        return image * (1 + generator.uniform(-self.limit, self.limit))
