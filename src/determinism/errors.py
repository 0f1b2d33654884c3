"""The errors that Framework Determinism raises, with identifiers for reports and documentation; descriptions of how a
process ended; and text made safe to print.
"""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    # At run time this would cost every Python process of the program the import of `typing`.
    from collections.abc import Callable, Sequence
    from typing import NoReturn


class DeterminismError(Exception):
    """A request to this tool cannot be fulfilled.

    Args:
        identifier: Short stable name, in kebab case, that reports and `docs/messages.md` use.
        message: What was found (with values), the consequence, and what to do.
        further_lines: Further separate lines, such as a command to copy. Line breaks in any of them come from a value,
            such as a path, and are shown as escapes.
    """

    def __init__(self, identifier: str, message: str, *further_lines: str) -> None:
        self.identifier = identifier
        self.lines = (message, *further_lines)
        self.message = " ".join(self.lines)
        super().__init__("\n".join(self.lines))


class TraceError(DeterminismError):
    """A trace cannot be written or read."""


class LaunchError(DeterminismError):
    """The program cannot be started or recorded."""


class StateError(DeterminismError):
    """The state that a function or a program depends on cannot be copied, saved or restored."""

    finding: str | None = None
    """What was found, without the advice, for callers that give other advice; None if the message has no such part."""


class UsageError(DeterminismError):
    """The request is contradictory, or refers to something that does not exist."""


class DifferenceError(DeterminismError, AssertionError):
    """Runs that should be the same differ; raised by `Comparison.raise_if_different`."""


class Terminated(KeyboardInterrupt):
    """A signal other than Ctrl-C, such as that of `timeout` or a batch system, ends the command, which keeps its findings as after Ctrl-C."""

    def __init__(self, number: int) -> None:
        """Take the number of the signal."""
        super().__init__(signal_name(number))
        self.exit_status = 128 + number


def raise_terminated(number: int, frame: object) -> NoReturn:
    """Handle a signal between runs, while no program is there to end first.

    Raises:
        Terminated: Always.
    """
    raise Terminated(number)


def legible(text: str, encoding: str = "utf-8") -> str:
    """Replace every unprintable character by its escape.

    This includes control characters, terminal sequences, line breaks, marks that reverse the direction of writing,
    surrogates, and characters that the output's encoding lacks.
    """
    # Most texts are printable, and some are megabytes long.
    shown = text if text.isprintable() else "".join(c if c.isprintable() else _escape(c) for c in text)
    return shown.encode(encoding, "backslashreplace").decode(encoding)


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


# How a process ends: statuses as in `subprocess`; an uncaught interrupt stays one.


def first_few(names: Sequence[str], most: int) -> str:
    """Join names by commas, at most so many, and say how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most:,} more" if len(names) > most else "")


def exit_phrase(status: int) -> str:
    """Describe how a process ended, such as `exit status 3` or `signal SIGSEGV`.

    Args:
        status: Like `subprocess.Popen.returncode`: minus the signal's number if a signal ended it.
    """
    return f"exit status {status}" if status >= 0 else f"signal {signal_name(-status)}"


def signal_name(number: int) -> str:
    """Return the name of a signal, composed from its number if it has none on this system."""
    import signal

    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"


def ending_as_before(action: Callable[[], None]) -> None:
    """Perform an action at the end of the process without changing how the process ends.

    Python ends with SIGINT, as shells expect, after an uncaught `KeyboardInterrupt`. It notes that in a flag which is
    cleared by running any source text, as the imports of an action do (`run_eval_code_obj` in `Python/pythonrun.c`):
    such a program would end with status 1.
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
    # If a console or notebook caught the interrupt, its own frame comes first.
    traceback = error.__traceback__
    return traceback is not None and traceback.tb_frame.f_code.co_name in ("<module>", "_run_module_as_main")
