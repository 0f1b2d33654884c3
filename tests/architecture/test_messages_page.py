"""`docs/messages.md` has one section for each identifier that the code gives to an error, a trouble or a blind spot."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "messages.md"
IDENTIFIER = re.compile(r"[a-z]+(-[a-z]+)*")

CARRIERS = re.compile(
    r"(Trace|Launch|State|Usage|Determinism|Difference)Error|_?[Tt]rouble|write_trouble|blind_spot|BlindSpot|_stop"
)
"""Names of callables that take an identifier as the first or second argument."""

TABLE = re.compile(r"[A-Z_]*MESSAGES")
"""Names of dictionaries from identifiers to messages."""


def called_name(call: ast.Call) -> str:
    """The last part of the name that is called."""
    function = call.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def derived(tree: ast.AST) -> set[str]:
    """Names of the classes in a file that derive from an error of this package."""
    return {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
        and any(isinstance(base, ast.Name) and CARRIERS.fullmatch(base.id) for base in node.bases)
    }


def identifiers(source: str) -> Iterator[str]:
    """The identifiers that a piece of code uses."""
    tree = ast.parse(source)
    has_own_error = bool(derived(tree))
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            if any(isinstance(target, ast.Name) and TABLE.fullmatch(target.id) for target in node.targets):
                yield from constants(node.value.keys)
        elif isinstance(node, ast.Call):
            name = called_name(node)
            if CARRIERS.fullmatch(name) or (has_own_error and name == "__init__"):
                yield from list(constants(node.args[:2]))[:2]


def constants(nodes: Iterable[ast.AST | None]) -> Iterator[str]:
    """The identifiers among pieces of code; for a choice between two, both."""
    for node in nodes:
        if isinstance(node, ast.IfExp):
            yield from constants((node.body, node.orelse))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and IDENTIFIER.fullmatch(node.value):
            yield node.value


@cache
def in_code() -> set[str]:
    """Every identifier that the package uses."""
    return set().union(*(identifiers(path.read_text()) for path in (ROOT / "src").rglob("*.py")))


def sections() -> list[str]:
    """The identifiers that have a section."""
    return re.findall(r"^### `([^`]+)`$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)


def test_every_identifier_has_a_section() -> None:
    assert sorted(in_code() - set(sections())) == []


def test_every_section_has_an_identifier() -> None:
    assert sorted(set(sections()) - in_code()) == []


def test_sections_are_unique_and_in_order() -> None:
    for group in re.split(r"^## ", PAGE.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        found = re.findall(r"^### `([^`]+)`$", group, re.MULTILINE)
        assert found == sorted(set(found))


def test_every_section_says_when_and_what_to_do() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for section in re.split(r"^### ", text, flags=re.MULTILINE)[1:]:
        body = section.partition("\n")[2].partition("\n## ")[0]
        assert "**When:**" in body and "**What to do:**" in body, section.partition("\n")[0]


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("raise TraceError('one-two', 'A text.')", ["one-two"]),
        ("_trouble(comparison, 'one', 'A text.')", ["one"]),
        ("[Trouble('one', 'A text.')]", ["one"]),
        ("writer.blind_spot('one', what, why)", ["one"]),
        ("class Own(LaunchError):\n def __init__(self): super().__init__('one', 'A text.')", ["one"]),
        ("TraceError('one' if full else 'two', 'A text.')", ["one", "two"]),
        ("_CUT_MESSAGES = {'one': 'A text.', 'two-three': 'A text.'}", ["one", "two-three"]),
        ("raise ValueError('one')", []),
        ("Trouble(error.identifier, error.message)", []),
    ],
)
def test_identifiers_are_found(source: str, expected: list[str]) -> None:
    assert list(identifiers(source)) == expected
