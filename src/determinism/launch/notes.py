"""Notes that a process leaves in the trace when it is not recorded.

A process that cannot load the package still has to say why, so this file keeps to what Python 2.7 and Python 3 have in
common, and goes without what it cannot import.
"""

import os
import sys

RUN_VARIABLE = "DETERMINISM_RUN"
"""Environment variable with the `RunSpec`, as JSON."""

NOTE_PREFIX = "not-recorded-"


def _command():
    # type: () -> list[str]
    """The words that the process was started with; of a Python that cannot load what hides secrets only the script."""
    words = getattr(sys, "orig_argv", None) or _words_of_process() or list(getattr(sys, "argv", []))
    try:
        from determinism.redaction import redacted

        return redacted(words)
    except Exception:
        return [word for word in words[:2] if not word.startswith("-")]


def _words_of_process():
    # type: () -> list[str]
    # Before 3.8 Python sets `sys.argv` only after this ran.
    try:
        with open("/proc/self/cmdline", "rb") as file:
            return [word.decode("utf-8", "replace") for word in file.read().split(b"\0") if word]
    except Exception:
        return []


def is_asked_for(part):
    # type: (str) -> bool
    """Whether the run is asked for a part of its specification: `recording`, `enabling`, `factors` or `probes`.

    Without `json`, whose import would give the program our modules in place of its own ones of the same names. Within a text
    JSON escapes quotes, so nothing but the key looks like this.
    """
    return '"' + part + '": {' in os.environ.get(RUN_VARIABLE, "")


def note_not_recorded(reason):
    # type: (str) -> None
    """Write into the trace that this process is not recorded, and why; the first note of a process stays.

    Args:
        reason: What was found, with values, and what to do.
    """
    try:
        import json

        folder = json.loads(os.environ[RUN_VARIABLE])["recording"]["trace_folder"]
        note = {"pid": os.getpid(), "command": _command(), "executable": sys.executable, "reason": reason}
        path = os.path.join(folder, NOTE_PREFIX + str(os.getpid()) + ".json")
        # The opening fails where the file is there.
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.write(file, json.dumps(note, indent=1).encode("utf-8"))
        finally:
            os.close(file)
    except Exception:  # Whatever keeps the note from being written, the program goes on as it would have without us.
        pass
