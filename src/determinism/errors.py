"""Every error and warning that Framework Determinism raises; each carries an identifier that reports and the documentation share."""

from __future__ import annotations


class DeterminismError(Exception):
    """Something this tool was asked to do cannot be done.

    Args:
        identifier: Short stable name, in kebab case, that reports and `docs/messages.md` use.
        message: What was found (with values), what follows from it, and what to do.
    """

    def __init__(self, identifier: str, message: str) -> None:
        super().__init__(message)
        self.identifier = identifier
        self.message = message


class TraceError(DeterminismError):
    """A trace cannot be written or read."""


class LaunchError(DeterminismError):
    """The program to be recorded cannot be started, or cannot be recorded."""


class StateError(DeterminismError):
    """The state that a function or a program depends on cannot be copied, kept or put back."""


class UsageError(DeterminismError):
    """The request contradicts itself, or asks for something that does not exist."""
