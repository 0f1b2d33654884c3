"""`determinism lint`: find what will make runs differ, before anything runs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from determinism.cli.configuration import ConfiguredCommand
from determinism.errors import DeterminismError

if TYPE_CHECKING:
    from determinism.lint.findings import Finding

_DEVICES = ("cpu", "cuda", "rocm", "xpu", "mps", "tpu", "gpu")


def _names(values: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name.strip() for value in values for name in value.split(",") if name.strip())


@click.command(cls=ConfiguredCommand, short_help="Name what will make runs differ, without running anything.")
@click.option("--select", multiple=True, metavar="RULE,...", help="Report only these rules.  [default: all]")
@click.option("--ignore", multiple=True, metavar="RULE,...", help="Ignore these rules.")
@click.option(
    "--per-file-ignores",
    multiple=True,
    metavar="PATTERN:RULE,...",
    help="Ignore rules in files that match this pattern.",
)
@click.option(
    "--device",
    type=click.Choice(_DEVICES),
    help="Also report ops that vary or refuse deterministic mode on this device.",
)
@click.option(
    "--version",
    "versions",
    multiple=True,
    metavar="FRAMEWORK=V",
    help="With --device: the version to judge by, such as torch=2.6.  [default: the installed one]",
)
@click.option(
    "--explain", metavar="RULE", help="Print the page of a lint rule or of a cause that check names, and exit."
)
@click.option("--fix", "is_fixed", is_flag=True, help="Show the fixes as a diff and write them.")
@click.option("--diff", "shows_diff", is_flag=True, help="Show the fixes as a diff and write nothing.")
@click.option(
    "--json", "json_file", type=click.Path(path_type=Path), metavar="FILE", help="Write the findings as JSON."
)
@click.option("--sarif", "sarif_file", type=click.Path(path_type=Path), metavar="FILE", help="Write them as SARIF.")
@click.argument("paths", nargs=-1, metavar="PATH...")
def lint(paths: tuple[str, ...], explain: str | None, is_fixed: bool, shows_diff: bool, **options: Any) -> None:
    """Read Python files, notebooks and folders, and say what will make runs differ. Nothing is run or imported.

    Exit status: 0 nothing found, 1 something found, 2 trouble.
    """
    from determinism.cli.ending import say

    if not paths and explain is None:
        raise click.UsageError("Give files, notebooks or folders to read, or --explain RULE.")
    if is_fixed and shows_diff:
        raise click.UsageError("Give either --diff, which shows the fixes, or --fix, which also writes them.")
    try:
        if explain is not None:
            from determinism.lint.findings import explanation

            click.echo(explanation(explain), nl=False)
            sys.exit(0)
        sys.exit(_lint(paths, is_fixed, shows_diff, **options))
    except DeterminismError as error:
        say(error.message)
        sys.exit(2)


def _lint(
    paths: tuple[str, ...],
    is_fixed: bool,
    shows_diff: bool,
    *,
    select: tuple[str, ...],
    ignore: tuple[str, ...],
    per_file_ignores: tuple[str, ...],
    device: str | None,
    versions: tuple[str, ...],
    json_file: Path | None,
    sarif_file: Path | None,
) -> int:
    from determinism.cli.ending import say
    from determinism.lint.findings import rules
    from determinism.lint.run import LintRequest, changes, diff, write_fixed
    from determinism.lint.run import lint as read_all
    from determinism.report.code_scanning import lint_document, lint_sarif, lint_text
    from determinism.report.document import write_report

    request = LintRequest(
        paths, _names(select), _names(ignore), _by_pattern(per_file_ignores), device, _by_framework(versions, device)
    )
    result = read_all(request)
    if is_fixed or shows_diff:
        changed = list(changes(result.findings))
        for path, before, after in changed:
            click.echo(diff(path, before, after), nl=False)
            if is_fixed:
                write_fixed(path, after)
        if result.findings and not changed:
            say("No finding has a fix that can be made automatically, so no file changes.")
        if is_fixed:
            result = read_all(request)
    found = [_described(finding) for finding in result.findings]
    if json_file is not None:
        write_report(json_file, lint_document(found, result.files, result.lines), "--json")
    if sarif_file is not None:
        titles = {identifier: rule.title for identifier, rule in rules().items()}
        write_report(sarif_file, lint_sarif(found, titles), "--sarif")
    click.echo(lint_text(found, result.files))
    return 1 if found else 0


def _by_pattern(given: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    found: dict[str, tuple[str, ...]] = {}
    for one in given:
        pattern, separator, names = one.rpartition(":")
        if not separator or not pattern:
            raise click.UsageError(
                f"--per-file-ignores {one} has no pattern. Write PATTERN:RULE, such as tests/*:clock."
            )
        found[pattern] = (*found.get(pattern, ()), *_names((names,)))
    return found


def _by_framework(given: tuple[str, ...], device: str | None) -> tuple[tuple[str, str], ...]:
    """Versions by framework, as ops are looked up."""
    from determinism.knowledge.entries import release
    from determinism.knowledge.query import framework_named

    if given and device is None:
        raise click.UsageError("--version is about ops on a device, so give --device too.")
    found = []
    for one in given:
        name, separator, version = one.partition("=")
        if not separator or not version.strip("= "):
            raise click.UsageError(f"--version {one} does not name a version. Write FRAMEWORK=V, such as torch=2.6.")
        version = version.strip("= ")
        release(version)
        found.append((framework_named(name).identifier, version))
    return tuple(found)


def _described(finding: Finding) -> dict[str, Any]:
    return {
        "rule": finding.rule,
        "severity": finding.severity.value,
        "message": finding.message,
        "file": finding.file,
        "cell": finding.cell,
        "line": finding.line,
        "column": finding.column,
        "code": finding.code,
        "fixable": finding.fix is not None,
    }
