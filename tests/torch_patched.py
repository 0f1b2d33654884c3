"""PyTorch with its CPU kernels patched by the replacements, and comparisons with stock PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from benchmarks.patched_kernels import ON_CPU as ON_CPU
from benchmarks.patched_kernels import capturing
from benchmarks.patched_kernels import error as error
from benchmarks.patched_kernels import in_float64 as in_float64
from benchmarks.patched_kernels import patched_cpu as patched_cpu
from determinism.frameworks.torch.patches.catalogue import PATCHES
from determinism.frameworks.torch.patches.patch import Patch

ROUNDING = {torch.float64: 1e-12, torch.float32: 2e-5, torch.float16: 1e-2, torch.bfloat16: 6e-2}
"""How much results of each dtype may differ, relative to the largest value."""


@contextmanager
def captured() -> Iterator[list[tuple[Patch, Any, Any]]]:
    """Patch the CPU as `patched_cpu` does; yield a list of the calls of replacements, with their arguments and results."""
    calls: list[tuple[Patch, Any, Any]] = []
    with patched_cpu(capturing(ON_CPU, calls)):
        yield calls


def named(identity: str) -> Patch:
    """Return the patch with a name."""
    return next(patch for patch in PATCHES if patch.identity == identity)


def close(stock: Any, other: Any) -> bool:
    """Whether two results agree up to rounding, in shape, dtype, layout and where NaN and infinities are."""
    if not isinstance(stock, torch.Tensor):
        return bool(stock == other)
    if stock.shape != other.shape or stock.dtype != other.dtype or stock.stride() != other.stride():
        return False
    if stock.dtype.is_complex:
        return close(torch.view_as_real(stock.resolve_conj()), torch.view_as_real(other.resolve_conj()))
    if not stock.dtype.is_floating_point:
        return torch.equal(stock, other)
    one, two = stock.detach().double(), other.detach().double()
    finite = one.isfinite()
    if not torch.equal(one[~finite].nan_to_num(7), two[~finite].nan_to_num(7)) or not bool(
        two[finite].isfinite().all()
    ):
        return False
    largest = float(one[finite].abs().max()) if bool(finite.any()) else 0.0
    return bool(((one - two)[finite].abs() <= ROUNDING[stock.dtype] * max(largest, 1e-30)).all())


def grads(function: Callable[[torch.Tensor], Any], *shape: int, memory_format: Any = torch.contiguous_format) -> Any:
    """Return the gradient of a function at a random tensor."""
    torch.manual_seed(3)
    given = torch.randn(shape, dtype=torch.float64).contiguous(memory_format=memory_format).requires_grad_()
    result = function(given)
    gradient = torch.randn(result.shape, dtype=torch.float64).contiguous(memory_format=memory_format)
    return torch.autograd.grad(result, given, gradient)
