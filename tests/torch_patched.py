"""PyTorch with its replacements standing at the CPU's kernels, and what is compared with stock."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from determinism.frameworks.torch.patches import segments
from determinism.frameworks.torch.patches.binding import bind
from determinism.frameworks.torch.patches.catalogue import PATCHES
from determinism.frameworks.torch.patches.patch import Patch

ON_CPU = tuple(patch for patch in PATCHES if patch.identity != "grid-sample-cudnn")
"""Patches of ops that the CPU has a kernel for, and a build without CUDA too."""
ROUNDING = {torch.float64: 1e-12, torch.float32: 2e-5, torch.float16: 1e-2, torch.bfloat16: 6e-2}
"""How far results of the dtypes may lie apart, against the largest one."""


@contextmanager
def patched_cpu(patches: Iterable[Patch] = ON_CPU) -> Iterator[Counter[str]]:
    """The code for GPUs, bound to the CPU: sums are sorted too. Gives how often each replacement ran, by identity."""
    ran: Counter[str] = Counter()
    kept = set(segments.ONE_BY_ONE)
    segments.ONE_BY_ONE.clear()
    _, restore = bind([_counted(patch, ran) for patch in patches], "cpu")
    try:
        yield ran
    finally:
        restore()
        segments.ONE_BY_ONE.update(kept)


def _counted(patch: Patch, ran: Counter[str]) -> Patch:
    def run(*given: Any, **named: Any) -> Any:
        ran[patch.identity] += 1
        return patch.run(*given, **named)

    return replace(patch, run=run)


@contextmanager
def captured(patches: Iterable[Patch] = ON_CPU) -> Iterator[list[tuple[Patch, Any, Any]]]:
    """As `patched_cpu`; gives each call of a replacement with its arguments, and what it left."""
    calls: list[tuple[Patch, Any, Any]] = []

    def capturing(patch: Patch) -> Patch:
        def run(*given: Any, **named: Any) -> Any:
            before = tree_map(_kept, (given, named))
            result = patch.run(*given, **named)
            calls.append((patch, before, tree_map(_kept, given[0] if patch.in_place else result)))
            return result

        return replace(patch, run=run)

    with patched_cpu([capturing(patch) for patch in patches]):
        yield calls


def _kept(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


def in_float64(patch: Patch, given: Any, named: Any) -> Any:
    """What the stock op gives for the same arguments in float64."""

    def wider(value: Any) -> Any:
        floating = isinstance(value, torch.Tensor) and value.is_floating_point()
        return value.double() if floating else _kept(value)

    op = getattr(torch.ops.aten, patch.overloads[0].partition(".")[0])
    arguments, options = tree_map(wider, (given, named))
    return op(*arguments, **options)


def error(result: Any, reference: Any) -> float:
    """The largest difference against the largest number of the reference, over all floating-point results."""
    pairs = [pair for pair in zip(tree_leaves(result), tree_leaves(reference), strict=True) if pair[0] is not None]
    differences = [
        float((one.double() - two).abs().max() / two.abs().max().clamp(min=1e-300))
        for one, two in pairs
        if one.is_floating_point() and one.numel()
    ]
    return max(differences, default=0.0)


def named(identity: str) -> Patch:
    """The patch of a name."""
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
    """The gradient of a function of one random tensor."""
    torch.manual_seed(3)
    given = torch.randn(shape, dtype=torch.float64).contiguous(memory_format=memory_format).requires_grad_()
    result = function(given)
    gradient = torch.randn(result.shape, dtype=torch.float64).contiguous(memory_format=memory_format)
    return torch.autograd.grad(result, given, gradient)
