"""The plugin that pytest loads in every session costs nothing until a test requests it."""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path

NEW = """
import sys, pytest
before = set(sys.modules)
import determinism.integrations.pytest_plugin
print(sorted(set(sys.modules) - before))
"""
HOOKED = """
def test_plain(pytestconfig):
    manager = pytestconfig.pluginmanager
    assert manager.has_plugin("determinism")
    assert not manager.has_plugin("determinism-runs")
"""


def test_the_entry_point_leads_to_the_plugin() -> None:
    (found,) = [entry for entry in entry_points(group="pytest11") if entry.name == "determinism"]
    assert found.value == "determinism.integrations.pytest_plugin"


def test_loading_the_plugin_imports_nothing_else() -> None:
    printed = subprocess.check_output([sys.executable, "-c", NEW], text=True)
    plugin = "determinism.integrations.pytest_plugin"
    assert printed.strip() == str(
        ["determinism", "determinism.integrations", plugin, "determinism.integrations.pytest_properties"]
    )


def test_without_marker_and_option_no_hook_for_single_tests_is_registered(tmp_path: Path) -> None:
    (tmp_path / "test_plain.py").write_text(HOOKED)
    command = [sys.executable, "-W", "error", "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)]
    finished = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stdout
    assert "determinism" not in finished.stdout


def test_hooks_for_single_tests_belong_to_the_plugin_that_is_registered_late() -> None:
    from determinism.integrations import pytest_plugin

    hooks = {name for name in vars(pytest_plugin) if name.startswith("pytest_")}
    assert hooks == {
        "pytest_addoption", "pytest_configure", "pytest_collection_modifyitems", "pytest_terminal_summary",
    }  # fmt: skip
