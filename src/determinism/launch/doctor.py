"""Looks at an environment from outside: which settings make programs in it deterministic, and which are missing."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from determinism.errors import LaunchError
from determinism.exit_status import exit_phrase
from determinism.knowledge.settings import Effect, Remaining, Request, Setting
from determinism.launch.interpreter import (
    OLDEST_PYTHON,
    find_executable,
    find_interpreter,
    hiding_options,
    script_of,
    version_of,
)
from determinism.launch.program import child_environment
from determinism.launch.settings_in_code import CodeSettings, settings_in_code
from determinism.redaction import redacted
from determinism.run_spec import RunSpec

# Turns this process into a program that is made deterministic.


def start_enabled(command: Sequence[str], spec: RunSpec) -> NoReturn:
    """Become the program: the same process, the same terminal, and its own exit status.

    Args:
        command: The program and its arguments.
        spec: What is asked for.

    Raises:
        LaunchError: It cannot be started, or not be made deterministic.
    """
    path = find_executable(command[0], os.environ)
    _check(path, command)
    environ = child_environment(os.environ, spec)
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
            f"{shlex.join(redacted(command))}",
        )


_SCRIPT = Path(__file__).with_name("inspection_child.py")
_SECONDS = 300.0


@dataclass(frozen=True)
class Inspection:
    """What was found in an environment."""

    interpreter: str
    python: str
    frameworks: dict[str, str]
    """Versions by name."""
    failures: dict[str, str]
    """Frameworks that are installed and cannot be imported, with the reason."""
    settings: list[Setting]
    remaining: list[Remaining]
    recorders: dict[str, str]
    """What would record each framework that can be recorded in more than one way, and why so or from where."""
    in_code: tuple[str, ...] = ()
    """The calls in the program's source that make settings, each with its place and what it makes."""

    @property
    def missing(self) -> list[Setting]:
        """The settings that are not as they should be."""
        return [setting for setting in self.settings if setting.effect.is_open]


def inspect_environment(command: Sequence[str], request: Request) -> Inspection:
    """Start the interpreter of a command, without the program, and look; of the program, read which settings it makes itself.

    Args:
        command: The program and its arguments; empty for the interpreter that runs this.
        request: What would be asked for.

    Raises:
        LaunchError: The interpreter cannot be found, is too old, or did not answer.
    """
    interpreter = _interpreter_of(command) if command else sys.executable
    with tempfile.TemporaryDirectory(prefix="determinism-") as folder:
        answer = Path(folder) / "found.json"
        asked = json.dumps({"warn_only": request.warn_only, "threads": request.threads, "precision": request.precision})
        _ask(interpreter, [interpreter, str(_SCRIPT), str(answer), asked])
        found = json.loads(answer.read_text(encoding="utf-8"))
    if "settings" not in found:
        raise LaunchError(
            "interpreter-too-old",
            f"{interpreter} is Python {found['python']}; inspecting its settings needs "
            f"{'.'.join(map(str, OLDEST_PYTHON))} or newer. Run the program with a newer Python.",
        )
    code = settings_in_code(script) if (script := script_of(command)) is not None else CodeSettings()
    settings = [Setting(**{**one, "effect": Effect(one["effect"])}) for one in found["settings"]]
    settings = code.applied_to(settings, warn_only=request.warn_only)
    remaining = [Remaining(**one) for one in found["remaining"]]
    return Inspection(
        interpreter,
        found["python"],
        found["frameworks"],
        found["failures"],
        settings,
        remaining,
        found["recorders"],
        code.lines,
    )


def _interpreter_of(command: Sequence[str]) -> str:
    interpreter = find_interpreter(find_executable(command[0], os.environ), command[1:], os.environ)
    if interpreter is None:
        raise LaunchError(
            "interpreter-unknown",
            f"Which Python {command[0]!r} starts cannot be known without running it. Name that Python: determinism "
            "doctor -- /path/to/python",
        )
    return interpreter.path


def _ask(interpreter: str, command: Sequence[str]) -> None:
    try:
        ended = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SECONDS,
            check=False,
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise LaunchError(
            "interpreter-silent",
            f"{interpreter} could not be inspected ({error}). Check that it starts: {interpreter} -V",
        ) from None
    if ended.returncode:
        last = ended.stderr.strip().rpartition("\n")[2] or "it printed nothing"
        raise LaunchError(
            "interpreter-silent",
            f"{interpreter} ended with {exit_phrase(ended.returncode)} while it imported the frameworks: {last}. "
            "Check that they can be imported there.",
        )
