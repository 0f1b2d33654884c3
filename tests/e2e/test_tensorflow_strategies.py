"""TensorFlow's distribution strategies: replicas are recorded, resource handles are not values, steps are counted."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.checking import PATIENCE

_ROOT = Path(__file__).parents[2]


def found(*cases: str) -> dict[str, dict[str, Any]]:
    """Return what `tests.tensorflow_strategies` prints for some cases."""
    command = [sys.executable, "-m", "tests.tensorflow_strategies", *cases]
    done = subprocess.run(command, cwd=_ROOT, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr[-3000:]
    cases_found: dict[str, dict[str, Any]] = json.loads(done.stdout.splitlines()[-1])
    return cases_found


def names(held: list[list[str]]) -> list[str]:
    """Return the names of tensors held at the end of a step, except the optimizer's."""
    return [name for sort, name in held if sort == "parameter"]


def test_equal_replicas_are_the_same_and_an_unseeded_shuffle_is_found() -> None:
    cases = found("mirrored:function:seeded", "mirrored:function:unseeded", "central:eager:seeded", "one:eager:seeded")
    mirrored, unseeded, central, one = cases.values()
    for case in (mirrored, central, one):
        assert (case["verdict"], case["steps"], case["steps_by"], case["blind_spots"]) == ("same", 4, "optimizer", [])
    assert (unseeded["verdict"], unseeded["kind"]) == ("different", "data")
    assert [names(held) for held in mirrored["held"]] == [["Variable:0", "Variable:0/replica_1"]] * 4
    assert [names(held) for held in central["held"]] == [["Variable:0"]] * 4
    # One forward and one backward product for each replica and step; in a function, the latter is fused with its reader.
    assert [case["products"] for case in (mirrored, central, one)] == [8, 16, 8]
    assert mirrored["replicas"] == ["", "replica_1"]


@pytest.mark.thorough("tensorflow")
@pytest.mark.parametrize("way", ["function", "replica", "eager", "fit"])
@pytest.mark.parametrize("strategy", ["mirrored", "central", "workers", "one"])
def test_strategies_are_recorded_in_every_way_to_run_them(strategy: str, way: str) -> None:
    (case,) = found(f"{strategy}:{way}:seeded").values()
    assert (case["verdict"], case["steps"], case["steps_by"]) == ("same", 2 if way == "fit" else 4, "optimizer")
    assert case["blind_spots"] == []
    # Threads of TensorFlow reduce the gradients of eager replicas; each reduction is one record for all replicas.
    assert case["reductions"] == (4 if (strategy, way) == ("mirrored", "eager") else 0)
    if (strategy, way) == ("mirrored", "eager"):
        assert case["replicas"] == ["", "replica_1"]
    (case,) = found(f"{strategy}:{way}:unseeded").values()
    assert case["verdict"] == "different"
