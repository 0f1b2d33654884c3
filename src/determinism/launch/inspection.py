"""Looks at an environment from outside: which settings make programs in it deterministic, and which are missing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from determinism.errors import LaunchError
from determinism.exit_status import exit_phrase
from determinism.launch.executable import find_executable
from determinism.launch.interpreter import find_interpreter
from determinism.launch.packages import OLDEST_PYTHON
from determinism.settings.facts import Remaining
from determinism.settings.request import Request
from determinism.settings.setting import Effect, Setting

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

    @property
    def missing(self) -> list[Setting]:
        """The settings that are not as they should be."""
        return [setting for setting in self.settings if setting.effect.is_open]


def inspect_environment(command: Sequence[str], request: Request) -> Inspection:
    """Start the interpreter of a command, without the program, and look.

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
            f"{interpreter} is Python {found['python']}; its settings can be looked at from "
            f"{'.'.join(map(str, OLDEST_PYTHON))} on. Run the program with a newer Python.",
        )
    settings = [Setting(**{**one, "effect": Effect(one["effect"])}) for one in found["settings"]]
    remaining = [Remaining(**one) for one in found["remaining"]]
    return Inspection(interpreter, found["python"], found["frameworks"], found["failures"], settings, remaining)


def _interpreter_of(command: Sequence[str]) -> str:
    interpreter = find_interpreter(find_executable(command[0], os.environ), command[1:], os.environ)
    if interpreter is None:
        raise LaunchError(
            "interpreter-unknown",
            f"One cannot tell which Python {command[0]!r} starts without running it. Give that Python: "
            "determinism doctor -- /path/to/python",
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
            "interpreter-silent", f"{interpreter} could not be asked ({error}). See that it starts: {interpreter} -V"
        ) from None
    if ended.returncode:
        last = ended.stderr.strip().rpartition("\n")[2] or "it printed nothing"
        raise LaunchError(
            "interpreter-silent",
            f"{interpreter} ended with {exit_phrase(ended.returncode)} while it imported the frameworks: {last}. See that they "
            "can be imported there.",
        )
