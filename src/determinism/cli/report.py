"""`determinism report`: print a stored JSON report, or convert it to a page or a test result."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import click

from determinism.cli.configuration import ConfiguredCommand
from determinism.cli.options import (
    Reports,
    annotate_option,
    code_quality_option,
    html_option,
    junit_option,
    sarif_option,
    verbose_option,
)
from determinism.errors import UsageError


@click.command(cls=ConfiguredCommand, short_help="Print a stored JSON report, or render it as a page.")
@html_option
@junit_option
@sarif_option
@code_quality_option
@annotate_option
@verbose_option
@click.argument("document", type=click.Path(path_type=Path), metavar="REPORT.json|DIR")
def report(document: Path, annotate: bool, verbose: bool, **files: Any) -> None:
    """Print a report stored with `--json`, or convert it to a page or a test result.

    If DIR is a folder that `check` kept, its report is used.

    Neither the traces nor the program are needed.

    Exit status: 0 success, 2 trouble.
    """
    from determinism.cli.ending import DOCUMENT_FILE, details_command, reporting, say

    reports = Reports(is_annotated=annotate, **files)
    with reporting():
        from determinism.report.document import read_document

        file = document / DOCUMENT_FILE if document.is_dir() else document
        if file != document and not file.exists():
            raise UsageError(
                "report-unreadable",
                f"{document} has no {DOCUMENT_FILE}, so there is nothing to print. Give the folder of a `check` that found a "
                f"difference, or the file that `--json` wrote; for a trace: determinism show {shlex.quote(str(document))}",
            )
        reports.check_places(file)
        content = read_document(file)
        if not reports.is_wanted:
            from determinism.report.terminal import ReportConsole, Rest, render

            render(content, ReportConsole(), verbose=verbose, rest=Rest(details=details_command(document)))
        if not reports.write(content, say):
            sys.exit(2)
        reports.annotate(content)
