"""The forms of one op: the functional one, the one with `out=`, the one in place; each made from a single implementation.

A kernel gets `out` of any shape, as the stock kernels do: it is resized, with a warning where that loses values. What else
is wrong with it is for the stock kernel to refuse: then the answer is `NotImplemented`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

Compute = Callable[..., Any]


def output_names(overload: Any) -> list[str]:
    """The names of the arguments that an overload writes its results to; none of them is also read."""
    return [argument.name for argument in overload._schema.arguments if argument.is_out]


def separate(given: tuple[Any, ...], outputs: list[torch.Tensor]) -> bool:
    """Whether what is written shares no memory with what is read, nor with each other."""
    read = [value for value in given if isinstance(value, torch.Tensor)]
    pairs = [(one, two) for number, one in enumerate(outputs) for two in (*read, *outputs[:number])]
    return not any(torch._C._overlaps(one, two) for one, two in pairs)


def writes_its_first_argument(overload: Any) -> bool:
    """Whether an overload works in place."""
    first = overload._schema.arguments[0]
    return bool(first.alias_info is not None and first.alias_info.is_write and not first.is_out)


def form_of(overload: Any, run: Compute, in_place: bool) -> Compute:
    """What computes one overload, made from what computes the op.

    Args:
        overload: An overload of the op.
        run: Computes the op: gives the result, or with `in_place` changes its first argument.
        in_place: How `run` works.
    """
    names = output_names(overload)
    if names:
        return _with_out(run, names, in_place)
    if writes_its_first_argument(overload):
        return _in_place(run, in_place)
    return _functional(run) if in_place else run


def _functional(run: Compute) -> Compute:
    def functional(first: torch.Tensor, *given: Any, **named: Any) -> Any:
        result = first.clone(memory_format=torch.preserve_format)
        run(result, *given, **named)
        return result

    return functional


def _in_place(run: Compute, in_place: bool) -> Compute:
    def changed(first: torch.Tensor, *given: Any, **named: Any) -> Any:
        if in_place:
            run(first, *given, **named)
        else:
            first.copy_(run(first, *given, **named))
        return first

    return changed


def _with_out(run: Compute, names: list[str], in_place: bool) -> Compute:
    functional = _functional(run) if in_place else run

    def written(*given: Any, **named: Any) -> Any:
        outputs = [named.pop(name) for name in names]
        results = functional(*given, **named)
        pairs = list(zip(outputs, results if isinstance(results, tuple) else (results,), strict=True))
        if any(output.dtype != result.dtype or output.device != result.device for output, result in pairs):
            return NotImplemented
        for output, result in pairs:
            _resize(output, result.shape)
            output.copy_(result)
        return outputs[0] if len(outputs) == 1 else tuple(outputs)

    return written


def _resize(output: torch.Tensor, shape: torch.Size) -> None:
    if output.shape == shape:
        return
    if output.numel() > 0:
        warnings.warn(
            f"The output of shape {list(output.shape)} was resized to {list(shape)}, the shape of the result; PyTorch will refuse to.",
            UserWarning,
            stacklevel=2,
        )
    output.resize_(shape)
