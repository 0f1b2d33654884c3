"""Ops that add up, count, select or sort many values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from determinism.frameworks.torch.op_audit.case import FLOATS, Call, Case, Inputs
from determinism.frameworks.torch.op_audit.writing_cases import FEW, MANY

_ROWS = 512


def cases() -> Iterator[Case]:
    """All of them."""
    for name in ("sum", "mean", "prod", "var", "norm", "logsumexp"):
        yield Case(
            f"torch.{name}", "all elements", _of_flat(_reduction(name)), FLOATS if name == "sum" else ("float32",)
        )
        yield Case(f"torch.{name}", "columns", _of_matrix(_reduction(name)))
    yield Case("torch.dot", "two vectors", _of_two(torch.dot))
    yield Case("torch.cumsum", "all elements", _of_flat(lambda x: x.cumsum(0)), FLOATS)
    yield Case("torch.cumsum", "rows", _of_matrix(lambda x, dim: x.cumsum(1)))
    yield Case("torch.softmax", "rows", _of_matrix(lambda x, dim: x.softmax(1)))
    yield Case("torch.bincount", "with weights, equal values", _counted)
    yield Case(
        "torch.bincount", "without weights, equal values", lambda inputs: _counted(inputs, weighted=False), ("int64",)
    )
    yield Case("torch.histc", "equal values", _of_flat(lambda x: x.detach().histc(FEW)))
    yield Case("torch.median", "with indices, equal values", _of_ties(lambda x: x.median(1)))
    yield Case("torch.kthvalue", "equal values", _of_ties(lambda x: x.kthvalue(7, 1)))
    yield Case("torch.mode", "equal values", _of_ties(lambda x: x.mode(1)))
    yield Case("torch.sort", "equal values", _of_ties(lambda x: x.sort(1)))
    yield Case("torch.topk", "equal values", _of_ties(lambda x: x.topk(7, 1)))
    yield Case("torch.unique", "with inverse and counts", _unique)


def _reduction(name: str) -> Callable[..., torch.Tensor]:
    if name == "logsumexp":
        return lambda x, dim=0: torch.logsumexp(x, dim)
    reduction: Callable[..., torch.Tensor] = getattr(torch, name)
    return lambda x, dim=None: reduction(x) if dim is None else reduction(x, dim=dim)


def _of_flat(run: Callable[[torch.Tensor], Any]) -> Callable[[Inputs], Call]:
    def make(inputs: Inputs) -> Call:
        values = inputs.leaf(MANY)
        return lambda: run(values)

    return make


def _of_matrix(run: Callable[[torch.Tensor, int], Any]) -> Callable[[Inputs], Call]:
    def make(inputs: Inputs) -> Call:
        values = inputs.leaf(_ROWS, MANY // _ROWS)
        return lambda: run(values, 0)

    return make


def _of_two(run: Callable[[torch.Tensor, torch.Tensor], Any]) -> Callable[[Inputs], Call]:
    def make(inputs: Inputs) -> Call:
        values, others = inputs.leaf(MANY), inputs.leaf(MANY)
        return lambda: run(values, others)

    return make


def _of_ties(run: Callable[[torch.Tensor], Any]) -> Callable[[Inputs], Call]:
    def make(inputs: Inputs) -> Call:
        values = inputs.whole(FEW, _ROWS, MANY // _ROWS).to(inputs.dtype).requires_grad_()
        inputs.leaves.append(values)
        return lambda: run(values)

    return make


def _counted(inputs: Inputs, *, weighted: bool = True) -> Call:
    values = inputs.whole(FEW, MANY)
    weights = inputs.normal(MANY) if weighted else None
    return lambda: torch.bincount(values, weights)


def _unique(inputs: Inputs) -> Call:
    values = inputs.whole(FEW, MANY)
    return lambda: torch.unique(values, return_inverse=True, return_counts=True)
