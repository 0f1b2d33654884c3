"""`determinism report`: print a report that was written as JSON before, or make a page or a test result of it."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from determinism.cli.options import Reports, html_option, junit_option, verbose_option


@click.command(short_help="Print a report that was written as JSON, or make a page of it.")
@html_option
@junit_option
@click.option("--annotate", is_flag=True, help="Print annotations that GitHub shows beside the lines of the program.")
@verbose_option
@click.argument("document", type=click.Path(path_type=Path), metavar="REPORT.json")
def report(document: Path, html_file: Path | None, junit_file: Path | None, annotate: bool, verbose: bool) -> None:
    """Print what `--json` wrote, as `check` printed it; or write it as a page or a test result.

    Nothing else is needed: neither the traces nor the program.

    Exit status: 0 if all was written, 2 if not.
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
