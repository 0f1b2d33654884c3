"""A case: one way to call an op, on inputs that make it vary if anything does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

Call = Callable[[], Any]
FLOATS = ("float32", "float64", "float16", "bfloat16")


@dataclass(frozen=True)
class Case:
    """One way to call an op.

    Attributes:
        op: The name that the op is listed under in what is known.
        name: What of the op it is, and on which inputs.
        make: Makes the inputs and gives what calls the op; each call gives the results of a fresh computation.
        dtypes: Names of the dtypes to try.
    """

    op: str
    name: str
    make: Callable[[Inputs], Call]
    dtypes: Sequence[str] = ("float32",)


class Inputs:
    """Makes the inputs of one case, the same ones each time."""

    def __init__(self, device: str, dtype: str, seed: int) -> None:
        self.device = torch.device(device)
        self.dtype: torch.dtype = getattr(torch, dtype)
        self._generator = torch.Generator().manual_seed(seed)
        self.leaves: list[torch.Tensor] = []
        """The tensors to differentiate by."""

    def normal(self, *shape: int, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Values of very different sizes, so that no order of adding them up is like another; not differentiated by."""
        values = torch.randn(shape, generator=self._generator, dtype=torch.float64)
        scales = torch.randn(shape, generator=self._generator, dtype=torch.float64)
        return (values * scales.exp()).to(self.device, dtype or self.dtype)

    def leaf(self, *shape: int, layout: torch.memory_format | None = None) -> torch.Tensor:
        """As `normal`, to differentiate by."""
        made = self.normal(*shape)
        if layout is not None:
            made = made.contiguous(memory_format=layout)
        if made.is_floating_point():
            self.leaves.append(made.requires_grad_())
        return made

    def whole(self, high: int, *shape: int) -> torch.Tensor:
        """Whole numbers below `high`: as indices of many contributions to few places, they collide."""
        return torch.randint(high, shape, generator=self._generator).to(self.device)

    def unit(self, *shape: int) -> torch.Tensor:
        """Values between 0 and 1."""
        return torch.rand(shape, generator=self._generator, dtype=torch.float64).to(self.device, self.dtype)

    def like(self, tensor: torch.Tensor) -> torch.Tensor:
        """Random values to begin a backward pass with."""
        return self.normal(*tensor.shape, dtype=tensor.dtype)
