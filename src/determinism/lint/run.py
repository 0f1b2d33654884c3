"""Lint of many files: which are read, by how many processes, which findings count, and the fixes of files."""

from __future__ import annotations

import ast
import difflib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from fnmatch import fnmatch
from functools import partial
from pathlib import Path

from determinism.diagnose.program_flow import Module, Program
from determinism.errors import UsageError
from determinism.lint import frameworks, memory, order, outside, reading, repeats, seeding
from determinism.lint.findings import Finding, Text, rules

_FAMILIES = (seeding, order, outside, memory, repeats, frameworks)
Versions = tuple[tuple[str, str], ...]
_FILES_FOR_PROCESSES = 40
"""Fewer are read sooner than processes are started."""


@dataclass(frozen=True)
class LintRequest:
    """What to read, and which rules count."""

    paths: tuple[str, ...]
    select: tuple[str, ...] = ()
    """All if empty."""
    ignore: tuple[str, ...] = ()
    per_file_ignores: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Rules by patterns of files."""
    device: str | None = None
    versions: Versions = ()
    """Of frameworks, for what is known of ops."""

    def check_rules(self) -> None:
        """See that every rule that is named exists.

        Raises:
            UsageError: One does not.
        """
        named = [*self.select, *self.ignore, *(name for names in self.per_file_ignores.values() for name in names)]
        for name in named:
            if name not in rules():
                near = difflib.get_close_matches(name, list(rules()), n=1)
                hint = f"Did you mean {near[0]}?" if near else f"There are: {', '.join(rules())}."
                raise UsageError("lint-rule-unknown", f"There is no rule {name}, so nothing was read. {hint}")

    def counts(self, finding: Finding) -> bool:
        """Whether a finding is wanted."""
        if (self.select and finding.rule not in self.select) or finding.rule in self.ignore:
            return False
        return not any(
            finding.rule in names and (fnmatch(finding.file, pattern) or fnmatch(Path(finding.file).name, pattern))
            for pattern, names in self.per_file_ignores.items()
        )


def lint_text(source: reading.Source, device: str | None = None, versions: Versions = ()) -> list[Finding]:
    """What the rules say of one text, by line.

    Args:
        source: The text.
        device: Where it runs, if ops are to be looked at.
        versions: Of frameworks whose ops are looked at; of others it is the installed one.
    """
    try:
        module = Module.parsed(source.file, source.text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        line = getattr(error, "lineno", None) or 1
        reason = getattr(error, "msg", None) or str(error) or type(error).__name__
        return [source.placed(reading.unparsable(source.file, reason, line, getattr(error, "offset", None) or 1))]
    try:
        found = _fired(module, device, versions)
    except RecursionError:
        return [reading.unparsable(source.file, "its expressions are nested too deeply")]
    unique = {(one.rule, one.line): one for one in reversed(found)}
    kept = reading.without_suppressed(source, module.tree, list(unique.values()))
    return [source.placed(one) for one in sorted(kept, key=lambda one: (one.line, one.column, one.rule))]


def _fired(module: Module, device: str | None = None, versions: Versions = ()) -> list[Finding]:
    text = Text(module, Program([module], has_fixed_hashes=False), device, versions)
    return [finding for family in _FAMILIES for finding in family.findings(text)]


def findings_of(module: Module) -> list[Finding]:
    """What the rules say of a file that was parsed already, by line, without what a comment suppresses; nothing if they fail.

    Args:
        module: The file.
    """
    try:
        source = reading.Source(module.file, "\n".join(module.lines))
        found = reading.without_suppressed(source, module.tree, _fired(module))
    except Exception:  # Only a hint and the order of experiments rest on it: a check must not end by a fault of a rule.
        return []
    return sorted(found, key=lambda one: (one.line, one.column))


def lint_file(file: str, device: str | None = None, versions: Versions = ()) -> tuple[int, list[Finding]]:
    """The number of lines of a file, and what the rules say of it; one that cannot be read is one finding."""
    try:
        source = reading.read(file)
    except ValueError as error:
        return 0, [reading.unparsable(file, str(error))]
    return source.text.count("\n") + 1, lint_text(source, device, versions)


@dataclass(frozen=True)
class LintResult:
    """All findings, by file and line."""

    findings: tuple[Finding, ...]
    files: int
    lines: int


def lint(request: LintRequest, processes: int | None = None) -> LintResult:
    """Read files and say what will make runs differ.

    Args:
        request: Which files and rules.
        processes: How many read; as many as there are processors by default.

    Raises:
        UsageError: A path or a rule does not exist.
    """
    request.check_rules()
    files = reading.python_files(request.paths)
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


# Fixes: only those that can change nothing but an order, or that give a generator its seed.


def fixed_text(text: str, findings: Sequence[Finding]) -> str:
    """A text with the fixes of its findings; of two that overlap the first alone."""
    lines = text.split("\n")
    edits: list[tuple[int, int, int, int, str]] = []
    for finding in findings:
        wanted = finding.fix.edits if finding.fix is not None else ()
        if not any(edit[:4] == other[:4] for edit in wanted for other in edits):
            edits += wanted
    for line, column, last, end, new in sorted(edits, key=lambda edit: edit[:2], reverse=True):
        # The columns of the syntax tree count bytes.
        first_part = lines[line - 1].encode()[:column].decode()
        last_part = lines[last - 1].encode()[end:].decode()
        lines[line - 1 : last] = [f"{first_part}{new}{last_part}"]
    return "\n".join(lines)


def changes(findings: Iterable[Finding]) -> Iterator[tuple[Path, str, str]]:
    """Each file that fixes change, with its text before and after."""
    by_file: dict[str, list[Finding]] = {}
    for finding in findings:
        if finding.fix is not None and finding.cell is None:
            by_file.setdefault(finding.file, []).append(finding)
    for file, found in by_file.items():
        before = reading.read(file).text
        after = fixed_text(before, found)
        try:
            ast.parse(after)
        except SyntaxError:
            continue
        if after != before:
            yield Path(file), before, after


def diff(path: Path, before: str, after: str) -> str:
    """A change as a unified diff."""
    made = difflib.unified_diff(before.splitlines(True), after.splitlines(True), f"a/{path}", f"b/{path}")
    return "".join(made)


def write_fixed(path: Path, after: str) -> None:
    """Replace a file by its fixed text, as a whole or not at all; line ends and permissions stay as they are.

    Raises:
        UsageError: The file cannot be written; it is unharmed.
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
