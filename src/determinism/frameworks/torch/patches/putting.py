"""`put_`: values go to places of the flattened tensor, several maybe to one place. Its stock kernels raise, unless they add on the CPU."""

from __future__ import annotations

import torch

from determinism.frameworks.torch.patches.accumulating import (
    SUM,
    accumulate_rows,
    in_bounds,
    linear_keys,
    places_of,
    write_last,
)
from determinism.frameworks.torch.patches.indexed_writes import ADDED, stock_is_better, writable, zeros_and_ones
from determinism.frameworks.torch.patches.patch import Patch


def put(target: torch.Tensor, index: torch.Tensor, source: torch.Tensor, accumulate: bool = False) -> torch.Tensor:
    """Write values to places of the flattened tensor. Of several for one place, the last one stays."""
    keys = linear_keys([index], [target.numel()])
    values = source.reshape(-1)
    places = target if target.dim() else target.view(1)
    if accumulate and values.dtype in ADDED:
        accumulate_rows(places, keys, list(places.shape), values, SUM)
        return target
    if not accumulate:
        write_last(places, keys, values)
        return target
    torch.ops.aten._index_put_impl_(places, list(places_of(keys, list(places.shape))), values, True)
    return target


def _put_supports(target: torch.Tensor, index: torch.Tensor, source: torch.Tensor, accumulate: bool = False) -> bool:
    if accumulate and stock_is_better(target):
        return False
    if index.dtype != torch.int64 or source.dtype != target.dtype or source.numel() != index.numel():
        return False
    if target.layout != torch.strided or not target.device == index.device == source.device or target.is_quantized:
        return False
    if index.numel() == 0 or target.numel() == 0 or not writable(target, index, source):
        return index.numel() == 0 and writable(target, index, source)
    if not in_bounds(index, target.numel()):
        _refuse(index, target.numel())
    return True


def _refuse(index: torch.Tensor, size: int) -> None:
    """Raise as the stock kernel for the CPU does, which would complain of deterministic mode first."""
    wrong = index[(index < -size) | (index >= size)].reshape(-1)[0].item()
    raise IndexError(f"out of range: tried to access index {wrong} on a tensor of {size} elements.")


PATCHES = (
    Patch(
        identity="put",
        what="put_",
        overloads=("put_",),
        run=put,
        supports=_put_supports,
        example=zeros_and_ones,
        in_place=True,
        varies_on_cpu=True,
    ),
)
