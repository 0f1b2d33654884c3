"""The facts that apply to a version of PyTorch, including versions that were not audited."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from determinism.frameworks.torch.ops import DATA, Formulas, formulas_of

AUDITS = """
[[audit]]
torch = "2.9.1"
device = "cpu"
node = [{ name = "ProdBackward0", differs = ["values"] }]

[[audit]]
torch = "2.13.0"
device = "cpu"
node = [{ name = "LinalgEighBackward0", differs = ["error"] }]
forward_mode = [{ name = "aten::prod", differs = ["ops"] }]
"""


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "formulas.toml"
    path.write_text(AUDITS)
    return path


@pytest.mark.parametrize(
    ("version", "audited", "is_audited"),
    [
        ("2.13.0+cpu", "2.13.0", True),
        ("2.13.1", "2.13.0", True),
        ("2.9.0", "2.9.1", True),
        ("2.10.0", "2.9.1", False),
        ("2.12.0a0+git1234", "2.13.0", False),
        ("3.0.0", "2.13.0", False),
    ],
)
def test_the_nearest_audit_is_used(version: str, audited: str, is_audited: bool, data: Path) -> None:
    found = formulas_of(version, data)

    assert (found.audited, found.is_audited) == (audited, is_audited)


def test_ops_are_identified_by_their_nodes(data: Path) -> None:
    old, new = formulas_of("2.9.1", data), formulas_of("2.13.0", data)

    assert old.makes_node("aten::prod") and not old.makes_node("aten::_linalg_eigh")
    assert new.makes_node("aten::_linalg_eigh") and not new.makes_node("aten::linalg_eig")
    assert new.forward_mode == {"aten::prod"}


def test_in_place_ops_are_identified_too() -> None:
    formulas = Formulas("", True, frozenset({"MaskedFillBackward1"}), frozenset(), frozenset(), frozenset())

    assert formulas.makes_node("aten::masked_fill_")
    assert not formulas.makes_node("aten::masked_scatter")
    assert not formulas.makes_node("mine::masked_fill_no")


def test_data_is_written_by_the_audit() -> None:
    audits = tomllib.loads(DATA.read_text(encoding="utf-8"))["audit"]

    assert {"torch", "device", "cases", "dtypes", "node", "autocast_inside"} <= audits[-1].keys()
    assert "ProdBackward0" in [node["name"] for node in audits[-1]["node"]]
