"""How a subcommand ends: the report on the terminal and in files, and the exit status."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import click

from determinism.cli.defects import defect
from determinism.cli.reports import Reports
from determinism.comparison.result import Comparison, Recorded, RunSummary, Trouble
from determinism.errors import DeterminismError, LaunchError
from determinism.report.legible import legible
from determinism.types import Verdict

NOTHING = Reports()
"""Only what is printed."""


def _no_runs() -> list[RunSummary]:
    return []


@contextmanager
def reporting(reports: Reports = NOTHING, runs: Callable[[], list[RunSummary]] = _no_runs) -> Iterator[None]:
    """Turn whatever keeps a subcommand from its end into a message, a report and the exit status 2.

    Args:
        reports: Where the report goes.
        runs: Gives the runs that were made until then.
    """
    try:
        reports.check_places()
        yield
    except (click.ClickException, BrokenPipeError):
        raise
    except DeterminismError as error:
        fail(error, reports, runs())
    except (KeyboardInterrupt, click.Abort):
        fail(LaunchError("interrupted", "Interrupted, so there is no verdict. Run the command again."), reports, runs())
    except Exception as error:
        fail(defect(error, "there is no verdict"), reports, runs())


def conclude(comparison: Comparison, reports: Reports) -> NoReturn:
    """Show a comparison, write it down, and exit as its verdict says."""
    from determinism.report.report_console import ReportConsole
    from determinism.report.terminal import render

    # Written first: a terminal that is gone must not cost the report.
    content, written = _write(comparison, reports)
    with reports.commands_stopped():
        render(comparison, ReportConsole())
    if content is not None:
        reports.annotate(content)
    sys.exit(max(comparison.verdict.exit_status, written))


def fail(error: DeterminismError, reports: Reports = NOTHING, runs: list[RunSummary] | None = None) -> NoReturn:
    """Say what kept the command from a verdict, write it down, and exit with 2."""
    say(error.message)
    if error.identifier not in ("report-unwritable", "report-files-equal"):
        write_trouble(error.identifier, error.message, reports, runs)
    sys.exit(2)


def write_trouble(identifier: str, message: str, reports: Reports, runs: list[RunSummary] | None = None) -> None:
    """Write reports that say only why there is no verdict."""
    trouble = Comparison(Verdict.INCONCLUSIVE, runs or [], Recorded(), [Trouble(identifier, message)])
    content, _ = _write(trouble, reports)
    if content is not None:
        reports.annotate(content)


def say(message: str) -> None:
    """Print a message of this command, as far as there is somewhere to print it."""
    try:
        lines = [legible(line, getattr(sys.stderr, "encoding", None) or "utf-8") for line in message.splitlines()]
        click.echo("\n".join([f"determinism: {lines[0]}", *lines[1:]]), err=True)
    except (OSError, ValueError, AttributeError):
        return


def _write(comparison: Comparison, reports: Reports) -> tuple[dict[str, Any] | None, int]:
    """Write the reports; returns the document, if one was asked for, and the exit status that this leads to."""
    if not reports.is_wanted:
        return None, 0
    from determinism.report.document import document

    content = document(comparison)
    return content, 0 if reports.write(content, say) else 2
