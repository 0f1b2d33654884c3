"""Inspect an environment from outside: which settings make programs in it deterministic, and which are missing."""

from __future__ import annotations

import ast
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, NoReturn

from determinism.errors import LaunchError, exit_phrase
from determinism.knowledge.settings import GROUPS, Effect, Remaining, Request, Setting, facts_of
from determinism.launch.interpreter import (
    OLDEST_PYTHON,
    find_executable,
    find_interpreter,
    hiding_options,
    script_of,
    version_of,
)
from determinism.launch.program import child_environment
from determinism.redaction import redacted
from determinism.run_spec import RunSpec

# Finds in a program's source the settings that it makes itself by calling trainers. The program is read, not run.

_DETERMINISTIC = ("torch.use_deterministic_algorithms", "torch._inductor.config.deterministic")
"""One call sets both."""
_BENCHMARK = "torch.backends.cudnn.benchmark"
_CUBLAS = "CUBLAS_WORKSPACE_CONFIG"
_SEED = "seed"
_EVERYTHING = "*"
"""All settings that can be made in a running program."""


class Call(NamedTuple):
    """A call that makes settings."""

    name: str
    packages: tuple[str, ...]
    """A call of this name counts only if the program imports one of these."""
    keyword: str | None
    """The call makes the settings if this argument is true; None if it always does."""
    settings: tuple[str, ...]
    remark: str = ""


_LIGHTNING = ("lightning", "pytorch_lightning")
_FULL = (*_DETERMINISTIC, "torch.backends.cudnn.deterministic", _BENCHMARK, _CUBLAS)
CALLS = (
    Call("Trainer", _LIGHTNING, "deterministic", (*_DETERMINISTIC, _BENCHMARK, _CUBLAS)),
    Call("seed_everything", (*_LIGHTNING, "lightning_fabric"), None, (_SEED,)),
    Call(
        "TrainingArguments",
        ("transformers",),
        "full_determinism",
        _FULL,
        "seeds when the Trainer is created: a model that was built before is not seeded",
    ),
    Call("enable_full_determinism", ("transformers",), None, (*_FULL, _SEED)),
    Call("set_seed", ("transformers", "accelerate"), None, (_SEED,)),
    Call("DeterminismCallback", ("determinism",), None, (_EVERYTHING,)),
    Call("DeterminismHandler", ("determinism",), None, (_EVERYTHING,)),
    Call("enable", ("determinism",), None, (_EVERYTHING,)),
)
"""Calls of trainers and of this package; as of Lightning 2.6, Transformers 5.24, Accelerate 1.15."""


@dataclass(frozen=True)
class CodeSettings:
    """The settings that a program's source makes."""

    lines: tuple[str, ...] = ()
    """Each call with its location and its settings, in words."""
    made: tuple[tuple[str, str, str | None], ...] = ()
    """Name of each setting, the call with its location, and the mode if it is that of deterministic algorithms."""

    def applied_to(self, settings: Sequence[Setting], *, warn_only: bool) -> list[Setting]:
        """Return the settings, in which those that the program makes no longer count as missing.

        Args:
            settings: The settings without the program.
            warn_only: Whether ops should warn rather than raise.
        """
        found = []
        for one in settings:
            places = [
                (place, mode)
                for name, place, mode in self.made
                if name == one.name or (name == _EVERYTHING and _is_made_later(one.name))
            ]
            wanted = (None, "warn" if warn_only else "error")
            right = [place for place, mode in places if mode in wanted or one.name != _DETERMINISTIC[0]]
            if one.effect is Effect.MISSING and right:
                one = replace(one, effect=Effect.PROGRAM, detail=f"{right[-1]} makes it")
            found.append(one)
        return found


def _is_made_later(name: str) -> bool:
    """Whether a setting takes effect when it is made in a running program."""
    moments = {fact.name: fact.moment for group in GROUPS for fact in facts_of(group)}
    return moments.get(name, "any") in ("any", "device", "collectives") and name != _SEED


def settings_in_code(path: Path) -> CodeSettings:
    """Find the settings that a file makes; none if it cannot be read as Python."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return CodeSettings()
    packages = set(_imported(tree))
    lines, made = [], []
    for node in ast.walk(tree):
        call = _known(node, packages)
        if call is None or not isinstance(node, ast.Call):
            continue
        given = {keyword.arg: keyword.value for keyword in node.keywords if keyword.arg}
        value = _constant(given.get(call.keyword or ""))
        if call.keyword is not None and not value:
            continue
        shown = f"{call.keyword}={value!r}" if call.keyword else "..."
        place = f"{call.name}({shown}), {path.name}:{node.lineno}"
        names = list(call.settings)
        if _EVERYTHING in names and (
            node.args or _constant(given.get("seed", ast.Constant(None)), "unknown") is not None
        ):
            names.append(_SEED)
        warns = value == "warn" or _constant(given.get("warn_only")) is True
        made += [
            (name, place, ("warn" if warns else "error") if name in (_EVERYTHING, *_DETERMINISTIC[:1]) else None)
            for name in names
        ]
        words = ", ".join("what the running program can set" if name == _EVERYTHING else name for name in names)
        lines.append(f"{place}: {words}" + (f"; it {call.remark}" if call.remark else ""))
    return CodeSettings(tuple(lines), tuple(made))


def _known(node: ast.AST, packages: set[str]) -> Call | None:
    if not isinstance(node, ast.Call):
        return None
    function = node.func
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", None)
    if name == "enable" and isinstance(function, ast.Attribute) and getattr(function.value, "id", "") != "determinism":
        return None
    return next((call for call in CALLS if call.name == name and packages.intersection(call.packages)), None)


def _imported(tree: ast.AST) -> Iterator[str]:
    """Yield the top-level packages that a file imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.partition(".")[0]


def _constant(node: ast.expr | None, default: Any = None) -> Any:
    """Return the value of a literal; the default if there is none or only the running program knows it."""
    return node.value if isinstance(node, ast.Constant) else default


# Turns this process into the program, made deterministic.


def start_enabled(command: Sequence[str], spec: RunSpec) -> NoReturn:
    """Become the program: the same process, the same terminal, and its own exit status.

    Raises:
        LaunchError: It cannot be started or cannot be made deterministic.
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
    """Check that the Python that a command starts can be reached, as far as can be known without running it."""
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
    """The findings in an environment."""

    interpreter: str
    python: str
    frameworks: dict[str, str]
    """Versions by name."""
    failures: dict[str, str]
    """Frameworks that are installed but cannot be imported, with the reason."""
    settings: list[Setting]
    remaining: list[Remaining]
    recorders: dict[str, str]
    """For each framework with several recorders, the one that would be used, and the reason or its path."""
    in_code: tuple[str, ...] = ()
    """The calls in the program's source that make settings, each with its location and its settings."""

    @property
    def missing(self) -> list[Setting]:
        """The settings that are not as requested."""
        return [setting for setting in self.settings if setting.effect.is_open]


def inspect_environment(command: Sequence[str], request: Request) -> Inspection:
    """Inspect the interpreter of a command without running the program, and read which settings the program makes.

    Args:
        command: The program and its arguments; empty for the interpreter that runs this.
        request: The settings to compare with.

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
            f"Which Python {command[0]!r} starts cannot be determined without running it. Name that Python: determinism "
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
