"""A program's text with its syntax tree, edits to its expressions, and fixes as unified diffs."""

from __future__ import annotations

import ast
import difflib
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path, PurePath

from determinism.diagnose.sources import LedBy, Source, SourceSite
from determinism.run_spec import ChangedLines, CodeChange
from determinism.trace.schema import Frame


@dataclass(frozen=True)
class Edit:
    """A replacement of part of a text."""

    start: int
    """The first byte."""
    end: int
    """The byte after the last."""
    text: str


_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)
_BARS = ("tqdm", "track")
"""Functions that show a loop's progress and yield what they are given."""
_COUNTS = ("range", "trange")


@dataclass(frozen=True)
class _Loop:
    """A loop that repeats an expression."""

    target: ast.expr | None
    """None if nothing is assigned."""
    values: ast.expr

    @property
    def counter(self) -> str | None:
        """The name that holds a different integer in each iteration; None if none is known to."""
        target, values = self.target, self.values
        if isinstance(values, ast.Call) and last_name(values.func) in _BARS and values.args:
            values = values.args[0]
        made_by = last_name(values.func) if isinstance(values, ast.Call) else ""
        if made_by == "enumerate" and isinstance(target, ast.Tuple):
            target = target.elts[0]
        elif made_by not in _COUNTS:
            return None
        return target.id if isinstance(target, ast.Name) and not target.id.startswith("_") else None


class ProgramText:
    """The text of a module, with its syntax tree."""

    def __init__(self, source: bytes, file: str) -> None:
        """Take the text.

        Raises:
            SyntaxError: It is not valid Python.
            ValueError: It cannot be decoded, or its encoding is not UTF-8.
        """
        source.decode()
        self.source = source
        self.tree = ast.parse(source, file)
        self._begins = [0]
        for line in source.splitlines(keepends=True):
            self._begins.append(self._begins[-1] + len(line))
        self._parents = {child: node for node in ast.walk(self.tree) for child in ast.iter_child_nodes(node)}

    def at(self, site: SourceSite) -> ast.expr | None:
        """Return the expression at a site, the outermost of several; None if there is none."""
        return self.at_place((site.line, site.column, site.end_line, site.end_column))

    def at_place(self, place: tuple[int, int, int | None, int | None]) -> ast.expr | None:
        """Return the same for a position as `place_of` returns it."""
        expressions = (node for node in ast.walk(self.tree) if isinstance(node, ast.expr))
        return next((node for node in expressions if place_of(node) == place), None)

    def parent(self, node: ast.AST) -> ast.AST | None:
        """Return the node that contains this one."""
        return self._parents.get(node)

    def loops_of(self, node: ast.expr) -> list[_Loop]:
        """Return the loops in the same function that repeat an expression, innermost first."""
        loops = []
        inner: ast.AST = node
        while (outer := self.parent(inner)) is not None and not isinstance(outer, _SCOPES):
            if isinstance(outer, ast.For | ast.AsyncFor) and inner in outer.body:
                loops.append(_Loop(outer.target, outer.iter))
            elif isinstance(outer, ast.While) and inner in outer.body:
                loops.append(_Loop(None, outer.test))
            elif isinstance(outer, ast.ListComp | ast.SetComp | ast.GeneratorExp) and inner is outer.elt:
                loops += [_Loop(one.target, one.iter) for one in reversed(outer.generators)]
            inner = outer
        return loops

    def start(self, node: ast.expr | ast.stmt) -> int:
        """Return the offset of a node's first byte."""
        return self._begins[node.lineno - 1] + node.col_offset

    def end(self, node: ast.expr | ast.stmt) -> int:
        """Return the offset of the byte after a node."""
        line, column = node.end_lineno or node.lineno, node.end_col_offset or node.col_offset
        return self._begins[line - 1] + column

    def of(self, node: ast.expr) -> str:
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
        length = len((function.attr if isinstance(function, ast.Attribute) else self.of(function)).encode())
        return Edit(self.end(function) - length, self.end(function), name)

    def first_argument(self, call: ast.Call, text: str) -> Edit:
        """Add a new first argument to a call."""
        opened = self.source.index(b"(", self.end(call.func)) + 1
        return Edit(opened, opened, text if not (call.args or call.keywords) else f"{text}, ")

    def last_argument(self, call: ast.Call, text: str) -> Edit:
        """Add a new last argument to a call."""
        before = self.end(call) - 1
        given = self.source[self.end(call.func) : before].rstrip()
        joint = "" if given.endswith((b"(", b",")) else ", "
        at = before if joint else self.end(call.func) + len(given)
        return Edit(at, at, f"{joint}{text}" if joint or given.endswith(b"(") else f" {text}")

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


def place_of(node: ast.expr) -> tuple[int, int, int | None, int | None]:
    """Return the line and column where an expression begins, and those where it ends."""
    return node.lineno, node.col_offset, node.end_lineno, node.end_col_offset


def last_name(node: ast.expr) -> str:
    """Return the last part of a dotted name; empty if there is none."""
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""


def keyword_of(node: ast.expr, name: str) -> ast.keyword | None:
    """Return a keyword of a call; None if there is no such keyword, or no call."""
    if not isinstance(node, ast.Call):
        return None
    return next((keyword for keyword in node.keywords if keyword.arg == name), None)


Change = tuple[list[Edit], tuple[str, ...]]
"""Edits, and the imports that they need."""


class Unfixable(Exception):
    """No small change exists for this expression."""


# What to report about a library that seeds itself differently in each run, and the change that gives it a seed.

LIBRARY_SEED = "outside-entropy"

_GENERATORS = ("rng", "generator")
"""Parameters that take a generator rather than a seed."""
_MADE_BY = {
    "Random": ("random.Random(0)", "import random"),
    "RandomState": ("numpy.random.RandomState(0)", "import numpy"),
    "manual_seed": ("torch.Generator().manual_seed(0)", "import torch"),
}
"""A seeded generator, by the function that makes or seeds a library's own; otherwise NumPy's newer one is used."""
_NUMPY = ("numpy.random.default_rng(0)", "import numpy")
_OBJECTS = {"sampler": ("optuna.samplers.TPESampler(seed=0)", "import optuna")}
"""A seeded object, by the parameter that takes it. Optuna chooses this sampler for studies with one objective."""
_OF_SEVERAL_OBJECTIVES = "directions"
"""The parameter with which Optuna chooses another sampler."""
_MOST_LINES = 3


def seeded_calls(text: ProgramText, source: Source) -> Change:
    """Give a seed to the calls of the program that led to a library's generators.

    Args:
        text: The module of the first of these calls.
        source: What the library used.

    Raises:
        Unfixable: None of them is known to take a seed, or one already passes a value.
    """
    edits, imports = [], []
    for led in source.led_by:
        call = text.at(led.site) if led.site.file == source.led_by[0].site.file else None
        if led.argument is None or not isinstance(call, ast.Call):
            continue
        if led.argument in _OBJECTS and keyword_of(call, _OF_SEVERAL_OBJECTIVES) is not None:
            raise Unfixable
        value, needed = _value(led.argument, source, text.loops_of(call))
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


def _value(argument: str, source: Source, loops: Sequence[_Loop]) -> tuple[str, str]:
    """Return what to pass for a parameter, and the import it needs: in a counting loop, a different seed each time."""
    if argument in _OBJECTS:
        return _OBJECTS[argument]
    if argument not in _GENERATORS:
        return (loops[0].counter if loops else None) or "0", ""
    library = ProgramText(Path(source.site.file).read_bytes(), source.site.file)
    call = library.at(source.site)
    return _MADE_BY.get(last_name(call.func) if isinstance(call, ast.Call) else "", _NUMPY)


def seeded_again(source: Source) -> str | None:
    """Return a sentence on what gets the same seed each time a line runs; None if nothing is known to.

    Args:
        source: What a library used, after a call of the program that then gets a seed.
    """
    for led in source.led_by:
        try:
            text = ProgramText(Path(led.site.file).read_bytes(), led.site.file)
        except (OSError, SyntaxError, ValueError, RecursionError):
            continue
        call = text.at(led.site)
        if led.argument in (None, *_GENERATORS, *_OBJECTS) or not isinstance(call, ast.Call):
            continue
        loops = text.loops_of(call)
        if loops and loops[0].counter is None:
            return f"The line is in a loop, and each pass then begins with the same numbers: {_FIRST_TIME}"
        if len(loops) > 1:
            return f"The loop is within another one, each pass of which then begins with the same seeds: {_FIRST_TIME}"
        # It seeds an existing object, whether or not that has a generator.
        if not loops and last_name(call.func) == "reset" and led.site.function not in ("<module>", "main"):
            return f"If the line runs more than once, it then begins with the same numbers each time: {_FIRST_TIME}"
    return None


_FIRST_TIME = "pass a seed the first time only, or a different one each time"


def library_sites(source: Source) -> tuple[Frame, ...]:
    """Return the lines of the program that led to what a library used, then the library's own line."""
    return (*(led.site.frame for led in source.led_by[:_MOST_LINES]), source.site.frame)


def library_evidence(source: Source) -> tuple[str, ...]:
    """Return sentences on what a library did, and which lines of the program led there."""
    did = (
        "creates a generator without a seed"
        if source.source == "unseeded-generator"
        else "seeds a generator with a different value in each run"
    )
    lines = list(dict.fromkeys(_place(led) for led in source.led_by))
    more = len(lines) - _MOST_LINES
    named = [*lines[:_MOST_LINES], *([f"{more} more lines"] if more > 0 else [])]
    led = f"; reached from {' and '.join(named)}" if named else ""
    return (f"{source.site.function} at {source.site.file}:{source.site.line} {did}{led}.",)


def _place(led: LedBy) -> str:
    return f"{PurePath(led.site.file).name}:{led.site.frame.line}"


CONTEXT = 1
"""Unchanged lines around each change: enough for a reader, and for `patch` to find the place."""
_MOST_BYTES = 1_000_000
_IMPORTED = re.compile(r"^(random|numpy|torch|tf|determinism)\.", re.MULTILINE)
_IS_ADDED = re.compile(r"(import determinism$|(random|numpy|torch|tf|determinism)\.[\w.]+( = |\())")
"""Lines that work on their own; changes to a loader or a command cannot be added at the start."""
_MODULES = {"tf": "tensorflow"}
"""Aliases used in the code written here, where they differ from the module's name."""
_SEEDING = ("seed", "manual_seed", "set_random_seed", "manual_seed_all")


def unified_diff(change: CodeChange) -> str | None:
    """Return a change as a unified diff, suitable for `patch -p0` and `git apply -p0`.

    Args:
        change: Lines of one file, and the imports that they need.

    Returns:
        None if the file cannot be read, or no longer contains the lines.
    """
    before = _lines(Path(change.file))
    if before is None:
        return None
    after = list(before)
    for one in sorted(change.changes, key=lambda changed: -changed.line):
        if one.end_line > len(before) or "".join(before[one.line - 1 : one.end_line]).rstrip("\r\n") != one.before:
            return None
        end = "\r\n" if before[one.end_line - 1].endswith("\r\n") else "\n"
        after[one.line - 1 : one.end_line] = [f"{line}{end}" for line in one.after.split("\n")]
    at = _place_of_imports("".join(before), change.file, min(one.line for one in change.changes))
    if at is None:
        return None
    after[at:at] = [f"{line}\n" for line in change.imports]
    name = _name(change.file)
    if " " in name:
        # `patch` reads a name up to its first space, unless a tab ends it.
        name += "\t"
    diff = difflib.unified_diff(before, after, name, name, n=CONTEXT)
    return "".join(line if line.endswith("\n") else f"{line}\n" for line in diff).rstrip("\n") or None


def lines_at_start(program: Path, code: str, *, before: Sequence[Frame] = ()) -> CodeChange | None:
    """Return the change that makes a program run some lines once its imports are done.

    Args:
        program: The file that was started.
        code: The lines, with modules called `numpy`, `random`, `torch`, `tf` and `determinism`.
        before: A line that must not run earlier, followed by its known callers. If none of them is in the program itself, it may have
            run during the imports.

    Returns:
        None if the file cannot be read, has no statement to put the lines after, or none that is early enough.
    """
    lines = _lines(program)
    if lines is None:
        return None
    try:
        body = ast.parse("".join(lines), str(program)).body
    except (SyntaxError, ValueError, RecursionError):
        return None
    last = _last_before(body)
    if last is None or last.end_lineno is None:
        return None
    own = [frame.line for frame in before if frame.file == str(program)]
    if before and (not own or min(own) <= last.end_lineno):
        return None
    if not all(_IS_ADDED.match(line) for line in code.splitlines() if line.strip()):
        return None
    wanted = dict.fromkeys(_IMPORTED.findall(code))
    names = {name: _imported_as(body[: body.index(last) + 1], _MODULES.get(name, name)) for name in wanted}
    imports = [_import_line(name) for name, known in names.items() if known is None]
    added = [line for line in code.splitlines() if line.strip() and not line.startswith("import ")]
    for name, known in names.items():
        added = [re.sub(rf"^{name}\.", f"{known or name}.", line) for line in added]
    kept = lines[last.end_lineno - 1].rstrip("\r\n")
    space = [""] * isinstance(last, ast.Import | ast.ImportFrom)
    changed = ChangedLines(last.end_lineno, last.end_lineno, kept, "\n".join([kept, *space, *added]))
    return CodeChange(str(program), (changed,), tuple(imports))


def started_program(command: Sequence[str], outermost: str | None) -> Path | None:
    """Return the file that a command starts, directly or through a launcher: the script or module that it names, or else the file of the
    outermost frame.

    Args:
        command: The words.
        outermost: File of the outermost known frame.
    """
    named = next((path for before, word in pairwise(("", *command)) for path in _named_by(before, word)), None)
    for path in (named, None if outermost is None else Path(outermost)):
        if path is not None and path.is_file():
            return path.absolute()
    return None


def _named_by(before: str, word: str) -> Iterator[Path]:
    """Yield the file that a word of a command names as the program; none if it is not in the current folder.

    Args:
        before: The word before it: launchers take a module's name after the same options as Python, and are not modules of the folder.
        word: The word.
    """
    names = word.split(".")
    if before in ("-m", "--module") and all(name.isidentifier() for name in names):
        module = Path(*names)
        yield from (path for path in (module.with_name(f"{module.name}.py"), module / "__main__.py") if path.is_file())
    elif word.endswith(".py"):
        yield Path(word)


def _lines(path: Path) -> list[str] | None:
    """Return the lines with their line endings; None if there is no such file, or it is not plain text."""
    try:
        if path.stat().st_size > _MOST_BYTES:
            return None
        return path.read_bytes().decode("utf-8").splitlines(keepends=True)
    except (OSError, ValueError):
        return None


def _name(file: str) -> str:
    """Return the name of a file in a diff: relative to the current folder if it is inside it."""
    try:
        return PurePath(file).relative_to(os.getcwd()).as_posix()
    except (ValueError, OSError):
        return file


def _place_of_imports(text: str, file: str, first_change: int) -> int | None:
    """Return the number of lines before the place for an import: the first import, or else the first statement.

    An import must follow what is set in `os.environ` for it, as long as it still precedes the first changed line.
    """
    try:
        body = ast.parse(text, file).body
    except (SyntaxError, ValueError, RecursionError):
        return None
    rest = body[1:] if body and _is_docstring(body[0]) else body
    rest = [one for one in rest if not (isinstance(one, ast.ImportFrom) and one.module == "__future__")]
    first = next((one for one in rest if isinstance(one, ast.Import | ast.ImportFrom)), rest[0] if rest else None)
    last = _last_before(body)
    settings = [] if last is None else [one for one in body[: body.index(last)] if _prepares_imports(one)]
    ends = [one.end_lineno for one in settings if one.end_lineno is not None and one.end_lineno < first_change]
    if ends:
        return ends[-1]
    return len(text.splitlines()) if first is None else first.lineno - 1


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _last_before(body: Sequence[ast.stmt]) -> ast.stmt | None:
    """Return the last of the imports at the start of a program, or of the seeding calls that follow them.

    Between imports, a program may set what these read when they are made, such as `os.environ["KERAS_BACKEND"]`.
    """
    last: ast.stmt | None = None
    for statement in body:
        if isinstance(statement, ast.Import | ast.ImportFrom) or (last is not None and _is_seeding(statement)):
            last = statement
        elif not (_is_docstring(statement) or _prepares_imports(statement)):
            break
    return last


def _prepares_imports(statement: ast.stmt) -> bool:
    """Whether a statement only changes the environment or the path of modules."""
    if isinstance(statement, ast.Assign):
        return all(
            isinstance(one, ast.Subscript) and ast.unparse(one.value) == "os.environ" for one in statement.targets
        )
    call = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(call, ast.Call) and ast.unparse(call.func).startswith(("os.environ.", "sys.path."))


def _is_seeding(statement: ast.stmt) -> bool:
    call = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute) and call.func.attr in _SEEDING


def _imported_as(body: Sequence[ast.stmt], module: str) -> str | None:
    """Return the name by which a module was imported at the top of a program; None if it was not."""
    for statement in body:
        for one in statement.names if isinstance(statement, ast.Import) else ():
            if one.name == module:
                return one.asname or one.name
    return None


def _import_line(name: str) -> str:
    module = _MODULES.get(name, name)
    return f"import {module}" if module == name else f"import {module} as {name}"
