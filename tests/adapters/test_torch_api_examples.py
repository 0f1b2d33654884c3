"""The examples in the docstrings of the public API work."""

from __future__ import annotations

import doctest
import inspect
from pathlib import Path

import pytest

import determinism

PUBLIC = {name: getattr(determinism, name) for name in determinism.__all__ if name != "state"}
STATE = {f"state.{name}": getattr(determinism.state, name) for name in determinism.state.__all__}
EXAMPLES = {
    name: test
    for name, thing in {**PUBLIC, **STATE}.items()
    for test in [doctest.DocTestParser().get_doctest(inspect.getdoc(thing) or "", {}, name, None, None)]
    if test.examples
}


def test_every_public_function_has_an_example() -> None:
    functions = {name for name, thing in {**PUBLIC, **STATE}.items() if inspect.isfunction(thing)}
    assert functions | {"state.Checkpointed"} == EXAMPLES.keys()


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_example_works(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    test = EXAMPLES[name]
    test.globs = {"determinism": determinism}
    report: list[str] = []
    results = doctest.DocTestRunner(verbose=False).run(test, out=report.append)
    assert results.attempted > 0
    assert results.failed == 0, "".join(report)
