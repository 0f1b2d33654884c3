"""The audit of TensorFlow's ops counts several results of an op that varies, and one of an op that does not."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from determinism.audit.harness import Case
from determinism.audit.tensorflow import AUDITOR, Call, Inputs
from determinism.frameworks.tensorflow.enable import CONTROLS
from determinism.knowledge.entries import Measurement, index

SEVERAL = pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="ops race only where two threads run at a time")


def measured(make: Callable[[Inputs], Call], runs: int = 6, **given: Any) -> dict[str, Measurement]:
    case = Case("an op", "a case", make, ("float32",))
    options = {"device": "cpu", "seed": 0, "runs": runs, "seconds": 60.0, "deterministic_mode": False, **given}
    return {one.direction: one for one in AUDITOR.measure(case, **options)}


def case_of(op: str, name: str) -> Callable[[Inputs], Call]:
    return next(case.make for case in AUDITOR.all_cases() if (case.op, case.name) == (op, name))


def test_equal_results_are_counted_once() -> None:
    found = measured(lambda inputs: (lambda x: lambda: tf.exp(x))(inputs.leaf(8)))

    assert {name: (one.runs, one.distinct) for name, one in found.items()} == {"forward": (6, 1), "backward": (6, 1)}


def test_one_bit_makes_a_different_result() -> None:
    def make(inputs: Inputs) -> Call:
        calls = itertools.count()
        # An array, because TensorFlow caches constants made of equal numbers, and -0.0 equals 0.0.
        return lambda: tf.constant(np.array([[0.0], [-0.0]])[next(calls) % 2])

    assert measured(make)["forward"].distinct == 2


def test_a_gradient_that_varies_is_seen() -> None:
    calls = itertools.count()

    @tf.custom_gradient
    def varying(value: tf.Tensor) -> Any:
        return tf.identity(value), lambda gradient: gradient + next(calls)

    found = measured(lambda inputs: (lambda x: lambda: varying(x))(inputs.leaf(8)))
    assert (found["forward"].distinct, found["backward"].distinct) == (1, 6)


def test_a_sparse_gradient_is_measured() -> None:
    found = measured(lambda inputs: (lambda x: lambda: tf.gather(x, [0, 0, 0]))(inputs.leaf(2)))
    assert found["backward"].runs == 6


@SEVERAL
@pytest.mark.parametrize(
    ("op", "name", "direction"),
    [
        ("tf.image.crop_and_resize", "bilinear, gradient to image", "backward"),
        ("tf.Variable.scatter_add", "scatter_add, equal indices", "forward"),
    ],
)
def test_an_op_that_races_varies_except_in_deterministic_mode(op: str, name: str, direction: str) -> None:
    make = case_of(op, name)

    assert any(measured(make, runs=20)[direction].varies for _ in range(100))
    assert not measured(make, runs=20, deterministic_mode=True)[direction].varies


@SEVERAL
@pytest.mark.parametrize(
    ("op", "name"),
    [
        ("tf.math.bincount", "with weights, equal values"),
        ("tf.dynamic_stitch", "the parallel kernel, equal indices"),
    ],
)
def test_an_op_that_deterministic_mode_does_not_affect_varies_in_it(op: str, name: str) -> None:
    assert any(measured(case_of(op, name), runs=60, deterministic_mode=True)["forward"].varies for _ in range(20))


def test_an_error_is_kept_and_the_mode_is_restored() -> None:
    tf.random.set_seed(1)
    make = case_of("tf.random.normal", "no seed was set")
    raised = measured(make, deterministic_mode=True)["forward"]

    assert raised.raised is not None and "Random ops require a seed" in raised.raised
    assert not CONTROLS["tf.config.experimental.enable_op_determinism"].read()
    assert measured(make)["forward"].distinct == 6


def test_the_process_uses_the_requested_number_of_threads() -> None:
    request = {
        "device": "cpu",
        "seed": 0,
        "runs": 2,
        "seconds": 0.0,
        "threads": 1,
        "deterministic_mode": True,
        "patched": False,
    }
    finished = subprocess.run(
        [sys.executable, "-m", "determinism.audit.tensorflow"],
        input=json.dumps({**request, "ops": ["tf.math.reduce_sum"]}),
        capture_output=True,
        text=True,
    )

    head, *lines = [json.loads(line) for line in finished.stdout.splitlines()]
    found = [Measurement(**one) for line in lines for one in line["measured"]]
    assert head["about"]["version"] == tf.__version__
    assert len(lines) == head["cases"] > 0
    assert {(one.threads, one.deterministic_mode, one.distinct) for one in found} == {(1, True, 1)}


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
