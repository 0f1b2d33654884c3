"""Deterministic programs compare as the same: special values, dtypes and layouts."""

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
from tests.thorough import in_turns
from tests.torch_runs import check_deterministic

PROGRAMS: list[Callable[[], Any]] = []


def program(function: Callable[[], Any]) -> Callable[[], Any]:
    PROGRAMS.append(function)
    return function


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("function", in_turns(PROGRAMS, 2, "programs", lambda function: function.__name__))
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
    return (
        x @ x,
        x.abs(),
        x.angle(),
        torch.fft.fft(x),
        y,
        x.to(torch.complex128),
        torch.fft.irfft(torch.fft.rfft(values(8))),
    )


@program
def conjugate_and_negative_views() -> Any:
    x = torch.complex(values(3, 3), values(3, 3))
    lazy = x.conj()
    negative = lazy.imag
    return (
        lazy,
        lazy @ x,
        lazy + 1,
        lazy.clone(),
        negative,
        negative * 2,
        x.mH @ x,
        lazy.resolve_conj(),
        torch._neg_view(x.real),
    )


@program
def leaves_that_are_conjugate_views() -> Any:
    x = torch.complex(values(3), values(3)).requires_grad_()
    (x.conj() * x).abs().sum().backward()
    return x.grad


@program
def low_precision() -> Any:
    x, y = values(8, 8, dtype=torch.bfloat16), values(8, 8, dtype=torch.float16)
    small = x.to(torch.float8_e4m3fn)
    return (
        x @ x,
        x.sum(),
        y @ y,
        y.exp(),
        y.mean(0),
        x.to(torch.float16),
        small,
        small.to(torch.float32),
        F.softmax(x, 1),
    )


@program
def integers_and_booleans() -> Any:
    torch.manual_seed(0)
    x = torch.randint(0, 255, (6, 6), dtype=torch.uint8)
    y = x.to(torch.int64)
    mask = x > 100
    return [
        x + 200,
        x // 3,
        x << 1,
        ~x,
        y.cumsum(0),
        y % 7,
        mask & ~mask.t(),
        mask.any(0),
        mask.all(),
        y[mask],
        y.view(-1).bincount(),
        y.unique(return_inverse=True),
        y.sort(stable=True),
        y.topk(2),
        mask.nonzero(),
        y.to(torch.int8),
        y.to(torch.int16),
        x.to(torch.bool),
    ]


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
    return (
        like * 2,
        like.exp(),
        x.t() + 1,
        torch.einsum("ij,kj->ik", x, x).t(),
        x.expand(3, 4, 5).clone(),
        like.clone()[::2],
    )


@program
def expanded_element_beside_unread_ones() -> Any:
    """An expanded view can have as many bytes as its storage, but read only one element of it."""
    x, y = torch.empty(4), torch.empty(4)
    for held in (x, y):
        held[:3].fill_(time.time() % 1)
        held[3].fill_(2)
    y = y.as_strided((4,), (0,), 3)
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
def linear_algebra() -> Any:
    x = values(5, 5)
    spd = x @ x.t() + torch.eye(5)
    return [
        torch.linalg.cholesky(spd),
        torch.linalg.eigh(spd),
        torch.linalg.solve(spd, x),
        torch.linalg.qr(x),
        torch.linalg.svd(x),
        torch.linalg.inv(spd),
        torch.linalg.det(x),
        torch.linalg.lu_factor(x),
        torch.triangular_solve(x, spd.tril()),
        torch.linalg.eig(x),
    ]
