"""Cases from PyTorch's own op database: small inputs, but of every op, so that one that nobody thought of shows."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_leaves, tree_map

from determinism.frameworks.torch.formula_audit.cases import database
from determinism.frameworks.torch.op_audit.case import Call, Case, Inputs

_MOST_SAMPLES = 3
_DRAWS = 1234
"""Seed before each call, since many ops draw."""
_LEFT_OUT = ("empty", "new_empty", "resize_", "resize_as_", "bernoulli", "multinomial")
"""Beginnings of names of ops that give memory that nobody wrote, or that the deterministic mode is not about."""


def cases() -> Iterator[Case]:
    """A case for each of the first samples of each op, in float32.

    Raises:
        ImportError: A package that PyTorch's test suite needs is missing.
    """
    for info in database():
        if torch.float32 not in info.dtypes or info.name.startswith(_LEFT_OUT):
            continue
        variant = f"{info.variant_test_name}, " if info.variant_test_name else ""
        for number in range(_MOST_SAMPLES):
            name = f"{variant}sample {number} of PyTorch's op database"
            yield Case(f"torch.{info.name}", name, partial(_make, info, number))


def _make(info: Any, number: int, inputs: Inputs) -> Call:
    _seed()
    samples = info.sample_inputs(str(inputs.device), inputs.dtype, requires_grad=info.supports_autograd)
    sample = next(islice(samples, number, None), None)
    if sample is None:
        raise LookupError(f"{info.name} has no sample {number}")
    given = (sample.input, sample.args, sample.kwargs)
    inputs.leaves += [v for v in tree_leaves(given) if isinstance(v, torch.Tensor) and v.requires_grad]

    def call() -> Any:
        _seed()
        # Ops may write into their inputs.
        first, args, kwargs = tree_map(lambda v: v.clone() if isinstance(v, torch.Tensor) else v, given)
        return info(first, *args, **kwargs)

    return call


def _seed() -> None:
    torch.manual_seed(_DRAWS)
    random.seed(_DRAWS)
    np.random.seed(_DRAWS)
