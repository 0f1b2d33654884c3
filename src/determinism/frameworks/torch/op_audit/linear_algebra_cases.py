"""Products, decompositions, solvers and Fourier transforms."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from determinism.frameworks.torch.op_audit.case import FLOATS, Call, Case, Inputs

_SIZE = 192


def cases() -> Iterator[Case]:
    """All of them."""
    yield Case("torch.matmul", "square matrices", _of_two(torch.matmul, _SIZE, _SIZE), FLOATS)
    yield Case("torch.bmm", "dense", _of_two(torch.bmm, 4, _SIZE, _SIZE))
    yield Case("torch.bmm", "sparse and dense", _sparse_bmm)
    yield Case("torch.sparse.mm", "sparse and dense", _sparse_mm)
    linalg, narrow = torch.linalg, _SIZE // 2
    yield Case(
        "torch.linalg.lstsq",
        "gelsy, the default on the CPU",
        _of_system(lambda a, b: linalg.lstsq(a.detach(), b).solution, narrow),
    )
    yield Case("torch.linalg.solve", "square", _of_system(linalg.solve, narrow))
    yield Case("torch.linalg.qr", "square", _of_system(lambda a, b: linalg.qr(a), narrow))
    yield Case("torch.linalg.svdvals", "square", _of_system(lambda a, b: linalg.svdvals(a), narrow))
    yield Case("torch.linalg.eigh", "symmetric", _of_system(lambda a, b: linalg.eigh(a + a.mT), narrow))
    yield Case("torch.fft.fft", "rows", _of_system(lambda a, b: torch.fft.fft(a), _SIZE))


def _of_two(run: Callable[[torch.Tensor, torch.Tensor], Any], *shape: int) -> Callable[[Inputs], Call]:
    def make(inputs: Inputs) -> Call:
        first, second = inputs.leaf(*shape), inputs.leaf(*shape)
        return lambda: run(first, second)

    return make


def _of_system(run: Callable[[torch.Tensor, torch.Tensor], Any], size: int) -> Callable[[Inputs], Call]:
    def make(inputs: Inputs) -> Call:
        matrix, sides = inputs.leaf(size, size), inputs.leaf(size, 8)
        return lambda: run(matrix, sides)

    return make


def _sparse(inputs: Inputs, *batch: int) -> torch.Tensor:
    dense = inputs.normal(*batch, _SIZE, _SIZE)
    return (dense * (inputs.unit(*batch, _SIZE, _SIZE) < 0.2)).to_sparse()


def _sparse_bmm(inputs: Inputs) -> Call:
    sparse, dense = _sparse(inputs, 4), inputs.leaf(4, _SIZE, _SIZE)
    return lambda: torch.bmm(sparse, dense)


def _sparse_mm(inputs: Inputs) -> Call:
    sparse, dense = _sparse(inputs), inputs.leaf(_SIZE, _SIZE)
    return lambda: torch.sparse.mm(sparse, dense)
