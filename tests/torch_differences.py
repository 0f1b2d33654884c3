"""Values that differ between runs, and assertions on how they must be compared."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from determinism.comparison.result import Comparison
from determinism.types import Kind, Verdict
from tests.torch_runs import compare_program

runs = itertools.count()


def differing(*shape: int) -> Tensor:
    """Return values that are unique to each run, made by a seeded op from a differing argument."""
    return torch.full(shape, 1.0 + next(runs))


def in_one_run() -> bool:
    """Return True in every second run."""
    return next(runs) % 2 == 0


def noise(*shape: int) -> Tensor:
    """Return values that are unique to each run, drawn from a generator with a random seed."""
    own = torch.Generator()
    own.manual_seed(int.from_bytes(os.urandom(4), "little"))
    return torch.rand(*shape, generator=own)


def assert_dead(function: Callable[[], Any], folder: Path, *, at_least: int = 1) -> Comparison:
    comparison = compare_program(function, folder)
    assert comparison.verdict is Verdict.SAME, comparison.first_divergence
    assert comparison.dead_differences >= at_least
    assert comparison.first_divergence is None
    return comparison


def assert_live(function: Callable[[], Any], folder: Path, kind: Kind | None = None, op: str = "") -> Comparison:
    comparison = compare_program(function, folder)
    assert comparison.verdict is Verdict.DIFFERENT, comparison.dead_first
    assert comparison.first_divergence is not None
    assert kind is None or comparison.first_divergence.kind is kind, comparison.first_divergence
    assert op in comparison.first_divergence.op, comparison.first_divergence
    return comparison
