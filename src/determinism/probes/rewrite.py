"""Rewrites a syntax tree so that each call and each iteration asks the probes first, and nothing else changes.

`f(x)` becomes `__probe__(site, f)(x)`, where the probe returns `f` itself: the user's own frame still makes the call.
Iterables and arguments go through a function that returns them. Added nodes take the source position of the expression
that they wrap, so that tracebacks, line numbers and `inspect` show what they would have shown without them.
"""

from __future__ import annotations

import ast
import linecache
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from typing import TypeGuard, TypeVar

from determinism.redaction import redacted_code
from determinism.source_files import cell_name, original_path

# The names under which rewritten code finds the probes. They begin and end with two underscores, so that no class
# mangles them.

CALL = "__determinism_call__"
"""Called for each call without arguments that could be a set, with the site and the callee."""
CALL_WITH = "__determinism_call_with__"
"""Called for every other call, with the same arguments."""
ARGUMENT = "__determinism_argument__"
"""Called for each argument that could be a set, with the site of the call and the argument."""
ITERATE = "__determinism_iterate__"
"""Called for each iterable that could be a set, with its site."""
MEMBER = "__determinism_member__"
"""Called for each element that goes into a set."""
MEMBERS = "__determinism_members__"
"""Called for the iterable that a set is made from."""
KEY = "__determinism_key__"
"""Called for each function passed as an argument for others to call, with the site of the call."""
RESULT = "__determinism_result__"
"""Called for the result of a call, with the site of the call; only where notes are taken."""

ALL = (CALL, CALL_WITH, ARGUMENT, ITERATE, MEMBER, MEMBERS, KEY, RESULT)


# The text with which rewritten code identifies a site: a constant, so that it survives pickling and means the same
# everywhere.

_MAX_CODE = 400

UNORDERED = "u"
"""Mark of a site whose result goes straight into a function that ignores order: `sorted`, `set`, `len`."""
IN_LIBRARY = "l"
"""Mark of a site in an installed library."""


@dataclass(frozen=True)
class ProbedSite:
    """A position in source code that has a probe, from the syntax tree."""

    file: str
    """Its path as the program knows it."""
    line: int
    column: int
    """Offset of the first byte in its line, in UTF-8."""
    end_line: int
    end_column: int
    """Offset after the last byte in its line."""
    function: str
    is_unordered: bool
    is_in_library: bool = False
    name_line: int = 0
    """The line of the callee's name, where it is not the line on which the call begins (in a chain of calls); else 0."""

    @property
    def shown_line(self) -> int:
        """The line on which a reader looks for the call."""
        return self.name_line or self.line

    @property
    def original_file(self) -> str:
        """The path of the file, or of the file that it is a copy of; for a notebook, the name of the cell."""
        return cell_name(self.file) or original_path(os.path.abspath(self.file))

    @property
    def code(self) -> str:
        """The source line, without its indentation."""
        return redacted_code(linecache.getline(self.file, self.shown_line).strip()[:_MAX_CODE])

    @property
    def description(self) -> dict[str, str | int]:
        """The site as it is written in notes."""
        return {
            "file": self.original_file,
            "line": self.line,
            "column": self.column,
            "end_line": self.end_line,
            "end_column": self.end_column,
            "name_line": self.shown_line,
            "function": self.function,
            "code": self.code,
        }


def site_text(site: ProbedSite) -> str:
    """The text that represents a site."""
    mark = UNORDERED * site.is_unordered + IN_LIBRARY * site.is_in_library
    numbers = f"{site.line}:{site.column}:{site.end_line}:{site.end_column}:{site.name_line}"
    return f"{numbers}:{mark}:{site.function}:{site.file}"


@cache
def parsed(text: str) -> ProbedSite:
    """The site that a text represents."""
    line, column, end_line, end_column, name_line, mark, function, file = text.split(":", 7)
    place = int(line), int(column), int(end_line), int(end_column)
    return ProbedSite(file, *place, function, UNORDERED in mark, IN_LIBRARY in mark, int(name_line))


# What syntax alone shows: which expressions cannot be a set, which functions ignore order, where a call is.

OWN_FRAME = frozenset({"super", "locals", "globals", "vars", "eval", "exec", "dir", "__import__", "breakpoint"})
"""Functions that inspect their caller's frame, or that the compiler knows by name."""
NO_SOURCE = OWN_FRAME | frozenset(
    {
        "isinstance", "issubclass", "print", "len", "range", "type", "int", "float", "bool", "abs", "round", "getattr",
        "setattr", "hasattr", "callable", "divmod", "pow", "chr", "ord", "property", "staticmethod", "classmethod",
        "object", "slice", "memoryview", "bytes", "bytearray", "complex", "any", "all",
    }
)  # fmt: skip
IGNORES_ORDER = frozenset({"len", "sorted", "min", "max", "any", "all", "set", "frozenset"})
KEEPS_CONTENT = frozenset({"list", "tuple", "iter", "map", "filter"})
"""Functions that ignore order as well if their result goes to one that does: `sorted(list(x))`."""
NO_SETS = frozenset(
    {"range", "enumerate", "zip", "sorted", "reversed", "map", "filter", "list", "tuple", "len", "iter"}
)
"""Functions that never return a set."""
CALLS_BACK = frozenset({"key", "default_factory", "default", "target", "default_value"})
CALLS_FIRST = frozenset({"map", "filter", "starmap", "submit", "apply_async", "partial", "defaultdict"})
COMPILED_FROM_BYTECODE = frozenset({"njit", "jit", "vectorize", "guvectorize", "cfunc", "stencil", "overload"})
"""Decorators of Numba, which compiles the bytecode of a function and does not know the probes."""
_GIVES_MEMBERS = (ast.GeneratorExp, ast.ListComp, ast.List, ast.Tuple)
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
    """Move a call to the line on which the compiler places a method call: that of the method's name."""
    if function.end_lineno is None or function.end_col_offset is None:
        return
    has_stars = any(isinstance(one, ast.Starred) for one in node.args) or any(one.arg is None for one in node.keywords)
    if node.lineno != function.end_lineno and not has_stars:
        node.lineno = function.end_lineno
        node.col_offset = max(0, function.end_col_offset - len(function.attr))


def may_be_set(node: ast.expr) -> bool:
    """Whether the value of an expression may be a set."""
    if isinstance(node, ast.BinOp):
        return isinstance(node.op, ast.BitOr | ast.BitAnd | ast.BitXor | ast.Sub)
    return isinstance(node, MAYBE_SETS)


def unpacks(target: ast.expr) -> bool:
    """Whether assigning to a target iterates the assigned value."""
    return isinstance(target, ast.Tuple | ast.List) or (
        isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Slice)
    )


def is_call_of(node: ast.expr, *names: str) -> TypeGuard[ast.Call]:
    """Whether an expression is a call by one of these names."""
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in names


def last_name(node: ast.expr) -> str:
    """The last part of the name that an expression calls or looks up: `c` of `a.b.c`."""
    if isinstance(node, ast.Call):
        return last_name(node.func)
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


_Node = TypeVar("_Node", bound=ast.AST)
_Function = TypeVar("_Function", ast.FunctionDef, ast.AsyncFunctionDef)
_Comprehension = TypeVar("_Comprehension", ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp)


def rewritten(tree: ast.Module, file: str, *, asks_for_results: bool = False) -> ast.Module:
    """The rewritten syntax tree of a module.

    Args:
        tree: The parsed module; it is changed in place.
        file: Its file.
        asks_for_results: Whether the results of calls are probed, too.

    Raises:
        RecursionError: The module is nested too deeply.
    """
    _Rewriter(file, frozenset(imported_names(tree.body)), asks_for_results).visit(tree)
    return tree


def library_rewritten(tree: ast.Module, file: str, names: frozenset[str]) -> ast.Module:
    """The syntax tree of a library's module, in which only some calls are probed.

    Args:
        tree: The parsed module; it is changed in place.
        file: Its file.
        names: The last parts of the names of the functions whose calls are probed.

    Raises:
        RecursionError: The module is nested too deeply.
    """
    _LibraryRewriter(file, frozenset(imported_names(tree.body)), names).visit(tree)
    return tree


def _name_line(node: ast.expr) -> int:
    """The line of the method's name in a method call; the first line of any other expression."""
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.end_lineno or node.lineno
    return node.lineno


class _Asking(ast.NodeTransformer):
    """Tracks the enclosing scope, and puts probes around expressions."""

    _is_in_library = False

    def __init__(self, file: str, imported: frozenset[str]) -> None:
        self._file = file
        self._imported = imported
        self._scopes: list[str] = []
        self._is_unordered = False
        self._moved: dict[ast.expr, tuple[int, int, int]] = {}
        """The original line and column of calls whose line was moved, and the line of the callee's name."""

    def _asked_for_callee(self, node: ast.Call, function: ast.expr, probe: str) -> None:
        """Put a probe around the callee of a call; `function` is the callee as it was written."""
        asked = self._asked(probe, node.func, of=node)
        self._moved[node] = (node.lineno, node.col_offset, _name_line(node))
        if isinstance(function, ast.Attribute) and not (
            isinstance(function.value, ast.Name) and function.value.id in self._imported
        ):
            keep_line_of_method(node, function)
        node.func = asked

    def _asked(self, probe: str, node: ast.expr, of: ast.expr | None = None) -> ast.Call:
        """A call of a probe with a site and an expression, at the position of the expression.

        Args:
            probe: Name of the probe.
            node: The expression.
            of: The node to which the site belongs, if not the expression.
        """
        place = node if of is None else of
        line, column, name_line = self._moved.get(place) or (place.lineno, place.col_offset, _name_line(place))
        site = ProbedSite(
            self._file,
            line,
            column,
            place.end_lineno or place.lineno,
            place.end_col_offset or place.col_offset,
            ".".join(self._scopes[: -1 if self._scopes[-1:] == ["<locals>"] else None]) or "<module>",
            self._is_unordered,
            self._is_in_library,
            name_line if name_line != line else 0,
        )
        at = ast.copy_location(ast.Name(probe, ast.Load()), node)
        text = ast.copy_location(ast.Constant(site_text(site)), node)
        return ast.copy_location(ast.Call(at, [text, node], []), node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.ClassDef:
        with self._scope(node.name):
            node.body = [self._visited(statement) for statement in node.body]
        return node

    def _visited(self, node: _Node) -> _Node:
        result: _Node = self.visit(node)
        return result

    @contextmanager
    def _scope(self, *names: str) -> Iterator[None]:
        self._scopes += names
        yield
        del self._scopes[-len(names) :]

    @contextmanager
    def _order(self, is_unordered: bool) -> Iterator[None]:
        before, self._is_unordered = self._is_unordered, is_unordered
        yield
        self._is_unordered = before


class _LibraryRewriter(_Asking):
    """Probes calls by some names, and nothing else."""

    _is_in_library = True

    def __init__(self, file: str, imported: frozenset[str], names: frozenset[str]) -> None:
        super().__init__(file, imported)
        self._names = names

    def _function(self, node: _Function) -> _Function:
        if not any(last_name(decorator) in COMPILED_FROM_BYTECODE for decorator in node.decorator_list):
            with self._scope(node.name, "<locals>"):
                node.body = [self._visited(statement) for statement in node.body]
        return node

    visit_FunctionDef = visit_AsyncFunctionDef = _function

    def visit_Call(self, node: ast.Call) -> ast.Call:
        self.generic_visit(node)
        function = node.func
        if isinstance(function, ast.Name | ast.Attribute) and last_name(function) in self._names:
            self._asked_for_callee(node, function, CALL)
        return node


class _Rewriter(_Asking):
    def __init__(self, file: str, imported: frozenset[str], asks_for_results: bool) -> None:
        super().__init__(file, imported)
        self._asks_for_results = asks_for_results

    # Definitions: their decorators, annotations and bases stay as they are.

    def _function(self, node: _Function) -> _Function:
        if any(last_name(decorator) in COMPILED_FROM_BYTECODE for decorator in node.decorator_list):
            return node
        self._defaults(node.args)
        with self._scope(node.name, "<locals>"):
            node.body = [self._visited(statement) for statement in node.body]
        return node

    visit_FunctionDef = visit_AsyncFunctionDef = _function

    def visit_Lambda(self, node: ast.Lambda) -> ast.Lambda:
        self._defaults(node.args)
        with self._scope("<lambda>", "<locals>"), self._order(False):
            node.body = self._visited(node.body)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AnnAssign:
        node.target = self._visited(node.target)
        if node.value is not None:
            node.value = self._visited(node.value)
        return node

    def _defaults(self, arguments: ast.arguments) -> None:
        arguments.defaults = [self._visited(default) for default in arguments.defaults]
        arguments.kw_defaults = [default and self._visited(default) for default in arguments.kw_defaults]

    # Iterations.

    def visit_For(self, node: ast.For) -> ast.For:
        self.generic_visit(node)
        node.iter = self._iterated(node.iter)
        return node

    def visit_ListComp(self, node: _Comprehension) -> _Comprehension:
        return self._comprehension(node, self._is_unordered)

    visit_GeneratorExp = visit_ListComp

    def visit_DictComp(self, node: ast.DictComp) -> ast.DictComp:
        return self._comprehension(node, False)

    def visit_SetComp(self, node: ast.SetComp) -> ast.SetComp:
        self._comprehension(node, True)
        node.elt = self._asked(MEMBER, node.elt)
        return node

    def _comprehension(self, node: _Comprehension, is_unordered: bool) -> _Comprehension:
        with self._order(False):
            if isinstance(node, ast.DictComp):
                node.key, node.value = self._visited(node.key), self._visited(node.value)
            else:
                node.elt = self._visited(node.elt)
        for part in node.generators:
            with self._order(is_unordered):
                part.iter = self._visited(part.iter)
                if not part.is_async:
                    part.iter = self._iterated(part.iter)
            with self._order(False):
                part.target = self._visited(part.target)
                part.ifs = [self._visited(condition) for condition in part.ifs]
        return node

    def visit_Starred(self, node: ast.Starred) -> ast.Starred:
        self.generic_visit(node)
        if isinstance(node.ctx, ast.Load):
            node.value = self._iterated(node.value)
        return node

    def visit_YieldFrom(self, node: ast.YieldFrom) -> ast.YieldFrom:
        self.generic_visit(node)
        node.value = self._iterated(node.value)
        return node

    def visit_Assign(self, node: ast.Assign) -> ast.Assign:
        self.generic_visit(node)
        if any(unpacks(target) for target in node.targets):
            node.value = self._iterated(node.value)
        return node

    def visit_AugAssign(self, node: ast.AugAssign) -> ast.AugAssign:
        self.generic_visit(node)
        # `+=` iterates a set only where it extends a list.
        if isinstance(node.op, ast.Add):
            node.value = self._iterated(node.value)
        return node

    def visit_Set(self, node: ast.Set) -> ast.Set:
        self.generic_visit(node)
        node.elts = [
            one if isinstance(one, ast.Constant | ast.Starred) else self._asked(MEMBER, one) for one in node.elts
        ]
        return node

    def visit_Subscript(self, node: _Node) -> _Node:
        # `sorted(x[:3])`: which elements these are depends on the order of x.
        with self._order(False):
            self.generic_visit(node)
        return node

    visit_Attribute = visit_Subscript

    # Calls.

    def visit_Call(self, node: ast.Call) -> ast.Call:
        name = last_name(node.func)
        is_plain = isinstance(node.func, ast.Name)
        ignores_order = is_plain and name in IGNORES_ORDER and not any(one.arg == "key" for one in node.keywords)
        is_unordered = self._is_unordered
        passes_on = ignores_order or (is_plain and name in KEEPS_CONTENT and is_unordered)
        function = node.func
        with self._order(False):
            node.func = self._visited(node.func)
        with self._order(passes_on):
            node.args = [self._visited(argument) for argument in node.args]
        with self._order(False):
            for keyword in node.keywords:
                keyword.value = self._visited(keyword.value)
        asks = self._arguments(node, name, "none" if passes_on else "sets")
        if is_plain and (name in OWN_FRAME or (name in NO_SOURCE and not asks)):
            return node
        if not isinstance(function, ast.Name | ast.Attribute | ast.Call | ast.Subscript):
            return node
        with self._order(is_unordered):
            self._asked_for_callee(node, function, CALL_WITH if asks else CALL)
            if not self._asks_for_results:
                return node
            result = self._asked(RESULT, node)
        self._moved[result] = self._moved[node]
        return result

    def _arguments(self, node: ast.Call, name: str, which: str) -> bool:
        """Put probes around arguments; return whether any of these needs to know the callee."""
        is_name, asks = isinstance(node.func, ast.Name), False
        if name == "WeakSet" or (is_name and name in ("set", "frozenset")):
            kinds = (*MAYBE_SETS, ast.GeneratorExp, ast.ListComp)
            node.args = [self._asked(MEMBERS, one) if isinstance(one, kinds) else one for one in node.args]
        elif not is_name and name == "add" and len(node.args) == 1 and not isinstance(node.args[0], ast.Starred):
            node.args = [self._asked(MEMBER, node.args[0], of=node)]
        elif which == "sets" and not (is_name and name in NO_SOURCE):
            for index, argument in enumerate(node.args):
                if may_be_set(argument) or (name == "update" and isinstance(argument, _GIVES_MEMBERS)):
                    node.args[index], asks = self._argument(node, argument, str(index)), True
            for keyword in node.keywords:
                if keyword.arg is not None and keyword.arg not in CALLS_BACK and may_be_set(keyword.value):
                    keyword.value, asks = self._argument(node, keyword.value, keyword.arg), True
        for keyword in node.keywords:
            if keyword.arg in CALLS_BACK and isinstance(keyword.value, ast.Name | ast.Attribute):
                keyword.value = self._asked(KEY, keyword.value, of=node)
        if name in CALLS_FIRST and node.args:
            first = node.args[0]
            inner = first.args[1] if is_call_of(first, ARGUMENT) else first
            if isinstance(inner, ast.Name | ast.Attribute):
                node.args[0] = self._asked(KEY, inner, of=node)
        return asks

    def _argument(self, call: ast.Call, argument: ast.expr, name: str) -> ast.expr:
        """Put a probe around an argument; it also receives the argument's number or keyword."""
        asked = self._asked(ARGUMENT, argument, of=call)
        asked.args.append(ast.copy_location(ast.Constant(name), argument))
        return asked

    def _iterated(self, node: ast.expr) -> ast.expr:
        if isinstance(node, ast.Call):
            call = node.args[1] if is_call_of(node, RESULT) else node
            function = call.func if isinstance(call, ast.Call) else call
            called = function.args[1] if is_call_of(function, CALL, CALL_WITH) else function
            if isinstance(called, ast.Name) and called.id in NO_SETS:
                return node
        return self._asked(ITERATE, node) if may_be_set(node) else node
