"""The bugs that are planted to check the tests: each changes the program, at a place that runs."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tools.planted_bugs import ROOT, bugs_of, chosen

FILE = Path("file.py")


@pytest.mark.parametrize(
    ("line", "planted"),
    [
        ("x = a == b", ["x = a != b"]),
        ("x = a not in b", ["x = a in b"]),
        ("x = a and b", ["x = a or b"]),
        ("x = a - b", ["x = a + b"]),
        ("x = not a", ["x = (a)"]),
        ("x = 'äö' + y[1]", ["x = 'äö' - y[1]", "x = 'äö' + y[2]"]),
        ("if a: b()", ["if not (a): b()"]),
        ("x: Literal[1] = True", ["x: Literal[1] = False"]),
        ("raise ValueError(1 + 1)", []),
    ],
)
def test_the_possible_bugs_of_a_line_are_found(line: str, planted: list[str]) -> None:
    assert sorted(bug.planted_in(line) for bug in bugs_of(FILE, line)) == sorted(planted)


def test_chosen_bugs_change_the_program() -> None:
    bugs = chosen(seed=3, count=40)
    assert len({bug.file for bug in bugs}) == 40
    for bug in bugs:
        text = (ROOT / bug.file).read_text(encoding="utf-8")
        assert ast.dump(ast.parse(bug.planted_in(text))) != ast.dump(ast.parse(text)), bug
        assert bug.planted_in(text).splitlines()[bug.line - 1] != text.splitlines()[bug.line - 1]


def test_the_seed_determines_the_chosen_bugs() -> None:
    assert chosen(seed=3, count=5) == chosen(seed=3, count=5) != chosen(seed=4, count=5)
