"""Runs a case again and again, and counts the different results forward and backward."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from determinism.digest import digest_many
from determinism.frameworks.op_audit.counting import count_results
from determinism.frameworks.torch.op_audit.case import Case, Inputs
from determinism.frameworks.torch.tensor_bytes import digest_tensor
from determinism.knowledge.measurement import Measurement


def measure(
    case: Case, *, device: str, seed: int, runs: int, seconds: float, deterministic_mode: bool, patched: bool = False
) -> Iterator[Measurement]:
    """Measure a case, for each of its dtypes and in both directions.

    Args:
        case: What to run.
        device: Where.
        seed: The inputs are made from it.
        runs: How often, at most.
        seconds: After this time a case is left, if it was run at least three times.
        deterministic_mode: Whether to run in `torch.use_deterministic_algorithms(True)`.
        patched: Whether ops have been replaced, which is noted.
    """
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(deterministic_mode)
    try:
        for dtype in case.dtypes:
            for one in _measure(case, dtype, device, seed, runs, seconds):
                yield replace(one, patched=patched)
    finally:
        torch.use_deterministic_algorithms(before)


def _measure(case: Case, dtype: str, device: str, seed: int, runs: int, seconds: float) -> Iterator[Measurement]:
    mode = torch.are_deterministic_algorithms_enabled()
    about = Measurement(case.op, case.name, "forward", dtype, torch.get_num_threads(), mode, 0, 0)
    try:
        run = _Differentiated(case, Inputs(device, dtype, seed))
    except LookupError:
        # The op database has not so many samples of it.
        return
    # Samples of the op database fail in every way where a device or a library is missing.
    yield from count_results(run, about, runs=runs, seconds=seconds, errors=(Exception,))


class _Differentiated:
    """Runs a case under autograd."""

    def __init__(self, case: Case, inputs: Inputs) -> None:
        self._inputs = inputs
        self._call = case.make(inputs)
        self._roots: list[torch.Tensor] = []
        self._upstream: list[torch.Tensor] = []

    def forward(self) -> bytes:
        made = _tensors(self._call())
        self._roots = [tensor for tensor in made if tensor.requires_grad]
        return _digest(made)

    def backward(self) -> bytes | None:
        if not self._roots or not self._inputs.leaves:
            return None
        self._upstream = self._upstream or [self._inputs.like(root) for root in self._roots]
        found = torch.autograd.grad(self._roots, self._inputs.leaves, self._upstream, allow_unused=True)
        return _digest([gradient for gradient in found if gradient is not None])


def _tensors(made: Any) -> list[torch.Tensor]:
    return [value for value in tree_leaves(made) if isinstance(value, torch.Tensor)]


def _digest(tensors: list[torch.Tensor]) -> bytes:
    return digest_many([digest_tensor(tensor.detach()) for tensor in tensors])
