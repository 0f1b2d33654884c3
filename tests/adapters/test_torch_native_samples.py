"""The native recorder makes the same records as the Python recorder for PyTorch's own samples, and odd arguments of ops do not break it."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from determinism.audit.torch import database
from determinism.trace.opening import open_trace
from tests.adapters.test_torch_samples import VARYING
from tests.torch_recorders import differences, record_lines, record_with
from tools.formula_cases import Case, cases_of, differing, observe

FORMULAS = {
    "__getitem__", "atan2", "clamp", "combinations", "cummax", "cummin", "cumprod", "gather", "index_select", "kthvalue",
    "linalg_eig", "linalg_eigh", "linalg_eigvals", "linalg_eigvalsh", "linalg_householder_product", "linalg_lstsq",
    "linalg_matrix_rank", "linalg_matrix_rank_hermitian", "linalg_pinv", "linalg_vander", "masked_cumprod", "masked_fill",
    "masked_median", "masked_prod", "masked_select", "matrix_exp", "max_reduction_no_dim", "max_reduction_with_dim", "median",
    "min_reduction_no_dim", "min_reduction_with_dim", "mode", "msort", "nanmedian", "nanquantile",
    "nn_functional_bilinear", "nn_functional_binary_cross_entropy", "nn_functional_binary_cross_entropy_with_logits",
    "nn_functional_ctc_loss", "nn_functional_scaled_dot_product_attention", "ormqr", "pinverse", "polar", "prod", "quantile",
    "sort", "take", "take_along_dim", "topk", "trace",
}  # fmt: skip
"""Ops whose formulas change under a mode: only the native recorder sees what runs."""
CONJUGATED = {"fft_hfft", "fft_hfft2", "fft_hfftn", "fft_ifft", "fft_ihfft", "fft_ihfft2", "fft_ihfftn"}
"""A mode sees the copy that a conjugated view is resolved to."""
CUSTOM = {"nn_functional_linear_cross_entropy_chunked", "nn_functional_linear_cross_entropy_chunked_none"}
"""The leaf that ends the phase `init` is read by a custom op, which runs without gradients below a mode."""
SLICES = 24
ALWAYS = 9
"""The slice that `make test` runs, at every commit."""


pytestmark = pytest.mark.native_recorder


@pytest.fixture
def every_warning() -> Any:
    """Repeat warnings: those shown once per process would appear only in the first of two runs."""
    torch.set_warn_always(True)
    yield
    torch.set_warn_always(False)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "part",
    [pytest.param(part, marks=() if part == ALWAYS else pytest.mark.thorough("samples")) for part in range(SLICES)],
)
def test_both_recorders_make_the_same_records_of_the_samples(part: int, tmp_path: Path, every_warning: Any) -> None:
    infos = [info for info in database() if info.formatted_name not in VARYING][part::SLICES]
    compared = 0
    for info in infos:
        cases = list(cases_of(info, torch.float32, 2, ("backward",)))
        if not cases:
            continue
        compared += 1
        folders = {recorder: tmp_path / info.formatted_name / recorder for recorder in ("python", "native")}
        outcomes = {recorder: record_cases(recorder, cases, folder) for recorder, folder in folders.items()}
        assert [differing(*both) for both in zip(outcomes["python"], outcomes["native"], strict=True)] == [[]] * len(
            cases
        ), info
        if info.formatted_name not in FORMULAS | CONJUGATED | CUSTOM:
            assert differences(*(lines(folder) for folder in folders.values())) == [], info.formatted_name
    assert compared > 15


def record_cases(recorder: str, cases: Sequence[Case], folder: Path) -> list[Any]:
    outcomes: list[Any] = []

    def program() -> None:
        outcomes.extend(observe(case, nullcontext()) for case in cases)

    record_with(recorder, program, folder)
    spots = [spot for process in open_trace(folder).processes for spot in process.description["blind_spots"]]
    assert [spot for spot in spots if spot["id"] == "handler-failed"] == []
    return outcomes


def lines(folder: Path) -> list[str]:
    """Records without their numbers; the engine accumulates gradients in place if no mode is active."""
    numbered = record_lines(folder)
    assert numbered
    named = [re.sub(r"^(\d+ OP add)_(\.Tensor\(\) .* BACKWARD )", r"\1\2", line) for line in numbered]
    return [line.partition(" OP ")[2] or line for line in named]


@pytest.mark.thorough("samples")
def test_odd_arguments_of_ops_break_nothing() -> None:
    """Run in a separate process, which must end normally: a crash would end these tests too."""
    program = Path(__file__).parents[1] / "torch_odd_arguments.py"
    done = subprocess.run([sys.executable, str(program)], capture_output=True, text=True, timeout=600, check=False)

    assert done.returncode == 0, done.stderr[-2000:]
    tried, raised, failed = map(int, done.stdout.split()[-3:])
    assert tried >= 600 and 0 < raised < tried and failed == 0
