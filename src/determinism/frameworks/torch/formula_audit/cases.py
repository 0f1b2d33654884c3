"""The cases: every sample of PyTorch's own test suite in several variants, and some that it lacks."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.autograd import forward_ad
from torch.utils._pytree import tree_leaves, tree_map

from determinism.frameworks.torch.formula_audit.outcome import Case, Produced

_VARIANTS = ("backward", "zeros", "one input", "double backward", "autocast", "forward mode")


def database() -> list[Any]:
    """PyTorch's samples.

    Raises:
        ImportError: A package that PyTorch's test suite needs is missing.
    """
    # What PyTorch's own tests import forbids setting flags for the rest of the process; nobody here asked for that.
    allowing_flags = getattr(torch.backends, "__allow_nonbracketed_mutation", nullcontext)
    with warnings.catch_warnings(), allowing_flags():
        # It misses packages that only other parts of the test suite need.
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db
    return list(op_db)


def cases_of(info: Any, dtype: torch.dtype, most_samples: int, variants: Iterable[str] = _VARIANTS) -> Iterator[Case]:
    """The cases of one op.

    Args:
        info: One entry of the database.
        dtype: Of the inputs.
        most_samples: How many samples, spread over all that there are.
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
    """The same with its own memory, laid out alike; values that are no tensors stay."""
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
