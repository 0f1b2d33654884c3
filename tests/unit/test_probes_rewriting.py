"""Rewritten code differs only in the probes: names, variables, lines and the positions of calls are unchanged."""

from __future__ import annotations

import ast
import dis
import importlib.util
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import CodeType

import pytest

from determinism.probes import rewrite
from determinism.probes.loading import SEEDING_NAMES
from determinism.probes.rewrite import ProbedSite, library_rewritten, parsed, rewritten, site_text

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
    """A code object and all code objects nested in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes(constant)


def places_of_calls(code: CodeType) -> set[tuple[int | None, ...]]:
    """The positions of a code object's calls in the source."""
    return {
        (at.lineno, at.end_lineno, at.col_offset, at.end_col_offset)
        for instruction in dis.get_instructions(code)
        if instruction.opname.startswith("CALL") and (at := instruction.positions) is not None
    }


def lines(code: CodeType) -> set[int]:
    """The lines that a code object has instructions for."""
    return {line for *_, line in code.co_lines() if line}


def probed_for_notes(tree: ast.Module) -> ast.Module:
    return rewritten(tree, "f", asks_for_results=True)


def probed_for_seeds(tree: ast.Module) -> ast.Module:
    return library_rewritten(tree, "f", SEEDING_NAMES | {"get", "append"})


@pytest.mark.parametrize("rewrite_tree", [lambda tree: rewritten(tree, "f"), probed_for_notes, probed_for_seeds])
@pytest.mark.parametrize("module", MODULES)
def test_code_is_unchanged_except_for_the_probes(module: str, rewrite_tree: Callable[[ast.Module], ast.Module]) -> None:
    spec = importlib.util.find_spec(module)
    assert spec is not None and spec.origin is not None
    source = Path(spec.origin).read_bytes()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pairs = list(
            zip(
                codes(compile(source, module, "exec", dont_inherit=True)),
                codes(compile(rewrite_tree(ast.parse(source)), module, "exec", dont_inherit=True)),
                strict=True,
            )
        )

    assert any(PROBES & {*probed.co_names} for _, probed in pairs) or rewrite_tree is probed_for_seeds
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
def test_only_calls_and_iterations_are_probed(source: str, expected: str) -> None:
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
def test_calls_whose_order_does_not_matter_are_marked(source: str, is_unordered: bool) -> None:
    tree = rewritten(ast.parse(source), "f")
    marks = [
        parsed(str(node.args[0].value)).is_unordered
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == rewrite.CALL
        and isinstance(node.args[0], ast.Constant) and isinstance(node.args[1], ast.Name) and node.args[1].id == "f"
    ]  # fmt: skip

    assert marks == [is_unordered]


@pytest.mark.parametrize("is_in_library", [True, False])
def test_a_site_survives_conversion_to_text(is_in_library: bool) -> None:
    site = ProbedSite("C:/odd:name.py", 1, 2, 3, 4, "A.f.<locals>.g", True, is_in_library, 2)

    assert parsed(site_text(site)) == site


def test_a_call_in_a_chain_shows_the_line_of_its_name() -> None:
    tree = rewritten(ast.parse("(a\n .f()\n .g(x)\n)"), "f")
    sites = [
        parsed(node.args[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in PROBES
        and isinstance(node.args[0], ast.Constant)
    ]  # fmt: skip

    assert {(site.line, site.shown_line) for site in sites} == {(1, 2), (1, 3)}


def test_in_a_library_only_calls_of_the_given_names_are_probed() -> None:
    tree = library_rewritten(ast.parse("f(g())\nx.Random(y)\nfor a in b: seed()"), "f", frozenset({"Random", "seed"}))
    asked = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id in PROBES]

    assert asked == [rewrite.CALL, rewrite.CALL]
    assert all(
        parsed(node.args[0].value).is_in_library
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == rewrite.CALL
        and isinstance(node.args[0], ast.Constant)
    )  # fmt: skip
