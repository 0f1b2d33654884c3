"""How a subcommand shows progress and ends: the report on the terminal and in files, and the exit status."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn

import click

from determinism.cli.options import Reports, defect
from determinism.comparison.result import Comparison, Recorded, RunSummary, Trouble
from determinism.errors import DeterminismError, LaunchError, legible
from determinism.launch.io import ends_mid_line
from determinism.launch.program import Interrupted, ProgressCallback, interrupt_status
from determinism.report.entries import path_text
from determinism.types import Verdict

if TYPE_CHECKING:
    from determinism.invariants.findings import InvariantFindings
    from determinism.launch.runs import RunningCheck

NOTHING = Reports()
"""No report besides the terminal's."""

PAGE_FILE = "report.html"
DOCUMENT_FILE = "report.json"
"""Files that a check that found a difference keeps next to the traces."""


def details_command(stored: Path) -> str:
    """Return the command that prints every detail of a stored report.

    Args:
        stored: The document, or the folder of the check that kept it.
    """
    return shlex.join(["determinism", "report", "-v", path_text(str(stored))])


def _no_runs() -> list[RunSummary]:
    return []


@contextmanager
def reporting(reports: Reports = NOTHING, runs: Callable[[], list[RunSummary]] = _no_runs) -> Iterator[None]:
    """Turn any error of a subcommand into a message, a report and exit status 2, or the exit status for a signal.

    Args:
        reports: Where the report goes.
        runs: Returns the runs that have been made so far.
    """
    try:
        reports.check_places()
        yield
    except (click.ClickException, BrokenPipeError):
        raise
    except Interrupted as error:
        stopped = error.program_exit.stopped_by
        how = "Interrupted" if stopped == "SIGINT" else f"Ended by {stopped}"
        text = f"{how} {error.program_exit.seconds:.0f} s into run {len(runs())}" if runs() else how
        fail(_without_verdict(text, runs()), reports, runs(), error.exit_status)
    except DeterminismError as error:
        fail(error, reports, runs())
    except (KeyboardInterrupt, click.Abort) as error:
        fail(_without_verdict("Interrupted", runs()), reports, runs(), interrupt_status(error))
    except Exception as error:
        fail(defect(error, "there is no verdict"), reports, runs())


def _without_verdict(how: str, runs: list[RunSummary]) -> LaunchError:
    """Return the error for a command that the user ended, naming the traces that are left."""
    traces = [Path(run.trace) for run in runs if run.trace is not None]
    folders = {trace.parent for trace in traces}
    names = [str(trace.name if len(folders) == 1 else path_text(str(trace))) for trace in traces]
    cut = {run.trace for run in runs if run.stopped_by == "interrupt"}
    kept = [f"{name} (incomplete)" if str(trace) in cut else name for name, trace in zip(names, traces, strict=True)]
    place = f" in {path_text(str(folders.pop()))}" if len(folders) == 1 else ""
    left = f"; kept{place}: {', '.join(kept)}" if kept else ""
    if sys.stderr is not None and sys.stderr.isatty():
        # The terminal shows ^C, perhaps after part of a line.
        click.echo(_ERASE, err=True, nl=False)
    return LaunchError("interrupted", f"{how}, before there was a verdict{left}.")


def conclude(
    comparison: Comparison,
    reports: Reports,
    interrupt_status: int = 0,
    *,
    kept: Path | None = None,
    shown: dict[str, Any] | None = None,
) -> NoReturn:
    """Show a comparison, write the reports, and exit with the status of its verdict.

    Args:
        comparison: The comparison to show.
        reports: Where the report goes.
        interrupt_status: The exit status if the user ended the search for causes; else 0.
        kept: The folder in which the check keeps its report; None if it does not.
        shown: The document that was printed before the search for causes, if any. If the search was interrupted before
            it found anything, the report is not printed again.
    """
    from determinism.report.document import document
    from determinism.report.terminal import ReportConsole, Rest, render, render_rest

    content = document(comparison)
    # Written first: the report must survive if the terminal is gone.
    written = 0 if reports.write(content, say) else 2
    page = reports.html_file or (kept / PAGE_FILE if kept else None)
    file = path_text(str(page)) if page else None
    stored = kept or reports.json_file
    rest = Rest(file, details_command(stored) if stored else None, _patch_command(content, kept) if kept else None)
    with reports.commands_stopped():
        if interrupt_status and shown is not None and not reports.is_verbose and not _has_news(content, shown):
            render_rest(content, ReportConsole(), rest)
        else:
            render(content, ReportConsole(), verbose=reports.is_verbose, rest=rest)
    reports.annotate(content)
    sys.exit(interrupt_status or max(comparison.verdict.exit_status, written))


def _patch_command(content: dict[str, Any], kept: Path) -> str | None:
    """Return the command that applies the diffs of a report; None if it has none."""
    from determinism.report.html import PATCH_FILE, patch_command, patch_text

    return patch_command(content, path_text(str(kept / PATCH_FILE))) if patch_text(content) else None


def _has_news(content: dict[str, Any], shown: dict[str, Any]) -> bool:
    """Whether a report says more than an earlier one of the same runs, apart from how the search ended."""
    return any(content[name] != shown[name] for name in ("headline", "causes", "fixes", "first_divergence"))


def conclude_invariants(findings: InvariantFindings, reports: Reports) -> NoReturn:
    """Show the findings of an invariants check, write the reports, and exit with the status of the verdict.

    Args:
        findings: The findings to show.
        reports: Where the report goes; its JSON has a different form.
    """
    import json

    from determinism.invariants.findings import invariants_document, verdict_of
    from determinism.report.document import write_report
    from determinism.report.terminal import ReportConsole, Rest, render

    content = invariants_report(findings)
    written = 0 if replace(reports, json_file=None).write(content, say) else 2
    if reports.json_file is not None:
        try:
            write_report(reports.json_file, f"{json.dumps(invariants_document(findings), indent=1)}\n", "--json")
        except DeterminismError as error:
            say(error.message)
            written = 2
    page = reports.html_file
    with reports.commands_stopped():
        render(content, ReportConsole(), verbose=reports.is_verbose, rest=Rest(path_text(str(page)) if page else None))
    reports.annotate(content)
    sys.exit(max(verdict_of(findings).exit_status, written))


def invariants_report(findings: InvariantFindings) -> dict[str, Any]:
    """Return the findings as a report document, in which everything that compares two runs is empty."""
    from determinism.invariants.findings import entries, headline, verdict_of
    from determinism.report.document import contexts, document
    from determinism.report.story import story_document

    runs = [] if findings.run is None else [replace(findings.run, trace=findings.trace)]
    content = document(Comparison(verdict_of(findings), runs, findings.recorded))
    sites = (site for one in findings.violations for site in (one.site, one.asked_at))
    story = story_document(entries(findings))
    return {**content, "headline": headline(findings), "story": story, "sources": contexts(sites)}


_SEARCHING = "The search for the cause has not ended."


def show_first(comparison: Comparison, reports: Reports, line: ProgressLine) -> dict[str, Any]:
    """Print and write the comparison of two runs before any further run, so that it survives whatever ends the command.

    Args:
        comparison: Comparison of the runs.
        reports: Where the report goes; it is written again when the search has ended.
        line: The progress line, to be cleared meanwhile.

    Returns:
        The document that was printed.
    """
    from determinism.report.document import document
    from determinism.report.terminal import ReportConsole, render

    content = document(comparison)
    with line.silent(), reports.commands_stopped():
        render(content, ReportConsole(), rest=None)
        click.echo()
    if reports.is_wanted:
        reports.write({**content, "diagnosis": _SEARCHING}, say)
    return content


def run_check(make: Callable[..., RunningCheck], reports: Reports) -> NoReturn:
    """Make the runs of a check, show the result, and exit.

    Args:
        make: Returns the check; called with callbacks that announce runs, print messages, and receive a first verdict.
        reports: Where the report goes.
    """
    line = ProgressLine()
    shown: list[dict[str, Any]] = []
    running = make(line.announce, line.say, lambda comparison: shown.append(show_first(comparison, reports, line)))
    with reporting(reports, lambda: running.runs), line:
        comparison = running.run()
    kept = keep_report(comparison, running.folder) if comparison.verdict is Verdict.DIFFERENT else None
    conclude(comparison, reports, running.interrupt_status, kept=kept, shown=shown[-1] if shown else None)


def keep_report(comparison: Comparison, folder: Path) -> Path | None:
    """Write the report next to the traces, readable only by the owner: page, document, and diffs of verified fixes.

    Returns:
        The folder; None if it cannot be written to.
    """
    from determinism.report.document import document, json_text, write_report
    from determinism.report.html import PATCH_FILE, page, patch_text

    content = document(comparison)
    texts = {PAGE_FILE: page(content), DOCUMENT_FILE: json_text(content), PATCH_FILE: patch_text(content)}
    try:
        for name, text in texts.items():
            if text:
                write_report(folder / name, text, name, mode=0o600)
    except DeterminismError:
        return None
    return folder


def fail(
    error: DeterminismError, reports: Reports = NOTHING, runs: list[RunSummary] | None = None, status: int = 2
) -> NoReturn:
    """Print why there is no verdict, write the reports, and exit."""
    from determinism.trace.opening import with_urls

    lines = [with_urls(line) for line in error.lines]
    say(*lines)
    if error.identifier not in ("report-unwritable", "report-files-equal"):
        write_trouble(error.identifier, " ".join(lines), reports, runs)
    sys.exit(status)


def write_trouble(identifier: str, message: str, reports: Reports, runs: list[RunSummary] | None = None) -> None:
    """Write reports that contain only the reason why there is no verdict."""
    if not reports.is_wanted:
        return
    from determinism.report.document import document

    content = document(Comparison(Verdict.INCONCLUSIVE, runs or [], Recorded(), [Trouble(identifier, message)]))
    reports.write(content, say)
    reports.annotate(content)


def say(*message: str) -> None:
    """Print a message of this command, if possible."""
    try:
        lines = [legible(line, getattr(sys.stderr, "encoding", None) or "utf-8") for line in message]
        lines[0] = f"determinism: {lines[0]}"
        click.echo("\n".join([_folded(lines[0]), *lines[1:]] if sys.stderr.isatty() else lines), err=True)
    except (OSError, ValueError, AttributeError):
        return


def _folded(line: str) -> str:
    """Wrap a sentence between words to the width of the terminal; paths and options stay whole."""
    width = max(shutil.get_terminal_size().columns, 20)
    return "\n".join(textwrap.wrap(line, width, break_long_words=False, break_on_hyphens=False)) or line


# Shows progress on standard error while a program runs.

_ERASE = "\r\x1b[2K"


def _fitting(title: str, *states: str) -> str:
    """Cut a line to the terminal's width, less the width of ^C: only the last row of a wrapped line could be erased.

    Args:
        title: The current activity. It matters most, so it is cut only if no state fits after it.
        *states: The progress, in full and then in shorter forms.
    """
    width = max(shutil.get_terminal_size().columns, 20) - 3
    encoding = getattr(sys.stderr, "encoding", None) or "utf-8"
    title, legible_states = legible(title, encoding), [legible(state, encoding) for state in states]
    state = next((one for one in legible_states if len(title) + len(one) <= width), legible_states[-1])
    if len(title) + len(state) > width:
        room = max(width - len(state) - 3, 0)
        title = f"{title[:room].rstrip(' ,')}..." if room else title[:width]
    return f"{title}{state}"[:width]


_QUIET_SECONDS = 1.0
"""Shorter activities show no line."""
_LOOK_SECONDS = 0.25


def _columns() -> int:
    """Return the width of the terminal, ignoring `COLUMNS`; 0 if unknown."""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns
    except (OSError, ValueError, AttributeError):
        return 0


def _time_text(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.0f} min"


class ProgressLine:
    """A line with the progress of runs, and later of the comparison; a context manager that clears it.

    It is updated only where it cannot interfere with the program's own output: on a terminal, during logged runs, and
    between runs. Otherwise each run is announced once. Text after the program's own output begins on a new line.
    """

    def __init__(self) -> None:
        self._is_terminal = sys.stderr is not None and sys.stderr.isatty()
        self._is_shown = False
        self._is_after_program = False
        """Whether the program itself is writing, or was the last to write, to the terminal."""
        self._may_run_into_output = False
        """Whether a report would directly follow the program's output on standard output."""
        self._said = ""
        self._expected = 0
        """How many records a comparison reads."""
        self._run_seen = time.monotonic()
        """When a run last reported progress."""
        self._lock = threading.RLock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> ProgressLine:
        if self._is_terminal:
            # Imported here so that the thread does not import while this process is forked to start a program.
            import_module("determinism.trace.reader")
            self._thread = threading.Thread(target=self._show_reading, name="progress", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        self.clear()
        if kind is None:
            self._begin_report()

    def announce(
        self, title: str, log: Path | None, *, part: str = "", seconds: float | None = None, is_limit: bool = False
    ) -> ProgressCallback | None:
        """Announce that a run begins; see `determinism.launch.program.Announce`."""
        self.clear()
        self._is_after_program = log is None
        self._may_run_into_output |= log is None
        if log is None or not self._is_terminal:
            text = title if log is None or part else f"{title}, its output goes to {path_text(str(log))}"
            if text != self._said:
                say(text)
            self._said = text
            return None
        began = time.monotonic()

        def show(records: int, step: int) -> None:
            passed = time.monotonic() - began
            at = f", step {step:,}" if step >= 0 else f", {records:,} records"
            left = (
                ""
                if seconds is None
                else f", {'at most' if is_limit else 'about'} {_time_text(max(seconds - passed, 0))} left"
            )
            which = f", {part}" if part else ""
            self._expected = 2 * records
            self._run_seen = time.monotonic()
            times = f", {_time_text(passed)}{left}"
            self._show(title, f"{which}{at}{times}", f"{which}{times}", times)

        show(0, -1)
        return show

    def expect(self, records: int) -> None:
        """Set the number of records that a comparison will read, for its progress."""
        self._expected = records

    def say(self, *message: str) -> None:
        """Print a message on its own line."""
        with self._lock:
            self.clear()
            say(*message)

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Hide the line while other text is printed."""
        with self._lock:
            self.clear()
            self._begin_report()
            yield

    def clear(self) -> None:
        """Clear the line; a line that the program began stays."""
        with self._lock:
            if self._is_terminal and self._is_after_program and (columns := _columns()):
                # This many spaces move the cursor to the next line only if it is not at the beginning of one.
                self._print(f"{' ' * columns}{_ERASE}")
            if self._is_shown:
                self._print(_ERASE)
                self._is_shown = False

    def _begin_report(self) -> None:
        """End the line of program output in which a report would begin; on a terminal, `clear` has done that."""
        if self._may_run_into_output:
            self._may_run_into_output = False
            is_on_terminal = self._is_terminal and sys.stdout is not None and sys.stdout.isatty()
            if not is_on_terminal and ends_mid_line():
                click.echo()

    def _show_reading(self) -> None:
        """Show the progress of a comparison while no run reports progress."""
        from determinism.trace.process import ReadSoFar

        read_before, began = ReadSoFar.records, 0.0
        while not self._ended.wait(_LOOK_SECONDS):
            now, read = time.monotonic(), ReadSoFar.records
            if now - self._run_seen < _QUIET_SECONDS or read == read_before:
                read_before, began = read, 0.0 if read == read_before else began
                continue
            if not began:
                began, first = now, read_before
            read_before = read
            if now - began > _QUIET_SECONDS:
                self._show("comparing the runs", *_reading_texts(read - first, self._expected, now - began))

    def _show(self, title: str, *states: str) -> None:
        """Draw the line with the first state that fits; if none does, cut the title."""
        with self._lock:
            self._print(f"{_ERASE}{_fitting(f'determinism: {title}', *states)}")
            self._is_shown = True

    def _print(self, text: str) -> None:
        try:
            click.echo(text, err=True, nl=False)
        except (OSError, ValueError):
            # The run must continue even if the terminal is gone.
            self._is_terminal = False


def _reading_texts(read: int, expected: int, seconds: float) -> list[str]:
    """Describe a comparison's progress, in full and shorter. Records near a difference may be read more than once."""
    if not 0 < read < expected:
        return [f", {read:,} records, {_time_text(seconds)}"]
    left = seconds * (expected - read) / read
    shown = f", {read:,} of {expected:,} records, {_time_text(seconds)}"
    return [f"{shown}, about {_time_text(left)} left", shown]
