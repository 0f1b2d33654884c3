"""Notes that a process leaves in the trace when it is not recorded.

A process that cannot load the package must still say why, so this file is restricted to the common subset of Python 2.7
and Python 3, and does without anything that it cannot import.
"""

import os
import sys

RUN_VARIABLE = "DETERMINISM_RUN"
"""Environment variable with the `RunSpec`, as JSON."""

NOTE_PREFIX = "not-recorded-"


def _command():
    # type: () -> list[str]
    """Return the process's command line; only the first words if this Python cannot load the redaction of secrets."""
    words = getattr(sys, "orig_argv", None) or _words_of_process() or list(getattr(sys, "argv", []))
    try:
        from determinism.redaction import redacted

        return redacted(words)
    except Exception:
        return [word for word in words[:2] if not word.startswith("-")]


def _words_of_process():
    # type: () -> list[str]
    # Before 3.8, Python sets `sys.argv` only after this has run.
    try:
        with open("/proc/self/cmdline", "rb") as file:
            return [word.decode("utf-8", "replace") for word in file.read().split(b"\0") if word]
    except Exception:
        return []


def is_requested(part):
    # type: (str) -> bool
    """Whether the spec of the run requests a part: `recording`, `enabling`, `factors` or `probes`.

    Done without `json`, because importing it would replace modules of the program that have the same names as ours. JSON
    escapes quotes within strings, so only the key looks like this.
    """
    return '"' + part + '": {' in os.environ.get(RUN_VARIABLE, "")


def note_not_recorded(reason):
    # type: (str) -> None
    """Note in the trace that this process is not recorded, and why; only the first note of a process is kept.

    Args:
        reason: The reason, with values, and what to do.
    """
    try:
        import json

        folder = json.loads(os.environ[RUN_VARIABLE])["recording"]["trace_folder"]
        note = {"pid": os.getpid(), "command": _command(), "executable": sys.executable, "reason": reason}
        path = os.path.join(folder, NOTE_PREFIX + str(os.getpid()) + ".json")
        # This fails if the file exists.
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.write(file, json.dumps(note, indent=1).encode("utf-8"))
        finally:
            os.close(file)
    except Exception:  # The program continues as it would without us, even if the note cannot be written.
        pass
