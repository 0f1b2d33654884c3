"""The replacements of PyTorch's ops, in place of the CPU's kernels; and the float64 reference of each call."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map

from determinism.frameworks.torch.patches import ordered_sums
from determinism.frameworks.torch.patches.catalogue import PATCHES
from determinism.frameworks.torch.patches.patch import Patch, bind, bindable

ON_CPU = tuple(patch for patch in PATCHES if bindable(patch, patch.cpu_key))
"""Patches of ops for which the CPU has a kernel."""


@contextmanager
def patched_cpu(patches: Iterable[Patch] = ON_CPU) -> Iterator[Counter[str]]:
    """Bind the code for GPUs to the CPU: sums are sorted, too. Yields how often each replacement ran, by identifier."""
    ran: Counter[str] = Counter()
    kept = set(ordered_sums.ONE_BY_ONE)
    ordered_sums.ONE_BY_ONE.clear()
    _, restore = bind([_counted(patch, ran) for patch in patches], "cpu")
    try:
        yield ran
    finally:
        restore()
        ordered_sums.ONE_BY_ONE.update(kept)


def _counted(patch: Patch, ran: Counter[str]) -> Patch:
    def run(*given: Any, **named: Any) -> Any:
        ran[patch.identity] += 1
        return patch.run(*given, **named)

    return replace(patch, run=run)


def capturing(patches: Iterable[Patch], calls: list[tuple[Patch, Any, Any]]) -> list[Patch]:
    """Patches that note each call, with its arguments and results."""

    def noting(patch: Patch) -> Patch:
        def run(*given: Any, **named: Any) -> Any:
            before = tree_map(_kept, (given, named))
            result = patch.run(*given, **named)
            calls.append((patch, before, tree_map(_kept, given[0] if patch.in_place else result)))
            return result

        return replace(patch, run=run)

    return [noting(patch) for patch in patches]


def _kept(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


def in_float64(patch: Patch, given: Any, named: Any, wider: bool = True) -> Any:
    """The results of the stock op for the same arguments, in float64 or, if not `wider`, as they are."""

    def prepared(value: Any) -> Any:
        floating = isinstance(value, torch.Tensor) and value.is_floating_point()
        return value.double() if floating and wider else _kept(value)

    op = getattr(torch.ops.aten, patch.overloads[0].partition(".")[0])
    arguments, options = tree_map(prepared, (given, named))
    return op(*arguments, **options)


def error(result: Any, reference: Any) -> float:
    """The largest difference relative to the largest number of the reference, over all floating-point results."""
    pairs = [pair for pair in zip(tree_leaves(result), tree_leaves(reference), strict=True) if pair[0] is not None]
    differences = [
        float((one.double() - two).abs().max() / two.abs().max().clamp(min=1e-300))
        for one, two in pairs
        if one.is_floating_point() and one.numel()
    ]
    return max(differences, default=0.0)
