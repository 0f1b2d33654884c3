"""Where reports are printed."""

from __future__ import annotations

from rich.console import Console


class ReportConsole(Console):
    """A console without highlights; that nobody reads it is no reason to end with the status of a difference."""

    def __init__(self) -> None:
        super().__init__(highlight=False, soft_wrap=False)

    def on_broken_pipe(self) -> None:
        """Rich would end the program with exit status 1.

        Raises:
            BrokenPipeError: The one that is being handled.
        """
        raise
