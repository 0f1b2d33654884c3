"""Changes of the modules of the program while they are loaded; the files themselves stay as they are."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from determinism.run_spec import CodeChange


class Unchangeable(Exception):
    """The text is another one than the change was made for, or two changes want the same lines."""


def changed_tree(source: bytes, file: str, changes: Sequence[CodeChange]) -> ast.Module:
    """The syntax tree of a module with changes made to its text. Imports that are added take no line of their own.

    Args:
        source: The module's text.
        file: Where it came from.
        changes: All of this file.

    Raises:
        Unchangeable: They do not fit this text, or each other.
        SyntaxError: The text, or what becomes of it, is no Python.
    """
    tree = ast.parse(_changed_text(source, changes), file)
    imports = dict.fromkeys(line for change in changes for line in change.imports)
    at = _after_future_imports(tree.body)
    for line in reversed(imports):
        [added] = ast.parse(line, file).body
        if tree.body[at:]:
            ast.copy_location(added, tree.body[at])
        tree.body.insert(at, ast.fix_missing_locations(added))
    return tree


def _changed_text(source: bytes, changes: Sequence[CodeChange]) -> bytes:
    lines = source.splitlines(keepends=True)
    wanted = sorted(
        {lines for change in changes for lines in change.changes},
        key=lambda one: (one.line, one.end_line),
        reverse=True,
    )
    above = len(lines) + 1
    for one in wanted:
        if one.end_line >= above:
            raise Unchangeable(f"two changes of line {one.end_line}")
        above = one.line
        begin, end = one.line - 1, one.end_line
        before = b"".join(lines[begin:end])
        if before.rstrip(b"\r\n") != one.before.encode():
            raise Unchangeable(f"line {one.line} is {before[:80]!r}")
        lines[begin:end] = [one.after.encode() + before[len(before.rstrip(b"\r\n")) :]]
    return b"".join(lines)


def _after_future_imports(body: Sequence[ast.stmt]) -> int:
    """The place of the first statement that an import may stand before."""
    place = 0
    for number, statement in enumerate(body):
        is_text = number == 0 and isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
        if is_text or (isinstance(statement, ast.ImportFrom) and statement.module == "__future__"):
            place = number + 1
        else:
            break
    return place
