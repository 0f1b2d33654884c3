"""What a report must state about a program with a known cause of nondeterminism.

A line is identified by a piece of its text that occurs in no other line of its file: the programs contain no markers.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any, NamedTuple

from tests.e2e.checking import PROGRAMS, command

CAUSES = PROGRAMS / "causes"
PATIENCE = 1200
"""Seconds after which a check counts as hanging: the search for a cause takes ten or more runs."""
SURROUNDINGS = {"OMP_NUM_THREADS": "1"}
"""Programs that need two threads for an op request them; for the others, more threads only cost time on a busy machine."""


class Cause(NamedTuple):
    """What a report must state about a cause."""

    identifier: str
    code: str
    """A piece of the line at fault."""
    statuses: tuple[str, ...] = ("confirmed",)
    or_code: tuple[str, ...] = ()
    """Pieces of lines that may be reported instead."""
    or_identifiers: tuple[str, ...] = ()
    """Causes that may be reported instead because they are equally true."""
    file: str | None = None
    """Path within `programs/causes`; by default the program itself."""
    is_fixed: bool = True
    """Whether the report must have a verified fix: some causes have none that can be applied from outside."""


class CauseProgram(NamedTuple):
    """A program, and what a report must state about it."""

    path: str
    """Path within `programs/causes`, without the extension."""
    causes: tuple[Cause, ...] = ()
    """Empty if the program is deterministic."""
    kind: str | None = None
    """Kind of the first divergence; None if the kind itself varies."""
    arguments: tuple[str, ...] = ()
    options: tuple[str, ...] = ()
    """Options of `determinism check`."""
    exit_status: int = 0
    is_plainly_same: bool = False
    """Whether two plain runs agree, so that only the options reveal the cause."""

    @property
    def verdict(self) -> str:
        """The verdict that a check with its options must reach."""
        return "different" if self.causes else "same"

    @property
    def words(self) -> list[str]:
        """The command that starts the program."""
        return command(f"causes/{self.path}", *self.arguments)

    @property
    def program_file(self) -> Path:
        """The path of the program."""
        return CAUSES / f"{self.path}.py"

    def file_of(self, cause: Cause) -> Path:
        """Return the path of the file that contains the line at fault."""
        return CAUSES / cause.file if cause.file else self.program_file


def lines_of(file: Path, code: str) -> range:
    """Return the lines of the statement that contains a piece of text; of a compound statement, only its header."""
    source = file.read_text(encoding="utf-8")
    found = [number for number, text in enumerate(source.splitlines(), 1) if code in text]
    assert len(found) == 1, f"{code!r} stands in lines {found} of {file}"
    (line,) = found
    extents = [_extent(node) for node in ast.walk(ast.parse(source)) if isinstance(node, ast.stmt)]
    around = [extent for extent in extents if line in extent]
    return min(around, key=len) if around else range(line, line + 1)


def _extent(statement: ast.stmt) -> range:
    body = getattr(statement, "body", None)
    end = body[0].lineno if body else (statement.end_lineno or statement.lineno) + 1
    return range(statement.lineno, max(end, statement.lineno + 1))


def named(document: dict[str, Any], cause: Cause) -> dict[str, Any] | None:
    """Return the expected cause from a report; None if it is missing."""
    identifiers = (cause.identifier, *cause.or_identifiers)
    return next((found for found in document["causes"] if found["id"] in identifiers), None)


def is_at(found: dict[str, Any], program: CauseProgram, cause: Cause) -> bool:
    """Whether a cause in a report is located at the line at fault."""
    file = program.file_of(cause)
    lines = {line for code in (cause.code, *cause.or_code) for line in lines_of(file, code)}
    return any(Path(site["file"]) == file and site["line"] in lines for site in found["sites"])


def strangers(document: dict[str, Any], program: CauseProgram) -> list[dict[str, Any]]:
    """Return the causes that a report calls confirmed although the program does not have them."""
    own = {name for cause in program.causes for name in (cause.identifier, *cause.or_identifiers)}
    return [found for found in document["causes"] if found["status"] == "confirmed" and found["id"] not in own]
