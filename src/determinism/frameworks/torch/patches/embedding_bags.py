"""The gradient of `embedding_bag` with `mode='max'`: each bag's gradient goes to the row that was the largest, column by column."""

from __future__ import annotations

from typing import Any

import torch

from determinism.frameworks.torch.patches.patch import Patch
from determinism.frameworks.torch.patches.segments import sum_by_key
from determinism.frameworks.torch.patches.taps import accumulation_dtype
from determinism.frameworks.torch.patches.tensors import plain

_MAX = 2


def max_gradient(
    grad: torch.Tensor,
    indices: torch.Tensor,
    offset2bag: torch.Tensor,
    bag_size: torch.Tensor,
    maximum_indices: torch.Tensor,
    num_weights: int,
    *rest: Any,
) -> torch.Tensor:
    """The gradient of the weights; bags without entries give none."""
    columns = grad.shape[1]
    rows = maximum_indices.to(torch.int64)
    full = (rows >= 0) & (bag_size > 0).unsqueeze(1)
    keys = rows * columns + torch.arange(columns, device=grad.device)
    keys = torch.where(full, keys, torch.full_like(keys, num_weights * columns))
    values = grad.to(accumulation_dtype(grad.dtype)).reshape(-1, 1)
    total = sum_by_key(keys.reshape(-1), values, num_weights * columns + 1)
    return total[:-1].view(num_weights, columns).to(grad.dtype)


def _supports(
    grad: torch.Tensor,
    indices: torch.Tensor,
    offset2bag: torch.Tensor,
    bag_size: torch.Tensor,
    maximum_indices: torch.Tensor,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    *rest: Any,
    **named: Any,
) -> bool:
    return (
        mode == _MAX
        and plain(grad)
        and grad.dim() == 2
        and maximum_indices.shape == grad.shape
        and bag_size.shape == grad.shape[:1]
        and grad.shape[1] > 0
    )


def _run(*given: Any, **named: Any) -> torch.Tensor:
    return max_gradient(*given[:6])


def _example(device: Any) -> tuple[Any, ...]:
    indices = torch.zeros(2, dtype=torch.int64, device=device)
    bags = torch.arange(2, device=device)
    largest = torch.zeros(2, 3, dtype=torch.int64, device=device)
    return torch.ones(2, 3, device=device), indices, bags, torch.ones_like(bags), largest, 4, False, _MAX, None


PATCHES = (
    Patch(
        identity="embedding-bag-max",
        what="embedding_bag max (gradient)",
        overloads=("_embedding_bag_dense_backward",),
        run=_run,
        supports=_supports,
        example=_example,
    ),
)
