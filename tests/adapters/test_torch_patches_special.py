"""Replaced ops of PyTorch: first and second gradients against finite differences, NaN and infinities, and empty batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tests.torch_patched import close, grads, patched_cpu

pytestmark = pytest.mark.filterwarnings("ignore")


DIFFERENTIABLE: dict[str, tuple[Callable[..., Any], tuple[int, ...]]] = {
    "adaptive": (lambda x: F.adaptive_avg_pool2d(x, (2, 3)), (1, 1, 3, 4)),
    "adaptive 3": (lambda x: F.adaptive_avg_pool3d(x, (2, 1, 2)), (1, 1, 3, 2, 3)),
    "avg 3": (lambda x: F.avg_pool3d(x, 2, 1), (1, 1, 3, 2, 3)),
    "adaptive max": (lambda x: F.adaptive_max_pool2d(x, (2, 3)), (1, 1, 3, 4)),
    "max 3": (lambda x: F.max_pool3d(x, 2, 1), (1, 1, 3, 2, 3)),
    "linear": (lambda x: F.interpolate(x, 5, mode="linear"), (1, 1, 3)),
    "bilinear": (lambda x: F.interpolate(x, (5, 2), mode="bilinear"), (1, 1, 3, 4)),
    "bicubic": (lambda x: F.interpolate(x, (5, 2), mode="bicubic"), (1, 1, 3, 4)),
    "antialias": (lambda x: F.interpolate(x, (2, 2), mode="bicubic", antialias=True), (1, 1, 3, 4)),
    "reflect": (lambda x: F.pad(x, (1, 2, 2, 0), mode="reflect"), (1, 1, 3, 4)),
    "replicate": (lambda x: F.pad(x, (1, 2, 2, 0), mode="replicate"), (1, 1, 3, 4)),
    "grid": (lambda x: F.grid_sample(x, torch.linspace(-1.1, 1.1, 12, dtype=x.dtype).view(1, 2, 3, 2), align_corners=True), (1, 1, 3, 4)),
    "nll": (lambda x: F.nll_loss(x, torch.tensor([[[0, 1]]])), (1, 2, 1, 2)),
    "put": (lambda x: torch.zeros(3, dtype=x.dtype).put(torch.tensor([0, 0, 2]), x, accumulate=True), (3,)),
    "index_add": (lambda x: x.index_add(0, torch.tensor([0, 0]), x[:2] * 2), (3, 2)),
    "scatter_reduce": (lambda x: torch.ones(2, dtype=x.dtype).scatter_reduce(0, torch.tensor([0, 0, 1]), x, "prod"), (3,)),
    "cumsum": (lambda x: x.cumsum(0), (4,)),
    "median": (lambda x: x.median(0).values, (5, 2)),
}  # fmt: skip


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_first_and_second_gradients_agree_with_finite_differences(name: str) -> None:
    function, shape = DIFFERENTIABLE[name]
    torch.manual_seed(2)
    given = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    with patched_cpu() as ran:
        assert torch.autograd.gradcheck(function, (given,))
        assert torch.autograd.gradgradcheck(function, (given,))
    assert ran


SPECIAL = (float("nan"), float("inf"), float("-inf"))


@pytest.mark.parametrize("special", SPECIAL)
@pytest.mark.parametrize("name", [one for one in DIFFERENTIABLE if one not in ("scatter_reduce", "grid")])
def test_nan_and_infinities_propagate_as_in_stock(name: str, special: float) -> None:
    function, shape = DIFFERENTIABLE[name]

    def gradient() -> torch.Tensor:
        given = torch.arange(1.0, 1 + np.prod(shape), dtype=torch.float64).view(shape).requires_grad_()
        result = function(given)
        direction = torch.ones_like(result)
        direction.reshape(-1)[0] = special
        (found,) = torch.autograd.grad(result, given, direction)
        return found

    stock = gradient()
    with patched_cpu():
        assert close(stock, gradient())


def test_nan_is_selected_and_summed_as_in_stock() -> None:
    given = torch.tensor([[3.0, float("nan"), 1.0, float("inf")], [float("nan")] * 4, [1.0, -2.0, 0.0, -float("inf")]])

    def results() -> list[torch.Tensor]:
        return [
            *given.median(1), given.nanmedian(1).values, given.kthvalue(4, 1).values, given.cumsum(1), torch.histc(given[2], 4, -3, 3),
            torch.zeros(2).index_add(0, torch.tensor([0, 1, 0, 1]), given[0]),
            torch.zeros(2).scatter_reduce(0, torch.tensor([0, 1, 0, 1]), given[0], "amax"),
        ]  # fmt: skip

    stock = results()
    with patched_cpu():
        assert all(close(one, two) for one, two in zip(stock, results(), strict=True))


EMPTY: dict[str, Callable[[], Any]] = {
    "pool": lambda: grads(lambda x: F.adaptive_avg_pool2d(x, 2), 0, 3, 5, 5),
    "pool 3": lambda: grads(lambda x: F.avg_pool3d(x, 2), 0, 3, 5, 5, 5),
    "max": lambda: grads(lambda x: F.adaptive_max_pool3d(x, 2), 0, 3, 5, 5, 5),
    "interpolate": lambda: grads(lambda x: F.interpolate(x, scale_factor=2, mode="bicubic"), 0, 3, 5, 5),
    "pad": lambda: grads(lambda x: F.pad(x, (1, 1, 1, 1), mode="reflect"), 0, 3, 5, 5),
    "unpool": lambda: [F.max_unpool2d(torch.ones(0, 3, 2, 2), torch.zeros(0, 3, 2, 2, dtype=torch.int64), 2)],
    "grid": lambda: grads(lambda x: F.grid_sample(x, torch.zeros(0, 2, 2, 2).double(), align_corners=True), 0, 3, 5, 5),
    "nll": lambda: grads(lambda x: F.nll_loss(x, torch.zeros(0, 2, 2, dtype=torch.int64)), 0, 3, 2, 2),
    "bags": lambda: grads(lambda x: F.embedding_bag(torch.zeros(0, 2, dtype=torch.int64), x, mode="max"), 4, 3),
    "bincount": lambda: [torch.bincount(torch.zeros(0, dtype=torch.int64), torch.ones(0), 3)],
    "histc": lambda: [torch.histc(torch.ones(0), 3)],
    "median": lambda: torch.ones(0, 3).median(1),
    "median of one": lambda: torch.tensor(2.0).median(0),
    "put": lambda: [torch.ones(3).put_(torch.zeros(0, dtype=torch.int64), torch.ones(0))],
}


@pytest.mark.parametrize("name", EMPTY)
def test_an_empty_batch_has_the_same_result_as_in_stock(name: str) -> None:
    stock = EMPTY[name]()
    with patched_cpu() as ran:
        result = EMPTY[name]()
    assert ran
    assert all(close(one, two) for one, two in zip(stock, result, strict=True))


@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr], ids=str)
@pytest.mark.parametrize("factors", [(1, 1), (0, 1), (0.5, 2)])
def test_a_sparse_product_agrees_with_that_of_the_stock_op(layout: torch.layout, factors: tuple[float, float]) -> None:
    torch.manual_seed(4)
    sparse = torch.randn(5, 4, dtype=torch.float64).relu().to_sparse(layout=layout)
    dense = torch.randn(4, 3, dtype=torch.float64)
    beta, alpha = factors
    for added in (torch.randn(5, 3).double(), torch.randn(5, 1).double(), torch.full((3,), float("nan")).double()):
        stock = torch.addmm(added, sparse, dense, beta=beta, alpha=alpha)
        with patched_cpu() as ran:
            assert close(stock, torch.addmm(added, sparse, dense, beta=beta, alpha=alpha))
        assert set(ran) == {"sparse-mm" if layout is torch.sparse_coo else "sparse-csr-mm"}
