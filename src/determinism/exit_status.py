"""How a process ends: statuses as `subprocess` gives them, in words; and an interrupt that nobody caught stays one."""

from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    # At run time this would cost every Python process of the program the import of `typing`.
    from collections.abc import Callable


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
