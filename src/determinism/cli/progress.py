"""Says what is going on while a program runs, on the terminal's error stream."""

from __future__ import annotations

import sys
from pathlib import Path
from types import TracebackType

import click

from determinism.cli.ending import say
from determinism.launch.program import ProgressCallback
from determinism.report.legible import legible
from determinism.report.places import path_text

_ERASE = "\r\x1b[2K"


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
            say(title if log is None else f"{title}, its output goes to {legible(path_text(str(log)))}")
            return None

        def show(records: int, step: int) -> None:
            at = f", step {step}" if step >= 0 else ""
            self._print(f"{_ERASE}determinism: {title}{at}, {records:,} records")
            self._is_shown = True

        show(0, -1)
        return show

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
