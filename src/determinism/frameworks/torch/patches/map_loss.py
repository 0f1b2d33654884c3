"""`NLLLoss` (and `cross_entropy`) on maps: one loss per place, then one sum in one order. Stock kernels for GPUs add with atomics."""

from __future__ import annotations

from typing import Any

import torch

from determinism.frameworks.torch.patches.accumulating import in_bounds
from determinism.frameworks.torch.patches.patch import Patch
from determinism.frameworks.torch.patches.taps import accumulation_dtype
from determinism.frameworks.torch.patches.tensors import only_batch_empty, plain, plain_indices

_NONE, _MEAN = 0, 1
"""How PyTorch numbers the reductions; 2 is the sum."""


def nll_loss2d(
    given: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None, reduction: int, ignore_index: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss, and by what it was divided."""
    dtype = accumulation_dtype(given.dtype)
    counts = target != ignore_index
    classes = torch.where(counts, target, torch.zeros_like(target))
    chosen = given.gather(1, classes.unsqueeze(1)).squeeze(1).to(dtype)
    if weight is None:
        weights = torch.ones((), dtype=dtype, device=given.device).expand(target.shape)
    else:
        weights = weight.to(dtype)[classes]
    zero = torch.zeros((), dtype=dtype, device=given.device)
    losses = torch.where(counts, -chosen * weights, zero)
    if reduction == _NONE:
        return losses.to(given.dtype).contiguous(), torch.zeros((), dtype=given.dtype, device=given.device)
    total = torch.where(counts, weights, zero).sum()
    loss = losses.sum()
    return (loss / total if reduction == _MEAN else loss).to(given.dtype), total.to(given.dtype)


def _supports(
    given: torch.Tensor, target: torch.Tensor, weight: torch.Tensor | None, reduction: int, ignore_index: int
) -> bool:
    if given.dim() != 4 or not plain(given, *([] if weight is None else [weight])) or not only_batch_empty(given, 2):
        return False
    if not plain_indices(target, like=given) or list(target.shape) != [given.shape[0], *given.shape[2:]]:
        return False
    if weight is not None and list(weight.shape) != [given.shape[1]]:
        return False
    classes = torch.where(target == ignore_index, torch.zeros_like(target), target)
    return in_bounds(classes, given.shape[1]) and not (target.device.type == "cpu" and bool((classes < 0).any()))


def _example(device: Any) -> tuple[Any, ...]:
    return (
        torch.ones(1, 2, 2, 2, device=device),
        torch.zeros(1, 2, 2, dtype=torch.int64, device=device),
        None,
        _MEAN,
        -100,
    )


PATCHES = (
    Patch(
        identity="nll-loss2d",
        what="nll_loss and cross_entropy on maps",
        overloads=("nll_loss2d_forward", "nll_loss2d_forward.output"),
        run=nll_loss2d,
        supports=_supports,
        example=_example,
    ),
)
