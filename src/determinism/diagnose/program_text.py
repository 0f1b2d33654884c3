"""Fixes as unified diffs, and lines that are added at the start of a program."""

from __future__ import annotations

import ast
import difflib
import os
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path, PurePath

from determinism.comparison.result import Comparison
from determinism.process_name import is_other_program
from determinism.run_spec import ChangedLines, CodeChange
from determinism.trace.schema import Frame

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


def program_of(comparison: Comparison) -> Path | None:
    """Return the file that the program of the process that differs first is started from; None if unknown."""
    first, runs = comparison.first_divergence, comparison.runs
    is_started = bool(runs) and not (first is not None and is_other_program(first.process))
    outermost = first.stack[-1].file if first is not None and first.stack else None
    return started_program(runs[0].command if is_started else (), outermost)


def started_program(command: Sequence[str], outermost: str | None) -> Path | None:
    """Return the file that a command starts, directly or through a launcher: the script or module that it names, or else the file of the
    outermost frame.
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
