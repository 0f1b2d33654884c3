"""What is known of a piece of syntax by looking at it: what cannot be a set, what does not mind the order, where it lies."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from typing import TypeGuard

OWN_FRAME = frozenset({"super", "locals", "globals", "vars", "eval", "exec", "dir", "__import__", "breakpoint"})
"""What looks at the frame that calls it, or that the compiler knows by its name."""
NO_SOURCE = OWN_FRAME | frozenset(
    {
        "isinstance", "issubclass", "print", "len", "range", "type", "int", "float", "bool", "abs", "round", "getattr",
        "setattr", "hasattr", "callable", "divmod", "pow", "chr", "ord", "property", "staticmethod", "classmethod",
        "object", "slice", "memoryview", "bytes", "bytearray", "complex", "any", "all",
    }
)  # fmt: skip
IGNORES_ORDER = frozenset({"len", "sorted", "min", "max", "any", "all", "set", "frozenset"})
KEEPS_CONTENT = frozenset({"list", "tuple", "iter", "map", "filter"})
"""What order cannot matter to before what ignores it: `sorted(list(x))`."""
NO_SETS = frozenset(
    {"range", "enumerate", "zip", "sorted", "reversed", "map", "filter", "list", "tuple", "len", "iter"}
)
"""What never gives a set."""
CALLS_BACK = frozenset({"key", "default_factory", "default", "target", "default_value"})
CALLS_FIRST = frozenset({"map", "filter", "starmap", "submit", "apply_async", "partial", "defaultdict"})
COMPILED_FROM_BYTECODE = frozenset({"njit", "jit", "vectorize", "guvectorize", "cfunc", "stencil", "overload"})
"""Decorators of Numba, which compiles the bytecode of a function and knows no probes."""
MAYBE_SETS = (ast.Name, ast.Attribute, ast.Call, ast.Subscript, ast.Set, ast.SetComp, ast.IfExp, ast.BoolOp,
               ast.NamedExpr, ast.Await)  # fmt: skip


def imported_names(statements: Iterable[ast.AST]) -> Iterator[str]:
    """The names that a module imports outside of functions and classes."""
    for statement in statements:
        if isinstance(statement, ast.Import | ast.ImportFrom):
            yield from ((alias.asname or alias.name.partition(".")[0]) for alias in statement.names)
        elif not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            yield from imported_names(ast.iter_child_nodes(statement))


def keep_line_of_method(node: ast.Call, function: ast.Attribute) -> None:
    """Put a call where the compiler puts the call of a method: on the line of its name."""
    if function.end_lineno is None or function.end_col_offset is None:
        return
    has_stars = any(isinstance(one, ast.Starred) for one in node.args) or any(one.arg is None for one in node.keywords)
    if node.lineno != function.end_lineno and not has_stars:
        node.lineno = function.end_lineno
        node.col_offset = max(0, function.end_col_offset - len(function.attr))


def may_be_set(node: ast.expr) -> bool:
    """Whether an expression may give a set."""
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.BitOr | ast.BitAnd | ast.BitXor | ast.Sub)
    return isinstance(node, MAYBE_SETS)


def takes_apart(target: ast.expr) -> bool:
    """Whether assigning to a target iterates what is assigned."""
    return isinstance(target, ast.Tuple | ast.List) or (
        isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Slice)
    )


def is_call_of(node: ast.expr, *names: str) -> TypeGuard[ast.Call]:
    """Whether an expression calls something by one of these names."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names


def last_name(node: ast.expr) -> str:
    """The name of what is called or looked up, without what it is looked up in."""
    if isinstance(node, ast.Call):
        return last_name(node.func)
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
