"""Lint of many files and notebooks: which files to read, with how many processes, which findings count, and fixes of files.

`check` also asks lint about the lines that an experiment could fix, and tries first those that a rule names. Lint ignores what cannot
change a result: a set that is only counted, a clock that is only logged. So among everything that a program took from outside, what a
rule names is the likelier cause. Rules decide only the order: it takes an experiment to name a cause.
"""

from __future__ import annotations

import ast
import difflib
import io
import json
import os
import re
import tokenize
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fnmatch import fnmatch
from functools import cached_property, partial
from pathlib import Path

from determinism.comparison.result import Comparison
from determinism.diagnose.experiments import SEEDED_LIBRARIES, Hypothesis
from determinism.diagnose.hypotheses import recorded_lines
from determinism.diagnose.parsed_module import Module
from determinism.diagnose.program_flow import Program
from determinism.diagnose.sources import LIBRARY_SEED
from determinism.errors import UsageError
from determinism.lint import frameworks, memory, order, outside, seeding
from determinism.lint.findings import Finding, Severity, Text, rules
from determinism.trace.process import Trace

_SUPPRESSION = re.compile(r"#\s*determinism:\s*ignore(?:\[([^\]]*)\])?")
_LEFT_OUT = frozenset(
    {".git", ".venv", "venv", "__pycache__", "node_modules", "build", "dist", ".tox", ".eggs", "site-packages"}
)
_MOST_BYTES = 5_000_000
_OTHER_LINE = re.compile(r"\bline (\d+)\b")
"""Another line of the same text, mentioned in the message of a finding."""


@dataclass(frozen=True)
class Source:
    """The Python text of a file."""

    file: str
    text: str
    cells: tuple[tuple[int, int], ...] = ()
    """For a notebook: the cell of each line and its line in that cell, both from 1."""

    def placed(self, finding: Finding) -> Finding:
        """Return a finding with the line that the user sees."""
        if not self.cells or finding.line > len(self.cells):
            return finding
        cell, line = self.cells[finding.line - 1]
        message = _OTHER_LINE.sub(self._other_place, finding.message)
        return replace(finding, line=line, cell=cell, message=message, fix=None)

    def _other_place(self, named: re.Match[str]) -> str:
        number = int(named[1])
        if number > len(self.cells):
            return named[0]
        cell, line = self.cells[number - 1]
        return f"line {line} of cell {cell}"


def python_files(paths: Sequence[str]) -> list[str]:
    """Return the Python files and notebooks that paths name, sorted; folders are searched.

    Raises:
        UsageError: A path does not exist.
    """
    found: dict[str, None] = {}
    for path in paths:
        place = Path(path)
        if place.is_dir():
            for file in sorted(place.rglob("*")):
                inner = file.relative_to(place).parts
                if file.suffix in (".py", ".ipynb") and file.is_file():
                    # A folder is left out only if it is below one that was named.
                    if not _LEFT_OUT & set(inner) and not any(part.startswith(".") for part in inner):
                        found[str(file)] = None
        elif place.exists():
            found[path] = None
        else:
            raise UsageError(
                "lint-path-missing",
                f"{path} does not exist, so nothing was read. Give files, notebooks or folders that exist.",
            )
    return list(found)


def read(file: str) -> Source:
    """Return the text of a file; for a notebook, the text of its code cells, one after another.

    Raises:
        ValueError: Its content is not what its name says, or cannot be read.
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


_MAGICS_OF_PYTHON = frozenset({"capture", "determinism", "memit", "prun", "time", "timeit"})
"""Magics whose cells are Python."""
_CELL_MAGIC = re.compile(r"\s*%%(\w+)")
_MAGIC_LINE = re.compile(r"\s*(?:%%?\w|[!?]|[\w.]+\?{1,2}\s*$)")
_MAGIC_VALUE = re.compile(r"(\s*[\w.\[\], ]+=\s*)[%!]")


def _code(source: str | list[str]) -> str:
    """Return the text of a cell, with magics and shell commands as statements that do nothing, in the same lines."""
    text = source if isinstance(source, str) else "".join(source)
    with suppress(SyntaxError, ValueError, RecursionError, MemoryError):
        ast.parse(text)
        return text
    magic = _CELL_MAGIC.match(text)
    is_other = magic is not None and magic[1] not in _MAGICS_OF_PYTHON
    lines: list[str] = []
    is_continued = False
    for line in text.split("\n"):
        value = _MAGIC_VALUE.match(line)
        is_magic = is_continued or value is not None or _MAGIC_LINE.match(line) is not None
        indentation = line[: len(line) - len(line.lstrip())]
        statement = f"{value[1]}None" if value is not None else f"{indentation}pass"
        lines.append("pass" if is_other else "" if is_continued else statement if is_magic else line)
        is_continued = is_magic and line.endswith("\\")
    return "\n".join(lines)


def unparsable(file: str, reason: str, line: int = 1, column: int = 1, *, verb: str = "parsed") -> Finding:
    """Return the only finding of a file that cannot be parsed or read."""
    message = f"The file cannot be {verb} ({reason}), so it was not checked."
    return Finding("unparsable", Severity.NOT_EXAMINED, message, file, line, column, "")


def _suppressions(text: str) -> Iterator[tuple[int, int, frozenset[str] | None]]:
    """Yield line, column and rules of each suppression; None for every rule."""
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
    """Return findings that no comment at their statement suppresses, and one for each unused suppression."""
    given = list(_suppressions(source.text))
    if not given:
        return found
    lines_of: dict[int, range] = {}
    """By line, the lines of the simple statement that contains it."""
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


_FAMILIES = (seeding, order, outside, memory, frameworks)
Versions = tuple[tuple[str, str], ...]
_FILES_FOR_PROCESSES = 40
"""Reading fewer files takes less time than starting processes."""


@dataclass(frozen=True)
class LintRequest:
    """What to read, and which rules count."""

    paths: tuple[str, ...]
    select: tuple[str, ...] = ()
    """All rules if empty."""
    ignore: tuple[str, ...] = ()
    per_file_ignores: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Rules by file patterns."""
    device: str | None = None
    versions: Versions = ()
    """Of frameworks, to look up ops."""

    def check_rules(self) -> None:
        """Check that every named rule exists.

        Raises:
            UsageError: A rule does not exist.
        """
        named = [*self.select, *self.ignore, *(name for names in self.per_file_ignores.values() for name in names)]
        for name in named:
            if name not in rules():
                near = difflib.get_close_matches(name, list(rules()), n=1)
                hint = f"Did you mean {near[0]}?" if near else f"The rules are: {', '.join(rules())}."
                raise UsageError("lint-rule-unknown", f"There is no rule {name}, so nothing was read. {hint}")

    def counts(self, finding: Finding) -> bool:
        """Whether a finding is wanted."""
        if (self.select and finding.rule not in self.select) or finding.rule in self.ignore:
            return False
        return not any(
            finding.rule in names and (fnmatch(finding.file, pattern) or fnmatch(Path(finding.file).name, pattern))
            for pattern, names in self.per_file_ignores.items()
        )


def lint_text(source: Source, device: str | None = None, versions: Versions = ()) -> list[Finding]:
    """Return the findings in one text, by line.

    Args:
        source: The text.
        device: Where it runs, if its ops should be checked.
        versions: Versions of frameworks whose ops are checked; the default is the installed version.
    """
    try:
        module = Module(source.file, source.text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None) or 1
        reason = getattr(error, "msg", None) or str(error) or type(error).__name__
        return [source.placed(unparsable(source.file, reason, line, getattr(error, "offset", None) or 1))]
    try:
        found = _fired(module, device, versions)
    except RecursionError:
        return [unparsable(source.file, "its expressions are nested too deeply")]
    unique = {(one.rule, one.line): one for one in reversed(found)}
    kept = without_suppressed(source, module.tree, list(unique.values()))
    return [source.placed(one) for one in sorted(kept, key=lambda one: (one.line, one.column, one.rule))]


def _fired(module: Module, device: str | None = None, versions: Versions = ()) -> list[Finding]:
    text = Text(module, Program([module], has_fixed_hashes=False), device, versions)
    return [finding for family in _FAMILIES for finding in family.findings(text)]


def findings_of(module: Module) -> list[Finding]:
    """Return the findings in a parsed file, by line, without what a comment suppresses; empty if the rules fail."""
    try:
        source = Source(module.file, "\n".join(module.lines))
        found = without_suppressed(source, module.tree, _fired(module))
    except Exception:  # Only a hint and the order of experiments depend on it: a faulty rule must not abort a check.
        return []
    return sorted(found, key=lambda one: (one.line, one.column))


def lint_file(file: str, device: str | None = None, versions: Versions = ()) -> tuple[int, list[Finding]]:
    """Return the number of lines of a file, and its findings; an unreadable file yields one finding."""
    try:
        source = read(file)
    except ValueError as error:
        return 0, [unparsable(file, str(error), verb="read")]
    return source.text.count("\n") + 1, lint_text(source, device, versions)


@dataclass(frozen=True)
class LintResult:
    """All findings, by file and line."""

    findings: tuple[Finding, ...]
    files: int
    lines: int


def lint(request: LintRequest, processes: int | None = None) -> LintResult:
    """Read files and report what will make runs differ.

    Args:
        request: Which files and rules.
        processes: The number of processes to read with; by default, the number of processors.

    Raises:
        UsageError: A path or a rule does not exist.
    """
    request.check_rules()
    files = python_files(request.paths)
    look = partial(lint_file, device=request.device, versions=request.versions)
    number = (
        processes if processes is not None else len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    )
    results: Iterable[tuple[int, list[Finding]]]
    if number > 1 and len(files) >= _FILES_FOR_PROCESSES:
        with ProcessPoolExecutor(number) as pool:
            results = list(pool.map(look, files, chunksize=8))
    else:
        results = [look(file) for file in files]
    lines = sum(count for count, _ in results)
    return LintResult(tuple(one for _, found in results for one in found if request.counts(one)), len(files), lines)


# Fixes: only those that can change nothing but an order, or that seed a generator.


def fixed_text(text: str, findings: Sequence[Finding]) -> str:
    """Apply the fixes of findings to a text; of two that overlap, only the first."""
    lines = text.split("\n")
    edits: list[tuple[int, int, int, int, str]] = []
    for finding in findings:
        wanted = finding.fix.edits if finding.fix is not None else ()
        if not any(edit[:4] == other[:4] for edit in wanted for other in edits):
            edits += wanted
    for line, column, last, end, new in sorted(edits, key=lambda edit: edit[:2], reverse=True):
        # Columns in the syntax tree count bytes.
        first_part = lines[line - 1].encode()[:column].decode()
        last_part = lines[last - 1].encode()[end:].decode()
        lines[line - 1 : last] = [f"{first_part}{new}{last_part}"]
    return "\n".join(lines)


def changes(findings: Iterable[Finding]) -> Iterator[tuple[Path, str, str]]:
    """Yield each file that fixes change, with its text before and after."""
    by_file: dict[str, list[Finding]] = {}
    for finding in findings:
        if finding.fix is not None and finding.cell is None:
            by_file.setdefault(finding.file, []).append(finding)
    for file, found in by_file.items():
        before = read(file).text
        after = fixed_text(before, found)
        try:
            ast.parse(after)
        except SyntaxError:
            continue
        if after != before:
            yield Path(file), before, after


def diff(path: Path, before: str, after: str) -> str:
    """Return a change as a unified diff."""
    made = difflib.unified_diff(before.splitlines(True), after.splitlines(True), f"a/{path}", f"b/{path}")
    return "".join(made)


def write_fixed(path: Path, after: str) -> None:
    """Replace a file with its fixed text, entirely or not at all; line endings and permissions are kept.

    Raises:
        UsageError: The file cannot be written; it is unchanged.
    """
    try:
        target = path.resolve()
        old = target.read_bytes()
        new = (after.replace("\n", "\r\n") if b"\r\n" in old else after).encode()
        temporary = target.with_name(f".{target.name}.{os.getpid()}.part")
        temporary.write_bytes(new)
        temporary.chmod(target.stat().st_mode)
        temporary.replace(target)
    except OSError as error:
        raise UsageError(
            "lint-fix-unwritable",
            f"{path} cannot be written ({error.strerror or error}), so it was not changed. Make it writable, or use --diff.",
        ) from None


_MOST_FILES = 8
"""The most candidates' files to read; the remaining candidates keep their order."""
_MOST_LINES = 20_000
"""In all of these files together: two seconds on a slow machine."""
_BY_HASHES = ("hash-order", "hash-value")
_SAME = ({"hash-order", "address-order"}, {LIBRARY_SEED, "generator-unseeded"})
"""Causes that only an experiment can distinguish."""


def predicted_findings(script: Path, *, has_fixed_hashes: bool, is_seeded: bool) -> list[Finding]:
    """Return what will make runs of a program differ, judging by its first file; excludes what only may do so.

    Args:
        script: The file that is run.
        has_fixed_hashes: Whether PYTHONHASHSEED gives strings the same hashes in each run.
        is_seeded: Whether the global generators are seeded from outside the program.
    """
    module = Module.read(str(script))
    if module is None or len(module.lines) > _MOST_LINES:
        return []
    settled = {*(_BY_HASHES if has_fixed_hashes else ()), *(SEEDED_LIBRARIES.values() if is_seeded else ())}
    found = findings_of(module)
    return [one for one in found if one.severity is Severity.DIFFERS and one.rule not in settled]


def timed_rules(script: Path, rules: Collection[str]) -> list[str]:
    """Return those of some rules that fire in the file that is run, in order."""
    module = Module.read(str(script))
    if module is None or len(module.lines) > _MOST_LINES:
        return []
    fired = {one.rule for one in findings_of(module)}
    return [rule for rule in rules if rule in fired]


class LintedCandidates:
    """Finds whether a rule named like a candidate's cause fires at its line; for a missing seed, anywhere in the files on the stack."""

    def __init__(self, comparison: Comparison, traces: Sequence[Trace]) -> None:
        """Read nothing yet."""
        self._divergence = comparison.first_divergence
        self._traces = traces
        self._rules: dict[str, dict[int, set[str]]] = {}
        self._lines_read = 0

    def __call__(self, hypothesis: Hypothesis) -> bool:
        """Whether lint names the line of a candidate."""
        source = hypothesis.source
        if source is None and hypothesis.cause in SEEDED_LIBRARIES.values():
            # A missing seed belongs to no line: the draw may be deep in a library, or on a line before the divergence.
            return self.fires(hypothesis.cause)
        if source is None:
            return False
        names = next((names for names in _SAME if hypothesis.cause in names), {hypothesis.cause})
        # What a library does is named where the program calls it.
        sites = [led.site for led in source.led_by] if source.is_in_library else [source.site]
        return any(
            self._rules_in(site.file).get(line, set()) & names
            for site in sites
            for line in range(site.line, max(site.end_line, site.line) + 1)
        )

    def fires(self, rule: str) -> bool:
        """Whether a rule fires anywhere in the files on the stack."""
        stack = () if self._divergence is None else self._divergence.stack
        files = dict.fromkeys(frame.file for frame in stack)
        return any(rule in rules for file in files for rules in self._rules_in(file).values())

    @cached_property
    def _recorded(self) -> dict[str, set[tuple[int, str]]]:
        return {} if self._divergence is None else recorded_lines(self._divergence, self._traces)

    def _rules_in(self, file: str) -> dict[int, set[str]]:
        """Return by line the rules that fire in a file; empty if the file has changed since it ran."""
        if file not in self._rules:
            self._rules[file] = {}
            if len(self._rules) <= _MOST_FILES and self._lines_read < _MOST_LINES:
                module = Module.read(file)
                if module is not None and len(module.lines) + self._lines_read <= _MOST_LINES:
                    self._lines_read += len(module.lines)
                    if module.has(self._recorded.get(file, set())):
                        for finding in findings_of(module):
                            self._rules[file].setdefault(finding.line, set()).add(finding.rule)
        return self._rules[file]
