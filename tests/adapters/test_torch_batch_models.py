"""For models of many kinds, the verdict on their rows agrees with a direct comparison of their results."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

import determinism
from determinism.comparison.result import BatchKind
from determinism.types import Verdict

ROWS, LENGTH, WIDTH = 8, 6, 16
SIZES = (1, 8)


class Attention(nn.Module):
    """Attention whose batch is the first or the second dimension."""

    def __init__(self, batch_first: bool) -> None:
        super().__init__()
        self.inner = nn.MultiheadAttention(WIDTH, 2, batch_first=batch_first)
        self.batch_first = batch_first

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        values = values if self.batch_first else values.transpose(0, 1)
        made = self.inner(values, values, values)[0]
        return made if self.batch_first else made.transpose(0, 1)


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.inner = kind(WIDTH, 8, batch_first=True)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return self.inner(values)[0]


class Experts(nn.Module):
    """Routes each word to one expert, together with words of other samples."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Linear(WIDTH, 3)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        words = values.reshape(-1, WIDTH)
        chosen = words[:, :3].argmax(-1)
        made = torch.zeros_like(words)
        for expert in range(3):
            which = (chosen == expert).nonzero().squeeze(1)
            made[which] = torch.tanh(words[which]) * (expert + 1)
        return made.view(values.shape)


class Guided(nn.Module):
    """Computes two batches as one, as a diffusion model does under guidance."""

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        conditioned, other = torch.tanh(torch.cat([values, torch.zeros_like(values)])).chunk(2)
        return other + 3 * (conditioned - other)


class Named(nn.Module):
    """Returns a dictionary of nested results."""

    def forward(self, values: torch.Tensor) -> dict[str, Any]:
        return {"scores": values.softmax(-1), "hidden": [values.transpose(1, 2).exp(), values * 2]}


class InPlace(nn.Module):
    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return values.clone().add_(1).relu_().mul_(2)


IMAGES, TEXTS = torch.Size((ROWS, 3, 8, 8)), torch.Size((ROWS, LENGTH, WIDTH))
MODELS: dict[str, tuple[Any, torch.Size]] = {
    "convolution": (lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.AdaptiveAvgPool2d(2)), IMAGES),
    "transposed convolution": (lambda: nn.ConvTranspose2d(3, 4, 3, stride=2), IMAGES),
    "norms": (lambda: nn.Sequential(nn.InstanceNorm2d(3), nn.GroupNorm(3, 3), nn.MaxPool2d(2)), IMAGES),
    "attention": (lambda: Attention(True), TEXTS),
    "attention, batch second": (lambda: Attention(False), TEXTS),
    "LSTM": (lambda: Recurrent(nn.LSTM), TEXTS),
    "GRU": (lambda: Recurrent(nn.GRU), TEXTS),
    "encoder": (lambda: nn.TransformerEncoderLayer(WIDTH, 2, 32, batch_first=True), TEXTS),
    "experts": (Experts, TEXTS),
    "guided": (Guided, TEXTS),
    "named": (Named, TEXTS),
    "in place": (InPlace, TEXTS),
    "softmax over the rows": (lambda: nn.Softmax(0), TEXTS),
}

TIMES_FIRST = ("attention, batch second", "LSTM", "GRU")
"""Their ops process a batch one time step after the other; if a processor's kernels vary, the op may not be named."""


def parts(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    else:
        for item in value.values() if isinstance(value, dict) else value:
            yield from parts(item)


def depends_on_the_batch(model: nn.Module, batch: torch.Tensor) -> bool:
    with torch.no_grad():
        whole = list(parts(model(batch)))
        return any(
            not torch.equal(one, all_of_them[row : row + 1])
            for row in range(ROWS)
            for one, all_of_them in zip(parts(model(batch[row : row + 1])), whole, strict=True)
        )


@pytest.mark.parametrize("name", MODELS)
def test_the_verdict_agrees_with_a_direct_comparison_of_results(name: str) -> None:
    make, shape = MODELS[name]
    torch.manual_seed(5)
    model, batch = make().eval(), torch.randn(shape)
    expected = depends_on_the_batch(model, batch)
    with torch.no_grad():
        comparison = determinism.check_batch_invariance(model, batch, sizes=SIZES)
    found = comparison.batch

    assert found is not None and found.rows_matched == ROWS
    assert found.results_differ is expected
    assert not comparison.recorded.blind_spots
    if expected:
        assert comparison.verdict is Verdict.DIFFERENT and comparison.first_divergence is not None
        is_told = not comparison.first_divergence.op.startswith("module::")
        assert found.difference is not None and (found.difference.kind is not None) is is_told
        assert is_told or name in TIMES_FIRST
    else:
        assert comparison.verdict is Verdict.SAME or comparison.absorbed


def test_a_softmax_over_the_rows_mixes_them() -> None:
    batch = torch.randn(ROWS, 3)
    over_rows, over_elements = (
        determinism.check_batch_invariance(nn.Softmax(dimension).eval(), batch, sizes=SIZES) for dimension in (0, -1)
    )

    assert over_elements.verdict is Verdict.SAME
    assert over_rows.batch is not None and over_rows.batch.difference is not None
    assert over_rows.batch.difference.kind is BatchKind.MIXING


class Quantized(nn.Module):
    """Rounds to steps whose size is computed from the largest element of the batch or of each row."""

    def __init__(self, dimension: int | None) -> None:
        super().__init__()
        self.dimension = dimension

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        largest = rows.abs().max() if self.dimension is None else rows.abs().amax(self.dimension, keepdim=True)
        scale = largest / 127 + 1e-6
        return (rows / scale).round() * scale


def test_a_scale_computed_from_the_whole_batch_mixes_rows() -> None:
    """The rows do not read the reduction over the batch itself, but a value computed from it."""
    batch = torch.randn(ROWS, 3)
    of_batch, of_row = (
        determinism.check_batch_invariance(Quantized(dimension).eval(), batch, sizes=SIZES) for dimension in (None, 1)
    )

    assert of_row.verdict is Verdict.SAME
    assert of_batch.batch is not None and of_batch.batch.difference is not None
    assert of_batch.batch.difference.kind is BatchKind.MIXING
    assert of_batch.first_divergence is not None and of_batch.first_divergence.op.startswith("aten::max")
