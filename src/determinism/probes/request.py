"""What is to be noted and what is to be fixed, as it travels to the processes of the program."""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

# A change of a module of the program: lines that are replaced, and imports that they need. The file itself stays as
# it is.


@dataclass(frozen=True)
class ChangedLines:
    """Lines as they are and as they are to be, with their indentation and without the last line break."""

    line: int
    end_line: int
    before: str
    after: str


@dataclass(frozen=True)
class CodeChange:
    """A change of one file of a program."""

    file: str
    changes: tuple[ChangedLines, ...]
    imports: tuple[str, ...] = ()
    """Lines that have to stand among the imports, where they do not yet."""

    @property
    def code(self) -> str:
        """The changed lines as they are to be."""
        return "\n".join(change.after for change in self.changes)

    def to_document(self) -> list[Any]:
        """The change as something that JSON can hold."""
        lines = [[one.line, one.end_line, one.before, one.after] for one in self.changes]
        return [self.file, lines, list(self.imports)]

    @classmethod
    def from_document(cls, document: Sequence[Any]) -> Self:
        """The change that `to_document` gave."""
        file, lines, imports = document
        return cls(file, tuple(ChangedLines(*one) for one in lines), tuple(imports))


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


PROBES_VARIABLE = "DETERMINISM_PROBES"
"""Environment variable with the request, as JSON."""


@dataclass(frozen=True)
class FixedSource:
    """A source that gets a fixed value at one line."""

    file: str
    line: int
    source: str


@dataclass(frozen=True)
class ProbeRequest:
    """A request to probe a program."""

    notes: Path | None = None
    """Folder, which exists, for the notes of each process; None to take no notes."""
    fixed: tuple[FixedSource, ...] = ()
    """Sources that get a fixed value where they are used at these lines."""
    fixed_sources: tuple[str, ...] = ()
    """Sources that get a fixed value wherever the user's code uses them."""
    changes: tuple[CodeChange, ...] = ()
    """Changes of the user's modules. With nothing noted and nothing fixed, their code is otherwise compiled as it stands."""
    copied: tuple[str, str] | None = None
    """The copy that the program runs in, and the folder that it is a copy of; sites are told as in the latter."""

    @property
    def probes(self) -> bool:
        """Whether code is to be rewritten, so that sources can be noted or fixed."""
        return self.notes is not None or bool(self.fixed or self.fixed_sources)

    def to_environment(self) -> dict[str, str]:
        """The environment variable that carries the request."""
        document = {
            "notes": None if self.notes is None else str(self.notes.absolute()),
            "fixed": [[one.file, one.line, one.source] for one in self.fixed],
            "fixed_sources": list(self.fixed_sources),
            "changes": [one.to_document() for one in self.changes],
            "copied": None if self.copied is None else list(self.copied),
        }
        return {PROBES_VARIABLE: json.dumps(document)}

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> ProbeRequest | None:
        """The request that an environment carries; None if it carries none."""
        text = environ.get(PROBES_VARIABLE)
        if text is None:
            return None
        document = json.loads(text)
        copied = document.get("copied")
        return cls(
            notes=None if document["notes"] is None else Path(document["notes"]),
            fixed=tuple(FixedSource(*one) for one in document["fixed"]),
            fixed_sources=tuple(document["fixed_sources"]),
            changes=tuple(CodeChange.from_document(one) for one in document["changes"]),
            copied=None if copied is None else (copied[0], copied[1]),
        )
