"""How a subcommand ends: the report on the terminal and as JSON, and the exit status."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

import click

from determinism.comparison.result import Comparison, Recorded, RunSummary, Trouble
from determinism.errors import DeterminismError, LaunchError, UsageError
from determinism.report.legible import legible
from determinism.types import Verdict

TRACEBACK_VARIABLE = "DETERMINISM_TRACEBACK"


def _no_runs() -> list[RunSummary]:
    return []


@contextmanager
def reporting(json_file: Path | None = None, runs: Callable[[], list[RunSummary]] = _no_runs) -> Iterator[None]:
    """Turn whatever keeps a subcommand from its end into a message, a report and the exit status 2.

    Args:
        json_file: Where the report goes.
        runs: Gives the runs that were made until then.
    """
    try:
        if json_file is not None:
            _check_place(json_file)
        yield
    except (click.ClickException, BrokenPipeError):
        raise
    except DeterminismError as error:
        fail(error, json_file, runs())
    except (KeyboardInterrupt, click.Abort):
        fail(
            LaunchError("interrupted", "Interrupted, so there is no verdict. Run the command again."), json_file, runs()
        )
    except Exception as error:
        fail(_internal(error), json_file, runs())


def conclude(comparison: Comparison, json_file: Path | None) -> NoReturn:
    """Show a comparison, write it down, and exit as its verdict says."""
    from rich.console import Console

    from determinism.report.terminal import render

    # Written first: a terminal that is gone must not cost the report.
    written = _write(comparison, json_file)
    render(comparison, Console(highlight=False, soft_wrap=False))
    sys.exit(max(comparison.verdict.exit_status, written))


def fail(error: DeterminismError, json_file: Path | None, runs: list[RunSummary] | None = None) -> NoReturn:
    """Say what kept the command from a verdict, write it down, and exit with 2."""
    say(error.message)
    if error.identifier != "report-unwritable":
        write_trouble(error.identifier, error.message, json_file, runs)
    sys.exit(2)


def write_trouble(identifier: str, message: str, json_file: Path | None, runs: list[RunSummary] | None = None) -> None:
    """Write a report that says only why there is no verdict."""
    _write(Comparison(Verdict.INCONCLUSIVE, runs or [], Recorded(), [Trouble(identifier, message)]), json_file)


def say(message: str) -> None:
    """Print a message of this command, as far as there is somewhere to print it."""
    try:
        lines = [legible(line, getattr(sys.stderr, "encoding", None) or "utf-8") for line in message.splitlines()]
        click.echo("\n".join([f"determinism: {lines[0]}", *lines[1:]]), err=True)
    except (OSError, ValueError, AttributeError):
        return


def _check_place(json_file: Path) -> None:
    """See before anything runs that the report can be written.

    Raises:
        UsageError: It cannot.
    """
    folder = json_file.parent
    if folder.is_dir() and os.access(json_file if json_file.exists() else folder, os.W_OK):
        return
    found = "may not be written to" if folder.is_dir() else "is not a folder" if folder.exists() else "does not exist"
    raise UsageError(
        "report-unwritable",
        f"--json {json_file}: {json_file if json_file.exists() else folder} {found}, so nothing was started. Give a file in "
        "a folder that exists and that you may write to.",
    )


def _write(comparison: Comparison, json_file: Path | None) -> int:
    if json_file is None:
        return 0
    from determinism.report.document import write_document

    try:
        write_document(json_file, comparison)
    except DeterminismError as error:
        say(error.message)
        return 2
    return 0


def _internal(error: Exception) -> DeterminismError:
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    if os.environ.get(TRACEBACK_VARIABLE):
        traceback.print_exception(error)
    return DeterminismError(
        "internal-error",
        f"{type(error).__name__}{place}: {error}. This is a defect of determinism, so there is no verdict; traces that were "
        f"made are kept. Please report it with what {TRACEBACK_VARIABLE}=1 prints.",
    )
