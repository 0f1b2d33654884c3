"""Rewritten code is the same code but for the probes: names, variables, lines and the places of calls."""

from __future__ import annotations

import ast
import dis
import importlib.util
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import CodeType

import pytest

from determinism.probes import rewrite
from determinism.probes.rewrite import ProbedSite, parsed, rewritten, site_text

PROBES = set(rewrite.ALL)
KEPT = (
    "co_name",
    "co_qualname",
    "co_firstlineno",
    "co_varnames",
    "co_freevars",
    "co_cellvars",
    "co_argcount",
    "co_flags",
)
MODULES = (
    "argparse", "ast", "asyncio.tasks", "collections", "contextlib", "dataclasses", "difflib", "enum", "functools",
    "inspect", "json.decoder", "pathlib", "pickle", "statistics", "tarfile", "textwrap", "traceback", "typing", "unittest.mock",
)  # fmt: skip


def codes(code: CodeType) -> Iterator[CodeType]:
    """A code object and all within it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes(constant)


def places_of_calls(code: CodeType) -> set[tuple[int | None, ...]]:
    """Where the calls of a code object lie in the text."""
    return {
        (at.lineno, at.end_lineno, at.col_offset, at.end_col_offset)
        for instruction in dis.get_instructions(code)
        if instruction.opname.startswith("CALL") and (at := instruction.positions) is not None
    }


def lines(code: CodeType) -> set[int]:
    """The lines that a code object has instructions for."""
    return {line for *_, line in code.co_lines() if line}


@pytest.mark.parametrize("module", MODULES)
def test_code_stays_the_same_but_for_the_probes(module: str) -> None:
    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.origin is not None
    source = Path(spec.origin).read_bytes()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pairs = list(
            zip(
                codes(compile(source, module, "exec", dont_inherit=True)),
                codes(compile(rewritten(ast.parse(source), module), module, "exec", dont_inherit=True)),
                strict=True,
            )
        )

    assert any(PROBES & {*probed.co_names} for _, probed in pairs)
    for plain, probed in pairs:
        assert [getattr(plain, name) for name in KEPT] == [getattr(probed, name) for name in KEPT]
        assert set(plain.co_names) == set(probed.co_names) - PROBES
        assert lines(plain) == lines(probed)
        assert places_of_calls(plain) <= places_of_calls(probed)


def text_of(source: str) -> str:
    """Rewritten code as text, without sites."""
    tree = rewritten(ast.parse(source), "f")
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in PROBES:
            node.func.id = node.func.id.strip("_").removeprefix("determinism_")
            del node.args[0]
    return ast.unparse(tree)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("f()", "call(f)()"),
        ("f(x, 1, k=y)", "call_with(f)(argument(x, '0'), 1, k=argument(y, 'k'))"),
        ("a.b.c(1)", "call(a.b.c)(1)"),
        ("f(*x, **y)", "call(f)(*iterate(x), **y)"),
        ("super().f()", "call(super().f)()"),
        ("len(x)", "len(x)"),
        ("set(x)", "call(set)(members(x))"),
        ("s.add(x)", "call(s.add)(member(x))"),
        ("sorted(x, key=id)", "call_with(sorted)(argument(x, '0'), key=key(id))"),
        ("map(f, x)", "call_with(map)(key(f), argument(x, '1'))"),
        ("for a in b: pass", "for a in iterate(b):\n    pass"),
        ("for a in range(3): pass", "for a in range(3):\n    pass"),
        ("for a in [1, 2]: pass", "for a in [1, 2]:\n    pass"),
        ("a, b = c", "a, b = iterate(c)"),
        ("a = c", "a = c"),
        ("a += b", "a += iterate(b)"),
        ("[a for a in b if f()]", "[a for a in iterate(b) if call(f)()]"),
        ("{a, 1, f()}", "{member(a), 1, member(call(f)())}"),
        ("@f(x)\ndef g(a: h(1) = i()) -> j(): pass", "@f(x)\ndef g(a: h(1)=call(i)()) -> j():\n    pass"),
        ("class A(f()):\n    x: g() = h()", "class A(f()):\n    x: g() = call(h)()"),
        ("@numba.njit\ndef g():\n    return f()", "@numba.njit\ndef g():\n    return f()"),
        ("x[f()] = 1", "x[call(f)()] = 1"),
        ("lambda a=f(): g()", "lambda a=call(f)(): call(g)()"),
        ("async def g():\n    async for a in b: await f()", "async def g():\n    async for a in b:\n        await call(f)()"),
    ],
)  # fmt: skip
def test_only_calls_and_iterations_ask(source: str, expected: str) -> None:
    assert text_of(source) == expected


@pytest.mark.parametrize(
    ("source", "is_unordered"),
    [
        ("sorted(f())", True),
        ("sorted(list(f()))", True),
        ("sorted(a for a in f())", True),
        ("set(f())", True),
        ("sorted(f(), key=k)", False),
        ("sorted(f()[:3])", False),
        ("sorted(f().x)", False),
        ("sorted(g(f()))", False),
        ("sum(a for a in f())", False),
        ("[a for a in f()]", False),
    ],
)
def test_what_does_not_mind_the_order_is_marked(source: str, is_unordered: bool) -> None:
    tree = rewritten(ast.parse(source), "f")
    marks = [
        parsed(str(node.args[0].value)).is_unordered
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == rewrite.CALL
        and isinstance(node.args[0], ast.Constant) and isinstance(node.args[1], ast.Name) and node.args[1].id == "f"
    ]  # fmt: skip

    assert marks == [is_unordered]


def test_site_survives_as_text() -> None:
    site = ProbedSite("C:/odd:name.py", 1, 2, 3, 4, "A.f.<locals>.g", True)

    assert parsed(site_text(site)) == site
