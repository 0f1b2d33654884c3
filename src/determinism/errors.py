"""Every error that Framework Determinism raises, with an identifier that reports and the documentation share; how a process ends, in words; and
text made safe to print.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    # At run time this would cost every Python process of the program the import of `typing`.
    from collections.abc import Callable


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


# How a process ends: statuses as `subprocess` gives them; an interrupt that nobody caught stays one.


def exit_phrase(status: int) -> str:
    """With what a process ended, such as `exit status 3` or `signal SIGSEGV`.

    Args:
        status: As `subprocess.Popen.returncode`: minus the signal's number if a signal ended it.
    """
    return f"exit status {status}" if status >= 0 else f"signal {signal_name(-status)}"


def signal_name(number: int) -> str:
    """The name of a signal, made of its number if it has none here."""
    import signal

    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"


def ending_as_before(action: Callable[[], None]) -> None:
    """Do something at the end of the process, which then ends as it would have without it.

    Python ends by SIGINT, as shells expect, where a `KeyboardInterrupt` left the program. It notes that in a flag which
    running any piece of source text clears, and the imports of an action do that (`run_eval_code_obj` in
    `Python/pythonrun.c`): such a program would end with status 1.

    Args:
        action: What to do.
    """
    is_interrupted = _is_ending_by_interrupt()
    try:
        action()
    finally:
        if is_interrupted:
            try:  # noqa: SIM105 - `contextlib` is not imported at the start of every process
                exec("raise KeyboardInterrupt")
            except KeyboardInterrupt:
                pass


def _is_ending_by_interrupt() -> bool:
    error = getattr(sys, "last_value", None)
    if not isinstance(error, KeyboardInterrupt):
        return False
    # Where a console or notebook caught the interrupt, its own frame comes first.
    traceback = error.__traceback__
    return traceback is not None and traceback.tb_frame.f_code.co_name in ("<module>", "_run_module_as_main")
