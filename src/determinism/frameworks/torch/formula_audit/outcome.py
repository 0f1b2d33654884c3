"""What a case left behind, so that two ways of running it can be compared."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from determinism import rng
from determinism.frameworks.torch.generators import state_digest
from determinism.frameworks.torch.tensor_bytes import digest_tensor


@dataclass
class Produced:
    """What a case hands out."""

    tensors: list[torch.Tensor | None]
    """Outputs, then gradients; None where there is no gradient."""
    inputs: list[torch.Tensor] = field(default_factory=list)
    """Whose memory the outputs may share."""


@dataclass
class Case:
    """Something that can be run again and again from the same state."""

    op: str
    """The op that it is about."""
    name: str
    run: Callable[[], Produced]
    is_first_order: bool = True
    """Whether the same nodes run in the same order whatever formula they take."""
    is_forward_mode: bool = False


Outcome = dict[str, Any]
"""By aspect: values, layout, memory, random, error, warnings."""


def observe(case: Case, way: AbstractContextManager[Any]) -> Outcome:
    """Run a case in one way.

    Args:
        case: What to run.
        way: Entered around it, such as a mode.
    """
    torch.default_generator.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    error: tuple[str, str] | None = None
    produced = Produced([])
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with way:
            try:
                produced = case.run()
            except Exception as raised:
                error = (type(raised).__name__, str(raised))
    return {
        "values": [None if tensor is None else digest_tensor(tensor) for tensor in produced.tensors],
        "layout": [None if tensor is None else _layout(tensor) for tensor in produced.tensors],
        "memory": [_shared(tensor, produced.inputs) for tensor in produced.tensors],
        "random": {**rng.state_digests(), "torch": state_digest(torch.default_generator)},
        "error": error,
        "warnings": [(warning.category.__name__, str(warning.message)) for warning in warned],
    }


def differing(one: Outcome, other: Outcome) -> list[str]:
    """The aspects in which two outcomes differ; what follows from an error is not told apart from it."""
    found = [aspect for aspect in one if one[aspect] != other[aspect]]
    return ["error"] if "error" in found else found


def _layout(tensor: torch.Tensor) -> tuple[Any, ...]:
    is_strided = tensor.layout is torch.strided and not tensor.is_nested
    strides = (tensor.stride(), tensor.storage_offset()) if is_strided else ()
    shape = () if tensor.is_nested else tuple(tensor.shape)
    return (str(tensor.dtype), shape, str(tensor.layout), tensor.requires_grad, strides)


def _shared(tensor: torch.Tensor | None, inputs: Sequence[torch.Tensor]) -> list[int]:
    if tensor is None:
        return []
    own = set(_addresses([tensor]))
    return [index for index, given in enumerate(inputs) if own & set(_addresses([given]))]


def _addresses(tensors: Sequence[torch.Tensor]) -> Iterator[int]:
    for tensor in tensors:
        if tensor.layout is torch.strided and not tensor.is_nested and tensor.numel():
            yield tensor.untyped_storage()._cdata
