"""Cases that PyTorch's samples lack: larger tensors, whose sums show in what order they were made, and several ops."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn import functional

from determinism.frameworks.torch.formula_audit.outcome import Case, Produced


def made_cases() -> Iterator[Case]:
    """The cases."""
    for name, function in _FUNCTIONS.items():

        def run(function: Callable[[Tensor, Tensor], Tensor] = function) -> Produced:
            generator = torch.Generator().manual_seed(3)
            matrix = torch.randn(60, 50, generator=generator).requires_grad_()
            number = torch.tensor(0.5).requires_grad_()
            made = function(matrix, number)
            upstream = torch.randn(made.shape, generator=generator)
            gradients = torch.autograd.grad([made], [matrix, number], [upstream], allow_unused=True)
            return Produced([made, *gradients], [matrix, number])

        yield Case(name, f"{name} (made)", run)


def _in_view(matrix: Tensor, number: Tensor) -> Tensor:
    copy = matrix * 1
    copy[:30].masked_fill_(matrix[:30] > 0, number)
    return copy


def _branches(matrix: Tensor, number: Tensor) -> Tensor:
    shared = matrix * number
    turned = (shared.t().contiguous() * 3).sum()
    return torch.stack([turned, shared[:, :20].sum(), shared.expand(3, 60, 50).exp().sum(), shared.sum()])


def _checkpointed(matrix: Tensor, number: Tensor) -> Tensor:
    from torch.utils.checkpoint import checkpoint

    return checkpoint(lambda x: (x * number).tanh().sin(), matrix, use_reentrant=False)  # type: ignore[no-any-return]


_FUNCTIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "masked_fill": lambda matrix, number: matrix.masked_fill(matrix > 0, number),
    "masked_fill_ in a view": _in_view,
    "prod": lambda matrix, number: matrix.prod(),
    "prod over a dimension": lambda matrix, number: matrix.prod(1),
    "prod with one zero": lambda matrix, number: functional.pad(matrix, (0, 1)).prod(1),
    "cumprod": lambda matrix, number: matrix.cumprod(1),
    "max of all with ties": lambda matrix, number: matrix.relu().max(),
    "min of all with ties": lambda matrix, number: matrix.relu().min(),
    "median of all with ties": lambda matrix, number: matrix.relu().median(),
    "amax with ties": lambda matrix, number: matrix.round().amax(1),
    "index": lambda matrix, number: matrix[torch.arange(600) % 60],
    "gather": lambda matrix, number: matrix.gather(0, torch.arange(5000).reshape(100, 50) % 60),
    "index_select": lambda matrix, number: matrix.index_select(0, torch.arange(600) % 60),
    "embedding": lambda matrix, number: functional.embedding(torch.arange(600) % 60, matrix),
    "take": lambda matrix, number: matrix.take(torch.arange(9000) % 3000),
    "sort": lambda matrix, number: matrix.sort(1)[0],
    "where": lambda matrix, number: torch.where(matrix > 0, matrix, number),
    "cross_entropy": lambda matrix, number: functional.cross_entropy(matrix, torch.arange(60) % 50),
    "attention": lambda matrix, number: functional.scaled_dot_product_attention(matrix, matrix, matrix * number),
    "gradients of several layouts meet": _branches,
    "checkpoint": _checkpointed,
}
