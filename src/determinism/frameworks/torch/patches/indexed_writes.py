"""Writes at indices: `put_`, `index_put` with accumulate, `index_add`, `scatter_add`, `scatter_reduce`, `index_reduce`, and the gradient of
`embedding_bag` with `mode='max'`.

Stock kernels, including the CPU's `index_put`, add and reduce with atomics; in deterministic mode those of most ops sort instead, and the others
raise an error. Here the indices are converted to one number per place; the values for a place are reduced in order, and the result is written
once. Padding entries may write to a place again, but with the same value.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch

from determinism.frameworks.torch.patches.ordered_sums import (
    COMPLEX,
    FLOATING,
    ONE_BY_ONE,
    accumulation_dtype,
    distinct_runs,
    plain,
    plain_indices,
    reduce_runs,
    sum_by_key,
)
from determinism.frameworks.torch.patches.patch import Patch


@dataclass(frozen=True)
class Reduction:
    """How values for a place are reduced (`sum`, `prod`, `mean`, `amax`, `amin`), and whether the old value counts."""

    name: str = "sum"
    include_self: bool = True

    def joined(self, before: torch.Tensor, reduced: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        """Compute the result from the old value, the reduction (for a mean, the sum) of the values, and their count."""
        if self.include_self:
            join = {"prod": torch.mul, "amax": torch.maximum, "amin": torch.minimum}.get(self.name, torch.add)
            reduced, counts = join(before, reduced), counts + 1
        if self.name != "mean":
            return reduced
        rounding = None if reduced.is_floating_point() else "floor"
        return torch.div(reduced, counts.view(-1, *[1] * (reduced.dim() - 1)), rounding_mode=rounding)


SUM = Reduction()


def linear_keys(indices: list[torch.Tensor], sizes: list[int]) -> torch.Tensor:
    """Convert an index per dimension to one number per place; negative indices count from the end."""
    keys: Any = 0
    for index, size in zip(indices, sizes, strict=True):
        keys = keys * size + _from_the_start(index, size) if len(sizes) > 1 else _from_the_start(index, size)
    return keys.reshape(-1)


def _from_the_start(index: torch.Tensor, size: int) -> torch.Tensor:
    # On other devices, waiting for the result of this check would take longer.
    if index.device.type == "cpu" and (index.numel() == 0 or int(index.min()) >= 0):
        return index
    return torch.where(index < 0, index + size, index)


def places_of(keys: torch.Tensor, sizes: list[int]) -> list[torch.Tensor]:
    """Convert numbers of places back to an index per dimension."""
    places = []
    for size in reversed(sizes):
        places.append(keys % size)
        keys = keys // size
    return places[::-1]


def in_bounds(index: torch.Tensor, size: int) -> bool:
    """Whether an index is within a dimension; a GPU is not waited for, and fails at a wrong index, as in stock."""
    if index.device.type == "cpu":
        if index.numel() == 0:
            return True
        lowest, highest = index.aminmax()
        return int(lowest) >= -size and int(highest) < size
    torch._assert_async(((index >= -size) & (index < size)).all())
    return True


def accumulate_rows(
    target: torch.Tensor, keys: torch.Tensor, sizes: list[int], values: torch.Tensor, how: Reduction
) -> None:
    """Reduce rows of values into the places of a tensor's first dimensions.

    Args:
        target: Changed in place; its first dimensions have the sizes `sizes`.
        keys: Numbers of places, (n,), from 0 to the product of `sizes` (exclusive).
        sizes: Sizes of the indexed dimensions.
        values: Values, (n, *other dimensions of target).
        how: How several values for one place are reduced.
    """
    if len(keys) == 0 or values.numel() == 0:
        return
    if how == SUM and target.device.type in ONE_BY_ONE:
        _one_by_one(target, keys, sizes, values)
        return
    found = distinct_runs(keys, math.prod(sizes))
    rows = values.reshape(len(keys), -1)
    rows = torch.view_as_real(rows).flatten(1) if rows.is_complex() else rows.to(accumulation_dtype(rows.dtype))
    reduced = reduce_runs(found.runs, rows, "sum" if how.name == "mean" else how.name)
    if values.is_complex():
        reduced = torch.view_as_complex(reduced.unflatten(1, (-1, 2)))
    reduced = reduced.index_select(0, found.numbers).view(-1, *values.shape[1:])
    counts = torch.diff(found.runs.bounds).index_select(0, found.numbers)
    places = places_of(found.keys, sizes)
    before = target[tuple(places)]
    result = how.joined(before.to(accumulation_dtype(before.dtype)), reduced, counts).to(target.dtype)
    torch.ops.aten._index_put_impl_(target, list(places), result, False)


def _one_by_one(target: torch.Tensor, keys: torch.Tensor, sizes: list[int], values: torch.Tensor) -> None:
    rest = math.prod(target.shape[len(sizes) :])
    # Rows of a single element would be added by a slower loop.
    columns = [] if rest == 1 else [rest]
    rows = target.reshape(math.prod(sizes), *columns)
    rows.index_add_(0, keys, values.reshape(len(keys), *columns))
    if rows.data_ptr() != target.data_ptr():
        target.copy_(rows.view(target.shape))


def write_last(target: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
    """Write values to places of a flattened tensor; the last of several values for one place stays.

    Args:
        target: Changed in place.
        keys: Numbers of places, (n,), from 0.
        values: Values, (n,).
    """
    if target.device.type in ONE_BY_ONE and target.is_contiguous():
        target.view(-1).scatter_(0, keys, values)
        return
    ordered, order = torch.sort(keys, stable=True)
    last = order[torch.searchsorted(ordered, ordered, right=True) - 1]
    places = places_of(ordered, list(target.shape))
    torch.ops.aten._index_put_impl_(target, list(places), values[last], False)


ADDED = FLOATING | COMPLEX
"""Dtypes whose sums round. Sums of integers are the same in any order, and are left to the stock kernels."""


def writable(target: torch.Tensor, *sources: torch.Tensor) -> bool:
    """Whether a tensor's elements overlap neither each other nor the sources; stock kernels reject overlaps."""
    return torch._debug_has_internal_overlap(target) != 1 and not any(
        torch._C._overlaps(target, one) for one in sources
    )


def index_put(
    target: torch.Tensor,
    indices: list[torch.Tensor | None],
    values: torch.Tensor,
    accumulate: bool = False,
    unsafe: bool = False,
) -> torch.Tensor:
    """Add values at the places given by index tensors."""
    dims = [dim for dim, index in enumerate(indices) if index is not None]
    given = torch.broadcast_tensors(*(index.to(torch.int64) for index in indices if index is not None))
    others = [dim for dim in range(target.dim()) if dim not in dims]
    shape, first = _indexed_shape(target, dims, list(given[0].shape))
    length = given[0].dim()
    rows = values.expand(shape).movedim(list(range(first, first + length)), list(range(length)))
    sizes = [target.shape[dim] for dim in dims]
    keys = linear_keys(list(given), sizes)
    accumulate_rows(
        target.permute(*dims, *others), keys, sizes, rows.flatten(0, length - 1) if length else rows[None], SUM
    )
    return target


def _indexed_shape(target: torch.Tensor, dims: list[int], shape: list[int]) -> tuple[list[int], int]:
    """Return the shape of `target[indices]`, and where the dimensions of the indices begin in it."""
    if dims != list(range(dims[0], dims[-1] + 1)):
        return [*shape, *(size for dim, size in enumerate(target.shape) if dim not in dims)], 0
    return [*target.shape[: dims[0]], *shape, *target.shape[dims[-1] + 1 :]], dims[0]


def _index_put_supports(
    target: torch.Tensor,
    indices: list[torch.Tensor | None],
    values: torch.Tensor,
    accumulate: bool = False,
    unsafe: bool = False,
) -> bool:
    given = [index for index in indices if index is not None]
    if not accumulate or not given or len(indices) > target.dim() or not plain(target, values, dtypes=ADDED):
        return False
    if stock_is_better(target):
        return False
    if any(index.dtype not in (torch.int64, torch.int32) or index.device != target.device for index in given):
        return False
    try:
        shape = list(torch.broadcast_shapes(*(index.shape for index in given)))
        dims = [dim for dim, index in enumerate(indices) if index is not None]
        fits = torch.broadcast_shapes(values.shape, _indexed_shape(target, dims, shape)[0])
    except RuntimeError:
        return False
    fits_target = list(fits) == _indexed_shape(target, dims, shape)[0]
    inside = all(in_bounds(index, target.shape[dim]) for dim, index in zip(dims, given, strict=True))
    return fits_target and target.numel() > 0 and inside and writable(target, values, *given)


def stock_is_better(target: torch.Tensor) -> bool:
    """Whether the stock kernels, which use one thread on the CPU in deterministic mode, suffice and are faster."""
    return torch.are_deterministic_algorithms_enabled() and target.device.type in ONE_BY_ONE


def index_add(
    target: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, *, alpha: Any = 1
) -> torch.Tensor:
    """Add rows of a source to the rows given by an index."""
    indices: list[torch.Tensor | None] = [None] * (dim % target.dim())
    return index_put(target, [*indices, index], source if alpha == 1 else source * alpha, True)


def _index_add_supports(
    target: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, *, alpha: Any = 1
) -> bool:
    if target.dim() == 0 or not -target.dim() <= dim < target.dim() or source.dim() != target.dim():
        return False
    dim %= target.dim()
    rows = index.dim() == 1 and source.shape[dim] == len(index) and index.dtype in (torch.int32, torch.int64)
    others = all(
        one == two for axis, (one, two) in enumerate(zip(target.shape, source.shape, strict=True)) if axis != dim
    )
    return (
        rows
        and others
        and plain(target, source, dtypes=ADDED)
        and isinstance(alpha, (int, float))
        and target.numel() > 0
        and index.device == target.device
        and bool(in_bounds(index, target.shape[dim]))
        and not (target.device.type == "cpu" and bool((index < 0).any()))
        and writable(target, index, source)
    )


def scatter_add(target: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    """Add each value to the place given by its index along one dimension."""
    scatter(target, dim, index, source, SUM)
    return target


def scatter(target: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, how: Any) -> None:
    """Reduce values into the places given by an index along one dimension.

    An index that is constant along all other dimensions, such as an expanded one, selects rows, so only rows are sorted.
    """
    if index.numel() == 0:
        return
    dim %= target.dim()
    source = source[tuple(slice(size) for size in index.shape)]
    others = [axis for axis in range(target.dim()) if axis != dim]
    if others and all(index.stride(axis) == 0 or index.shape[axis] == 1 for axis in others):
        rows = target[tuple(slice(None) if axis == dim else slice(index.shape[axis]) for axis in range(target.dim()))]
        keys = index.permute(dim, *others).flatten(1)[:, 0]
        accumulate_rows(rows.permute(dim, *others), keys, [target.shape[dim]], source.permute(dim, *others), how)
        return
    indices = []
    for axis, size in enumerate(index.shape):
        along = [1] * index.dim()
        along[axis] = -1
        place = index if axis == dim else torch.arange(size, device=index.device).view(along).expand(index.shape)
        indices.append(place)
    accumulate_rows(target, linear_keys(indices, list(target.shape)), list(target.shape), source.reshape(-1), how)


def scatter_fits(target: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor) -> bool:
    """Whether the stock kernels accept the shapes, and the index is within the dimension."""
    if target.dim() == 0 or not -target.dim() <= dim < target.dim() or not plain_indices(index, like=target):
        return False
    if not index.dim() == source.dim() == target.dim() or source.device != target.device:
        return False
    dim %= target.dim()
    sizes = zip(index.shape, source.shape, target.shape, strict=True)
    if any(one > two or (axis != dim and one > three) for axis, (one, two, three) in enumerate(sizes)):
        return False
    if index.device.type == "cpu" and bool((index < 0).any()):
        return False
    return in_bounds(index, target.shape[dim]) and writable(target, index, source)


def _scatter_add_supports(target: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor) -> bool:
    return plain(target, source, dtypes=ADDED) and scatter_fits(target, dim, index, source)


def zeros_and_ones(device: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Make a target, an index and a source for examples."""
    return torch.zeros(3, device=device), torch.zeros(2, dtype=torch.int64, device=device), torch.ones(2, device=device)


def _along(device: Any) -> tuple[Any, ...]:
    target, index, source = zeros_and_ones(device)
    return target, 0, index, source


def _index_put_example(device: Any) -> tuple[Any, ...]:
    target, index, source = zeros_and_ones(device)
    return target, [index], source, True


# `put_` may write several values to a place of the flattened tensor. Stock kernels raise, unless they add on the CPU.


def put(target: torch.Tensor, index: torch.Tensor, source: torch.Tensor, accumulate: bool = False) -> torch.Tensor:
    """Write values to places of the flattened tensor. The last of several values for one place stays."""
    keys = linear_keys([index], [target.numel()])
    values = source.reshape(-1)
    places = target if target.dim() else target.view(1)
    if accumulate and values.dtype in ADDED:
        accumulate_rows(places, keys, list(places.shape), values, SUM)
        return target
    if not accumulate:
        write_last(places, keys, values)
        return target
    torch.ops.aten._index_put_impl_(places, list(places_of(keys, list(places.shape))), values, True)
    return target


def _put_supports(target: torch.Tensor, index: torch.Tensor, source: torch.Tensor, accumulate: bool = False) -> bool:
    if accumulate and stock_is_better(target):
        return False
    if index.dtype != torch.int64 or source.dtype != target.dtype or source.numel() != index.numel():
        return False
    if target.layout != torch.strided or not target.device == index.device == source.device or target.is_quantized:
        return False
    if index.numel() == 0 or target.numel() == 0 or not writable(target, index, source):
        return index.numel() == 0 and writable(target, index, source)
    if not in_bounds(index, target.numel()):
        _refuse(index, target.numel())
    return True


def _refuse(index: torch.Tensor, size: int) -> None:
    """Raise the same error as the stock CPU kernel, which would raise about deterministic mode first."""
    wrong = index[(index < -size) | (index >= size)].reshape(-1)[0].item()
    raise IndexError(f"out of range: tried to access index {wrong} on a tensor of {size} elements.")


_MAX = 2


def max_gradient(
    grad: torch.Tensor,
    indices: torch.Tensor,
    offset2bag: torch.Tensor,
    bag_size: torch.Tensor,
    maximum_indices: torch.Tensor,
    num_weights: int,
    *rest: Any,
    **named: Any,
) -> torch.Tensor:
    """Compute the gradient of the weights; empty bags contribute nothing."""
    columns = grad.shape[1]
    rows = maximum_indices.to(torch.int64)
    full = (rows >= 0) & (bag_size > 0).unsqueeze(1)
    keys = rows * columns + torch.arange(columns, device=grad.device)
    keys = torch.where(full, keys, torch.full_like(keys, num_weights * columns))
    values = grad.to(accumulation_dtype(grad.dtype)).reshape(-1, 1)
    total = sum_by_key(keys.reshape(-1), values, num_weights * columns + 1)
    return total[:-1].view(num_weights, columns).to(grad.dtype)


def _embedding_bag_supports(
    grad: torch.Tensor,
    indices: torch.Tensor,
    offset2bag: torch.Tensor,
    bag_size: torch.Tensor,
    maximum_indices: torch.Tensor,
    num_weights: int,
    scale_grad_by_freq: bool,
    mode: int,
    *rest: Any,
    **named: Any,
) -> bool:
    return (
        mode == _MAX
        and plain(grad)
        and grad.dim() == 2
        and maximum_indices.shape == grad.shape
        and bag_size.shape == grad.shape[:1]
        and grad.shape[1] > 0
    )


def _embedding_bag_example(device: Any) -> tuple[Any, ...]:
    indices = torch.zeros(2, dtype=torch.int64, device=device)
    bags = torch.arange(2, device=device)
    largest = torch.zeros(2, 3, dtype=torch.int64, device=device)
    return torch.ones(2, 3, device=device), indices, bags, torch.ones_like(bags), largest, 4, False, _MAX, None


_SCATTERED = ("sum", "prod", "mean", "amax", "amin")
_BY_INDEX = ("prod", "mean", "amax", "amin")
_OLD_NAMES = {"add": "sum", "multiply": "prod"}
"""The names that `scatter` has for the reductions."""


def _reducible(target: torch.Tensor, source: torch.Tensor) -> bool:
    return (
        target.dtype == source.dtype
        and not target.is_complex()
        and target.layout == torch.strided
        and not target.is_quantized
    )


def scatter_reduce(
    target: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, reduce: str, *, include_self: bool = True
) -> torch.Tensor:
    """Reduce values into the places given by an index along one dimension."""
    scatter(target, dim, index, source, Reduction(reduce, include_self))
    return target


def _scatter_reduce_supports(
    target: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, reduce: str, *, include_self: bool = True
) -> bool:
    if reduce not in _SCATTERED or (target.dtype == torch.bool and reduce in ("sum", "mean")):
        return False
    return _reducible(target, source) and scatter_fits(target, dim, index, source)


def scatter_with(
    target: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, *, reduce: str
) -> torch.Tensor:
    """Do the same as `scatter` with `reduce='add'` or `'multiply'`."""
    scatter(target, dim, index, source, Reduction(_OLD_NAMES[reduce]))
    return target


def _scatter_with_supports(
    target: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, *, reduce: str
) -> bool:
    return (
        reduce in _OLD_NAMES
        and target.dtype != torch.bool
        and _reducible(target, source)
        and scatter_fits(target, dim, index, source)
    )


def index_reduce(
    target: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, reduce: str, *, include_self: bool = True
) -> torch.Tensor:
    """Reduce rows of a source into the rows given by an index."""
    dim %= target.dim()
    rows, values = target.movedim(dim, 0), source.movedim(dim, 0)
    accumulate_rows(rows, index.to(torch.int64), [target.shape[dim]], values, Reduction(reduce, include_self))
    return target


def _index_reduce_supports(
    target: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, reduce: str, *, include_self: bool = True
) -> bool:
    if reduce not in _BY_INDEX or not _reducible(target, source) or target.dtype == torch.bool:
        return False
    if target.dim() == 0 or not -target.dim() <= dim < target.dim() or source.dim() != target.dim():
        return False
    dim %= target.dim()
    shape = list(target.shape)
    shape[dim] = index.numel()
    if index.dim() != 1 or index.dtype not in (torch.int32, torch.int64) or list(source.shape) != shape:
        return False
    if index.device != target.device or source.device != target.device or target.numel() == 0:
        return False
    if index.device.type == "cpu" and bool((index < 0).any()):
        return False
    return in_bounds(index, target.shape[dim]) and writable(target, index, source)


def _reducing_tensors(device: Any) -> tuple[Any, ...]:
    index = torch.zeros(2, dtype=torch.int64, device=device)
    return torch.ones(3, device=device), 0, index, torch.ones(2, device=device)


def _reducing_example(device: Any) -> tuple[Any, ...]:
    return *_reducing_tensors(device), "prod"


PATCHES = (
    Patch(
        identity="put",
        what="put_",
        overloads=("put_",),
        run=put,
        supports=_put_supports,
        example=zeros_and_ones,
        in_place=True,
        varies_on_cpu=True,
    ),
    Patch(
        identity="index-put",
        what="index_put with accumulate",
        overloads=("_index_put_impl_",),
        run=index_put,
        supports=_index_put_supports,
        example=_index_put_example,
        in_place=True,
        varies_on_cpu=True,
    ),
    Patch(
        identity="index-add",
        what="index_add",
        overloads=("index_add_", "index_add", "index_add.out"),
        run=index_add,
        supports=_index_add_supports,
        example=_along,
        in_place=True,
    ),
    Patch(
        identity="scatter-add",
        what="scatter_add",
        overloads=("scatter_add_", "scatter_add", "scatter_add.out"),
        run=scatter_add,
        supports=_scatter_add_supports,
        example=_along,
        in_place=True,
    ),
    Patch(
        identity="embedding-bag-max",
        what="embedding_bag max (gradient)",
        overloads=("_embedding_bag_dense_backward",),
        run=max_gradient,
        supports=_embedding_bag_supports,
        example=_embedding_bag_example,
    ),
    Patch(
        identity="scatter-reduce",
        what="scatter_reduce",
        overloads=("scatter_reduce_.two", "scatter_reduce.two", "scatter_reduce.two_out"),
        run=scatter_reduce,
        supports=_scatter_reduce_supports,
        example=_reducing_example,
        in_place=True,
    ),
    Patch(
        identity="scatter-with-reduce",
        what="scatter with reduce=",
        overloads=("scatter_.reduce", "scatter.reduce", "scatter.reduce_out"),
        run=scatter_with,
        supports=_scatter_with_supports,
        example=_reducing_tensors,
        named={"reduce": "add"},
        probed=False,
        in_place=True,
    ),
    Patch(
        identity="index-reduce",
        what="index_reduce",
        overloads=("index_reduce_", "index_reduce", "index_reduce.out"),
        run=index_reduce,
        supports=_index_reduce_supports,
        example=_reducing_example,
        probed=False,
        in_place=True,
    ),
)
