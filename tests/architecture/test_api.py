"""Everything that the public API returns has a public name and types, and the documentation is complete."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
import typing
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import determinism
import determinism.types
from tests.architecture import api_page

PUBLIC = {name: getattr(determinism, name) for name in determinism.__all__ if name != "state"}
STATE = {f"state.{name}": getattr(determinism.state, name) for name in determinism.state.__all__}
FUNCTIONS = {name: thing for name, thing in {**PUBLIC, **STATE}.items() if inspect.isfunction(thing)}
MADE_BY_USERS = {"state.Checkpointed": determinism.state.Checkpointed}
USER_SCRIPT = """
import determinism


def main() -> int:
    with determinism.enable(seed=1, precision="highest") as settings:
        print([setting.name for setting in settings.open])
    with determinism.record("run-1", level="op"):
        determinism.step()
    found: determinism.Comparison = determinism.compare("run-1", "run-2")
    first: determinism.Divergence | None = found.first_divergence
    if first is not None and first.kind is determinism.Kind.OP:
        print(first.op, first.site.file if first.site is not None else "")
    for answer in determinism.status("scatter_add", direction="forward"):
        print(answer.op.name)
    state: determinism.state.State = determinism.state.capture(epoch=1)
    return 0 if found.verdict is determinism.Verdict.SAME and state.epoch else 1
"""


def named_classes() -> dict[str, Any]:
    """Classes by name, for annotations whose modules import them for type checkers only."""
    found: dict[str, Any] = {**vars(typing), **vars(determinism.types)}
    for module in list(sys.modules.values()):
        if module.__name__.startswith("determinism."):
            found.update({name: thing for name, thing in vars(module).items() if isinstance(thing, type)})
    return found


def returned(thing: Callable[..., Any]) -> Any:
    function = inspect.unwrap(thing)
    hints = typing.get_type_hints(function, {**named_classes(), **vars(typing), **function.__globals__})
    return hints.get("return")


def classes_in(hint: Any) -> Iterator[type]:
    """The classes of this package that an annotation names."""
    if isinstance(hint, type) and hint.__module__.startswith("determinism"):
        yield hint
    for part in typing.get_args(hint):
        yield from classes_in(part)


def of_class(kind: type) -> Iterator[type]:
    """The classes that the public attributes, properties and methods of a class return."""
    scope = {**named_classes(), **vars(typing), **vars(sys.modules[kind.__module__])}
    for name, hint in typing.get_type_hints(kind, scope).items():
        if not name.startswith("_"):
            yield from classes_in(hint)
    for name, member in vars(kind).items():
        function = member.fget if isinstance(member, property) else member
        if not name.startswith("_") and inspect.isfunction(function):
            yield from classes_in(returned(function))


def reachable() -> set[type]:
    """Every class that a user of the public functions can reach."""
    waiting = [kind for function in FUNCTIONS.values() for kind in classes_in(returned(function))]
    waiting += [thing for thing in {**PUBLIC, **STATE}.values() if isinstance(thing, type)]
    found: set[type] = set()
    while waiting:
        kind = waiting.pop()
        if kind not in found:
            found.add(kind)
            # What a recording does for adapters does not concern users.
            waiting += [] if kind is determinism.Recording else of_class(kind)
    return found


def test_everything_that_is_returned_has_a_public_name() -> None:
    public = {thing for thing in {**PUBLIC, **STATE}.values() if isinstance(thing, type)}
    found = reachable()
    assert {determinism.Comparison, determinism.Divergence, determinism.Kind, determinism.Frame} <= found
    # Users see a generator of streams only through `Seeds`.
    assert {f"{kind.__module__}.{kind.__qualname__}" for kind in found - public} - {
        "determinism.session.seeding.RegisteredGenerators", "determinism.seeds.Streams",
    } == set()  # fmt: skip


def test_public_names_resolve_and_other_names_do_not() -> None:
    assert all(thing is not None for thing in PUBLIC.values())
    assert set(determinism.__all__) <= set(dir(determinism))
    with pytest.raises(AttributeError, match="no attribute 'compares'"):
        _ = determinism.compares  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", [*FUNCTIONS, *MADE_BY_USERS])
def test_documentation_of_a_function_is_complete(name: str) -> None:
    thing = FUNCTIONS.get(name) or MADE_BY_USERS[name]
    text = inspect.getdoc(thing) or ""
    assert "Example:\n    >>> " in text
    if inspect.isclass(thing):
        return
    signature = inspect.signature(thing)
    if signature.parameters:
        assert "Args:\n" in text
        assert [
            one for one in signature.parameters if not re.search(rf"^    \*{{0,2}}{one}: ", text, re.MULTILINE)
        ] == []
    gives = signature.return_annotation not in ("None", None)
    assert gives == ("Returns:\n" in text or "Yields:\n" in text)


def test_the_page_is_current() -> None:
    assert api_page.written() == api_page.PAGE.read_text(encoding="utf-8"), "make docs"


def test_a_typed_program_passes_a_strict_type_checker(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(USER_SCRIPT)
    (tmp_path / "wrong.py").write_text(
        'import determinism\n\ndeterminism.record("run", level="everything")\ndeterminism.compares("a", "b")\n'
    )
    # Outside the project, so that its configuration does not apply; the cache is kept between runs.
    cache = Path(__file__).parents[2] / ".mypy_cache" / "users"
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file", "", "--cache-dir", str(cache)]
    right = subprocess.run([*command, "program.py"], cwd=tmp_path, capture_output=True, text=True, timeout=1200)
    assert right.returncode == 0, right.stdout + right.stderr
    wrong = subprocess.run([*command, "wrong.py"], cwd=tmp_path, capture_output=True, text=True, timeout=1200)
    assert wrong.returncode == 1
    assert '"level" to "record"' in wrong.stdout and '"compares"' in wrong.stdout
