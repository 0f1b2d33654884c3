"""Ops on tensors that are not plain: `resize_` of quantized tensors, and the product of a sparse and a dense matrix.

Elements that `resize_` adds to a quantized tensor get the largest integer, as PyTorch fills tensors of integers. On a GPU the
product adds with atomics even in deterministic mode, while the batched product then uses another cuSPARSE algorithm: so a
matrix is multiplied as a batch of one.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from determinism.frameworks.torch.patches.patch import Patch, deterministic_mode

_INTEGERS = {torch.quint8: torch.uint8, torch.qint8: torch.int8, torch.qint32: torch.int32}
"""For each quantized dtype, the dtype of its stored integers."""


def resize(target: torch.Tensor, size: list[int], *, memory_format: torch.memory_format | None = None) -> torch.Tensor:
    """Change the shape; the storage grows if necessary, and never shrinks."""
    if list(target.shape) == list(size):
        return target
    storage = target.untyped_storage()
    width = target.element_size()
    held, offset = storage.nbytes() // width, int(target.storage_offset())
    needed = offset + math.prod(size)
    if needed > held:
        storage.resize_(needed * width)
        dtype = _INTEGERS[target.dtype]
        numbers = torch.empty(0, dtype=dtype, device=target.device).set_(storage, held, [needed - held], [1])
        numbers.fill_(torch.iinfo(dtype).max)
    strides = [math.prod(max(each, 1) for each in size[axis + 1 :]) for axis in range(len(size))]
    torch.ops.aten.set_.source_Storage_storage_offset(target, storage, offset, list(size), strides)
    return target


def _resize_supports(
    target: torch.Tensor, size: list[int], *, memory_format: torch.memory_format | None = None
) -> bool:
    return (
        memory_format is None
        and target.dtype in _INTEGERS
        and target.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric)
        and all(each >= 0 for each in size)
        and target.untyped_storage().resizable()
    )


def _resize_example(device: Any) -> tuple[Any, ...]:
    return torch._empty_affine_quantized([2], scale=1.0, zero_point=0, dtype=torch.quint8, device=device), [1]


def sparse_product(
    added: torch.Tensor, sparse: torch.Tensor, dense: torch.Tensor, *, beta: Any = 1, alpha: Any = 1
) -> torch.Tensor:
    """Compute the product of a sparse and a dense matrix, times `alpha`, plus `beta` times another matrix."""
    if sparse.layout is torch.sparse_csr:
        sparse = sparse.to_sparse_coo()
    with deterministic_mode():
        product = torch.bmm(sparse.unsqueeze(0), dense.unsqueeze(0)).squeeze(0)
    if alpha != 1:
        product = product * alpha
    # If `beta` is 0, NaNs and infinities in `added` are ignored, too.
    return product if beta == 0 else product + added * beta


def _product_supports(
    added: torch.Tensor, sparse: torch.Tensor, dense: torch.Tensor, *, beta: Any = 1, alpha: Any = 1
) -> bool:
    return (
        sparse.layout in (torch.sparse_coo, torch.sparse_csr)
        and (sparse.sparse_dim(), sparse.dense_dim()) == (2, 0)
        and added.layout is torch.strided
        and dense.layout is torch.strided
        and dense.dim() == 2
        and sparse.shape[1] == dense.shape[0]
        and {added.dtype, sparse.dtype, dense.dtype} in _MULTIPLIED
        and added.device == sparse.device == dense.device
        and _is_broadcast(added.shape, (sparse.shape[0], dense.shape[1]))
    )


_MULTIPLIED = ({torch.float32}, {torch.float64})


def _is_broadcast(shape: torch.Size, to: tuple[int, int]) -> bool:
    """Whether a tensor of this shape can be added to a matrix."""
    return len(shape) <= 2 and all(one in (1, two) for one, two in zip(reversed(shape), reversed(to), strict=False))


def _product_example(device: Any) -> tuple[Any, ...]:
    places = torch.tensor([[0, 1], [1, 0]], device=device)
    sparse = torch.sparse_coo_tensor(places, torch.tensor([1.0, 2.0], device=device), (2, 2))
    return torch.zeros(2, 2, device=device), sparse, torch.ones(2, 2, device=device)


def _csr_example(device: Any) -> tuple[Any, ...]:
    sparse = torch.sparse_csr_tensor([0, 1, 2], [1, 0], [1.0, 2.0], (2, 2), device=device)
    return torch.zeros(2, 2, device=device), sparse, torch.ones(2, 2, device=device)


PATCHES = (
    Patch(
        identity="quantized-resize",
        what="resize_ of quantized tensors",
        overloads=("resize_",),
        run=resize,
        supports=_resize_supports,
        example=_resize_example,
        in_place=True,
        cpu_key="QuantizedCPU",
        gpu_key="QuantizedCUDA",
    ),
    Patch(
        identity="sparse-mm",
        what="sparse.mm of a sparse and a dense matrix",
        # Other ops, such as `mm`, call these.
        overloads=("addmm", "addmm_", "addmm.out"),
        run=sparse_product,
        supports=_product_supports,
        example=_product_example,
        cpu_key="SparseCPU",
        gpu_key="SparseCUDA",
    ),
    Patch(
        identity="sparse-csr-mm",
        what="sparse.mm of a sparse matrix in CSR and a dense one",
        overloads=("addmm", "addmm.out"),
        run=sparse_product,
        supports=_product_supports,
        example=_csr_example,
        cpu_key="SparseCsrCPU",
        gpu_key="SparseCsrCUDA",
    ),
)
