"""Deterministic programs compare as the same even if they move uninitialized memory, as long as they do not read it."""

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
def test_a_deterministic_program_is_the_same(function: Callable[[], Any], tmp_path: Path) -> None:
    comparison = check_deterministic(function, tmp_path)
    assert comparison.verdict is Verdict.SAME, comparison.first_divergence
    assert comparison.recorded.records > 0


def values(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    torch.manual_seed(0)
    return torch.randn(*shape).to(dtype)


def padded(fill: Callable[[Tensor, Tensor], Any]) -> tuple[Tensor, list[int]]:
    """Sequences of different lengths in a buffer whose rest is uninitialized."""
    lengths = [3, 5, 1]
    buffer = torch.empty(3, 6)
    for row, length in enumerate(lengths):
        fill(buffer[row, :length], values(length) + row)
    return buffer, lengths


@program
def padding_that_nobody_reads() -> Any:
    buffer, lengths = padded(lambda part, new: part.copy_(new))
    return [buffer[row, :length].exp() for row, length in enumerate(lengths)]


@program
def padding_after_clone() -> Any:
    buffer, lengths = padded(lambda part, new: part.fill_(2).mul_(new))
    copy = buffer.clone()
    return [copy[row, :length].exp() for row, length in enumerate(lengths)]


@program
def padding_after_contiguous() -> Any:
    buffer, lengths = padded(lambda part, new: part.copy_(new))
    turned = buffer.t().contiguous()
    return [turned[:length, row].sum() for row, length in enumerate(lengths)]


@program
def padding_after_conversion() -> Any:
    buffer, lengths = padded(lambda part, new: part.copy_(new))
    wide, other = buffer.to(torch.float64), buffer.float().double().clone().to(torch.float32)
    return [(wide[row, :length].sum(), other[row, :length].cos()) for row, length in enumerate(lengths)]


@program
def padding_after_cat() -> Any:
    buffer, lengths = padded(lambda part, new: part.copy_(new))
    both, high = torch.cat([buffer, buffer]), torch.stack([buffer, buffer], 2)
    return [(both[row + 3, :length].sum(), high[row, :length, 1].exp()) for row, length in enumerate(lengths)]


@program
def padding_copied_into_another_buffer() -> Any:
    buffer, lengths = padded(lambda part, new: part.copy_(new))
    other = torch.empty(2, 3, 6)
    other[0] = buffer
    other[1].copy_(buffer)
    return [other[1, row, :length].exp() for row, length in enumerate(lengths)]


@program
def padding_that_is_masked_away() -> Any:
    buffer, lengths = padded(lambda part, new: part.copy_(new))
    buffer[torch.arange(6) >= torch.tensor(lengths)[:, None]] = 0
    return buffer.exp().sum()


@program
def padding_masked_away_in_a_copy() -> Any:
    buffer, lengths = padded(lambda part, new: part.copy_(new))
    copy = buffer.clone().masked_fill_(torch.arange(6) >= torch.tensor(lengths)[:, None], 0)
    return copy.exp().sum()


@program
def buffer_filled_further_at_each_step() -> Any:
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(4, 4))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    cache, losses = torch.empty(8, 4), []
    for step in range(4):
        cache[step] = weight.detach()[0]
        loss = (cache[: step + 1] @ weight).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss)
    return losses


@program
def circular_padding() -> Any:
    x = values(1, 1, 4, 4)
    return [nn.functional.pad(x, (1, 2, 2, 1), mode=mode) for mode in ("circular", "reflect", "replicate", "constant")]


@program
def empty_then_resized() -> Any:
    x = torch.empty(2).resize_(3, 4)
    x.fill_(2)
    y = values(4).resize_(2)
    z = torch.empty(0).resize_(4)
    z.copy_(values(4))
    w = values(3).resize_(6)
    w[3:] = 1
    return x.sum(), y.sum(), z.sum(), w.sum()


@program
def empty_variants() -> Any:
    like, strided = torch.empty_like(values(3, 3)), torch.empty_strided((2, 3), (1, 2))
    permuted, new = torch.empty_permuted((2, 3), (1, 0)), values(2).new_empty(3, 3)
    for x in (like, strided, permuted, new):
        x.copy_(torch.arange(x.numel(), dtype=torch.float32).view(x.shape))
    return like.sum(), strided * 2, permuted.exp(), new + 1


@program
def gaps_between_the_elements() -> Any:
    """A view with gaps reads only its own elements; the gaps are uninitialized."""
    x = torch.empty_strided((3, 2), (4, 1))
    x.fill_(3)
    return x * 2, x.clone(), x.sum()


@program
def empty_tensors_read_nothing() -> Any:
    return torch.empty(0, 3).sum(), torch.cat([torch.empty(0), values(3)]), torch.empty(3)[:0].exp()


@program
def only_the_shape_of_unwritten_memory() -> Any:
    x = torch.empty(3, 4)
    return torch.zeros_like(x), x.new_ones(2), torch.full_like(x, 3), x.new_zeros(x.shape[0]), torch.ones_like(x)


@program
def scratch_that_is_overwritten() -> Any:
    scratch = torch.empty(16)
    total = torch.zeros(())
    for round_ in range(5):
        torch.mul(values(16), round_, out=scratch)
        total += scratch.sum()
        scratch.normal_()
    return total
