"""The import contracts that import-linter checks name every module that they should."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
LINTER = PYPROJECT["tool"]["importlinter"]
MODULES = {
    ".".join(path.relative_to(ROOT / "src").with_suffix("").parts).removesuffix(".__init__")
    for path in (ROOT / "src" / "determinism").rglob("*.py")
    if "bootstrap" not in path.parts
}
FRAMEWORKS = ("torch", "tensorflow", "jax", "cupy")
SLICES = ("audit", "batch", "golden", "invariants", "narrow", "resume")
MAY_IMPORT_A_FRAMEWORK = (
    *(f"determinism.frameworks.{name}" for name in FRAMEWORKS),
    *(f"determinism.{part}.{name}" for part in SLICES for name in FRAMEWORKS),
    "determinism.integrations",
)
"""The adapters, the parts of slices that run in the program's process, and integrations with libraries that import a framework."""


def contract(name: str) -> dict[str, Any]:
    (found,) = (contract for contract in LINTER["contracts"] if contract["name"] == name)
    return dict(found)


def is_within(module: str, parts: list[str] | tuple[str, ...]) -> bool:
    return any(module == part or module.startswith(f"{part}.") for part in parts)


def test_there_are_modules() -> None:
    assert len(MODULES) > 150
    assert "determinism.import_hook" in MODULES


def test_modules_other_than_adapters_are_forbidden_to_import_a_framework() -> None:
    found = contract("Only an adapter imports its framework")
    packages = {"determinism", "determinism.frameworks", *(f"determinism.{part}" for part in SLICES)}
    free = {module for module in MODULES - packages if not is_within(module, MAY_IMPORT_A_FRAMEWORK)}
    assert {module for module in free if not is_within(module, found["source_modules"])} == set()
    assert {module for module in found["source_modules"] if module not in MODULES} == set()
    assert {f"determinism.frameworks.{name}" for name in FRAMEWORKS} <= set(found["forbidden_modules"])
    assert {"torch", "tensorflow", "keras", "jax", "cupy"} <= set(found["forbidden_modules"])


def test_adapters_are_forbidden_to_import_each_other() -> None:
    named = contract("Frameworks do not know each other")["modules"]
    folders = {path.name for path in (ROOT / "src/determinism/frameworks").iterdir() if (path / "__init__.py").exists()}
    assert {f"determinism.frameworks.{name}" for name in {*folders, *FRAMEWORKS}} == set(named)


def test_only_the_trace_may_import_its_format() -> None:
    named = contract("Only the trace knows its format")["source_modules"]
    rooms = {f"determinism.{module.split('.')[1]}" for module in MODULES if "." in module}
    # `__main__` imports everything that it calls, and the contract is about the trace.
    assert rooms - set(named) == {"determinism.__main__", "determinism.trace"}


def test_slices_are_above_the_layers_that_do_not_know_them() -> None:
    layers = contract("Imports go downwards only")["layers"]
    place = layers.index(" | ".join(SLICES))
    core = {"launch", "state", "session", "frameworks", "report", "lint", "diagnose", "comparison", "trace"}
    assert core <= {name.strip() for layer in layers[place + 1 :] for name in layer.split("|")}


def test_imports_for_type_checking_count_too() -> None:
    assert LINTER["exclude_type_checking_imports"] is False


def test_developer_tools_are_not_in_the_wheel_but_annotations_are() -> None:
    wheel = PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel["packages"] == ["src/determinism"]
    assert {path.stem for path in (ROOT / "tools").glob("*.py")} >= {"formula_audit", "house"}
    assert not any((ROOT / "src").rglob("tools"))
    assert (ROOT / "src/determinism/py.typed").exists()
