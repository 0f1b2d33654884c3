"""Replaced ops have one result in 200 repeats with all threads; stock ops that vary on the CPU no longer do when replaced."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable

import pytest
import torch

import determinism
from benchmarks.patched_ops import CASES, OpCase
from tests.thorough import in_turns
from tests.torch_patched import patched_cpu

pytestmark = pytest.mark.filterwarnings("ignore")
NEEDS_THREADS = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one processor adds up in one order")
REPEATS = 200


def distinct(call: Callable[[], tuple[torch.Tensor, ...]], repeats: int = REPEATS) -> int:
    digests = set()
    for _ in range(repeats):
        digest = hashlib.sha256()
        for result in call():
            digest.update(result.detach().reshape(-1).view(torch.uint8).numpy().tobytes())
        digests.add(digest.digest())
    return len(digests)


@pytest.mark.parametrize("case", in_turns(CASES, 6, "samples", lambda case: case.title))
def test_two_hundred_repeats_of_a_replaced_op_have_the_same_bits(case: OpCase) -> None:
    with patched_cpu() as ran:
        call = case.call(case.small, torch.float32, torch.device("cpu"))
        assert distinct(call) == 1
        assert ran[case.patch] >= REPEATS


def crowded(count: int = 1 << 21) -> Callable[[], tuple[torch.Tensor, ...]]:
    torch.manual_seed(1)
    index, values = torch.randint(0, 40, (count,)), torch.randn(count)
    return lambda: (torch.zeros(40).index_put_((index,), values, accumulate=True),)


def crowded_put(count: int = 1 << 21) -> Callable[[], tuple[torch.Tensor, ...]]:
    torch.manual_seed(1)
    index, values = torch.randint(0, 40, (count,)), torch.randn(count)
    return lambda: (torch.zeros(40).put_(index, values, accumulate=True),)


@NEEDS_THREADS
@pytest.mark.parametrize("make", [crowded, crowded_put])
def test_stock_ops_that_vary_on_the_cpu_do_not_vary_when_patched(
    make: Callable[..., Callable[[], tuple[torch.Tensor, ...]]],
) -> None:
    call = make()
    # On a quiet machine threads often add in the same order: in one of several hundred runs of these tests, ten tries were not enough.
    assert any(distinct(call, 5) > 1 for _ in range(200))
    with determinism.patch():
        assert distinct(call, 20) == 1


def test_the_last_value_put_into_a_place_wins() -> None:
    index = torch.tensor([2, 0, -1, 2])
    with determinism.patch():
        assert torch.zeros(3).put_(index, torch.tensor([1.0, 2.0, 3.0, 4.0])).tolist() == [2, 0, 4]
