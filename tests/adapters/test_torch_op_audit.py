"""The audit of PyTorch's ops counts several results of an op that varies, and one of an op that does not."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch

from determinism.audit.harness import Case
from determinism.audit.torch import AUDITOR, Call, Inputs
from determinism.knowledge.entries import Measurement, index


def measured(make: Callable[[Inputs], Call], runs: int = 6, **given: Any) -> dict[str, Measurement]:
    case = Case("an op", "a case", make, ("float32",))
    options = {"device": "cpu", "seed": 0, "runs": runs, "seconds": 60.0, "deterministic_mode": False, **given}
    return {one.direction: one for one in AUDITOR.measure(case, **options)}


def test_equal_results_are_counted_once() -> None:
    found = measured(lambda inputs: (lambda x: lambda: x.exp())(inputs.leaf(8)))

    assert {name: (one.runs, one.distinct) for name, one in found.items()} == {"forward": (6, 1), "backward": (6, 1)}


def test_every_different_result_is_counted() -> None:
    def make(inputs: Inputs) -> Call:
        values, calls = inputs.normal(8), itertools.count()
        return lambda: values + next(calls) % 3

    assert measured(make)["forward"].distinct == 3


def test_one_bit_makes_a_different_result() -> None:
    def make(inputs: Inputs) -> Call:
        calls = itertools.count()
        return lambda: torch.tensor([0.0, -0.0][next(calls) % 2])

    assert measured(make)["forward"].distinct == 2


def test_a_backward_is_compared_only_after_equal_forwards() -> None:
    def make(inputs: Inputs) -> Call:
        values, calls = inputs.leaf(8), itertools.count()
        return lambda: values * (1 + next(calls) % 2)

    found = measured(make)
    assert (found["forward"].distinct, found["backward"].distinct) == (2, 1)


def test_a_gradient_that_varies_is_seen() -> None:
    calls = itertools.count()

    class Varying(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
            return value.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            return gradient + next(calls)

    found = measured(lambda inputs: (lambda x: lambda: Varying.apply(x))(inputs.leaf(8)))
    assert (found["forward"].distinct, found["backward"].distinct) == (1, 6)


def test_an_error_is_kept_and_the_mode_is_restored() -> None:
    def make(inputs: Inputs) -> Call:
        target, index, values = inputs.normal(4), inputs.whole(4, 9), inputs.normal(9)
        return lambda: target.clone().put_(index, values)

    raised = measured(make, deterministic_mode=True)["forward"]
    assert raised.raised is not None and "put_ does not have a deterministic implementation" in raised.raised
    assert (raised.runs, raised.distinct) == (0, 0)
    assert not torch.are_deterministic_algorithms_enabled()
    assert measured(make)["forward"].runs == 6


def test_two_sets_of_inputs_from_one_seed_are_equal() -> None:
    first, second = (Inputs("cpu", "float32", 3) for _ in range(2))
    assert torch.equal(first.leaf(5, 5), second.leaf(5, 5))
    assert torch.equal(first.whole(7, 99), second.whole(7, 99))


def test_every_case_is_of_an_op_in_the_index() -> None:
    names = {entry.name for entry in index().entries}
    cases = list(AUDITOR.all_cases())

    assert {case.op for case in cases} <= names
    assert len({(case.op, case.name) for case in cases}) == len(cases)


@pytest.mark.filterwarnings("ignore:.*(beta|deprecated).*:UserWarning")
@pytest.mark.parametrize("case", list(AUDITOR.all_cases()), ids=lambda case: f"{case.op}, {case.name}")
def test_every_case_runs(case: Case) -> None:
    small = Case(case.op, case.name, case.make, case.dtypes[:1])
    found = list(AUDITOR.measure(small, device="cpu", seed=0, runs=2, seconds=0.0, deterministic_mode=False))

    assert [one.raised for one in found] == [None] * len(found)
    assert all(one.runs == 2 for one in found)


def test_an_op_that_raises_in_deterministic_mode_runs_when_it_is_patched() -> None:
    case = next(
        case
        for case in AUDITOR.all_cases()
        if case.op == "torch.Tensor.put_" and case.name.startswith("accumulate=False")
    )
    options = {"device": "cpu", "seed": 0, "runs": 2, "seconds": 0.0, "deterministic_mode": True}
    assert {one.raised is None for one in AUDITOR.measure(case, **options) if one.direction == "forward"} == {False}
    request = {**options, "threads": 1, "database": False, "patched": True, "ops": [case.op]}
    finished = subprocess.run(
        [sys.executable, "-m", "determinism.audit.torch"],
        input=json.dumps(request),
        capture_output=True,
        text=True,
    )
    _, *lines = [json.loads(line) for line in finished.stdout.splitlines()]
    found = [Measurement(**one) for line in lines for one in line["measured"] if one["case"] == case.name]
    assert {(one.patched, one.raised, one.distinct) for one in found if one.direction == "forward"} == {(True, None, 1)}
