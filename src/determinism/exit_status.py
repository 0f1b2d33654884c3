"""How the end of a process is told: statuses as `subprocess` gives them, in words."""

from __future__ import annotations

import signal


def exit_phrase(status: int) -> str:
    """With what a process ended, such as `exit status 3` or `signal SIGSEGV`.

    Args:
        status: As `subprocess.Popen.returncode`: minus the signal's number if a signal ended it.
    """
    return f"exit status {status}" if status >= 0 else f"signal {signal_name(-status)}"


def signal_name(number: int) -> str:
    """The name of a signal, made of its number if it has none here."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"SIG{number}"
