"""A parsed file of a program: what its names refer to, its scopes, and what is assigned in them."""

from __future__ import annotations

import ast
import itertools
import re
import sys
from collections import deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from determinism.redaction import redacted_code
from determinism.run_spec import ChangedLines
from determinism.sites import LONGEST_CODE
from determinism.trace.schema import Frame

_MOST_BYTES = 1_000_000
FILLING = frozenset(["append", "extend", "add", "insert", "update", "put", "appendleft", "setdefault"])
_NUMBERS = frozenset({"range", "int", "float", "len", "round", "ord", "numel", "dim", "ndim"})
"""Calls that return numbers, whose hashes are the same in each run."""

_COMMENT = re.compile(rb"#[^\n]*")

_BARS = ("tqdm", "track")
"""Functions that show a loop's progress and yield what they are given."""
_COUNTS = ("range", "trange")

Function = ast.FunctionDef | ast.AsyncFunctionDef
Scope = Function | ast.Lambda | ast.Module


Loop = ast.For | ast.AsyncFor | ast.While | ast.comprehension
_COMPREHENSIONS = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
_Place = tuple[int, int, int | None, int | None]
"""The line and column where an expression begins, and those where it ends."""


@dataclass(frozen=True)
class Edit:
    """A replacement of part of a text."""

    start: int
    """The first byte."""
    end: int
    """The byte after the last."""
    text: str


class Module:
    """A file of the program, parsed: its text, its syntax tree, what its names refer to, and edits to its expressions."""

    def __init__(self, file: str, text: str) -> None:
        """Parse a text, and collect the names that it imports.

        Raises:
            SyntaxError: It is not valid Python.
            ValueError: It holds characters that no file can hold.
        """
        self.file = file
        self.source = text.encode()
        self.tree = ast.parse(text, file)
        self.nodes = list(ast.walk(self.tree))
        """All nodes of the tree, since every rule visits them."""
        self.parents = {child: node for node in self.nodes for child in ast.iter_child_nodes(node)}
        lines = self.source.splitlines(keepends=True)
        self.lines = [line.decode().rstrip("\r\n") for line in lines]
        self._begins = [0, *itertools.accumulate(len(line) for line in lines)]
        self.imports: dict[str, str] = {}
        self._bindings: dict[ast.AST, tuple[dict[str, list[ast.expr]], dict[str, list[ast.expr]]]] = {}
        """For each requested scope: everything assigned to or put into each name, and what is assigned to it as a whole."""
        for node in self.nodes:
            if isinstance(node, ast.Import):
                for name in node.names:
                    first = name.name.partition(".")[0]
                    self.imports[name.asname or first] = name.name if name.asname else first
            elif isinstance(node, ast.ImportFrom):
                for name in node.names:
                    self.imports[name.asname or name.name] = f"{node.module or ''}.{name.name}"

    @classmethod
    def read(cls, file: str | Path) -> Module | None:
        """Read a file; None if it is not a readable Python file in UTF-8."""
        path = Path(file)
        try:
            if not path.is_file() or path.stat().st_size > _MOST_BYTES:
                return None
            return cls(str(file), path.read_bytes().decode("utf-8-sig"))
        except (OSError, ValueError, SyntaxError, RecursionError):
            return None

    @cached_property
    def packages(self) -> frozenset[str]:
        """The packages that the file imports, or imports from."""
        return frozenset(name.partition(".")[0] for name in self.imports.values())

    def imported_files(self) -> Iterator[str]:
        """Yield the files that this one imports from its folder, or from a parent folder that it may have been imported from."""
        folder = Path(self.file).parent
        root = folder
        places: tuple[Path, ...]
        while (root / "__init__.py").is_file() and root != root.parent:
            root = root.parent
        for node in self.nodes:
            if isinstance(node, ast.Import):
                places, names = (folder, root, folder.parent), [one.name for one in node.names]
            elif isinstance(node, ast.ImportFrom):
                around = folder.parents[node.level - 2] if 1 < node.level <= len(folder.parents) + 1 else folder
                places = (around,) if node.level else (folder, root, folder.parent)
                base = node.module or ""
                names = [base, *(f"{base}.{one.name}".lstrip(".") for one in node.names)]
            else:
                continue
            for name in filter(None, names):
                paths = (place.joinpath(*name.split(".")) for place in dict.fromkeys(places))
                ways = (way for path in paths for way in (path.with_name(f"{path.name}.py"), path / "__init__.py"))
                yield from (str(way) for way in itertools.islice(filter(Path.is_file, ways), 1))

    def has(self, lines: Collection[tuple[int, str]]) -> bool:
        """Whether these lines, by number and code, are still those of the file."""
        return all(
            0 < line <= len(self.lines) and redacted_code(self.lines[line - 1].strip()[:LONGEST_CODE]) == code
            for line, code in lines
            if code
        )

    def dotted(self, node: ast.expr) -> str:
        """Resolve a name by the imports, such as to `numpy.random.rand`; empty if it begins with no plain name."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return ""
        return ".".join([self.imports.get(node.id, node.id), *reversed(parts)])

    def is_standard(self, node: ast.expr) -> bool:
        """Whether a node is an attribute of an imported module of Python's standard library, such as `os.environ.get`."""
        at = node
        while isinstance(at, ast.Attribute):
            at = at.value
        imported = self.imports.get(at.id, "") if isinstance(at, ast.Name) and at is not node else ""
        return imported.partition(".")[0] in sys.stdlib_module_names

    def scope_of(self, node: ast.AST) -> Scope:
        """Return the function around a node, or the module."""
        outer = itertools.islice(self.outwards(node), 1, None)
        return next((one for one in outer if isinstance(one, Function | ast.Lambda)), self.tree)

    def outwards(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield a node, the node that contains it, and so on."""
        at: ast.AST | None = node
        while at is not None:
            yield at
            at = self.parents.get(at)

    def within_statement(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield a node and what contains it, inside of its statement."""
        return itertools.takewhile(lambda one: not isinstance(one, ast.stmt), self.outwards(node))

    def statement_of(self, node: ast.AST) -> ast.stmt:
        """Return the statement that a node is part of, or is."""
        return next(one for one in self.outwards(node) if isinstance(one, ast.stmt))

    def loops_of(self, node: ast.AST) -> list[Loop]:
        """Return the loops in the same function that repeat a node, innermost first."""
        loops: list[Loop] = []
        for inner, outer in itertools.pairwise(self.outwards(node)):
            if isinstance(outer, Function | ast.Lambda):
                break
            # What a loop or a comprehension iterates over is evaluated once.
            if isinstance(outer, Loop) and inner not in (getattr(outer, "iter", None), *getattr(outer, "orelse", ())):
                loops.append(outer)
            elif isinstance(outer, _COMPREHENSIONS):
                generators = outer.generators
                until = generators.index(inner) if isinstance(inner, ast.comprehension) else len(generators)
                loops += reversed(generators[:until])
        return loops

    def bound(self, scope: Scope, name: str) -> list[ast.expr]:
        """Return what is assigned to a name in a scope, and what is put into it."""
        return self._bindings_of(scope)[0].get(name, [])

    def given(self, scope: Scope, name: str) -> list[ast.expr]:
        """Return what is assigned to a name as a whole in a scope, without what is put into it or looped over."""
        return self._bindings_of(scope)[1].get(name, [])

    def _bindings_of(self, scope: Scope) -> tuple[dict[str, list[ast.expr]], dict[str, list[ast.expr]]]:
        if scope not in self._bindings:
            self._bindings[scope] = bindings_of(scope)
        return self._bindings[scope]

    def with_its_elements(self, node: ast.AST, keeping: Collection[str]) -> ast.AST:
        """Return the outermost expression that takes its elements from one, by comprehensions and by functions that keep them."""
        while True:
            parent = self.parents.get(node)
            if isinstance(parent, ast.comprehension) and parent.iter is node:
                node = self.parents[parent]
            elif isinstance(parent, ast.Call) and last_part(parent.func) in keeping and node in parent.args:
                node = parent
            else:
                return node

    def is_sorted_in_place(self, node: ast.AST) -> bool:
        """Whether a statement assigns an expression to something that its function sorts: `names = os.listdir(folder)`, `names.sort()`."""
        statement = self.parents.get(node)
        if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
            return False
        name, scope = ast.unparse(statement.targets[0]), self.scope_of(node)
        ways = (f"{name}.sort", f"{name} = sorted({name}")
        return any(
            isinstance(one, ast.Attribute | ast.Assign)
            and ast.unparse(one).startswith(ways)
            and self.scope_of(one) is scope
            for one in self.nodes
        )

    def frame(self, node: ast.expr | ast.stmt) -> Frame:
        """Return where a node is, as shown in reports."""
        scope = self.scope_of(node)
        name = scope.name if isinstance(scope, Function) else "<module>"
        code = self.lines[node.lineno - 1].strip() if node.lineno <= len(self.lines) else ""
        return Frame(self.file, node.lineno, name, redacted_code(code))

    def at(self, place: _Place) -> ast.expr | None:
        """Return the expression at a place, the outermost of several; None if there is none."""
        expressions = (node for node in self.nodes if isinstance(node, ast.expr))
        return next((node for node in expressions if place_of(node) == place), None)

    def start(self, node: ast.expr | ast.keyword | ast.stmt) -> int:
        """Return the offset of a node's first byte."""
        return self._begins[node.lineno - 1] + node.col_offset

    def end(self, node: ast.expr | ast.keyword | ast.stmt) -> int:
        """Return the offset of the byte after a node."""
        line, column = node.end_lineno or node.lineno, node.end_col_offset or node.col_offset
        return self._begins[line - 1] + column

    def text_of(self, node: ast.expr) -> str:
        """Return the text of an expression."""
        return self.source[self.start(node) : self.end(node)].decode()

    def replaced(self, node: ast.expr, text: str) -> Edit:
        """Replace an expression."""
        return Edit(self.start(node), self.end(node), text)

    def around(self, node: ast.expr, before: str, after: str) -> list[Edit]:
        """Insert text before and after an expression."""
        return [Edit(self.start(node), self.start(node), before), Edit(self.end(node), self.end(node), after)]

    def renamed(self, function: ast.expr, name: str) -> Edit:
        """Replace the last name of what is called."""
        length = len((function.attr if isinstance(function, ast.Attribute) else self.text_of(function)).encode())
        return Edit(self.end(function) - length, self.end(function), name)

    def first_argument(self, call: ast.Call, text: str) -> Edit:
        """Add a new first argument to a call."""
        opened = self.source.index(b"(", self.end(call.func)) + 1
        return Edit(opened, opened, text if not (call.args or call.keywords) else f"{text}, ")

    def last_argument(self, call: ast.Call, text: str) -> Edit:
        """Add a new last argument to a call, on a line of its own if the last one has such a line."""
        given: list[ast.expr | ast.keyword] = [*call.args, *call.keywords]
        last = max(given, key=self.end, default=None)
        begin, closed = self.end(last or call.func), self.end(call) - 1
        # A comment may end in anything.
        bare = _COMMENT.sub(lambda comment: b" " * len(comment[0]), self.source[begin:closed])
        at = begin + len(bare.rstrip())
        if last is None:
            return Edit(at, at, text)
        comma = "" if bare.rstrip().endswith(b",") else ","
        indent = self.source[: self.start(last)].rpartition(b"\n")[2].decode()
        rest, is_open, _ = self.source[at:closed].partition(b"\n")
        if indent.strip() or not is_open:
            return Edit(at, at, f"{comma} {text}")
        return Edit(at, at + len(rest), f"{comma}{rest.decode()}\n{indent}{text}{'' if comma else ','}")

    def line_after(self, statement: ast.stmt, text: str) -> Edit | None:
        """Add a line after a statement, indented as it is; None if other statements share its lines."""
        begin, end = self.start(statement), self.end(statement)
        indent = self.source[:begin].rpartition(b"\n")[2].decode()
        rest = self.source[end:].partition(b"\n")[0].rstrip()
        if indent.strip() or (rest and not rest.lstrip().startswith(b"#")):
            return None
        return Edit(end + len(rest), end + len(rest), f"\n{indent}{text}")

    def changed(self, edits: Iterable[Edit]) -> tuple[ChangedLines, ...]:
        """Return the lines that edits change; adjacent ones are merged."""
        groups: list[tuple[int, int, list[Edit]]] = []
        for edit in sorted(edits, key=lambda one: (one.start, one.end)):
            first, last = self._line(edit.start), self._line(edit.end)
            if groups and groups[-1][1] >= first:
                begin, end, members = groups[-1]
                groups[-1] = (begin, max(end, last), [*members, edit])
            else:
                groups.append((first, last, [edit]))
        return tuple(self._changed_lines(first, last, members) for first, last, members in groups)

    def _line(self, position: int) -> int:
        # What is added at the very end belongs to the last line, even if no line break ends it.
        position = min(position, len(self.source) - 1)
        return next(line for line in range(len(self._begins) - 1, -1, -1) if self._begins[line] <= position)

    def _changed_lines(self, first: int, last: int, edits: list[Edit]) -> ChangedLines:
        begin = self._begins[first]
        end = self._begins[last + 1] if last + 1 < len(self._begins) else len(self.source)
        before = self.source[begin:end].rstrip(b"\r\n")
        after, at = b"", 0
        for edit in edits:
            after += before[at : edit.start - begin] + edit.text.encode()
            at = edit.end - begin
        after += before[at:]
        return ChangedLines(first + 1, last + 1, before.decode(), after.decode())


# Syntax helpers.


def counter_of(loop: Loop) -> str | None:
    """Return the name that holds a different integer in each iteration; None if none is known to."""
    if isinstance(loop, ast.While):
        return None
    target, values = loop.target, loop.iter
    if isinstance(values, ast.Call) and last_part(values.func) in _BARS and values.args:
        values = values.args[0]
    made_by = last_part(values.func) if isinstance(values, ast.Call) else ""
    if made_by == "enumerate" and isinstance(target, ast.Tuple):
        target = target.elts[0]
    elif made_by not in _COUNTS:
        return None
    return target.id if isinstance(target, ast.Name) and not target.id.startswith("_") else None


def place_of(node: ast.expr) -> _Place:
    """Return where an expression begins and ends."""
    return node.lineno, node.col_offset, node.end_lineno, node.end_col_offset


def last_part(node: ast.expr) -> str:
    """Return the last part of a dotted name; empty if the expression is not a name."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


_LABEL = re.compile(r"(?:name|dir|directory|path|folder|prefix|tag|title)$", re.IGNORECASE)


def is_named_label(node: ast.AST) -> bool:
    """Whether an expression is called a name or a place, such as `run_name` or `args.log_dir`: those are often made from the time."""
    return isinstance(node, ast.Name | ast.Attribute) and _LABEL.search(last_part(node)) is not None


def given_to(call: ast.Call) -> list[ast.expr]:
    """Return the arguments of a call, by position and by keyword."""
    return [*call.args, *(keyword.value for keyword in call.keywords)]


def keyword_of(node: ast.expr, name: str) -> ast.keyword | None:
    """Return a keyword of a call; None if there is no such keyword, or no call."""
    if not isinstance(node, ast.Call):
        return None
    return next((keyword for keyword in node.keywords if keyword.arg == name), None)


def is_none(node: ast.expr) -> bool:
    """Whether an expression is the literal None."""
    return isinstance(node, ast.Constant) and node.value is None


def gives_numbers(node: ast.expr) -> bool:
    """Whether the text shows that what is put into a set is numbers, whose hashes are the same in each run."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, int | float)
    if isinstance(node, ast.Call):
        return last_part(node.func) in _NUMBERS
    if isinstance(node, ast.List | ast.Tuple):
        return all(gives_numbers(one) for one in node.elts)
    if isinstance(node, ast.Attribute):
        return node.attr in ("ndim", "numel")
    if isinstance(node, ast.Subscript):
        return isinstance(node.value, ast.Attribute) and node.value.attr == "shape"
    if isinstance(node, ast.BinOp):
        if isinstance(node.op, ast.Mult | ast.FloorDiv | ast.Div | ast.Pow):
            return True
        return isinstance(node.op, ast.Add | ast.Sub) and (gives_numbers(node.left) or gives_numbers(node.right))
    if isinstance(node, ast.IfExp):
        # A value that is compared with a number is a number.
        test = node.test
        is_compared = isinstance(test, ast.Compare) and any(gives_numbers(one) for one in test.comparators)
        return is_compared or (gives_numbers(node.body) and gives_numbers(node.orelse))
    return isinstance(node, ast.GeneratorExp | ast.ListComp) and gives_numbers(node.elt)


def iterates_range(node: ast.AST) -> bool:
    """Whether the elements of a comprehension are taken from a range."""
    if not isinstance(node, ast.SetComp | ast.GeneratorExp | ast.ListComp) or not isinstance(node.elt, ast.Name):
        return False
    iters = [one.iter for one in node.generators if isinstance(one.target, ast.Name) and one.target.id == node.elt.id]
    return bool(iters) and gives_numbers(iters[0])


def own_expressions(statement: ast.AST) -> Iterator[ast.AST]:
    """Yield a statement's own expressions, without those of nested statements and names that it only assigns."""
    reads_all = isinstance(statement, ast.AugAssign)
    for child in ast.iter_child_nodes(statement):
        part = child.context_expr if isinstance(child, ast.withitem) else child
        is_read = reads_all or isinstance(part, ast.Subscript) or not isinstance(getattr(part, "ctx", None), ast.Store)
        if isinstance(part, ast.expr) and is_read:
            yield part


def assigned(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr]]:
    """Yield pairs of a target and what is assigned to it."""
    if isinstance(node, ast.Assign):
        for target in node.targets:
            if not isinstance(target, ast.Tuple | ast.List):
                yield target, node.value
            elif isinstance(node.value, ast.Tuple | ast.List) and len(target.elts) == len(node.value.elts):
                yield from zip(target.elts, node.value.elts, strict=True)
            else:
                yield from ((part, node.value) for part in target.elts)
    elif isinstance(node, ast.AugAssign | ast.NamedExpr) or (
        isinstance(node, ast.AnnAssign) and node.value is not None
    ):
        assert node.value is not None
        yield node.target, node.value
    elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
        yield from ((part, node.iter) for part in ast.walk(node.target) if isinstance(part, ast.Name | ast.Attribute))
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        yield node.optional_vars, node.context_expr


def within(scope: Scope) -> Iterator[ast.AST]:
    """Yield the nodes of a scope, without those of functions in it."""
    waiting: deque[ast.AST] = deque(ast.iter_child_nodes(scope))
    while waiting:
        node = waiting.popleft()
        yield node
        if not isinstance(node, Function | ast.Lambda):
            waiting.extend(ast.iter_child_nodes(node))


def bindings_of(scope: Scope) -> tuple[dict[str, list[ast.expr]], dict[str, list[ast.expr]]]:
    """Return, by name, everything assigned to it or put into it in a scope; and what is assigned to it as a whole."""
    found: dict[str, list[ast.expr]] = {}
    whole: dict[str, list[ast.expr]] = {}
    for node in within(scope):
        takes_elements = isinstance(node, ast.For | ast.AsyncFor | ast.comprehension)
        for target, value in assigned(node):
            if isinstance(target, ast.Name) and not takes_elements:
                whole.setdefault(target.id, []).append(value)
            base = target
            while isinstance(base, ast.Subscript | ast.Starred):
                base = base.value
            if isinstance(base, ast.Name):
                found.setdefault(base.id, []).append(value)
                if isinstance(target, ast.Subscript):
                    found[base.id].append(target.slice)
        if isinstance(node, ast.Call):
            owner = node.func.value if isinstance(node.func, ast.Attribute) else None
            if isinstance(owner, ast.Name) and last_part(node.func) in FILLING:
                found.setdefault(owner.id, []).extend(node.args)
            # A list that is shuffled in place depends on the draw.
            elif last_part(node.func) == "shuffle":
                for one in node.args:
                    if isinstance(one, ast.Name):
                        found.setdefault(one.id, []).append(node)
    return found, whole


def parameters(function: Function | ast.Lambda) -> list[str]:
    """Return the names of a function's parameters, without those that collect the rest."""
    arguments = function.args
    return [one.arg for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]


def given_back(function: Function) -> Iterator[ast.expr]:
    """Yield what a function returns or yields."""
    for node in within(function):
        if isinstance(node, ast.Return | ast.Yield | ast.YieldFrom) and node.value is not None:
            yield node.value


# What the text of a command or a query reveals about its answer.

_AT_RANDOM = re.compile(
    r"(?:^|[\s|;&(/])(?:shuf(?=\s|$)|sort\s[^|;&]*(?:-[a-zA-Z]*R\b|--random-sort\b))(?![^|;&]*--random-source)|\$\{?RANDOM\b"
)
_RANDOM_ROWS = re.compile(r"\bselect\b.*\b(?:random|rand|newid)\s*\(\s*\)", re.IGNORECASE | re.DOTALL)


def asks_at_random(module: Module, call: ast.Call) -> str | None:
    """Return the source that a call is, if it asks another program or a database for a random result; else None."""
    is_program = module.dotted(call.func).startswith(("subprocess.", "os.popen", "os.system"))
    if not call.args or not (is_program or last_part(call.func) in ("execute", "read_sql", "read_sql_query", "sql")):
        return None
    asked: list[ast.expr] = call.args[:1]
    if isinstance(name := call.args[0], ast.Name):
        asked = [*module.bound(module.scope_of(name), name.id), *module.bound(module.tree, name.id)]
    parts = (part.value for one in asked for part in ast.walk(one) if isinstance(part, ast.Constant))
    text = " ".join(part for part in parts if isinstance(part, str))
    source, pattern = ("program-output", _AT_RANDOM) if is_program else ("query-result", _RANDOM_ROWS)
    return source if pattern.search(text) else None
