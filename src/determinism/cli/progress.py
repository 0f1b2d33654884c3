"""Says what is going on while a program runs, on the terminal's error stream."""

from __future__ import annotations

import sys
from types import TracebackType

import click

from determinism.launch.program import ProgressCallback


class ProgressLine:
    """One line that shows run, step and records.

    The line moves only where it cannot fall between the program's own output: on a terminal, in the runs whose output
    goes to a log. Elsewhere each run is announced once.
    """

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._status: object | None = None

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._clear()

    def announce(self, title: str) -> ProgressCallback | None:
        """A run begins; gives what is told its progress."""
        self._clear()
        passes_through = title.startswith("run 1 ") and (sys.stdout.isatty() or sys.stderr.isatty())
        if not self._is_terminal or passes_through:
            click.echo(f"determinism: {title}", err=True)
            return None

        def show(records: int, step: int) -> None:
            text = f"determinism: {title}, step {max(step, 0)}, {records:,} records"
            click.echo(f"\r\x1b[2K{text}", err=True, nl=False)
            self._status = text

        show(0, 0)
        return show

    def _clear(self) -> None:
        if self._status is not None:
            click.echo("\r\x1b[2K", err=True, nl=False)
            self._status = None
