"""The audit finds what a mode changes, and nothing if it changes nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from determinism.audit.torch import database
from determinism.frameworks.torch.ops import formulas_of
from tools import formula_audit
from tools.formula_audit import Findings, examine
from tools.formula_cases import Case, Produced, cases_of


@pytest.fixture
def under_a_mode(monkeypatch: pytest.MonkeyPatch) -> None:
    """Record with a dispatch mode: formulas change only under one."""
    monkeypatch.setenv("DETERMINISM_RECORDER", "python")


def audited(run: Any, **options: Any) -> Findings:
    return examine([Case("op", "a case", run, **options)])[0]


def found(findings: Findings) -> dict[str, dict[str, set[str]]]:
    """The groups that are not empty."""
    return {group: names for group, names in vars(findings).items() if names}


def given(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0)).requires_grad_()


def prod() -> Produced:
    x = given(40, 30)
    return Produced(list(torch.autograd.grad(x.prod(1).sum(), x)))


def test_backward_of_prod_is_found() -> None:
    assert found(audited(prod)) == {"nodes": {"ProdBackward1": {"ops", "values"}}}


def test_a_formula_is_found_even_if_no_value_differs() -> None:
    def run() -> Produced:
        x = torch.ones(3, requires_grad=True)
        return Produced(list(torch.autograd.grad(x.cumprod(0).sum(), x)))

    assert found(audited(run)) == {"nodes": {"CumprodBackward0": {"ops"}}}


def test_a_check_that_a_formula_omits_is_found() -> None:
    def run() -> Produced:
        x = given(5, 5)
        return Produced(list(torch.autograd.grad(torch.linalg.eig(x)[1].sum().abs(), x)))

    assert audited(run).nodes == {"LinalgEigBackward0": {"error", "ops"}}


def test_autocast_inside_an_op_is_found() -> None:
    def run() -> Produced:
        x = given(4, 6).detach()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return Produced([torch.nn.functional.bilinear(x, x, given(3, 6, 6).detach())])

    assert found(audited(run)) == {"autocast_inside": {"aten::_trilinear": {"values"}}}


def test_an_op_that_chooses_different_ops_is_found() -> None:
    def run() -> Produced:
        return Produced([given(30).detach().quantile(torch.tensor([0.2]))])

    assert found(audited(run)) == {"composites": {"aten::quantile": {"ops"}}}


def test_nothing_is_found_if_a_mode_changes_nothing() -> None:
    def run() -> Produced:
        x = given(40, 30)
        made = torch.softmax(x.sin() @ x.t(), 1)[:, :5].reshape(-1).relu_().sum()
        return Produced([made, *torch.autograd.grad(made, x)])

    assert found(audited(run)) == {}


def test_a_case_that_varies_by_itself_is_reported_only_as_varying() -> None:
    made = iter(range(100))

    def run() -> Produced:
        return Produced([torch.tensor(next(made))])

    assert found(audited(run)) == {"varying": {"op": {"values"}}}


@pytest.mark.usefixtures("under_a_mode")
def test_a_disturbance_by_the_recorder_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from determinism.frameworks.torch import mode_recorder

    monkeypatch.setattr(mode_recorder.FormulaNodes, "_depends_on_modes", lambda self, node: False)

    assert audited(prod).disturbed == {"a case": {"values"}}


def test_the_data_contain_the_findings_of_the_audit() -> None:
    known = formulas_of(torch.__version__)
    (info,) = (info for info in database() if info.name == "prod")
    findings, number = examine(cases_of(info, torch.float32, 3))

    assert number > 5
    assert findings.nodes.keys() <= known.nodes
    assert findings.forward_mode.keys() <= known.forward_mode
    assert findings.disturbed.keys() <= {name for name in findings.disturbed if name.endswith("forward mode")}


def test_an_audit_replaces_an_earlier_one(tmp_path: Path) -> None:
    path = tmp_path / "formulas.toml"
    facts = {"torch": "2.13.0", "device": "cpu", "cases": 3, "dtypes": ["float32"]}
    formula_audit.write(Findings(nodes={"OldBackward0": {"ops"}}), facts, path)
    formula_audit.write(Findings(nodes={"OtherBackward0": {"ops"}}), {**facts, "torch": "2.9.0"}, path)
    formula_audit.write(Findings(nodes={"NewBackward0": {"values", "ops"}}), facts, path)

    assert formulas_of("2.13.0", path).nodes == {"NewBackward0"}
    assert formulas_of("2.9.1", path).nodes == {"OtherBackward0"}


@pytest.mark.thorough("samples")
def test_audit_runs_as_a_command() -> None:
    command = [
        sys.executable,
        "-m",
        "tools.formula_audit",
        "sin",
        "--samples",
        "1",
        "--dtypes",
        "int64",
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=True)

    assert done.stdout.startswith(f"PyTorch {torch.__version__}, CPU: 1 cases")
    assert done.stdout.rstrip().endswith("varying:")


def test_loading_the_samples_does_not_freeze_flags() -> None:
    assert database()
    assert not torch.backends.flags_frozen()
