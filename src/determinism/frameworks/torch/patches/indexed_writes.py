"""Writing and adding at indices: `put_`, `index_put` with accumulate, `index_add`, `scatter_add`.

Stock kernels add with atomics, the CPU's `index_put` among them; in deterministic mode those of most ops sort instead.
"""

from __future__ import annotations

from typing import Any

import torch

from determinism.frameworks.torch.patches.accumulating import (
    SUM,
    accumulate_rows,
    in_bounds,
    linear_keys,
    places_of,
    write_last,
)
from determinism.frameworks.torch.patches.patch import Patch
from determinism.frameworks.torch.patches.segments import ONE_BY_ONE
from determinism.frameworks.torch.patches.tensors import COMPLEX, FLOATING, plain, plain_indices

ADDED = FLOATING | COMPLEX
"""What rounds when it is added. Integers give the same in any order, and are left to the stock kernels."""


def writable(target: torch.Tensor, *sources: torch.Tensor) -> bool:
    """Whether no two elements of a tensor share memory, and none with what is read; the stock kernels refuse these."""
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
    """Add values at the places that index tensors name."""
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
    """The shape of `target[indices]`, and where the indices' own dimensions begin in it."""
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
    """In deterministic mode the CPU's kernels that accumulate use one thread; they take what these would, and are faster."""
    return torch.are_deterministic_algorithms_enabled() and target.device.type in ONE_BY_ONE


def index_add(
    target: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, *, alpha: Any = 1
) -> torch.Tensor:
    """Add rows of a source to the rows that an index names."""
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
    """Add each value to the place that its index names along one dimension."""
    scatter(target, dim, index, source, SUM)
    return target


def scatter(target: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor, how: Any) -> None:
    """Reduce values into the places that an index names along one dimension.

    An index that is the same for all other dimensions, as expanded ones are, names rows: these are sorted instead of all elements.
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
    """Whether the shapes are those that the stock kernels take, and the index lies within the dimension."""
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
    """A target, an index and a source for examples."""
    return torch.zeros(3, device=device), torch.zeros(2, dtype=torch.int64, device=device), torch.ones(2, device=device)


def _along(device: Any) -> tuple[Any, ...]:
    target, index, source = zeros_and_ones(device)
    return target, 0, index, source


def _index_put_example(device: Any) -> tuple[Any, ...]:
    target, index, source = zeros_and_ones(device)
    return target, [index], source, True


# Values go to places of the flattened tensor, several maybe to one place. Stock kernels raise, unless they add on the CPU.


def put(target: torch.Tensor, index: torch.Tensor, source: torch.Tensor, accumulate: bool = False) -> torch.Tensor:
    """Write values to places of the flattened tensor. Of several for one place, the last one stays."""
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
    """Raise as the stock kernel for the CPU does, which would complain of deterministic mode first."""
    wrong = index[(index < -size) | (index >= size)].reshape(-1)[0].item()
    raise IndexError(f"out of range: tried to access index {wrong} on a tensor of {size} elements.")


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
)
