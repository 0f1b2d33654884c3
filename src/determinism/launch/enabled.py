"""Turns this process into a program that is made deterministic."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn

from determinism.errors import LaunchError
from determinism.launch.child_environment import with_bootstrap
from determinism.launch.enabling_request import EnablingRequest
from determinism.launch.executable import find_executable
from determinism.launch.interpreter import find_interpreter, hiding_options, version_of
from determinism.launch.packages import OLDEST_PYTHON

HASH_SEED = "PYTHONHASHSEED"


def enabled_environment(environ: Mapping[str, str], request: EnablingRequest) -> dict[str, str]:
    """Add to an environment what makes the Python processes started in it deterministic.

    Only what Python reads when it starts is set here. All else is set inside: there the versions are known.

    Args:
        environ: The environment the program would have.
        request: What is asked for.
    """
    result = with_bootstrap({**environ, **request.to_environment()})
    if not re.fullmatch(r"\d+", environ.get(HASH_SEED, "")):
        result[HASH_SEED] = "0"
    return result


def start_enabled(command: Sequence[str], request: EnablingRequest) -> NoReturn:
    """Become the program: the same process, the same terminal, and its own exit status.

    Args:
        command: The program and its arguments.
        request: What is asked for.

    Raises:
        LaunchError: It cannot be started, or not be made deterministic.
    """
    path = find_executable(command[0], os.environ)
    _check(path, command)
    environ = enabled_environment(os.environ, request)
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()
    try:
        os.execve(path, list(command), environ)
    except (OSError, ValueError) as error:
        raise LaunchError(
            "command-unstartable",
            f"{command[0]!r} could not be started ({error}). Check that the same command starts without `determinism`; a "
            "script needs a `#!` line or its interpreter in front.",
        ) from None


def _check(path: str, command: Sequence[str]) -> None:
    """See that the Python that a command starts can be reached, as far as one can tell without running it."""
    interpreter = find_interpreter(path, command[1:], os.environ)
    if interpreter is None:
        return
    hiding = " ".join(hiding_options(interpreter.options))
    if hiding:
        raise LaunchError(
            "interpreter-unreachable",
            f"{hiding} in the command keeps {interpreter.path} from being made deterministic, so it was not started. Leave "
            f"{hiding} out, or call determinism.enable() in the program.",
        )
    version = version_of(interpreter, os.environ)
    if version is not None and version < OLDEST_PYTHON:
        raise LaunchError(
            "interpreter-too-old",
            f"{interpreter.path} is Python {'.'.join(map(str, version))}, so the program was not started: making it "
            f"deterministic needs {'.'.join(map(str, OLDEST_PYTHON))} or newer. Run the program with a newer Python: "
            f"{shlex.join(command)}",
        )
