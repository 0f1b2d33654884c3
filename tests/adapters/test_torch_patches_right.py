"""Replacements give the results of PyTorch's stock ops: in all dtypes, and for every mode and flag.

The code for GPUs is bound to the CPU here, so that it can be compared with the stock kernels for the CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from benchmarks.patched_ops import CASES, HALVES, OpCase
from tests.torch_patched import ON_CPU, captured, close, error, grads, in_float64, patched_cpu

pytestmark = pytest.mark.filterwarnings("ignore")
CPU = torch.device("cpu")
STEP = {torch.float64: 1e-13, torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}
NO_HALVES = ("avg-pool3d", "interpolate-bilinear-antialias", "interpolate-bicubic-antialias")
"""Ops whose stock kernels for the CPU do not support 16-bit dtypes, not even in the forward."""
CHOSEN = ("kthvalue",)
"""Ops whose stock kernel picks a different one of several equal elements."""
OTHER_PLACES = ("grid-sample2d", "grid-sample3d")
"""Ops whose stock kernel computes places in the grid with 16 bits, and therefore reads different cells."""


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Use one thread, with which the results of the stock kernels are fixed."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.title)
def test_values_match_stock_in_all_dtypes_and_are_close_to_float64(case: OpCase) -> None:
    for dtype in case.dtypes:
        if dtype in HALVES and case.patch in NO_HALVES:
            continue
        stock = case.call(case.small, dtype, CPU)()
        with captured() as calls:
            result = case.call(case.small, dtype, CPU)()
        ours = [call for call in calls if call[0].identity == case.patch]
        assert ours
        for patch, (given, named), left in ours:
            assert error(left, in_float64(patch, given, named)) <= STEP[dtype]
        if case.patch not in (*CHOSEN, "quantized-resize") and not (dtype in HALVES and case.patch in OTHER_PLACES):
            assert all(close(one, two) for one, two in zip(stock, result, strict=True)), dtype


FLAGS: dict[str, Callable[[], Any]] = {
    f"{mode} {align} {size} {again}": lambda mode=mode, align=align, size=size, shape=shape, again=again: grads(
        lambda given: F.interpolate(given, mode=mode, align_corners=align, recompute_scale_factor=again, **size), *shape
    )
    for mode, shape in {
        "linear": (2, 3, 7), "bilinear": (2, 3, 7, 5), "bicubic": (2, 3, 7, 5), "trilinear": (1, 2, 7, 5, 4)
    }.items()
    for align in (False, True)
    for size, again in (({"scale_factor": 2.3}, None), ({"scale_factor": 0.6}, True), ({"scale_factor": 1.0}, None),
                        ({"size": [9, 1, 6][: len(shape) - 2]}, None))
}  # fmt: skip
FLAGS |= {
    f"antialias {mode} {size} {align}": lambda mode=mode, size=size, align=align: grads(
        lambda given: F.interpolate(given, size=size, mode=mode, antialias=True, align_corners=align), 2, 3, 9, 7
    )
    for mode, aligns in {"bilinear": (False, True), "bicubic": (False, True), "lanczos": (None,)}.items()
    for size in ((4, 11), (9, 7), (1, 2))
    for align in aligns
}
FLAGS |= {
    f"pool3d {ceil} {pad} {divisor}": lambda ceil=ceil, pad=pad, divisor=divisor: (
        *grads(lambda x: F.avg_pool3d(x, (3, 2, 3), (2, 3, 1), (1, 1, 0), ceil, pad, divisor), 2, 3, 8, 7, 6),
        *grads(lambda x: F.max_pool3d(x, (3, 2, 3), (2, 3, 1), (1, 1, 0), (1, 2, 1), ceil), 2, 8, 7, 6),
    )
    for ceil in (False, True)
    for pad in (False, True)
    for divisor in (None, 7)
}
FLAGS |= {
    f"{mode} {pad} {shape}": lambda mode=mode, pad=pad, shape=shape: grads(lambda given: F.pad(given, pad, mode=mode), *shape)
    for mode in ("reflect", "replicate")
    for pad, shape in (
        ((2, 1), (3, 5)), ((-1, 3), (2, 3, 5)), ((1, 2, 3, 0), (3, 5, 4)), ((1, -2, -3, 2), (2, 3, 5, 4)),
        ((1, 2, 0, 1, 3, 2), (2, 3, 5, 4, 3)), ((-1, 2, 0, -1, 3, 2), (2, 5, 4, 4)),
    )
}  # fmt: skip


def grid(axes: int, mode: str, padding: str, align: bool) -> Any:
    torch.manual_seed(4)
    given = torch.randn(2, 3, *range(4, 4 + axes), dtype=torch.float64, requires_grad=True)
    points = torch.randn(2, *range(5, 5 + axes), axes, dtype=torch.float64) * 1.5
    points[0, 0] = 0.2
    points[1, 0] *= 1e6
    points.requires_grad_()
    result = F.grid_sample(given, points, mode=mode, padding_mode=padding, align_corners=align)
    return torch.autograd.grad(result, (given, points), torch.randn_like(result))


FLAGS |= {
    f"grid {axes} {mode} {padding} {align}": lambda axes=axes, mode=mode, padding=padding, align=align: grid(
        axes, mode, padding, align
    )
    for axes in (2, 3)
    for mode in ("bilinear", "nearest", *(["bicubic"] if axes == 2 else []))
    for padding in ("zeros", "border", "reflection")
    for align in (False, True)
}


def nll(reduction: str, weighted: bool, ignored: int) -> Any:
    torch.manual_seed(5)
    target = torch.randint(0, 5, (3, 4, 6))
    target[0, 0] = ignored
    weight = torch.rand(5, dtype=torch.float64) if weighted else None
    return grads(lambda x: F.nll_loss(x, target, weight, ignore_index=ignored, reduction=reduction), 3, 5, 4, 6)


FLAGS |= {
    f"nll {reduction} {weighted} {ignored}": lambda reduction=reduction, weighted=weighted, ignored=ignored: nll(
        reduction, weighted, ignored
    )
    for reduction in ("none", "mean", "sum")
    for weighted in (False, True)
    for ignored in (-100, 2)
}


def ctc(targets: list[int], inputs: list[int], flat: bool, zero_infinity: bool, blank: int) -> Any:
    torch.manual_seed(6)
    labels = torch.randint(0, 5, (3, 4))
    labels = torch.where(labels >= blank, labels + 1, labels)
    if flat:
        labels = torch.cat([row[:length] for row, length in zip(labels, targets, strict=True)]).int()

    def loss(given: torch.Tensor) -> torch.Tensor:
        lengths = (torch.tensor(inputs), torch.tensor(targets)) if flat else (inputs, targets)
        return F.ctc_loss(given.log_softmax(2), labels, *lengths, blank, "none", zero_infinity)

    return [one.nan_to_num(7) for one in grads(loss, 12, 3, 6)]


FLAGS |= {
    f"ctc {targets} {inputs} {flat} {zero} {blank}": lambda targets=targets, inputs=inputs, flat=flat, zero=zero, blank=blank: (
        ctc(targets, inputs, flat, zero, blank)
    )
    for targets, inputs in (([4, 2, 3], [12, 10, 9]), ([4, 0, 3], [12, 12, 2]), ([0, 0, 0], [12, 3, 1]))
    for flat in (False, True)
    for zero in (False, True)
    for blank in (0, 3)
}
FLAGS |= {
    f"channels last {name}": lambda pool=pool, shape=shape: grads(
        pool, *shape, memory_format=torch.channels_last if len(shape) == 4 else torch.channels_last_3d
    )
    for name, pool, shape in (
        ("adaptive_avg", lambda x: F.adaptive_avg_pool2d(x, (3, 4)), (2, 3, 7, 8)),
        ("adaptive_max", lambda x: F.adaptive_max_pool2d(x, (3, 4)), (2, 3, 7, 8)),
        ("adaptive_avg 3", lambda x: F.adaptive_avg_pool3d(x, (3, 4, 2)), (2, 3, 7, 8, 5)),
        ("avg 3", lambda x: F.avg_pool3d(x, 2), (2, 3, 7, 8, 5)),
        ("max 3", lambda x: F.max_pool3d(x, 3, 2), (2, 3, 7, 8, 5)),
        ("bilinear", lambda x: F.interpolate(x, (9, 3), mode="bilinear"), (2, 3, 7, 8)),
        ("bicubic", lambda x: F.interpolate(x, (9, 3), mode="bicubic"), (2, 3, 7, 8)),
        ("trilinear", lambda x: F.interpolate(x, (9, 3, 4), mode="trilinear"), (2, 3, 7, 8, 5)),
        ("reflect", lambda x: F.pad(x, (1, 2, 3, 0), mode="reflect"), (2, 3, 7, 8)),
        ("replicate", lambda x: F.pad(x, (1, 2, 3, 0), mode="replicate"), (2, 3, 7, 8)),
    )
}


@pytest.mark.parametrize("name", FLAGS)
def test_every_mode_and_flag_gives_the_stock_result(name: str) -> None:
    stock = FLAGS[name]()
    with patched_cpu() as ran:
        result = FLAGS[name]()
    assert ran
    assert all(close(one, two) for one, two in zip(stock, result, strict=True))


def test_every_patch_has_a_case() -> None:
    assert {case.patch for case in CASES} | {"scatter-with-reduce", "interpolate-lanczos"} == {
        one.identity for one in ON_CPU
    }
