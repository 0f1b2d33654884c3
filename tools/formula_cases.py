"""The cases of the formula audit: every sample of PyTorch's test suite in several variants, and some that it lacks."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import functional
from torch.utils._pytree import tree_leaves, tree_map

from determinism import rng
from determinism.frameworks.torch.ops import state_digest
from determinism.frameworks.torch.tensor_bytes import digest_tensor

# The outcome of a case, so that two ways of running it can be compared.


@dataclass
class Produced:
    """The results of a case."""

    tensors: list[torch.Tensor | None]
    """Outputs, then gradients; None where there is no gradient."""
    inputs: list[torch.Tensor] = field(default_factory=list)
    """Tensors whose memory the outputs may share."""


@dataclass
class Case:
    """A call that can be repeated from the same state."""

    op: str
    """The op that it is about."""
    name: str
    run: Callable[[], Produced]
    is_first_order: bool = True
    """Whether the same nodes run in the same order whatever formula they use."""
    is_forward_mode: bool = False


Outcome = dict[str, Any]
"""By aspect: values, layout, memory, random, error, warnings."""


def observe(case: Case, way: AbstractContextManager[Any]) -> Outcome:
    """Run a case in one way.

    Args:
        case: What to run.
        way: A context to enter around it, such as a mode.
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
    """The aspects in which two outcomes differ; a different error hides all other aspects."""
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


_VARIANTS = ("backward", "zeros", "one input", "double backward", "autocast", "forward mode")


def cases_of(info: Any, dtype: torch.dtype, most_samples: int, variants: Iterable[str] = _VARIANTS) -> Iterator[Case]:
    """The cases of one op.

    Args:
        info: One entry of the database.
        dtype: The dtype of the inputs.
        most_samples: How many samples to use, spread over all.
        variants: Some of: backward, zeros (a third of the elements are 0), one input (requires a gradient), double
            backward, autocast, forward mode.
    """
    if dtype not in info.dtypes:
        return
    torch.manual_seed(1)
    random.seed(1)
    np.random.seed(1)
    has_gradient = info.supports_autograd and dtype in info.supported_backward_dtypes("cpu")
    made = info.sample_inputs("cpu", dtype, requires_grad=has_gradient)
    samples = list(made) if most_samples > 1 else list(islice(made, 1))
    step = max(1.0, len(samples) / most_samples)
    for number in (int(index * step) for index in range(min(most_samples, len(samples)))):
        for variant in variants:
            run = _variant(info, samples[number], variant, has_gradient=has_gradient, dtype=dtype, is_first=not number)
            if run is not None:
                name = f"{info.formatted_name} {str(dtype).removeprefix('torch.')} #{number} {variant}"
                yield Case(
                    info.formatted_name,
                    name,
                    run,
                    is_first_order=variant != "double backward",
                    is_forward_mode=variant == "forward mode",
                )


def _variant(
    info: Any, sample: Any, variant: str, *, has_gradient: bool, dtype: torch.dtype, is_first: bool
) -> Callable[[], Produced] | None:
    given = (sample.input, sample.args, sample.kwargs)
    leaves = _leaves(given)
    if variant == "backward":
        return partial(_run, info, given)
    if variant == "zeros" and has_gradient:
        return partial(_run, info, given, change=_with_zeros)
    if variant == "one input" and is_first and len(leaves) > 1:
        return partial(_run, info, given, chosen=len(leaves) - 1)
    if variant == "double backward" and has_gradient and info.supports_gradgrad:
        return partial(_run, info, given, order=2)
    if variant == "autocast" and dtype is torch.float32:
        return partial(_run, info, given, around=partial(torch.autocast, "cpu", dtype=torch.bfloat16))
    if variant == "forward mode" and has_gradient and info.supports_forward_ad:
        return partial(_run_forward_mode, info, given)
    return None


def _run(
    op: Callable[..., Any],
    given: Any,
    *,
    change: Callable[[torch.Tensor], None] | None = None,
    chosen: int | None = None,
    order: int = 1,
    around: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> Produced:
    given = tree_map(partial(_copied, change=change), given)
    leaves = _leaves(given)
    if chosen is not None:
        for index, leaf in enumerate(leaves):
            leaf.requires_grad_(index == chosen)
        leaves = [leaves[chosen]]
    first, args, kwargs = given
    with around():
        made = [value for value in tree_leaves(op(first, *args, **kwargs)) if isinstance(value, torch.Tensor)]
    tensors: list[torch.Tensor | None] = [*made]
    roots: list[torch.Tensor] = made
    generator = torch.Generator().manual_seed(2)
    for done in range(order):
        roots = [root for root in roots if root.requires_grad and root.layout is torch.strided and not root.is_nested]
        if not roots or not leaves:
            break
        upstream = [_random_like(root, generator) for root in roots]
        gradients = torch.autograd.grad(roots, leaves, upstream, allow_unused=True, create_graph=done + 1 < order)
        tensors += gradients
        roots = [gradient for gradient in gradients if gradient is not None]
    inputs = [value for value in tree_leaves(given) if isinstance(value, torch.Tensor)]
    return Produced(tensors, inputs)


def _run_forward_mode(op: Callable[..., Any], given: Any) -> Produced:
    given = tree_map(partial(_copied, change=None), given)
    generator = torch.Generator().manual_seed(2)
    with forward_ad.dual_level():

        def dual(value: Any) -> Any:
            if not isinstance(value, torch.Tensor) or not value.requires_grad:
                return value
            return forward_ad.make_dual(value.detach(), _random_like(value, generator))

        first, args, kwargs = tree_map(dual, given)
        made = [value for value in tree_leaves(op(first, *args, **kwargs)) if isinstance(value, torch.Tensor)]
        tensors = [part for value in made for part in forward_ad.unpack_dual(value)]
    return Produced(tensors)


def _leaves(given: Any) -> list[torch.Tensor]:
    return [value for value in tree_leaves(given) if isinstance(value, torch.Tensor) and value.requires_grad]


def _random_like(tensor: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return torch.randn(tensor.shape, generator=generator, dtype=torch.float64).to(tensor.dtype)


def _copied(value: Any, change: Callable[[torch.Tensor], None] | None) -> Any:
    """A copy with its own memory and the same layout; values that are not tensors stay."""
    if not isinstance(value, torch.Tensor):
        return value
    copy = value.detach().clone()
    is_strided = value.layout is torch.strided and not value.is_nested
    if is_strided and copy.stride() != value.stride() and 0 not in value.stride():
        copy = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype).copy_(value.detach())
    if change is not None and value.requires_grad and is_strided:
        change(copy)
    return copy.requires_grad_(value.requires_grad)


def _with_zeros(tensor: torch.Tensor) -> None:
    if tensor.numel():
        tensor.masked_fill_((torch.arange(tensor.numel()) % 3 == 0).reshape(tensor.shape), 0)


# Cases that PyTorch's samples lack: larger tensors, whose sums show the order of the additions, and several ops.


def made_cases() -> Iterator[Case]:
    """The cases."""
    for name, function in _FUNCTIONS.items():

        def run(function: Callable[[Tensor, Tensor], Tensor] = function) -> Produced:
            generator = torch.Generator().manual_seed(3)
            matrix = torch.randn(60, 50, generator=generator).requires_grad_()
            number = torch.tensor(0.5).requires_grad_()
            made = function(matrix, number)
            upstream = torch.randn(made.shape, generator=generator)
            gradients = torch.autograd.grad([made], [matrix, number], [upstream], allow_unused=True)
            return Produced([made, *gradients], [matrix, number])

        yield Case(name, f"{name} (made)", run)


def _in_view(matrix: Tensor, number: Tensor) -> Tensor:
    copy = matrix * 1
    copy[:30].masked_fill_(matrix[:30] > 0, number)
    return copy


def _branches(matrix: Tensor, number: Tensor) -> Tensor:
    shared = matrix * number
    turned = (shared.t().contiguous() * 3).sum()
    return torch.stack([turned, shared[:, :20].sum(), shared.expand(3, 60, 50).exp().sum(), shared.sum()])


def _checkpointed(matrix: Tensor, number: Tensor) -> Tensor:
    from torch.utils.checkpoint import checkpoint

    return checkpoint(lambda x: (x * number).tanh().sin(), matrix, use_reentrant=False)  # type: ignore[no-any-return]


_FUNCTIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "masked_fill": lambda matrix, number: matrix.masked_fill(matrix > 0, number),
    "masked_fill_ in a view": _in_view,
    "prod": lambda matrix, number: matrix.prod(),
    "prod over a dimension": lambda matrix, number: matrix.prod(1),
    "prod with one zero": lambda matrix, number: functional.pad(matrix, (0, 1)).prod(1),
    "cumprod": lambda matrix, number: matrix.cumprod(1),
    "max of all with ties": lambda matrix, number: matrix.relu().max(),
    "min of all with ties": lambda matrix, number: matrix.relu().min(),
    "median of all with ties": lambda matrix, number: matrix.relu().median(),
    "amax with ties": lambda matrix, number: matrix.round().amax(1),
    "index": lambda matrix, number: matrix[torch.arange(600) % 60],
    "gather": lambda matrix, number: matrix.gather(0, torch.arange(5000).reshape(100, 50) % 60),
    "index_select": lambda matrix, number: matrix.index_select(0, torch.arange(600) % 60),
    "embedding": lambda matrix, number: functional.embedding(torch.arange(600) % 60, matrix),
    "take": lambda matrix, number: matrix.take(torch.arange(9000) % 3000),
    "sort": lambda matrix, number: matrix.sort(1)[0],
    "where": lambda matrix, number: torch.where(matrix > 0, matrix, number),
    "cross_entropy": lambda matrix, number: functional.cross_entropy(matrix, torch.arange(60) % 50),
    "attention": lambda matrix, number: functional.scaled_dot_product_attention(matrix, matrix, matrix * number),
    "gradients of several layouts meet": _branches,
    "checkpoint": _checkpointed,
}
