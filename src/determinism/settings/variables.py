"""Environment variables, as they are and as the process was started with."""

from __future__ import annotations

import os
import sys
from functools import cache
from pathlib import Path

XLA_FLAGS = "XLA_FLAGS"


@cache
def initial_environment() -> dict[str, str]:
    """The environment that this process was started with; where the system does not tell, the present one."""
    try:
        data = Path("/proc/self/environ").read_bytes()
    except OSError:
        return dict(os.environ)
    pairs = (os.fsdecode(entry).partition("=") for entry in data.split(b"\0") if entry)
    return {name: value for name, _, value in pairs}


def value_at_start(name: str) -> str | None:
    """What a variable was for the Python that runs here; None if it was not set, or if this Python did not look at it."""
    if name.startswith("PYTHON") and sys.flags.ignore_environment:
        return None
    return initial_environment().get(name)


def write(name: str, value: str | None) -> None:
    """Set a variable of this process and of those that it starts; None removes it."""
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


def flag_value(flags: str, name: str) -> str | None:
    """The value of a flag in `XLA_FLAGS`; the last one counts. A flag without a value is "true".

    Args:
        flags: The variable's value.
        name: The flag, with its dashes.
    """
    found = None
    for word in flags.split():
        key, separator, value = word.partition("=")
        if key == name:
            found = value if separator else "true"
    return found


def with_flag(flags: str, name: str, value: str) -> str:
    """`XLA_FLAGS` with one flag set, the others as they were.

    Args:
        flags: The variable's value.
        name: The flag, with its dashes.
        value: What it should be.
    """
    others = [word for word in flags.split() if word.partition("=")[0] != name]
    return " ".join([*others, f"{name}={value}"])
