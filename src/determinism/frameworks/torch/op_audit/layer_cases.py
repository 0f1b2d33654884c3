"""Layers of networks: convolutions, pools, normalisation, recurrence, attention, losses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from determinism.frameworks.torch.op_audit.case import FLOATS, Call, Case, Inputs

_SIZES = {1: (4096,), 2: (96, 96), 3: (24, 24, 24)}
"""Lengths of images, by the number of dimensions."""
_LAYOUTS: dict[str, torch.memory_format | None] = {"": None, ", channels_last": torch.channels_last}


def cases() -> Iterator[Case]:
    """All of them."""
    yield from _convolutions()
    yield from _pools()
    yield from _normalisations()
    yield from _losses()
    yield Case("torch.nn.LSTM", "2 layers", _lstm)
    yield Case("torch.nn.functional.scaled_dot_product_attention", "causal", _attention, FLOATS)
    yield Case("torch.nn.Dropout", "seeded before each call", _dropout)


def image(
    run: Callable[[torch.Tensor], Any], dims: int, layout: torch.memory_format | None = None
) -> Callable[[Inputs], Call]:
    """A call with a batch of images."""

    def make(inputs: Inputs) -> Call:
        batch = inputs.leaf(4, 8, *_SIZES[dims], layout=layout)
        return lambda: run(batch)

    return make


def _convolutions() -> Iterator[Case]:
    for dims in (1, 2, 3):
        for transposed in (False, True):
            name = f"torch.nn.Conv{'Transpose' if transposed else ''}{dims}d"
            for words, layout in _LAYOUTS.items() if dims == 2 else [("", None)]:
                dtypes = ("float32", "bfloat16") if not transposed else ("float32",)
                yield Case(
                    name, f"kernel 3, stride 2{words}", _convolution(dims, layout, transposed=transposed), dtypes
                )


def _convolution(dims: int, layout: torch.memory_format | None, *, transposed: bool) -> Callable[[Inputs], Call]:
    run = getattr(functional, f"conv{'_transpose' if transposed else ''}{dims}d")

    def make(inputs: Inputs) -> Call:
        batch = inputs.leaf(4, 8, *_SIZES[dims], layout=layout)
        weight, bias = inputs.leaf(8, 8, *(3,) * dims), inputs.leaf(8)
        return lambda: run(batch, weight, bias, stride=2)

    return make


_POOLS = (("MaxPool", 2, (3, 1)), ("MaxPool", 3, (3, 1)), ("AvgPool", 3, (3, 1)), ("AdaptiveAvgPool", 2, (5,)),
          ("AdaptiveAvgPool", 3, (5,)), ("AdaptiveMaxPool", 2, (5,)))  # fmt: skip
"""Kinds of pools, their number of dimensions, and what they get besides the images."""


def _pools() -> Iterator[Case]:
    for kind, dims, size in _POOLS:
        run = getattr(functional, f"{_snake(kind)}{dims}d")
        yield Case(f"torch.nn.{kind}{dims}d", "overlapping windows", image(partial(_pool, run, size), dims))
    for dims in (2, 3):
        yield Case(f"torch.nn.FractionalMaxPool{dims}d", "overlapping windows", _fractional(dims))
    for dims in (1, 2, 3):
        yield Case(f"torch.nn.MaxUnpool{dims}d", "equal indices", _unpool(dims))


def _snake(kind: str) -> str:
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in kind).strip("_")


def _pool(pool: Callable[..., Any], size: tuple[int, ...], images: torch.Tensor) -> Any:
    return pool(images, *size)


def _fractional(dims: int) -> Callable[[Inputs], Call]:
    def make(inputs: Inputs) -> Call:
        batch, samples = inputs.leaf(4, 8, *_SIZES[dims]), inputs.unit(4, 8, dims)
        run = getattr(functional, f"fractional_max_pool{dims}d")
        return lambda: run(batch, 2, output_ratio=(0.7,) * dims, _random_samples=samples)

    return make


def _unpool(dims: int) -> Callable[[Inputs], Call]:
    def make(inputs: Inputs) -> Call:
        values = inputs.leaf(4, 8, *(size // 2 for size in _SIZES[dims]))
        indices = inputs.whole(16, *values.shape)
        return lambda: getattr(functional, f"max_unpool{dims}d")(values, indices, 2)

    return make


def _normalisations() -> Iterator[Case]:
    for words, layout in _LAYOUTS.items():
        yield Case("torch.nn.BatchNorm2d", f"training{words}", image(lambda x: nn.BatchNorm2d(8).to(x)(x), 2, layout))
    yield Case("torch.nn.GroupNorm", "2 groups", image(lambda x: functional.group_norm(x, 2), 2))
    yield Case(
        "torch.nn.LayerNorm",
        "over the last dimension",
        image(lambda x: functional.layer_norm(x, x.shape[-1:]), 2),
        FLOATS,
    )


def _losses() -> Iterator[Case]:
    yield Case("torch.nn.NLLLoss", "images", _nll)
    yield Case("torch.nn.CrossEntropyLoss", "weighted classes", _cross_entropy)
    yield Case("torch.nn.CTCLoss", "repeated labels", _ctc)


def _nll(inputs: Inputs) -> Call:
    scores, labels = inputs.leaf(4, 8, 96, 96), inputs.whole(8, 4, 96, 96)
    return lambda: functional.nll_loss(scores, labels)


def _cross_entropy(inputs: Inputs) -> Call:
    scores, labels, weights = inputs.leaf(8192, 64), inputs.whole(64, 8192), inputs.unit(64)
    return lambda: functional.cross_entropy(scores, labels, weights)


def _ctc(inputs: Inputs) -> Call:
    scores = inputs.leaf(64, 32, 16)
    labels, lengths = inputs.whole(3, 32, 12) + 1, torch.full((32,), 64)
    return lambda: functional.ctc_loss(scores.log_softmax(2), labels, lengths, torch.full((32,), 12))


def _lstm(inputs: Inputs) -> Call:
    torch.manual_seed(0)
    layer = nn.LSTM(64, 64, 2).to(inputs.device, inputs.dtype)
    inputs.leaves += layer.parameters()
    values = inputs.leaf(32, 16, 64)
    return lambda: layer(values)


def _attention(inputs: Inputs) -> Call:
    query, key, value = (inputs.leaf(4, 4, 256, 32) for _ in range(3))
    return lambda: functional.scaled_dot_product_attention(query, key, value, is_causal=True)


def _dropout(inputs: Inputs) -> Call:
    values = inputs.leaf(1 << 18)

    def call() -> torch.Tensor:
        torch.manual_seed(0)
        return functional.dropout(values)

    return call
