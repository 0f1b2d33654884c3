"""Deterministic programs compare as the same: special values, dtypes, layouts and kinds of tensors."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from determinism.types import Verdict
from tests.torch_runs import check_deterministic

PROGRAMS: list[Callable[[], Any]] = []


def program(function: Callable[[], Any]) -> Callable[[], Any]:
    PROGRAMS.append(function)
    return function


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("function", PROGRAMS, ids=lambda function: function.__name__)
def test_same(function: Callable[[], Any], tmp_path: Path) -> None:
    comparison = check_deterministic(function, tmp_path)
    assert comparison.verdict is Verdict.SAME, comparison.first_divergence
    assert comparison.recorded.records > 0


def values(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    torch.manual_seed(0)
    return torch.randn(*shape).to(dtype)


def payload(bits: int) -> float:
    """A Python float with these bits."""
    return struct.unpack("<d", struct.pack("<Q", bits))[0]


@program
def not_a_number() -> Any:
    bits = torch.tensor([0x7FC00000, 0x7FC00001, 0x7F800001, -0x400000, 0x7FFFFFFF], dtype=torch.int32)
    x = bits.view(torch.float32)
    y = torch.tensor([payload(0x7FF8000000000000), payload(0x7FF8000000000123), payload(0xFFF8000000000000)])
    return x, x.clone(), x + 1, x.nan_to_num(), x == x, y.double(), torch.full((3,), float("nan")).fill_(float("-nan"))


@program
def zeros_of_both_signs() -> Any:
    x = torch.tensor([0.0, -0.0, 1e-45, -1e-45])
    return x, -x, x * -1, x.abs(), torch.full((2,), -0.0), torch.full((2,), 0.0), x.signbit(), x + (-0.0), x.add_(0.0)


@program
def infinities_and_extremes() -> Any:
    x = torch.tensor([float("inf"), float("-inf"), 3.4e38, 1.2e-38])
    return x * 2, x - x, x.exp(), x.to(torch.float16), x.double() ** 2, torch.clamp(x, max=float("inf"))


@program
def complex_numbers() -> Any:
    x = torch.complex(values(3, 3), values(3, 3))
    parts = torch.view_as_real(x)
    parts[0, 0, 1] = -0.0
    y = x.clone()
    y.real.mul_(2)
    y.imag.copy_(x.real)
    return x @ x, x.abs(), x.angle(), torch.fft.fft(x), y, x.to(torch.complex128), torch.fft.irfft(torch.fft.rfft(values(8)))


@program
def conjugate_and_negative_views() -> Any:
    x = torch.complex(values(3, 3), values(3, 3))
    lazy = x.conj()
    negative = lazy.imag
    return lazy, lazy @ x, lazy + 1, lazy.clone(), negative, negative * 2, x.mH @ x, lazy.resolve_conj(), torch._neg_view(x.real)


@program
def leaves_that_are_conjugate_views() -> Any:
    x = torch.complex(values(3), values(3)).requires_grad_()
    (x.conj() * x).abs().sum().backward()
    return x.grad


@program
def low_precision() -> Any:
    x, y = values(8, 8, dtype=torch.bfloat16), values(8, 8, dtype=torch.float16)
    small = x.to(torch.float8_e4m3fn)
    return x @ x, x.sum(), y @ y, y.exp(), y.mean(0), x.to(torch.float16), small, small.to(torch.float32), F.softmax(x, 1)


@program
def integers_and_booleans() -> Any:
    torch.manual_seed(0)
    x = torch.randint(0, 255, (6, 6), dtype=torch.uint8)
    y = x.to(torch.int64)
    mask = x > 100
    return [
        x + 200, x // 3, x << 1, ~x, y.cumsum(0), y % 7, mask & ~mask.t(), mask.any(0), mask.all(), y[mask], y.view(-1).bincount(),
        y.unique(return_inverse=True), y.sort(stable=True), y.topk(2), mask.nonzero(), y.to(torch.int8), y.to(torch.int16), x.to(torch.bool),
    ]  # fmt: skip


@program
def tensors_without_elements_or_dimensions() -> Any:
    nothing, scalar = torch.zeros(0, 3), torch.tensor(3.5)
    scalar.add_(1).mul_(torch.tensor(2))
    return [
        nothing + 1, nothing.sum(), nothing.t() @ nothing, nothing.clone(), torch.cat([nothing, values(2, 3)]),
        scalar, scalar.expand(3), scalar.reshape(1, 1), scalar * values(2), torch.zeros(2, 0, 3).sum(1), nothing.unbind(1),
    ]  # fmt: skip


@program
def outputs_that_are_not_contiguous() -> Any:
    x = values(4, 5)
    like = torch.empty_strided((4, 5), (1, 4)).copy_(x)
    return like * 2, like.exp(), x.t() + 1, torch.einsum("ij,kj->ik", x, x).t(), x.expand(3, 4, 5).clone(), like.clone()[::2]


@program
def expanded_element_beside_unread_ones() -> Any:
    """An expanded view can have as many bytes as its storage, and read one element of it."""
    x = torch.tensor([time.time() % 1, 1.0, time.time() % 1, 2.0])
    y = x.clone().as_strided((4,), (0,), 1)
    return x[3].expand(4), x[3].expand(4).exp(), y.tolist(), y.sum()


@program
def expanded_values_from_outside() -> Any:
    x = torch.frombuffer(bytearray(b"abcdefgh"), dtype=torch.float32)
    return x[:1].expand(6) + 1, x.as_strided((5,), (0,)).cos(), x.unfold(0, 2, 1).expand(3, 1, 2).sum()


@program
def convolutions_with_channels_last() -> Any:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 3))
    net = net.to(memory_format=torch.channels_last)
    x = torch.randn(2, 3, 8, 8).to(memory_format=torch.channels_last).requires_grad_()
    out = net(x)
    out.pow(2).mean().backward()
    return out, x.grad, [parameter.grad for parameter in net.parameters()], list(net.buffers())


@program
def sparse_tensors() -> Any:
    index, held = torch.tensor([[0, 1, 1], [2, 0, 0]]), torch.tensor([3.0, 4.0, 5.0])
    x = torch.sparse_coo_tensor(index, held, (2, 3))
    dense = values(3, 2)
    csr = x.coalesce().to_sparse_csr()
    return torch.sparse.mm(x, dense), x.to_dense(), (x + x).coalesce(), csr @ dense, x * 2, csr.to_dense(), dense.to_sparse()


@program
def quantized_tensors() -> Any:
    x = torch.quantize_per_tensor(values(4, 4), 0.1, 10, torch.quint8)
    y = torch.quantize_per_channel(values(2, 4), torch.tensor([0.1, 0.2]), torch.tensor([0, 1]), 0, torch.qint8)
    return x, x.dequantize(), x.int_repr(), y.dequantize(), x.reshape(-1), torch.fake_quantize_per_tensor_affine(values(3), 0.1, 0, -8, 7)


@program
def nested_tensors() -> Any:
    parts = [values(2, 4), values(3, 4)]
    old, new = torch.nested.nested_tensor(parts), torch.nested.nested_tensor(parts, layout=torch.jagged)
    linear = nn.Linear(4, 2)
    with torch.no_grad():
        linear.weight.fill_(0.5)
        linear.bias.zero_()
    return [part.exp() for part in old.unbind()], torch.nested.to_padded_tensor(old, 0.0), linear(new).values(), (new * 2).values()


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
    """A wrapper subclass: holds another tensor and computes with that."""

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
    """Keeps a tensor for the backward, and marks another as changed."""

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


@program
def linear_algebra() -> Any:
    x = values(5, 5)
    spd = x @ x.t() + torch.eye(5)
    return [
        torch.linalg.cholesky(spd), torch.linalg.eigh(spd), torch.linalg.solve(spd, x), torch.linalg.qr(x), torch.linalg.svd(x),
        torch.linalg.inv(spd), torch.linalg.det(x), torch.linalg.lu_factor(x), torch.triangular_solve(x, spd.tril()), torch.linalg.eig(x),
    ]  # fmt: skip
