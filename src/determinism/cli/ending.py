"""How a subcommand shows progress and ends: the report on the terminal and in files, and the exit status."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import NoReturn

import click

from determinism.cli.options import Reports, defect
from determinism.comparison.result import Comparison, Recorded, RunSummary, Trouble
from determinism.errors import DeterminismError, LaunchError, legible
from determinism.launch.program import INTERRUPTED, Interrupted, ProgressCallback
from determinism.report.entries import path_text
from determinism.types import Verdict

NOTHING = Reports()
"""Only what is printed."""


def _no_runs() -> list[RunSummary]:
    return []


@contextmanager
def reporting(reports: Reports = NOTHING, runs: Callable[[], list[RunSummary]] = _no_runs) -> Iterator[None]:
    """Turn whatever keeps a subcommand from its end into a message, a report and the exit status 2, or that of a signal.

    Args:
        reports: Where the report goes.
        runs: Gives the runs that were made until then.
    """
    try:
        reports.check_places()
        yield
    except (click.ClickException, BrokenPipeError):
        raise
    except Interrupted as error:
        fail(_without_verdict(error.message, runs()), reports, runs(), error.exit_status)
    except DeterminismError as error:
        fail(error, reports, runs())
    except (KeyboardInterrupt, click.Abort):
        fail(_without_verdict("Ctrl-C came in.", runs()), reports, runs(), INTERRUPTED)
    except Exception as error:
        fail(defect(error, "there is no verdict"), reports, runs())


def _without_verdict(message: str, runs: list[RunSummary]) -> LaunchError:
    """The error for a command that the user ended; names the traces that are left."""
    kept = [
        f"{path_text(run.trace)} ({'up to there' if run.stopped_by == 'interrupt' else 'whole'})"
        for run in runs
        if run.trace is not None
    ]
    left = f" Kept: {', '.join(kept)}." if kept else ""
    return LaunchError("interrupted", f"{message} Nothing was concluded.{left} Run the command again.")


def conclude(
    comparison: Comparison,
    reports: Reports,
    interrupt_status: int = 0,
    *,
    kept: str | None = None,
) -> NoReturn:
    """Show a comparison, write it down, and exit as its verdict says.

    Args:
        comparison: What is shown.
        reports: Where the report goes.
        interrupt_status: The exit status if the user ended the search for causes; 0 if nobody did.
        kept: Where the page of the report was written without being asked for, if it was.
    """
    from determinism.report.document import document
    from determinism.report.terminal import ReportConsole, render

    content = document(comparison)
    # Written first: a terminal that is gone must not cost the report.
    written = 0 if reports.write(content, say) else 2
    page = reports.html_file
    with reports.commands_stopped():
        render(content, ReportConsole(), verbose=reports.is_verbose, file=path_text(str(page)) if page else kept)
    reports.annotate(content)
    sys.exit(interrupt_status or max(comparison.verdict.exit_status, written))


_SEARCHING = "The search for the cause has not ended."


def show_first(comparison: Comparison, reports: Reports, line: ProgressLine) -> None:
    """Print and write what two runs show, before any further run: what ends the command from now on does not cost it.

    Args:
        comparison: What the runs show.
        reports: Where the report goes; it is written again when the search has ended.
        line: What must not be printed into.
    """
    from determinism.report.document import document
    from determinism.report.terminal import ReportConsole, render

    line.clear()
    content = document(comparison)
    with reports.commands_stopped():
        render(content, ReportConsole(), hint=False)
        click.echo()
    if reports.is_wanted:
        reports.write({**content, "diagnosis": _SEARCHING}, say)


def keep_report(comparison: Comparison, folder: Path) -> str | None:
    """Write the report beside the traces, for their owner only: page, document, and the diffs of verified fixes.

    Args:
        comparison: What was found.
        folder: Where the check keeps what it made.

    Returns:
        The page as it is named to the user; None if the folder cannot be written to.
    """
    from determinism.report.document import document, json_text, write_report
    from determinism.report.html import page, patch_text

    content = document(comparison)
    texts = {"report.html": page(content), "report.json": json_text(content), "fix.patch": patch_text(content)}
    try:
        for name, text in texts.items():
            if text:
                write_report(folder / name, text, name, mode=0o600)
    except DeterminismError:
        return None
    return path_text(str(folder / "report.html"))


def fail(
    error: DeterminismError, reports: Reports = NOTHING, runs: list[RunSummary] | None = None, status: int = 2
) -> NoReturn:
    """Say what kept the command from a verdict, write it down, and exit."""
    say(*error.lines)
    if error.identifier not in ("report-unwritable", "report-files-equal"):
        write_trouble(error.identifier, error.message, reports, runs)
    sys.exit(status)


def write_trouble(identifier: str, message: str, reports: Reports, runs: list[RunSummary] | None = None) -> None:
    """Write reports that say only why there is no verdict."""
    if not reports.is_wanted:
        return
    from determinism.report.document import document

    content = document(Comparison(Verdict.INCONCLUSIVE, runs or [], Recorded(), [Trouble(identifier, message)]))
    reports.write(content, say)
    reports.annotate(content)


def say(*message: str) -> None:
    """Print a message of this command, line by line, as far as there is somewhere to print it."""
    try:
        lines = [legible(line, getattr(sys.stderr, "encoding", None) or "utf-8") for line in message]
        click.echo("\n".join([f"determinism: {lines[0]}", *lines[1:]]), err=True)
    except (OSError, ValueError, AttributeError):
        return


# Says what is going on while a program runs, on the terminal's error stream.

_ERASE = "\r\x1b[2K"


def _fitting(text: str) -> str:
    """A text cut to the width of the terminal: of a line that wraps only the last row could be erased."""
    width = max(shutil.get_terminal_size().columns, 20)
    text = legible(text, getattr(sys.stderr, "encoding", None) or "utf-8")
    return text if len(text) < width else f"{text[: width - 4]}..."


class ProgressLine:
    """One line that shows run, step and records.

    The line moves only where it cannot fall between the program's own output: on a terminal, in the runs whose output
    goes to a log. Elsewhere each run is announced once.
    """

    def __init__(self) -> None:
        self._is_terminal = sys.stderr is not None and sys.stderr.isatty()
        self._is_shown = False

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.clear()

    def announce(self, title: str, log: Path | None) -> ProgressCallback | None:
        """A run begins; gives what is told its progress.

        Args:
            title: What the run is.
            log: Where the program's output goes; None if it passes through.
        """
        self.clear()
        if log is None or not self._is_terminal:
            say(title if log is None else f"{title}, its output goes to {path_text(str(log))}")
            return None
        began = time.monotonic()

        def show(records: int, step: int) -> None:
            at = f", step {step}" if step >= 0 else ""
            text = f"determinism: {title}{at}, {records:,} records, {time.monotonic() - began:.0f} s"
            self._print(f"{_ERASE}{_fitting(text)}")
            self._is_shown = True

        show(0, -1)
        return show

    def say(self, *message: str) -> None:
        """Print a message on a line of its own."""
        self.clear()
        say(*message)

    def clear(self) -> None:
        """Take the line away."""
        if self._is_shown:
            self._print(_ERASE)
            self._is_shown = False

    def _print(self, text: str) -> None:
        try:
            click.echo(text, err=True, nl=False)
        except (OSError, ValueError):
            # A terminal that is gone must not end the run.
            self._is_terminal = False
