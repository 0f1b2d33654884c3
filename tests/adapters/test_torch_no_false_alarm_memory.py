"""Deterministic programs compare as the same: views, writes in place, and memory that is filled piece by piece."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from determinism.types import Verdict
from tests.thorough import in_turns
from tests.torch_runs import check_deterministic

PROGRAMS: list[Callable[[], Any]] = []


def program(function: Callable[[], Any]) -> Callable[[], Any]:
    PROGRAMS.append(function)
    return function


@pytest.mark.parametrize("function", in_turns(PROGRAMS, 2, "programs", lambda function: function.__name__))
def test_same(function: Callable[[], Any], tmp_path: Path) -> None:
    comparison = check_deterministic(function, tmp_path)
    assert comparison.verdict is Verdict.SAME, comparison.first_divergence
    assert comparison.recorded.records > 0


def values(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    torch.manual_seed(0)
    return torch.randn(*shape).to(dtype)


@program
def views() -> Any:
    x = values(4, 6)
    return [
        x[1:3, ::2].exp(), x.t().sum(0), x[:, :1].expand(4, 5).mul(2), x.as_strided((3, 3), (1, 2), 4).sin(),
        x.unfold(1, 3, 2).sum(-1), *[part.cos() for part in x.split([1, 3])], *[part.tan() for part in x.chunk(4, 1)],
        *[part.neg() for part in x.unbind()], x.diagonal().sum(), x.movedim(0, 1).narrow(0, 2, 2).prod(),
        x.view(torch.int32).sum(), x.reshape(2, 12).flip(1), x.T.reshape(-1).sum(), x.squeeze().unsqueeze(0) + 1,
    ]  # fmt: skip


@program
def writes_through_views() -> Any:
    x = values(4, 6)
    x[0].mul_(2)
    x[:, 1].add_(x[:, 2])
    x.t()[3].zero_()
    x.diagonal().fill_(7)
    x.view(-1)[5:9].copy_(x.view(-1)[10:14])
    x[x > 1] = -1
    return x, x.sum()


@program
def writes_in_place() -> Any:
    x, y = values(5, 5), values(5, 5)
    x.add_(y).mul_(0.5).clamp_(-1, 1).addmm_(y, y).relu_().sqrt_()
    x.transpose_(0, 1).unsqueeze_(0).squeeze_(0)
    x.lerp_(y, 0.3).addcmul_(y, y, value=2).addcdiv_(y, y + 3)
    x.index_add_(0, torch.tensor([1, 3]), y[:2]).scatter_add_(1, torch.tensor([[0], [2]]), y[:2, :1])
    torch.set_grad_enabled(True)
    return x


@program
def writes_through_out() -> Any:
    x, y = values(4, 4), values(4, 4).abs()
    made, index, whole = torch.empty(4, 4), torch.empty(4, dtype=torch.long), torch.empty(0)
    torch.matmul(x, y, out=made)
    largest = torch.empty(4)
    torch.max(x, 1, out=(largest, index))
    torch.cat([x, y], out=whole)
    torch.exp(y, out=made[:2].new_empty(4, 4))
    return made, largest, index, whole.sum()


@program
def writes_through_data() -> Any:
    weight = nn.Parameter(torch.empty(3, 3))
    weight.data.copy_(values(3, 3))
    weight.data.mul_(0.5)
    weight.data[0] = 1
    weight.detach().add_(2)
    weight.data = weight.data * 3
    return weight.exp()


@program
def foreach_writes() -> Any:
    xs = [values(3), values(2, 2), values(1)]
    ys = [torch.empty_like(x) for x in xs]
    torch._foreach_copy_(ys, xs)
    torch._foreach_mul_(ys, 2.0)
    torch._foreach_add_(ys, xs, alpha=0.5)
    torch._foreach_sqrt_(torch._foreach_abs(ys))
    torch._foreach_zero_(xs)
    return ys, xs, torch._foreach_norm(ys)


@program
def empty_filled_by_slices() -> Any:
    x = torch.empty(4, 8)
    x[:, :4] = values(4, 4)
    x[:, 4:] = 1
    rows = torch.empty(3, 5)
    for row in range(3):
        rows[row] = values(5) * row
    return x.sum(), x.exp(), rows * 2


@program
def empty_filled_in_halves() -> Any:
    x = torch.empty(10)
    low, high = x.chunk(2)
    low.copy_(values(5))
    torch.mul(values(5), 2, out=high)
    even = torch.empty(6)
    even[::2] = 1
    even[1::2] = 2
    return x.cumsum(0), even.sum()


@program
def empty_filled_by_index_put() -> Any:
    x = torch.empty(6)
    x[torch.tensor([0, 2, 4])] = values(3)
    x[[1, 3, 5]] = values(3)
    return x.sum(), x * 2


@program
def empty_filled_by_masks() -> Any:
    mask = torch.tensor([True, False, True, True, False])
    x, y = torch.empty(5), torch.empty(5)
    x[mask] = 1.0
    x[~mask] = values(2)
    y.masked_fill_(mask, 3).masked_scatter_(~mask, values(2))
    return x.exp(), y.sum()


@program
def empty_filled_by_indexed_writes() -> Any:
    index = torch.tensor([2, 0, 1])
    x, y, z, w = torch.empty(3, 2), torch.empty(3, 3), torch.empty(3, 2), torch.empty(3)
    x.index_copy_(0, index, values(3, 2))
    y.scatter_(1, index.expand(3, 3), values(3, 3))
    z.index_fill_(0, index, 5)
    w.put_(index, values(3))
    return x.sum(), y * 2, z.exp(), w + 1


@program
def empty_filled_through_out_of_a_slice() -> Any:
    x = torch.empty(4, 4)
    torch.add(values(2, 4), 1, out=x[:2])
    torch.cat([values(1, 4), values(1, 4)], out=x[2:])
    y = torch.empty(6, 2)
    torch.mm(values(6, 3), values(3, 2), out=y)
    return x.sum(), y.sum()


@program
def empty_then_random() -> Any:
    torch.manual_seed(0)
    x = [torch.empty(3, 3) for _ in range(8)]
    x[0].normal_()
    x[1].uniform_()
    x[2].bernoulli_(0.5)
    x[3].exponential_()
    x[4].random_(10)
    x[5].geometric_(0.3)
    x[6].cauchy_()
    x[7].log_normal_()
    nn.init.trunc_normal_(wide := torch.empty(4, 4))
    nn.init.orthogonal_(other := torch.empty(4, 4))
    nn.init.eye_(third := torch.empty(4, 4))
    return sum(x), wide, other, third


@program
def storage_shared_by_set() -> Any:
    x, y = values(6), torch.empty(0)
    y.set_(x.untyped_storage(), 2, (2, 2), (2, 1))
    x.add_(1)
    return y * 2, x
