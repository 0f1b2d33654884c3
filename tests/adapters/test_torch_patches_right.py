"""What replaces PyTorch's ops gives what the stock ops give: values, gradients, second gradients, layouts, errors, on PyTorch's own samples too.

The code for GPUs is bound to the CPU's kernels, with the stock kernels for the CPU to compare with.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils._pytree import tree_leaves, tree_map

from benchmarks.patched_ops import CASES, HALVES, OpCase
from determinism.frameworks.torch.formula_audit.cases import database
from tests.torch_patched import ON_CPU, captured, close, error, in_float64, patched_cpu

pytestmark = pytest.mark.filterwarnings("ignore")
CPU = torch.device("cpu")
STEP = {torch.float64: 1e-13, torch.float32: 2e-5, torch.float16: 2e-3, torch.bfloat16: 2e-2}
NO_HALVES = ("avg-pool3d", "interpolate-bilinear-antialias", "interpolate-bicubic-antialias")
"""Ops whose stock kernels for the CPU do not take 16 bits, in forward direction either."""
CHOSEN = ("kthvalue",)
"""Of equal elements the stock kernel takes another one."""
OTHER_PLACES = ("grid-sample2d", "grid-sample3d")
"""Stock computes places of the grid in 16 bits, and then other cells are read."""
SAMPLES = re.compile(
    "adaptive_|avg_pool3d|fractional|max_pool3d|max_unpool.d$|interpolate_(linear|bi|tri|area)|upsample_bilinear|pad_re|^grid_sampler"
    "|grid_sample$|nll_loss$|cross_entropy$|ctc|embedding_bag|^put|^take|index_(add|select|reduce|put)|^scatter|^histc|bincount|median"
    "|kthvalue|^cumsum|^gather|__getitem__"
)
INFOS = [info for info in database() if SAMPLES.search(info.formatted_name) and "gaussian" not in info.formatted_name]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """So that what stock leaves open, it decides in one way."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.title)
def test_values_are_those_of_stock_in_all_dtypes_and_as_near_to_float64(case: OpCase) -> None:
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


def grads(function: Callable[[torch.Tensor], Any], *shape: int, memory_format: Any = torch.contiguous_format) -> Any:
    torch.manual_seed(3)
    given = torch.randn(shape, dtype=torch.float64).contiguous(memory_format=memory_format).requires_grad_()
    result = function(given)
    gradient = torch.randn(result.shape, dtype=torch.float64).contiguous(memory_format=memory_format)
    return torch.autograd.grad(result, given, gradient)


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
    f"nll {reduction} {weighted} {ignored}": lambda reduction=reduction, weighted=weighted, ignored=ignored: (
        nll(reduction, weighted, ignored)
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
def test_each_mode_and_flag_gives_what_stock_gives(name: str) -> None:
    stock = FLAGS[name]()
    with patched_cpu() as ran:
        result = FLAGS[name]()
    assert ran
    assert all(close(one, two) for one, two in zip(stock, result, strict=True))


def outcome(info: Any, sample: Any, has_gradient: bool) -> list[Any]:
    """Results, gradients and second gradients; or the error, in words."""
    try:
        return _outcome(info, sample, has_gradient)
    except Exception as error:
        return [f"{type(error).__name__}: {error}"]


def _outcome(info: Any, sample: Any, has_gradient: bool) -> list[Any]:
    def fresh(value: Any) -> Any:
        plain = isinstance(value, torch.Tensor) and value.layout == torch.strided
        return value.detach().clone().requires_grad_(value.requires_grad) if plain else value

    given, args, named = tree_map(fresh, (sample.input, sample.args, sample.kwargs))
    torch.manual_seed(5)
    results = [one for one in tree_leaves(info.op(given, *args, **named)) if isinstance(one, torch.Tensor)]
    leaves = [one for one in tree_leaves((given, args, named)) if isinstance(one, torch.Tensor) and one.requires_grad]
    followed = [one for one in results if one.requires_grad]
    if not (has_gradient and leaves and followed):
        return results
    directions = [torch.randn(one.shape, dtype=torch.float64).to(one.dtype).requires_grad_() for one in followed]
    first = _given(torch.autograd.grad(followed, leaves, directions, create_graph=True, allow_unused=True))
    again = [one for one in first if one.requires_grad]
    second = []
    if again and info.supports_gradgrad:
        ones = [torch.ones_like(one) for one in again]
        second = _given(torch.autograd.grad(again, [*leaves, *directions], ones, allow_unused=True))
    return [*results, *first, *second]


def _given(gradients: Any) -> list[torch.Tensor]:
    return [one for one in gradients if one is not None]


@pytest.mark.parametrize("info", INFOS, ids=lambda info: info.formatted_name)
def test_pytorchs_own_samples_end_as_in_stock(info: Any) -> None:
    for dtype in (torch.float64, torch.float32, torch.complex64):
        if dtype not in info.dtypes:
            continue
        torch.manual_seed(1)
        random.seed(1)
        np.random.seed(1)
        has_gradient = info.supports_autograd and dtype in info.supported_backward_dtypes("cpu")
        most = 10 if dtype == torch.float64 else 3
        for sample in islice(info.sample_inputs("cpu", dtype, requires_grad=has_gradient), most):
            stock = outcome(info, sample, has_gradient)
            with patched_cpu():
                result = outcome(info, sample, has_gradient)
            assert len(stock) == len(result)
            assert all(close(one, two) for one, two in zip(stock, result, strict=True)), (dtype, sample)


@pytest.mark.parametrize("info", [one for one in INFOS if one.error_inputs_func], ids=lambda info: info.formatted_name)
def test_wrong_input_ends_in_the_error_of_stock(info: Any) -> None:
    def message(sample: Any) -> str:
        try:
            info.op(sample.input, *sample.args, **sample.kwargs)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
        return "no error"

    samples = [one.sample_input for one in info.error_inputs("cpu")]
    stock = [message(one) for one in samples]
    with patched_cpu():
        assert [message(one) for one in samples] == stock


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
def test_gradients_and_second_gradients_are_those_of_the_function(name: str) -> None:
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
def test_nan_and_infinities_go_where_they_go_in_stock(name: str, special: float) -> None:
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
            *given.median(1), *given.nanmedian(1), *given.kthvalue(4, 1), given.cumsum(1), torch.histc(given[2], 4, -3, 3),
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
def test_an_empty_batch_gives_what_stock_gives(name: str) -> None:
    stock = EMPTY[name]()
    with patched_cpu() as ran:
        result = EMPTY[name]()
    assert ran
    assert all(close(one, two) for one, two in zip(stock, result, strict=True))


def test_every_patch_is_tried_by_some_case() -> None:
    assert {case.patch for case in CASES} | {"scatter-with-reduce", "interpolate-lanczos"} == {one.identity for one in ON_CPU}
