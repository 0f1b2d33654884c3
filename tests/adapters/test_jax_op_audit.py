"""The audit of JAX's ops counts several results of an op that varies, and one of an op that does not."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from determinism.audit.harness import Case
from determinism.audit.jax import AUDITOR, Call, Inputs
from determinism.knowledge.entries import Measurement, index


def measured(make: Callable[[Inputs], Call], runs: int = 6) -> dict[str, Measurement]:
    case = Case("an op", "a case", make, ("float32",))
    found = AUDITOR.measure(case, device="cpu", seed=0, runs=runs, seconds=60.0, deterministic_mode=False)
    return {one.direction: one for one in found}


def from_outside(values: list[float]) -> Callable[[Any], Any]:
    """A function that returns the values in turn, even if it is compiled."""
    calls = itertools.count()

    def run(x: Any) -> Any:
        shape = jax.ShapeDtypeStruct((), jnp.float32)
        return jax.pure_callback(lambda x: np.float32(values[next(calls) % len(values)]), shape, x)

    return run


def test_equal_results_are_counted_once() -> None:
    found = measured(lambda inputs: (jnp.exp, (inputs.normal(8),)))

    assert {name: (one.runs, one.distinct) for name, one in found.items()} == {"forward": (6, 1), "backward": (6, 1)}


def test_every_different_result_is_counted() -> None:
    assert measured(lambda inputs: (from_outside([1, 2, 3]), (inputs.whole(3, 1),)))["forward"].distinct == 3


def test_one_bit_makes_a_different_result() -> None:
    assert measured(lambda inputs: (from_outside([0.0, -0.0]), (inputs.whole(3, 1),)))["forward"].distinct == 2


def test_a_gradient_that_varies_is_seen() -> None:
    drawn = from_outside([1, 2, 3, 4, 5, 6])

    @jax.custom_vjp
    def varying(x: Any) -> Any:
        return x + 0

    varying.defvjp(lambda x: (x + 0, None), lambda _, gradient: (gradient * drawn(gradient[0]),))
    found = measured(lambda inputs: (varying, (inputs.normal(8),)))
    assert (found["forward"].distinct, found["backward"].distinct) == (1, 6)


def test_only_floating_point_inputs_are_differentiated() -> None:
    found = measured(lambda inputs: (lambda x, i: (x[i], i), (inputs.normal(8), inputs.whole(8, 20))))
    assert found["backward"].runs == 6
    assert "backward" not in measured(lambda inputs: (jnp.sort, (inputs.whole(8, 20),)))


def test_inputs_have_the_requested_dtype() -> None:
    kept = jax.config.jax_enable_x64
    seen = []
    case = Case("an op", "a case", lambda inputs: (jnp.sin, (inputs.normal(2),)), ("float64", "bfloat16"))
    case_seen = Case(case.op, case.name, lambda i: (seen.append(i.normal(2).dtype), case.make(i))[1], case.dtypes)
    list(AUDITOR.measure(case_seen, device="cpu", seed=0, runs=2, seconds=1.0, deterministic_mode=False))

    assert seen == [jnp.float64, jnp.bfloat16]
    assert kept == jax.config.jax_enable_x64


def test_an_op_that_is_not_available_is_kept_with_its_error() -> None:
    def refused(x: Any) -> Any:
        raise NotImplementedError("not on this device")

    assert measured(lambda inputs: (refused, (inputs.normal(2),)))["forward"].raised == "not on this device"


def test_the_process_uses_the_requested_number_of_threads() -> None:
    request = {
        "device": "cpu",
        "seed": 0,
        "runs": 2,
        "seconds": 0.0,
        "threads": 1,
        "deterministic_mode": False,
        "patched": False,
    }
    finished = subprocess.run(
        [sys.executable, "-m", "determinism.audit.jax"],
        input=json.dumps({**request, "ops": ["jax.random.normal"]}),
        capture_output=True,
        text=True,
    )

    head, *lines = [json.loads(line) for line in finished.stdout.splitlines()]
    found = [Measurement(**one) for line in lines for one in line["measured"]]
    assert head["about"]["version"] == jax.__version__
    assert head["about"]["hardware"]["cores"] == str(len(os.sched_getaffinity(0)))
    assert len(lines) == head["cases"] > 0
    assert {(one.threads, one.distinct) for one in found} == {(1, 1)}


def test_every_case_is_of_an_op_in_the_index() -> None:
    names = {entry.name for entry in index().entries}
    cases = list(AUDITOR.all_cases())

    assert {case.op for case in cases} <= names
    assert len({(case.op, case.name) for case in cases}) == len(cases)


@pytest.mark.parametrize("case", list(AUDITOR.all_cases()), ids=lambda case: f"{case.op}, {case.name}")
def test_every_case_runs(case: Case) -> None:
    small = Case(case.op, case.name, case.make, case.dtypes[:1])
    found = list(AUDITOR.measure(small, device="cpu", seed=0, runs=2, seconds=0.0, deterministic_mode=False))

    assert [one.raised for one in found] == [None] * len(found)
    assert all(one.runs == 2 for one in found)
