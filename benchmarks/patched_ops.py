"""Calls of every op that `determinism.patch` replaces for PyTorch, with inputs that provoke differences: many values go to one
element, and their magnitudes differ by many powers of ten, so that a different order of additions gives a different result.

Each call exists in a small size and in that of a real model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F

Tensors = tuple[torch.Tensor, ...]
Call = Callable[[], Tensors]
HALVES = (torch.float16, torch.bfloat16)
SINGLE = (torch.float32, torch.float64)
ALL = (*SINGLE, *HALVES)


@dataclass(frozen=True)
class OpCase:
    """A call of one op.

    `prepare` takes sizes, a dtype and a device, and returns a function that calls the op and returns its results. `patch` is
    the identifier of the replacement, `dtypes` are those that the op takes.
    """

    patch: str
    small: tuple[int, ...]
    model: tuple[int, ...]
    prepare: Callable[[tuple[int, ...], torch.dtype, torch.device], Call]
    name: str = ""
    dtypes: tuple[torch.dtype, ...] = ALL
    crowded: tuple[int, ...] = ()
    """Sizes at which the stock kernel for the CPU uses several threads."""

    @property
    def title(self) -> str:
        return self.name or self.patch

    def call(self, sizes: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Call:
        """A new generator with the same seed each time."""
        torch.manual_seed(1)
        return self.prepare(sizes, dtype, device)


def _values(shape: Any, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Numbers of very different magnitudes, made on the CPU so that they are the same for each device."""
    sizes = torch.randint(-3, 3, tuple(shape)).double()
    return (torch.randn(tuple(shape), dtype=torch.float64) * 10**sizes).to(dtype).to(device)


def _indices(shape: Any, below: int, device: torch.device) -> torch.Tensor:
    return torch.randint(0, below, tuple(shape)).to(device)


def _gradient(function: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., Call]:
    """The gradient of a function of one tensor, whose shape the sizes are."""

    def prepare(sizes: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Call:
        given = torch.randn(sizes, dtype=torch.float64).to(dtype).to(device).requires_grad_()
        result = function(given)
        gradient = _values(result.shape, dtype, device)
        return lambda: torch.autograd.grad(result, given, gradient, retain_graph=True)

    return prepare


def _scaled(mode: str, factor: float, **more: Any) -> Callable[..., Call]:
    return _gradient(lambda given: F.interpolate(given, scale_factor=factor, mode=mode, **more))


def _padded(mode: str, axes: int) -> Callable[..., Call]:
    return _gradient(lambda given: F.pad(given, [2, 1] * axes, mode=mode))


def _unpooled(axes: int) -> Callable[..., Call]:
    def prepare(sizes: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Call:
        given, plane = _values(sizes, dtype, device), 2 * sizes[-1]
        indices = _indices(sizes, plane**axes, device)
        unpool = (F.max_unpool1d, F.max_unpool2d, F.max_unpool3d)[axes - 1]
        return lambda: (unpool(given, indices, 2),)

    return prepare


def _grid(axes: int, **more: Any) -> Callable[..., Call]:
    def prepare(sizes: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Call:
        batch, channels, side, points = sizes
        given = torch.randn(batch, channels, *[side] * axes, dtype=torch.float64).to(dtype).to(device).requires_grad_()
        grid = (
            (torch.rand(batch, *[points] * axes, axes, dtype=torch.float64) * 2.4 - 1.2)
            .to(dtype)
            .to(device)
            .requires_grad_()
        )
        result = F.grid_sample(given, grid, align_corners=False, **more)
        gradient = _values(result.shape, dtype, device)
        return lambda: torch.autograd.grad(result, (given, grid), gradient, retain_graph=True)

    return prepare


def _nll(sizes: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Call:
    batch, classes, side = sizes
    given, target = _values((batch, classes, side, side), dtype, device), _indices((batch, side, side), classes, device)
    return lambda: (F.nll_loss(given, target),)


def _ctc(sizes: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Call:
    times, batch, alphabet, length = sizes
    given = torch.randn(times, batch, alphabet, dtype=dtype).log_softmax(2).to(device).requires_grad_()
    targets = torch.randint(1, min(alphabet, 5), (batch, length)).to(device)
    lengths = torch.full((batch,), times), torch.full((batch,), length)
    # cuDNN takes int32 targets on the CPU; these are for PyTorch's own kernels.
    loss = F.ctc_loss(given, targets, *lengths, reduction="sum")
    return lambda: torch.autograd.grad(loss, given, retain_graph=True)


def _embedding_bag(sizes: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Call:
    bags, each, columns = sizes
    weights = torch.randn(bags // 8 + 1, columns, dtype=torch.float64).to(dtype).to(device).requires_grad_()
    result = F.embedding_bag(_indices((bags, each), len(weights), device), weights, mode="max")
    gradient = _values(result.shape, dtype, device)
    return lambda: torch.autograd.grad(result, weights, gradient, retain_graph=True)


def _put(accumulate: bool) -> Callable[..., Call]:
    def prepare(sizes: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Call:
        count, places = sizes
        target, index, source = (
            _values((places,), dtype, device),
            _indices((count,), places, device),
            _values((count,), dtype, device),
        )
        return lambda: (target.clone().put_(index, source, accumulate=accumulate),)

    return prepare


def _rows(write: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]) -> Callable[..., Call]:
    """Writes of rows: how many rows, to how many targets, with how many columns."""

    def prepare(sizes: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Call:
        count, places, columns = sizes
        target, source = _values((places, columns), dtype, device), _values((count, columns), dtype, device)
        index = _indices((count,), places, device)
        return lambda: (write(target.clone(), index, source),)

    return prepare


def _expanded(index: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    return index.unsqueeze(1).expand_as(source)


def _scattered(reduce: str) -> Callable[..., Call]:
    def prepare(sizes: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Call:
        count, places = sizes
        # Near 1, so that products of many stay finite.
        target, source = (
            (1 + torch.randn(each, dtype=torch.float64) / 32).to(dtype).to(device) for each in (places, count)
        )
        index = _indices((count,), places, device)
        return lambda: (target.scatter_reduce(0, index, source, reduce),)

    return prepare


def _histc(sizes: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Call:
    given = torch.rand(sizes, dtype=torch.float64).to(dtype).to(device)
    return lambda: (torch.histc(given, 64, 0, 1),)


def _bincount(sizes: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Call:
    count, places = sizes
    index, weights = _indices((count,), places, device), _values((count,), dtype, device)
    return lambda: (torch.bincount(index, weights, minlength=places),)


def _selected(select: Callable[[torch.Tensor], Any]) -> Callable[..., Call]:
    def prepare(sizes: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Call:
        given = torch.randint(0, 5, sizes).to(dtype).to(device)  # with many equal elements
        return lambda: tuple(select(given))

    return prepare


def _cumsum(sizes: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Call:
    given = torch.randn(sizes, dtype=torch.float64).to(dtype).to(device)
    return lambda: (given.cumsum(0),)


def _resized(sizes: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Call:
    def call() -> Tensors:
        given = torch._empty_affine_quantized([2], scale=1.0, zero_point=0, dtype=torch.quint8, device=device)
        given.fill_(1.0)
        return (given.resize_(sizes).int_repr(),)

    return call


_CROWD = (600_000, 300)


def _sparse_product(sizes: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Call:
    """Like a layer of a graph network with its adjacency matrix: many entries in each row."""
    entries, rows, columns = sizes
    places = torch.stack([_indices((entries,), rows, device), _indices((entries,), rows, device)])
    sparse = torch.sparse_coo_tensor(places, _values((entries,), dtype, device), (rows, rows)).coalesce()
    dense = _values((rows, columns), dtype, device)
    gradient = _values((rows, columns), dtype, device)

    def call() -> Tensors:
        given = dense.detach().requires_grad_()
        product = torch.sparse.mm(sparse, given)
        return product.detach(), *torch.autograd.grad(product, given, gradient)

    return call


def _csr_product(sizes: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> Call:
    entries, rows, columns = sizes
    places = torch.stack([_indices((entries,), rows, device), _indices((entries,), rows, device)])
    sparse = torch.sparse_coo_tensor(places, _values((entries,), dtype, device), (rows, rows)).to_sparse_csr()
    dense = _values((rows, columns), dtype, device)
    return lambda: (torch.sparse.mm(sparse, dense),)


_WRITES = (1000, 40, 4)
_EDGES = (2_000_000, 100_000, 64)
_MAPS2, _MAPS3 = (2, 4, 13, 11), (1, 3, 7, 9, 8)

CASES = (
    OpCase("adaptive-avg-pool2d", _MAPS2, (64, 256, 14, 14), _gradient(lambda x: F.adaptive_avg_pool2d(x, (6, 5)))),
    OpCase(
        "adaptive-avg-pool3d", _MAPS3, (8, 512, 8, 14, 14), _gradient(lambda x: F.adaptive_avg_pool3d(x, (3, 5, 4)))
    ),
    OpCase("avg-pool3d", _MAPS3, (8, 64, 16, 56, 56), _gradient(lambda x: F.avg_pool3d(x, 3, 2, 1, ceil_mode=True))),
    OpCase("adaptive-max-pool2d", _MAPS2, (64, 256, 32, 32), _gradient(lambda x: F.adaptive_max_pool2d(x, (6, 5)))),
    OpCase(
        "adaptive-max-pool3d", _MAPS3, (8, 256, 16, 28, 28), _gradient(lambda x: F.adaptive_max_pool3d(x, (3, 5, 4)))
    ),
    OpCase(
        "fractional-max-pool2d",
        _MAPS2,
        (64, 64, 56, 56),
        _gradient(lambda x: F.fractional_max_pool2d(x, 3, output_ratio=(0.7, 0.6))),
    ),
    OpCase(
        "fractional-max-pool3d",
        _MAPS3,
        (8, 64, 16, 28, 28),
        _gradient(lambda x: F.fractional_max_pool3d(x, 3, output_ratio=(0.6, 0.7, 0.5))),
    ),
    OpCase("max-pool3d", _MAPS3, (8, 64, 16, 56, 56), _gradient(lambda x: F.max_pool3d(x, 3, 1, 1))),
    OpCase("max-unpool2d", (2, 3, 32), (64, 512), _unpooled(1), "max_unpool1d", crowded=(32, 512)),
    OpCase("max-unpool2d", (2, 3, 12, 12), (16, 64, 112, 112), _unpooled(2), "max_unpool2d", crowded=(2, 4, 56, 56)),
    OpCase("max-unpool3d", (2, 3, 6, 6, 6), (4, 32, 24, 24, 24), _unpooled(3), crowded=(2, 2, 16, 16, 16)),
    OpCase("interpolate-linear", (2, 4, 33), (64, 256, 512), _scaled("linear", 2.5)),
    OpCase("interpolate-bilinear", _MAPS2, (8, 21, 65, 65), _scaled("bilinear", 8.0)),
    OpCase("interpolate-trilinear", _MAPS3, (2, 32, 32, 32, 32), _scaled("trilinear", 2.0)),
    OpCase("interpolate-bicubic", _MAPS2, (8, 64, 64, 64), _scaled("bicubic", 2.0, align_corners=True)),
    OpCase("interpolate-bilinear-antialias", _MAPS2, (8, 3, 512, 512), _scaled("bilinear", 0.4375, antialias=True)),
    OpCase("interpolate-bicubic-antialias", _MAPS2, (8, 3, 512, 512), _scaled("bicubic", 0.4375, antialias=True)),
    OpCase("reflection-pad1d", (2, 4, 33), (64, 256, 512), _padded("reflect", 1)),
    OpCase("reflection-pad2d", _MAPS2, (8, 64, 256, 256), _padded("reflect", 2)),
    OpCase("reflection-pad3d", _MAPS3, (2, 32, 32, 64, 64), _padded("reflect", 3)),
    OpCase("replication-pad1d", (2, 4, 33), (64, 256, 512), _padded("replicate", 1)),
    OpCase("replication-pad2d", _MAPS2, (8, 64, 256, 256), _padded("replicate", 2)),
    OpCase("replication-pad3d", _MAPS3, (2, 32, 32, 64, 64), _padded("replicate", 3)),
    OpCase("grid-sample2d", (2, 3, 7, 16), (8, 64, 64, 64), _grid(2, padding_mode="border")),
    OpCase("grid-sample2d", (2, 3, 7, 10), (8, 64, 64, 64), _grid(2, mode="bicubic"), "grid_sample 2-D bicubic"),
    OpCase("grid-sample3d", (1, 3, 5, 7), (2, 16, 32, 32), _grid(3, padding_mode="reflection")),
    OpCase("nll-loss2d", (2, 5, 32), (8, 21, 513), _nll),
    OpCase("ctc-loss", (6, 3, 300, 3), (256, 32, 1000, 40), _ctc, dtypes=SINGLE),
    OpCase("embedding-bag-max", (64, 5, 16), (8192, 32, 128), _embedding_bag),
    OpCase("put", (2000, 100), (1_000_000, 100_000), _put(accumulate=False), "put_", crowded=_CROWD),
    OpCase("put", (2000, 100), (1_000_000, 100_000), _put(accumulate=True), "put_ with accumulate", crowded=_CROWD),
    OpCase(
        "index-put",
        _WRITES,
        _EDGES,
        _rows(lambda t, i, s: t.index_put_((i,), s, accumulate=True)),
        crowded=(*_CROWD, 1),
    ),
    OpCase("index-add", _WRITES, _EDGES, _rows(lambda t, i, s: t.index_add_(0, i, s))),
    OpCase(
        "scatter-add",
        _WRITES,
        _EDGES,
        _rows(lambda t, i, s: t.scatter_add_(0, _expanded(i, s), s)),
        "scatter_add of rows",
    ),
    OpCase("scatter-add", _WRITES, _EDGES, _rows(lambda t, i, s: t.scatter_add_(0, _expanded(i, s).contiguous(), s))),
    OpCase("scatter-reduce", (2000, 100), (1_000_000, 100_000), _scattered("prod"), "scatter_reduce prod"),
    OpCase("scatter-reduce", (2000, 100), (1_000_000, 100_000), _scattered("mean"), "scatter_reduce mean"),
    OpCase(
        "index-reduce", (600, 60, 4), (200_000, 10_000, 64), _rows(lambda t, i, s: t.index_reduce_(0, i, s, "mean"))
    ),
    OpCase("histc", (4000,), (10_000_000,), _histc, dtypes=SINGLE),
    OpCase("bincount", (4000, 50), (10_000_000, 1000), _bincount, dtypes=SINGLE),
    OpCase("median", (10, 201), (1000, 10_000), _selected(lambda x: x.median(1))),
    OpCase("nanmedian", (10, 201), (1000, 10_000), _selected(lambda x: x.nanmedian(1))),
    OpCase("kthvalue", (10, 201), (1000, 10_000), _selected(lambda x: x.kthvalue(40, 1))),
    OpCase("cumsum", (5000,), (10_000_000,), _cumsum),
    OpCase("sparse-mm", (3000, 60, 8), (2_000_000, 50_000, 64), _sparse_product, dtypes=SINGLE),
    OpCase("sparse-csr-mm", (3000, 60, 8), (2_000_000, 50_000, 64), _csr_product, dtypes=SINGLE),
    OpCase("quantized-resize", (4, 5), (1000, 1000), _resized, dtypes=(torch.float32,)),
)
"""None for `scatter with reduce=`, which PyTorch deprecates: it is computed as `scatter_reduce`."""
