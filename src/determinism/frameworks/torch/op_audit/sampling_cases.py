"""Ops that read images between their elements or past their edges: gradients of many elements go to one."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from torch.nn import functional

from determinism.frameworks.torch.op_audit.case import Call, Case, Inputs
from determinism.frameworks.torch.op_audit.layer_cases import image

_MODES = {1: ("linear",), 2: ("bilinear", "bicubic"), 3: ("trilinear",)}


def cases() -> Iterator[Case]:
    """All of them."""
    name = "torch.nn.functional.interpolate"
    for dims, modes in _MODES.items():
        for mode in ("nearest", *modes):
            yield Case(name, f"{mode}, {dims}d, 3 times as large", _interpolate(mode, dims))
    for mode in ("bilinear", "nearest", "bicubic"):
        yield Case("torch.nn.functional.grid_sample", f"{mode}, equal places", _grid_sample(mode))
    for dims in (1, 2, 3):
        for kind, mode in (("Reflection", "reflect"), ("Replication", "replicate")):
            yield Case(f"torch.nn.{kind}Pad{dims}d", "3 elements", _padded(mode, dims))
        yield Case("torch.nn.functional.pad", f"circular, {dims}d", _padded("circular", dims))


def _interpolate(mode: str, dims: int) -> Callable[[Inputs], Call]:
    return image(lambda x: functional.interpolate(x[..., :16], scale_factor=3, mode=mode), dims)


def _padded(mode: str, dims: int) -> Callable[[Inputs], Call]:
    return image(lambda x: functional.pad(x, (3,) * 2 * dims, mode), dims)


def _grid_sample(mode: str) -> Callable[[Inputs], Call]:
    def make(inputs: Inputs) -> Call:
        batch, grid = inputs.leaf(4, 8, 16, 16), inputs.unit(4, 128, 128, 2)
        return lambda: functional.grid_sample(batch, grid / 4, mode, align_corners=False)

    return make
