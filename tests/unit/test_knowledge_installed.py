"""The installed version, read from the names of folders."""

from __future__ import annotations

import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from determinism.knowledge.query import CONTAINER_VARIABLE, Framework, framework_named, installed_version


def called(*distributions: str) -> Framework:
    """A framework that may be installed under these names."""
    return Framework("one", "One", distributions, None, None, (), ())


def test_the_version_is_read_from_the_name_of_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "torch-2.1.2+cu118.dist-info",
        "Flash_Attn-2.4.1.dist-info",
        "old-1.0-py3.11.egg-info",
        "torch",
        "not-a-thing",
    ):
        (tmp_path / name).mkdir()
    later = tmp_path / "later"
    (later / "torch-9.9.dist-info").mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "missing"), str(tmp_path), str(later)])

    assert installed_version(framework_named("torch")) == "2.1.2+cu118"
    assert installed_version(framework_named("flash-attn")) == "2.4.1"
    assert installed_version(called("old")) == "1.0"
    assert installed_version(called("not")) is None


def test_the_first_name_that_is_installed_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("tensorflow_cpu-2.20.0.dist-info", "tensorflow_intel-2.18.0.dist-info"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert installed_version(framework_named("tensorflow")) == "2.20.0"


@pytest.mark.parametrize("distribution", ["numpy", "click", "pytest", "jsonschema", "import-linter", "pytest-xdist"])
def test_the_version_is_the_same_as_in_importlib_metadata(distribution: str) -> None:
    assert installed_version(called(distribution)) == version(distribution)


def test_versions_of_python_and_containers_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    assert installed_version(framework_named("python")) == ".".join(map(str, sys.version_info[:3]))
    monkeypatch.delenv(CONTAINER_VARIABLE, raising=False)
    assert installed_version(framework_named("ngc-tensorflow")) is None
    monkeypatch.setenv(CONTAINER_VARIABLE, "21.05")
    assert installed_version(framework_named("ngc-tensorflow")) == "21.05"
