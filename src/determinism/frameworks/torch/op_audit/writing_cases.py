"""Ops that write or add up by index: many contributions go to few places."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from determinism.frameworks.torch.op_audit.case import FLOATS, Call, Case, Inputs

MANY = 1 << 18
"""Contributions; on the CPU ops share out work among threads from 2¹⁵ on."""
FEW = 16
"""Places that they go to."""
ROWS, WIDTH = 1 << 13, 64


Run = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], Any]
"""Takes the target, the index and the values."""


def cases() -> Iterator[Case]:
    """All of them."""
    yield from _writes()
    yield from _scatters()
    yield from _reads()
    yield from _embeddings()


def _flat(run: Run) -> Callable[[Inputs], Call]:
    """A call with a target of few elements, an index with many, and as many values."""

    def make(inputs: Inputs) -> Call:
        target, index, values = inputs.leaf(FEW), inputs.whole(FEW, MANY), inputs.leaf(MANY)
        return lambda: run(target.clone(), index, values)

    return make


def _rows(run: Run) -> Callable[[Inputs], Call]:
    """A call with a target of few rows, an index of many of them, and as many rows of values."""

    def make(inputs: Inputs) -> Call:
        target, index, values = inputs.leaf(FEW, WIDTH), inputs.whole(FEW, ROWS), inputs.leaf(ROWS, WIDTH)
        return lambda: run(target.clone(), index, values)

    return make


def _writes() -> Iterator[Case]:
    put, add, copy, reduce = (
        f"torch.Tensor.{name}" for name in ("index_put_", "index_add_", "index_copy_", "index_reduce_")
    )
    yield Case(
        put, "accumulate=True, equal indices", _flat(lambda t, i, v: t.index_put((i,), v, accumulate=True)), FLOATS
    )
    yield Case(put, "accumulate=False, equal indices", _flat(lambda t, i, v: t.index_put((i,), v)))
    yield Case(
        "torch.Tensor.put_", "accumulate=True, equal indices", _flat(lambda t, i, v: t.put(i, v, accumulate=True))
    )
    yield Case("torch.Tensor.put_", "accumulate=False, equal indices", _flat(lambda t, i, v: t.put(i, v)))
    yield Case(add, "rows, equal indices", _rows(lambda t, i, v: t.index_add(0, i, v)), FLOATS)
    yield Case(add, "elements, equal indices", _flat(lambda t, i, v: t.index_add(0, i, v)))
    yield Case(copy, "rows, equal indices", _rows(lambda t, i, v: t.index_copy(0, i, v)))
    for how in ("prod", "mean", "amax"):
        yield Case(reduce, f"{how}, equal indices", _rows(_index_reduce(how)))
    yield Case("torch.masked_fill", "gradient of the value", _masked_fill)


def _index_reduce(how: str) -> Run:
    return lambda t, i, v: t.index_reduce(0, i, v, how)


def _scatter_reduce(how: str) -> Run:
    return lambda t, i, v: t.scatter_reduce(0, _wide(i), v, how)


def _masked_fill(inputs: Inputs) -> Call:
    target, value = inputs.leaf(MANY), inputs.leaf()
    mask = inputs.whole(2, MANY).bool()
    return lambda: target.masked_fill(mask, value)


def _wide(index: torch.Tensor) -> torch.Tensor:
    return index[:, None].expand(-1, WIDTH)


def _scatters() -> Iterator[Case]:
    add, scatter, reduce = (f"torch.Tensor.{name}" for name in ("scatter_add_", "scatter_", "scatter_reduce_"))
    yield Case(add, "rows, equal indices", _rows(lambda t, i, v: t.scatter_add(0, _wide(i), v)), FLOATS)
    yield Case(add, "elements, equal indices", _flat(lambda t, i, v: t.scatter_add(0, i, v)))
    yield Case(scatter, "src is a tensor, equal indices", _rows(lambda t, i, v: t.scatter(0, _wide(i), v)))
    yield Case(
        scatter,
        "reduce='add', equal indices",
        _rows(lambda t, i, v: t.detach().scatter(0, _wide(i), v.detach(), reduce="add")),
    )
    for how in ("sum", "prod", "mean", "amax"):
        yield Case(reduce, f"{how}, equal indices", _rows(_scatter_reduce(how)))


def _reads() -> Iterator[Case]:
    yield Case("torch.Tensor.__getitem__", "a list of equal indices", _flat(lambda t, i, v: t[i]), FLOATS)
    yield Case("torch.take", "equal indices", _flat(lambda t, i, v: torch.take(t, i)))
    yield Case("torch.index_select", "rows, equal indices", _rows(lambda t, i, v: t.index_select(0, i)))
    yield Case("torch.gather", "rows, equal indices", _rows(lambda t, i, v: t.gather(0, _wide(i))))
    yield Case("torch.gather", "elements, equal indices", _flat(lambda t, i, v: t.gather(0, i)))
    yield Case("torch.repeat_interleave", "rows", _repeat_interleave)


def _repeat_interleave(inputs: Inputs) -> Call:
    rows, counts = inputs.leaf(FEW, WIDTH), inputs.whole(ROWS // FEW, FEW)
    return lambda: rows.repeat_interleave(counts, 0)


def _embeddings() -> Iterator[Case]:
    functional = torch.nn.functional
    yield Case("torch.nn.Embedding", "equal indices", _rows(lambda t, i, v: functional.embedding(i, t)), FLOATS)
    yield Case(
        "torch.nn.Embedding",
        "scale_grad_by_freq=True, equal indices",
        _rows(lambda t, i, v: functional.embedding(i, t, scale_grad_by_freq=True)),
    )
    for mode in ("sum", "mean", "max"):
        yield Case("torch.nn.EmbeddingBag", f"mode={mode!r}, equal indices", _bags(mode))


def _bags(mode: str) -> Callable[[Inputs], Call]:
    return _rows(lambda t, i, v: torch.nn.functional.embedding_bag(i.view(-1, 32), t, mode=mode))
