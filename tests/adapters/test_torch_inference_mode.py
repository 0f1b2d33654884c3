"""In inference mode, composite ops reach a mode undecomposed; recording does not change their results."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import determinism

SEED = torch.Generator().manual_seed(0)
WEIGHT = torch.nn.Parameter(torch.randn(600, 200, generator=SEED))
BIAS = torch.nn.Parameter(torch.randn(600, generator=SEED))
ROWS = torch.randn(4, 35, 200, generator=SEED).transpose(0, 1)
ATTENTION = torch.nn.MultiheadAttention(200, 4).requires_grad_(True)

CALLS: dict[str, Callable[[], Tensor]] = {
    "linear": lambda: functional.linear(ROWS, WEIGHT, BIAS),
    "linear of a reshaped weight": lambda: functional.linear(ROWS, WEIGHT.reshape(200, 600).reshape(600, 200)),
    "matmul": lambda: torch.matmul(ROWS, WEIGHT.t()),
    "einsum": lambda: torch.einsum("abc,dc->abd", ROWS, WEIGHT),
    "attention": lambda: ATTENTION(ROWS, ROWS, ROWS)[0],
}


@pytest.mark.parametrize("mode", [torch.inference_mode, torch.no_grad, torch.enable_grad])
@pytest.mark.parametrize("name", CALLS)
def test_recording_does_not_change_the_bits(tmp_path: Path, name: str, mode: Callable[[], torch.no_grad]) -> None:
    with mode():
        plain = CALLS[name]()
        with determinism.record(tmp_path / "trace"):
            recorded = CALLS[name]()
    assert plain.detach().numpy().tobytes() == recorded.detach().numpy().tobytes()
    assert recorded.requires_grad == plain.requires_grad
    assert recorded.is_inference() == plain.is_inference()


def test_two_recordings_of_a_call_are_the_same(tmp_path: Path) -> None:
    with torch.inference_mode(), determinism.record(tmp_path / "first"):
        CALLS["linear"]()
    with torch.inference_mode(), determinism.record(tmp_path / "second"):
        CALLS["linear"]()
    comparison = determinism.compare(tmp_path / "first", tmp_path / "second")
    assert comparison.verdict == "same" and comparison.recorded.records > 0
