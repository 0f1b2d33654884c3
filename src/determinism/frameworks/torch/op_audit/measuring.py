"""Runs a case again and again, and counts the different results forward and backward."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from determinism.digest import digest_many
from determinism.frameworks.torch.op_audit.case import Case, Inputs
from determinism.frameworks.torch.tensor_bytes import digest_tensor
from determinism.knowledge.measurement import Measurement


def measure(
    case: Case, *, device: str, seed: int, runs: int, seconds: float, deterministic_mode: bool
) -> Iterator[Measurement]:
    """Measure a case, for each of its dtypes and in both directions.

    Args:
        case: What to run.
        device: Where.
        seed: The inputs are made from it.
        runs: How often, at most.
        seconds: After this time a case is left, if it was run at least three times.
        deterministic_mode: Whether to run in `torch.use_deterministic_algorithms(True)`.
    """
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(deterministic_mode)
    try:
        for dtype in case.dtypes:
            yield from _measure(case, dtype, device, seed, runs, seconds)
    finally:
        torch.use_deterministic_algorithms(before)


def _measure(case: Case, dtype: str, device: str, seed: int, runs: int, seconds: float) -> Iterator[Measurement]:
    def result(direction: str, done: int, distinct: int, raised: Exception | None = None) -> Measurement:
        mode = torch.are_deterministic_algorithms_enabled()
        text = None if raised is None else _first_line(raised)
        return Measurement(case.op, case.name, direction, dtype, torch.get_num_threads(), mode, done, distinct, text)

    inputs = Inputs(device, dtype, seed)
    try:
        call = case.make(inputs)
    except LookupError:
        # There are not so many samples.
        return
    forward: set[bytes] = set()
    backward: dict[bytes, set[bytes]] = defaultdict(set)
    upstream: list[torch.Tensor] = []
    done, until = 0, time.monotonic() + seconds
    while done < runs and (done < 3 or time.monotonic() < until):
        try:
            roots = _tensors(call())
            key = _digest(roots)
        except Exception as error:
            yield result("forward", 0, 0, error)
            return
        forward.add(key)
        roots = [root for root in roots if root.requires_grad]
        if roots and inputs.leaves:
            upstream = upstream or [inputs.like(root) for root in roots]
            try:
                gradients = torch.autograd.grad(roots, inputs.leaves, upstream, allow_unused=True)
            except Exception as error:
                yield result("forward", 1, 1)
                yield result("backward", 0, 0, error)
                return
            backward[key].add(_digest([gradient for gradient in gradients if gradient is not None]))
        done += 1
    yield result("forward", done, len(forward))
    if backward:
        # Only runs whose forward gave the same say something about the backward.
        yield result("backward", done, max(map(len, backward.values())))


def _tensors(made: Any) -> list[torch.Tensor]:
    return [value for value in tree_leaves(made) if isinstance(value, torch.Tensor)]


def _digest(tensors: list[torch.Tensor]) -> bytes:
    return digest_many([digest_tensor(tensor.detach()) for tensor in tensors])


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:200]
