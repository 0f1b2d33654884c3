"""The text of a program with its syntax tree, and changes to it, told by the pieces that they replace."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePath

from determinism.diagnose.sources import LedBy, Source, SourceSite
from determinism.run_spec import ChangedLines
from determinism.trace.schema import Frame


@dataclass(frozen=True)
class Edit:
    """A piece of a text that is replaced."""

    start: int
    """First byte."""
    end: int
    """Byte after the last."""
    text: str


class ProgramText:
    """The text of a module, with its syntax tree."""

    def __init__(self, source: bytes, file: str) -> None:
        """Take the text.

        Raises:
            SyntaxError: It is no Python.
            ValueError: It cannot be decoded, or it has another coding than UTF-8.
        """
        source.decode()
        self.source = source
        self.tree = ast.parse(source, file)
        self._begins = [0]
        for line in source.splitlines(keepends=True):
            self._begins.append(self._begins[-1] + len(line))
        self._parents = {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}

    def at(self, site: SourceSite) -> ast.expr | None:
        """The piece that lies at a place, the outermost of several; None if there is none."""
        place = (site.line, site.column, site.end_line, site.end_column)
        expressions = (node for node in ast.walk(self.tree) if isinstance(node, ast.expr))
        return next((node for node in expressions if _place_of(node) == place), None)

    def parent(self, node: ast.AST) -> ast.AST | None:
        """What a piece is a part of."""
        return self._parents.get(node)

    def start(self, node: ast.expr | ast.stmt) -> int:
        """Number of the first byte of a piece."""
        return self._begins[node.lineno - 1] + node.col_offset

    def end(self, node: ast.expr | ast.stmt) -> int:
        """Number of the byte after the last."""
        line, column = node.end_lineno or node.lineno, node.end_col_offset or node.col_offset
        return self._begins[line - 1] + column

    def of(self, node: ast.expr) -> str:
        """The text of a piece."""
        return self.source[self.start(node) : self.end(node)].decode()

    def replaced(self, node: ast.expr, text: str) -> Edit:
        """Another text in the place of a piece."""
        return Edit(self.start(node), self.end(node), text)

    def around(self, node: ast.expr, before: str, after: str) -> list[Edit]:
        """A piece within something else."""
        return [Edit(self.start(node), self.start(node), before), Edit(self.end(node), self.end(node), after)]

    def renamed(self, function: ast.expr, name: str) -> Edit:
        """The last name of what is called, replaced."""
        length = len((function.attr if isinstance(function, ast.Attribute) else self.of(function)).encode())
        return Edit(self.end(function) - length, self.end(function), name)

    def first_argument(self, call: ast.Call, text: str) -> Edit:
        """A new first argument of a call."""
        opened = self.source.index(b"(", self.end(call.func)) + 1
        return Edit(opened, opened, text if not (call.args or call.keywords) else f"{text}, ")

    def last_argument(self, call: ast.Call, text: str) -> Edit:
        """A new last argument of a call."""
        before = self.end(call) - 1
        given = self.source[self.end(call.func) : before].rstrip()
        joint = "" if given.endswith((b"(", b",")) else ", "
        at = before if joint else self.end(call.func) + len(given)
        return Edit(at, at, f"{joint}{text}" if joint or given.endswith(b"(") else f" {text}")

    def changed(self, edits: Iterable[Edit]) -> tuple[ChangedLines, ...]:
        """The lines that edits change, those that touch each other as one."""
        groups: list[tuple[int, int, list[Edit]]] = []
        for edit in sorted(edits, key=lambda one: (one.start, one.end)):
            first, last = self._line(edit.start), self._line(edit.end)
            if groups and groups[-1][1] >= first:
                begin, end, members = groups[-1]
                groups[-1] = (begin, max(end, last), [*members, edit])
            else:
                groups.append((first, last, [edit]))
        return tuple(self._lines(first, last, members) for first, last, members in groups)

    def _line(self, position: int) -> int:
        return next(line for line in range(len(self._begins) - 1, -1, -1) if self._begins[line] <= position)

    def _lines(self, first: int, last: int, edits: list[Edit]) -> ChangedLines:
        begin = self._begins[first]
        end = self._begins[last + 1] if last + 1 < len(self._begins) else len(self.source)
        before = self.source[begin:end].rstrip(b"\r\n")
        after, at = b"", 0
        for edit in edits:
            after += before[at : edit.start - begin] + edit.text.encode()
            at = edit.end - begin
        after += before[at:]
        return ChangedLines(first + 1, last + 1, before.decode(), after.decode())


def _place_of(node: ast.expr) -> tuple[int, int, int | None, int | None]:
    return node.lineno, node.col_offset, node.end_lineno, node.end_col_offset


def last_name(node: ast.expr) -> str:
    """The last of the names by which something is called; empty if it has none."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def keyword_of(node: ast.expr, name: str) -> ast.keyword | None:
    """A keyword of a call; None if it has no such one, or is none."""
    if not isinstance(node, ast.Call):
        return None
    return next((keyword for keyword in node.keywords if keyword.arg == name), None)


Change = tuple[list[Edit], tuple[str, ...]]
"""Edits, and the imports that they need."""


class Unfixable(Exception):
    """There is no small change for this place."""


# What is said of a library that seeds itself with what differs in each run, and the change that gives it a seed.

LIBRARY_SEED = "outside-entropy"

_GENERATORS = ("rng", "generator")
"""Parameters that take a generator rather than a seed."""
_MADE_BY = {
    "Random": ("random.Random(0)", "import random"),
    "RandomState": ("numpy.random.RandomState(0)", "import numpy"),
    "manual_seed": ("torch.Generator().manual_seed(0)", "import torch"),
}
"""By the function that makes or seeds a library's generator, one that has a seed; else it is NumPy's newer one."""
_NUMPY = ("numpy.random.default_rng(0)", "import numpy")
_MOST_LINES = 3


def seeded_calls(text: ProgramText, source: Source) -> Change:
    """The calls of the program that led to a library's generators get a seed.

    Args:
        text: The module of the first of these calls.
        source: What the library used.

    Raises:
        Unfixable: None of them is known to take a seed, or one has been given something.
    """
    edits, imports = [], []
    for led in source.led_by:
        call = text.at(led.site) if led.site.file == source.led_by[0].site.file else None
        if led.argument is None or not isinstance(call, ast.Call):
            continue
        value, needed = _value(led.argument, source)
        given = keyword_of(call, led.argument)
        if given is None:
            edits.append(text.last_argument(call, f"{led.argument}={value}"))
        elif isinstance(given.value, ast.Constant) and given.value.value is None:
            edits.append(text.replaced(given.value, value))
        else:
            raise Unfixable
        imports += [needed] * bool(needed)
    if not edits:
        raise Unfixable
    return edits, tuple(dict.fromkeys(imports))


def _value(argument: str, source: Source) -> tuple[str, str]:
    """What is given for a parameter, and the import that it needs."""
    if argument not in _GENERATORS:
        return "0", ""
    library = ProgramText(Path(source.site.file).read_bytes(), source.site.file)
    call = library.at(source.site)
    return _MADE_BY.get(last_name(call.func) if isinstance(call, ast.Call) else "", _NUMPY)


def library_sites(source: Source) -> tuple[Frame, ...]:
    """The lines of the program that led to what a library used, and the library's own."""
    return (*(led.site.frame for led in source.led_by[:_MOST_LINES]), source.site.frame)


def library_evidence(source: Source) -> tuple[str, ...]:
    """Sentences on what a library did, and which lines of the program led there."""
    did = (
        "creates a generator without a seed"
        if source.source == "unseeded-generator"
        else "seeds a generator with a different value in each run"
    )
    lines = list(dict.fromkeys(_place(led) for led in source.led_by))
    more = len(lines) - _MOST_LINES
    named = [*lines[:_MOST_LINES], *([f"{more} more lines"] if more > 0 else [])]
    led = f"; {' and '.join(named)} led there" if named else ""
    return (f"{source.site.function} at {source.site.file}:{source.site.line} {did}{led}.",)


def _place(led: LedBy) -> str:
    return f"{PurePath(led.site.file).name}:{led.site.frame.line}"
