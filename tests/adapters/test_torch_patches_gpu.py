"""Ops that `determinism.patch` replaces on a GPU run in deterministic mode, repeat bit for bit, and agree with the CPU."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

import pytest
import torch

import determinism
from benchmarks.patched_ops import CASES, HALVES, OpCase
from determinism.frameworks.torch.patches.catalogue import PATCHES
from determinism.frameworks.torch.patches.patch import Patch, bindable
from tests.torch_patched import ROUNDING

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore")]
REPEATS = 200
ON_GPU = [patch for patch in PATCHES if patch.gpu_key == "CUDA"]
OTHER_KERNELS = (
    "max-unpool2d",
    "max-unpool3d",
    "kthvalue",
    "median",
    "nanmedian",
    "fractional-max-pool2d",
    "fractional-max-pool3d",
)
"""Cases in which the stock kernels of the devices may choose different positions, or draw different random numbers."""


@pytest.fixture
def patched() -> Iterator[determinism.Patches]:
    torch.use_deterministic_algorithms(True)
    with determinism.patch() as patches:
        yield patches
    torch.use_deterministic_algorithms(False)


def digest(results: tuple[torch.Tensor, ...]) -> bytes:
    found = hashlib.sha256()
    for result in results:
        found.update(result.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return found.digest()


@pytest.mark.parametrize("patch", ON_GPU, ids=lambda patch: patch.identity)
def test_every_op_that_the_build_has_runs_in_deterministic_mode(patch: Patch, patched: determinism.Patches) -> None:
    if bindable(patch, patch.gpu_key):
        assert patch.what in patched.replaced["torch"]
        patch.run_example(torch.device("cuda"))
        torch.cuda.synchronize()


@pytest.mark.usefixtures("patched")
@pytest.mark.parametrize("case", [one for one in CASES if one.patch != "quantized-resize"], ids=lambda case: case.title)
def test_two_hundred_repeats_on_a_gpu_have_the_same_bits(case: OpCase) -> None:
    for dtype in case.dtypes:
        call = case.call(case.small, dtype, torch.device("cuda"))
        assert len({digest(call()) for _ in range(REPEATS)}) == 1


@pytest.mark.usefixtures("patched")
@pytest.mark.parametrize(
    "case", [one for one in CASES if one.patch not in (*OTHER_KERNELS, "quantized-resize")], ids=lambda case: case.title
)
def test_results_on_a_gpu_agree_with_those_on_the_cpu(case: OpCase) -> None:
    for dtype in [one for one in case.dtypes if one not in HALVES]:
        on_gpu = case.call(case.small, dtype, torch.device("cuda"))()
        on_cpu = case.call(case.small, dtype, torch.device("cpu"))()
        for one, two in zip(on_gpu, on_cpu, strict=True):
            assert one.shape == two.shape and one.dtype == two.dtype
            largest = float(two.abs().max()) if two.numel() else 0.0
            assert float((one.cpu() - two).abs().max()) <= 5 * ROUNDING[dtype] * max(largest, 1e-30)


def test_for_unsupported_arguments_the_stock_kernel_alerts(patched: determinism.Patches) -> None:
    with pytest.raises(RuntimeError, match="does not have a deterministic implementation"):
        torch.zeros(3, device="cuda").put_(torch.tensor([0, 1], device="cuda"), torch.ones(3, device="cuda"))


def test_patches_can_be_captured_in_a_graph_after_a_first_run(patched: determinism.Patches) -> None:
    given = torch.randn(2, 3, 8, 8, device="cuda", requires_grad=True)
    target, index = torch.zeros(9, device="cuda"), torch.randint(0, 9, (300,), device="cuda")

    def work() -> torch.Tensor:
        result = torch.nn.functional.interpolate(given, scale_factor=2.0, mode="bicubic")
        (gradient,) = torch.autograd.grad(result.sum(), given)
        return gradient.sum() + target.index_add(0, index, torch.ones(300, device="cuda")).square().sum()

    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        expected = work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = work()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(captured, expected)
