"""Deterministic programs compare as the same: kinds of tensors, custom ops and functions."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from determinism.types import Verdict
from tests.torch_runs import check_deterministic

PROGRAMS: list[Callable[[], Any]] = []


def program(function: Callable[[], Any]) -> Callable[[], Any]:
    PROGRAMS.append(function)
    return function


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("function", PROGRAMS, ids=lambda function: function.__name__)
def test_a_deterministic_program_is_the_same(function: Callable[[], Any], tmp_path: Path) -> None:
    comparison = check_deterministic(function, tmp_path)
    assert comparison.verdict is Verdict.SAME, comparison.first_divergence
    assert comparison.recorded.records > 0


def values(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    torch.manual_seed(0)
    return torch.randn(*shape).to(dtype)


@program
def sparse_tensors() -> Any:
    index, held = torch.tensor([[0, 1, 1], [2, 0, 0]]), torch.tensor([3.0, 4.0, 5.0])
    x = torch.sparse_coo_tensor(index, held, (2, 3))
    dense = values(3, 2)
    csr = x.coalesce().to_sparse_csr()
    return (
        torch.sparse.mm(x, dense),
        x.to_dense(),
        (x + x).coalesce(),
        csr @ dense,
        x * 2,
        csr.to_dense(),
        dense.to_sparse(),
    )


@program
def quantized_tensors() -> Any:
    x = torch.quantize_per_tensor(values(4, 4), 0.1, 10, torch.quint8)
    y = torch.quantize_per_channel(values(2, 4), torch.tensor([0.1, 0.2]), torch.tensor([0, 1]), 0, torch.qint8)
    return (
        x,
        x.dequantize(),
        x.int_repr(),
        y.dequantize(),
        x.reshape(-1),
        torch.fake_quantize_per_tensor_affine(values(3), 0.1, 0, -8, 7),
    )


@program
def nested_tensors() -> Any:
    parts = [values(2, 4), values(3, 4)]
    old, new = torch.nested.nested_tensor(parts), torch.nested.nested_tensor(parts, layout=torch.jagged)
    linear = nn.Linear(4, 2)
    with torch.no_grad():
        linear.weight.fill_(0.5)
        linear.bias.zero_()
    return (
        [part.exp() for part in old.unbind()],
        torch.nested.to_padded_tensor(old, 0.0),
        linear(new).values(),
        (new * 2).values(),
    )


@program
def meta_tensors() -> Any:
    layer = nn.Linear(4, 4, device="meta")
    shape = layer(torch.empty(2, 4, device="meta")).shape
    layer = layer.to_empty(device="cpu")
    torch.manual_seed(0)
    layer.reset_parameters()
    return layer(values(*shape)), torch.zeros(3, device="meta") + 1


class Scaled(Tensor):
    """A subclass that only overrides functions."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return super().__torch_function__(func, types, args, kwargs or {})


class Wrapped(Tensor):
    """A wrapper subclass that holds another tensor and computes with it."""

    @staticmethod
    def __new__(cls, inner: Tensor) -> Wrapped:
        made = Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype, strides=inner.stride())
        made.inner = inner
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def unwrap(value: Any) -> Any:
            return value.inner if isinstance(value, Wrapped) else value

        result = func(*(unwrap(value) for value in args), **(kwargs or {}))
        return Wrapped(result) if isinstance(result, Tensor) else result


@program
def tensor_subclasses() -> Any:
    x, y = values(3, 3).as_subclass(Scaled), Wrapped(values(3, 3))
    return (x * 2).exp(), (y + y).mul(2).inner, (y @ values(3, 3)).inner, nn.Parameter(x) @ x


@program
def a_subclass_as_parameter() -> Any:
    weight = nn.Parameter(Wrapped(values(2, 2)), requires_grad=False)
    return (weight + 1).inner


def _defined_op() -> Any:
    @torch.library.custom_op("no_false_alarm::scaled", mutates_args=())
    def scaled(x: Tensor, by: float) -> Tensor:
        return x * by

    @torch.library.custom_op("no_false_alarm::halve", mutates_args={"x"})
    def halve(x: Tensor) -> None:
        x.mul_(0.5)

    def setup(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.by = inputs[1]

    scaled.register_autograd(lambda ctx, grad: (grad * ctx.by, None), setup_context=setup)
    return scaled, halve


SCALED, HALVE = _defined_op()


@program
def custom_ops() -> Any:
    x = values(3, 3).requires_grad_()
    y = SCALED(x, 3.0)
    y.sum().backward()
    z = values(4)
    HALVE(z[:2])
    buffer = torch.empty(4)
    buffer.copy_(z)
    HALVE(buffer)
    return y, x.grad, z, buffer


class Cube(torch.autograd.Function):
    """Saves a tensor for the backward, and marks another as changed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scratch: Tensor) -> Any:
        ctx.save_for_backward(x)
        scratch.fill_(1)
        ctx.mark_dirty(scratch)
        return x**3, scratch

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Any) -> Any:
        (x,) = ctx.saved_tensors
        return 3 * x**2 * grad, None


@program
def custom_functions() -> Any:
    x, scratch = values(3).requires_grad_(), torch.empty(3)
    Cube.apply(x, scratch)[0].sum().backward()
    return x.grad, scratch.sum()


@program
def inference_tensors() -> Any:
    net = nn.Linear(3, 3)
    with torch.no_grad():
        net.weight.copy_(values(3, 3))
        net.bias.zero_()
    with torch.inference_mode():
        x = values(4, 3)
        x.add_(1)
        x[0] = 2
        y = net(x)
        buffer = torch.empty(4, 3)
        torch.mul(x, 2, out=buffer)
        z = y.relu_().view(-1)[:4].clone()
    return x, y, z, buffer, net(values(2, 3))
