"""Every error that Framework Determinism raises, with an identifier that reports and the documentation share; and text made safe to print."""

from __future__ import annotations


class DeterminismError(Exception):
    """Something this tool was asked to do cannot be done.

    Args:
        identifier: Short stable name, in kebab case, that reports and `docs/messages.md` use.
        message: What was found (with values), what follows from it, and what to do.
        further_lines: What follows on lines of its own, such as a command to copy. Breaks in any of them come from a
            value, such as a path, and are shown as escapes.
    """

    def __init__(self, identifier: str, message: str, *further_lines: str) -> None:
        self.identifier = identifier
        self.lines = (message, *further_lines)
        self.message = " ".join(self.lines)
        super().__init__("\n".join(self.lines))


class TraceError(DeterminismError):
    """A trace cannot be written or read."""


class LaunchError(DeterminismError):
    """The program to be recorded cannot be started, or cannot be recorded."""


class StateError(DeterminismError):
    """The state that a function or a program depends on cannot be copied, kept or put back."""

    finding: str | None = None
    """What was found, without what to do about it, for callers that give other advice; None if the message has no such part."""


class UsageError(DeterminismError):
    """The request contradicts itself, or asks for something that does not exist."""


class DifferenceError(DeterminismError, AssertionError):
    """Runs that were to be the same differ: what `Comparison.raise_if_different` raises."""


def legible(text: str, encoding: str = "utf-8") -> str:
    """Replace every character that does not print by its escape.

    That takes in control characters, terminal sequences, line breaks, marks that reverse the direction of
    writing, surrogates, and whatever the output's encoding cannot hold.

    Args:
        text: Any string.
        encoding: Encoding of the output.
    """
    # Most texts print as they are, and some are megabytes long.
    shown = text if text.isprintable() else "".join(c if c.isprintable() else _escape(c) for c in text)
    return shown.encode(encoding, "backslashreplace").decode(encoding)


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")
