"""`determinism.patch`: when ops are replaced, what is reported, and that everything is restored."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

import determinism
from determinism.session import enable
from determinism.types import ReplacedOps

FRAMEWORK, PATCHER = "a_framework_for_patching", "a_patcher_of_it"


class Patcher(ModuleType):
    """A patcher that notes the calls made to it."""

    def __init__(self, reason: str | None = None, error: Exception | None = None) -> None:
        super().__init__(PATCHER)
        self.calls: list[str] = []
        self.reason, self.error = reason, error

    def apply(self) -> ReplacedOps:
        self.calls.append("apply")
        if self.error is not None:
            raise self.error
        return ReplacedOps(["one", "two"], [], self.reason, lambda: self.calls.append("restore"))


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Patcher]]:
    def installed(imported: bool = True, **options: object) -> Patcher:
        patcher = Patcher(**options)  # type: ignore[arg-type]
        monkeypatch.setattr(enable, "PATCHERS", {FRAMEWORK: PATCHER})
        monkeypatch.setitem(sys.modules, PATCHER, patcher)
        if imported:
            monkeypatch.setitem(sys.modules, FRAMEWORK, ModuleType(FRAMEWORK))
        return patcher

    yield installed
    sys.modules.pop(FRAMEWORK, None)


def test_ops_of_an_imported_framework_are_replaced_immediately_and_restored_once(
    install: Callable[..., Patcher],
) -> None:
    patcher = install()
    with determinism.patch() as patches:
        assert patches.replaced == {FRAMEWORK: ["one", "two"]}
        assert patches.waiting == []
        assert f"{FRAMEWORK}: one, two" in str(patches)
    patches.restore()
    assert patcher.calls == ["apply", "restore"]


def test_ops_of_a_framework_are_replaced_when_it_is_imported_later(
    install: Callable[..., Patcher], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patcher = install(imported=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / f"{FRAMEWORK}.py").write_text("")
    patches = determinism.patch()
    assert patches.waiting == [FRAMEWORK]
    assert f"{FRAMEWORK}: waits for the import" in str(patches)
    assert patcher.calls == []
    __import__(FRAMEWORK)
    assert patches.replaced == {FRAMEWORK: ["one", "two"]}
    assert patches.waiting == []


def test_nothing_is_replaced_after_restoring(
    install: Callable[..., Patcher], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patcher = install(imported=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / f"{FRAMEWORK}.py").write_text("")
    determinism.patch().restore()
    __import__(FRAMEWORK)
    assert patcher.calls == []


def test_the_reason_is_given_if_nothing_is_replaced(install: Callable[..., Patcher]) -> None:
    install(reason="it is another version")
    patches = determinism.patch()
    assert patches.replaced == {}
    assert f"{FRAMEWORK}: nothing replaced: it is another version" in str(patches)


def test_failures_are_reported_and_do_not_reach_the_program(install: Callable[..., Patcher]) -> None:
    install(error=AttributeError("no such op"))
    assert "AttributeError: no such op" in determinism.patch().skipped[FRAMEWORK]


def test_frameworks_without_patches_are_reported(
    install: Callable[..., Patcher], monkeypatch: pytest.MonkeyPatch
) -> None:
    install()
    monkeypatch.setitem(sys.modules, "jax", ModuleType("jax"))
    assert "no patches for it yet" in determinism.patch().skipped["jax"]
