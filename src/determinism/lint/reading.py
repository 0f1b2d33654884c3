"""Files and notebooks as text: the lines of cells, and the lines at which a rule is not to be reported."""

from __future__ import annotations

import ast
import io
import json
import re
import tokenize
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatch
from pathlib import Path

from determinism.errors import UsageError
from determinism.lint.findings import Finding, Severity

_SUPPRESSION = re.compile(r"#\s*determinism:\s*ignore(?:\[([^\]]*)\])?")
_LEFT_OUT = frozenset(
    {".git", ".venv", "venv", "__pycache__", "node_modules", "build", "dist", ".tox", ".eggs", "site-packages"}
)
_MOST_BYTES = 5_000_000


@dataclass(frozen=True)
class Source:
    """The Python text of a file."""

    file: str
    text: str
    cells: tuple[tuple[int, int], ...] = ()
    """Of a notebook: for each line its cell and its line in there, both from 1."""

    def placed(self, finding: Finding) -> Finding:
        """A finding with the line that the user sees."""
        if not self.cells or finding.line > len(self.cells):
            return finding
        cell, line = self.cells[finding.line - 1]
        return replace(finding, line=line, cell=cell, fix=None)


def python_files(paths: Sequence[str], exclude: Iterable[str] = ()) -> list[str]:
    """The Python files and notebooks that paths name, sorted; folders are searched.

    Raises:
        UsageError: A path does not exist.
    """
    found: dict[str, None] = {}
    patterns = list(exclude)
    for path in paths:
        place = Path(path)
        if place.is_dir():
            for file in sorted(place.rglob("*")):
                inner = file.relative_to(place).parts
                if file.suffix in (".py", ".ipynb") and file.is_file():
                    # A folder counts as left out only below what was named.
                    if not _LEFT_OUT & set(inner) and not any(part.startswith(".") for part in inner):
                        found[str(file)] = None
        elif place.exists():
            found[path] = None
        else:
            raise UsageError(
                "lint-path-missing",
                f"{path} does not exist, so nothing was read. Give files, notebooks or folders that are there.",
            )
    return [file for file in found if not any(fnmatch(file, pattern) for pattern in patterns)]


def read(file: str) -> Source:
    """The text of a file; of a notebook that of its cells of code, one after another.

    Raises:
        ValueError: It cannot be read as what its name says.
    """
    path = Path(file)
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise ValueError(f"the file is larger than {_MOST_BYTES} bytes")
        content = path.read_bytes()
    except OSError as error:
        raise ValueError(error.strerror or str(error)) from None
    if path.suffix == ".ipynb":
        return _notebook(file, content)
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(content).readline)
        text = content.decode(encoding)
    except (SyntaxError, UnicodeDecodeError, LookupError) as error:
        raise ValueError(str(error)) from None
    return Source(file, text.replace("\r\n", "\n"))


def _notebook(file: str, content: bytes) -> Source:
    try:
        cells = json.loads(content)["cells"]
        codes = [_code(cell["source"]) if cell.get("cell_type") == "code" else "" for cell in cells]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"it is not a notebook of version 4 ({type(error).__name__}: {error})") from None
    lines: list[str] = []
    places: list[tuple[int, int]] = []
    for number, code in enumerate(codes, 1):
        for line, text in enumerate(code.split("\n") if code else (), 1):
            lines.append(text)
            places.append((number, line))
    return Source(file, "\n".join(lines), tuple(places))


def _code(source: str | list[str]) -> str:
    """The text of a cell, with magics and shell commands as empty statements of the same indentation."""
    text = source if isinstance(source, str) else "".join(source)
    if text.lstrip().startswith("%%"):
        return "\n".join("pass" for _ in text.split("\n"))
    return "\n".join(
        f"{line[: len(line) - len(line.lstrip())]}pass" if line.lstrip()[:1] in ("%", "!", "?") else line
        for line in text.split("\n")
    )


def unparsable(file: str, reason: str, line: int = 1, column: int = 1, code: str = "") -> Finding:
    """The one finding of a file that cannot be parsed."""
    message = f"The file cannot be parsed ({reason}), so it was not checked."
    return Finding("unparsable", Severity.MAY_DIFFER, message, file, line, column, code)


def _suppressions(text: str) -> Iterator[tuple[int, int, frozenset[str] | None]]:
    """Line, column and rules of each suppression; None for every rule."""
    if "determinism:" not in text:
        return
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            match = _SUPPRESSION.search(token.string) if token.type == tokenize.COMMENT else None
            if match is not None:
                names = match[1]
                listed = None if names is None else frozenset(name.strip() for name in names.split(",") if name.strip())
                yield token.start[0], token.start[1] + match.start() + 1, listed
    except (tokenize.TokenError, SyntaxError):
        return


def without_suppressed(source: Source, tree: ast.Module, found: list[Finding]) -> list[Finding]:
    """Findings that no comment at their statement suppresses, and one for each suppression that suppresses nothing."""
    given = list(_suppressions(source.text))
    if not given:
        return found
    lines_of: dict[int, range] = {}
    """By line those of the simple statement that it is part of."""
    for node in ast.walk(tree):
        if isinstance(node, ast.stmt) and not hasattr(node, "body"):
            span = range(node.lineno, (node.end_lineno or node.lineno) + 1)
            lines_of.update(dict.fromkeys(span, span))
    used: set[tuple[int, str | None]] = set()
    kept: list[Finding] = []
    for finding in found:
        lines = lines_of.get(finding.line, range(finding.line, finding.line + 1))
        matching = [
            (line, finding.rule if names is not None else None)
            for line, _, names in given
            if line in lines and (names is None or finding.rule in names)
        ]
        used.update(matching)
        if not matching:
            kept.append(finding)
    for line, column, names in given:
        idle = [name for name in (sorted(names) if names is not None else [None]) if (line, name) not in used]
        for name in idle:
            what = f"ignore[{name}]" if name else "ignore"
            message = f"`determinism: {what}` suppresses nothing here. Remove it."
            code = source.text.split("\n")[line - 1].strip()
            kept.append(Finding("unused-ignore", Severity.MAY_DIFFER, message, source.file, line, column, code))
    return kept
