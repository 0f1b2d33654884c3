"""Finds the file that a command starts."""

from __future__ import annotations

import difflib
import os
import shlex
import shutil
from collections.abc import Mapping
from pathlib import Path

from determinism.errors import LaunchError


def find_executable(name: str, environ: Mapping[str, str]) -> str:
    """The path of the executable that a command's first word names.

    Raises:
        LaunchError: There is none, or it may not be executed.
    """
    search = environ.get("PATH", os.defpath)
    found = shutil.which(name, path=search)
    if found is not None:
        return found
    path = Path(name)
    if path.is_dir():
        found_instead = f"{name!r} is a folder"
    elif path.exists() and os.sep in name:
        found_instead = f"{name!r} is not executable"
    elif os.sep in name:
        found_instead = f"{name!r} does not exist"
    else:
        found_instead = f"{name!r} is not on PATH"
    raise LaunchError("command-missing", f"{found_instead}, so nothing was started.{_advice(name, search)}")


def _advice(name: str, search: str) -> str:
    if name.endswith(".py") and Path(name).is_file():
        return f" To run this script: python {shlex.quote(name)}"
    if Path(name).is_file():
        path = name if os.sep in name else f"./{name}"
        quoted = shlex.quote(path)
        return f" To run this file, make it executable (chmod +x {quoted}) and start it as {quoted}."
    if Path(name).is_dir():
        return " Give the program to be started: for a package in this folder, python -m and the package's name."
    near = [] if os.sep in name else difflib.get_close_matches(name, _names_on(search), n=3, cutoff=0.75)
    if near:
        return f" Similar names on PATH: {', '.join(near)}."
    return " Check the spelling, and that the environment that has it is active."


def _names_on(search: str) -> list[str]:
    names: set[str] = set()
    for folder in search.split(os.pathsep):
        try:
            names.update(os.listdir(folder or os.curdir))
        except OSError:
            continue
    return sorted(names)
