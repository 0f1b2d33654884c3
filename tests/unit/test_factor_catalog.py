"""The references of a factor are valid: its cause is known, and the functions that begin to act on it exist."""

from __future__ import annotations

import inspect
from importlib import import_module
from pathlib import Path

import pytest

from determinism.diagnose.experiments import causes
from determinism.factors.catalog import FACTORS, Factor, factor_environment, obstacle, perturbed_variables
from determinism.frameworks.registry import FACTORS as OF_FRAMEWORKS
from determinism.run_spec import FactorRequest

ALL = list(FACTORS.values())


@pytest.mark.parametrize("factor", ALL, ids=lambda factor: factor.name)
def test_a_factor_can_be_acted_on_and_names_its_cause(factor: Factor) -> None:
    assert factor.fixed or factor.perturbed
    assert factor.cause is None or factor.cause in causes()
    assert factor.cause is not None or factor.fixed is None or factor.name == "patches", "nothing would try it"
    if factor.remedy is not None:
        assert factor.remedy.code or factor.remedy.environment


@pytest.mark.parametrize("factor", ALL, ids=lambda factor: factor.name)
def test_something_acts_on_every_factor(factor: Factor, tmp_path: Path) -> None:
    for starter in factor.starters:
        module, _, function = starter.function.partition(":")
        parameters = inspect.signature(getattr(import_module(module), function)).parameters
        assert len(parameters) == (1 if starter.after is None else 2)
    actions = [action for action in ("fixed", "perturbed") if getattr(factor, action)]
    before_start = any(factor_environment({}, FactorRequest({factor.name: action}, 2), tmp_path) for action in actions)
    assert factor.starters or before_start or set(factor.frameworks) & OF_FRAMEWORKS.keys()
    assert all(obstacle(factor.name, action) is None or factor.name in ("memory", "addresses") for action in actions)


def test_an_xla_flag_is_added_to_those_of_the_user(tmp_path: Path) -> None:
    request = FactorRequest({"xla-gpu-ops": "fixed"})
    found = factor_environment({"XLA_FLAGS": "--xla_dump_to=/tmp/xla"}, request, tmp_path)
    assert found["XLA_FLAGS"] == "--xla_dump_to=/tmp/xla --xla_gpu_deterministic_ops=true"
    assert factor_environment({}, request, tmp_path)["XLA_FLAGS"] == "--xla_gpu_deterministic_ops=true"


def test_variables_that_differ_because_they_are_perturbed_are_known() -> None:
    assert perturbed_variables(["listings", "addresses"]) == frozenset()
    assert perturbed_variables(["memory", "hash-seed"]) == {"GLIBC_TUNABLES", "PYTHONHASHSEED"}
