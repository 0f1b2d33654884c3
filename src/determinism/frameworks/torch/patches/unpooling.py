"""`max_unpool2d`, `max_unpool3d` (and `max_unpool1d`, which calls the former): values go to the places that indices name.

Where pooling windows overlapped, one place is named more than once. With indices from `max_pool` all values for it are equal; else the last
one stays, as in the stock kernel for the CPU, and the stock kernel for GPUs keeps any.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from determinism.frameworks.torch.patches.accumulating import write_last
from determinism.frameworks.torch.patches.patch import Patch
from determinism.frameworks.torch.patches.tensors import only_batch_empty, plain_indices, suggested_format


def _unpool(axes: int) -> Callable[..., torch.Tensor]:
    def unpool(given: torch.Tensor, indices: torch.Tensor, output_size: list[int], *rest: Any) -> torch.Tensor:
        lead = list(given.shape[:-axes])
        plane, planes = math.prod(output_size), math.prod(lead)
        starts = torch.arange(planes, device=given.device).unsqueeze(1) * plane
        keys = (indices.reshape(planes, math.prod(given.shape[-axes:])) + starts).reshape(-1)
        result = torch.zeros(planes * plane, dtype=given.dtype, device=given.device)
        write_last(result, keys, given.reshape(-1))
        on_cpu = given.device.type == "cpu" and axes == 2
        memory_format = suggested_format(given) if on_cpu else torch.contiguous_format
        return result.view(*lead, *output_size).contiguous(memory_format=memory_format)

    return unpool


def _supports(axes: int) -> Callable[..., bool]:
    def supports(given: torch.Tensor, indices: torch.Tensor, output_size: list[int], *rest: Any) -> bool:
        if given.layout != torch.strided or not plain_indices(indices, like=given) or given.shape != indices.shape:
            return False
        if given.dim() not in (axes + 1, axes + 2) or len(output_size) != axes or any(len(one) != axes for one in rest):
            return False
        if not only_batch_empty(given, axes) or min(output_size) <= 0 or (rest and min(rest[0]) <= 0):
            return False
        _check(indices, output_size)
        return True

    return supports


def _check(indices: torch.Tensor, output_size: list[int]) -> None:
    """Refuse indices outside of the plane. The stock kernels do too, but complain of deterministic mode first."""
    plane = math.prod(output_size)
    inside = ((indices >= 0) & (indices < plane)).all()
    if indices.device.type != "cpu":
        torch._assert_async(inside)
    elif not inside:
        wrong = indices[(indices < 0) | (indices >= plane)][0].item()
        if len(output_size) == 2:
            height, width = output_size
            raise RuntimeError(f"Found an invalid max index: {wrong} (output volumes are of size {height}x{width})")
        depth, height, width = output_size
        raise RuntimeError(f"found an invalid max index {wrong} (output volumes are of size {depth}x{height}x{width}")


def _patch(axes: int, *parameters: list[int]) -> Patch:
    def example(device: Any) -> tuple[Any, ...]:
        given = torch.ones(1, 1, *[1] * axes, device=device)
        return given, torch.zeros_like(given, dtype=torch.int64), [2] * axes, *parameters

    return Patch(
        identity=f"max-unpool{axes}d",
        what=f"max_unpool{axes}d",
        overloads=(f"max_unpool{axes}d", f"max_unpool{axes}d.out"),
        run=_unpool(axes),
        supports=_supports(axes),
        example=example,
    )


PATCHES = (_patch(2), _patch(3, [2] * 3, [0] * 3))
