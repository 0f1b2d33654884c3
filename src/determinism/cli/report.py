"""`determinism report`: print a stored JSON report, or convert it to a page or a test result."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from determinism.cli.options import Reports, html_option, junit_option, verbose_option


@click.command(short_help="Print a stored JSON report, or render it as a page.")
@html_option
@junit_option
@click.option("--annotate", is_flag=True, help="Print GitHub annotations for the lines concerned.")
@verbose_option
@click.argument("document", type=click.Path(path_type=Path), metavar="REPORT.json")
def report(document: Path, html_file: Path | None, junit_file: Path | None, annotate: bool, verbose: bool) -> None:
    """Print a report stored with `--json`, or convert it to a page or a test result.

    Neither the traces nor the program are needed.

    Exit status: 0 success, 2 trouble.
    """
    from determinism.cli.ending import reporting, say

    reports = Reports(html_file=html_file, junit_file=junit_file, is_annotated=annotate)
    with reporting():
        from determinism.report.document import read_document

        reports.check_places(document)
        content = read_document(document)
        if not reports.is_wanted:
            from determinism.report.terminal import ReportConsole, render

            render(content, ReportConsole(), verbose=verbose)
        if not reports.write(content, say):
            sys.exit(2)
        reports.annotate(content)
