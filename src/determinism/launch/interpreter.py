"""Find the interpreter of the program, and check before the first run whether it can record."""

from __future__ import annotations

import difflib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from determinism.errors import LaunchError

BOOTSTRAP_FOLDER = Path(__file__).absolute().with_name("bootstrap")
"""The first folder on the path of every Python process of the program."""

# Finds the file that a command starts.


def find_executable(name: str, environ: Mapping[str, str]) -> str:
    """Return the path of the executable that a command's first word names.

    Raises:
        LaunchError: It does not exist or is not executable.
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
    elif _is_file_name(name):
        found_instead = f"{name!r} does not exist"
    else:
        found_instead = f"{name!r} is not on PATH"
    raise LaunchError("command-missing", f"{found_instead}, so nothing was started.{_advice(name, search)}")


def _is_file_name(name: str) -> bool:
    """Whether a command's first word is meant as a file, so that PATH has nothing to do with it."""
    return os.sep in name or name.endswith(".py")


_FRAMEWORKS = ("torch", "tensorflow", "jax")


def with_python(command: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """Prepend Python to a script unless an executable of that name takes precedence, as coverage and other tools do.

    It is the Python of this process if that has a framework; if not, this tool is installed separately from the program,
    and it is the `python` that a shell would find.

    Args:
        command: The command that the user gave.
        environ: The environment in which it will be started.
    """
    words = list(command)
    if not words or not words[0].endswith(".py") or not Path(words[0]).is_file():
        return words
    search = environ.get("PATH", os.defpath)
    executable = shutil.which(words[0], path=search)
    if executable is not None and (_shebang(executable) or not os.path.samefile(executable, words[0])):
        return words
    on_path = shutil.which("python", path=search)
    if on_path is not None and os.path.dirname(on_path) == os.path.dirname(sys.executable):
        return ["python", *words]
    if on_path is not None and not any(find_spec(name) for name in _FRAMEWORKS):
        return [on_path, *words]
    return [sys.executable, *words]


def script_of(command: Sequence[str]) -> Path | None:
    """Return the script that a command runs, directly or with a launcher such as `torchrun` or `accelerate launch`."""
    return next((Path(word) for word in command if word.endswith(".py") and Path(word).is_file()), None)


def _advice(name: str, search: str) -> str:
    if name.endswith(".py") and Path(name).is_file():
        return f" To run this script: python {shlex.quote(name)}"
    if Path(name).is_file():
        path = name if os.sep in name else f"./{name}"
        quoted = shlex.quote(path)
        return f" To run this file, make it executable (chmod +x {quoted}) and start it as {quoted}."
    if Path(name).is_dir():
        return " Give the program to start; for a package in this folder: python -m and the package's name."
    if _is_file_name(name):
        return f" Check the spelling; the current folder is {os.getcwd()}."
    near = difflib.get_close_matches(name, _names_on(search), n=3, cutoff=0.75)
    if near:
        return f" Similar names on PATH: {', '.join(near)}."
    return " Check the spelling, and that the right environment is active."


def _names_on(search: str) -> list[str]:
    names: set[str] = set()
    for folder in search.split(os.pathsep):
        try:
            names.update(os.listdir(folder or os.curdir))
        except OSError:
            continue
    return sorted(names)


# The requirements of the recorder in the program's own interpreter.

OLDEST_PYTHON = (3, 11)

RECORDER_PACKAGES = ("numpy", "pyarrow", "xxhash")


def install_line(interpreter: str) -> str:
    """Return the command that installs the packages for an interpreter."""
    return f"{shlex.quote(interpreter)} -m pip install {' '.join(RECORDER_PACKAGES)}"


def unusable(interpreter: str, reason: str) -> tuple[str, str]:
    """Return a message for a package that is installed but cannot be imported, and the command that helps."""
    line = install_line(interpreter)
    if "pyarrow" in reason and "NumPy" in reason:
        # TensorFlow up to 2.17 needs NumPy 1, and pyarrow 26 does not declare to pip that it does not work with that.
        line = f"{shlex.quote(interpreter)} -m pip install 'pyarrow<26'"
    return f"{reason.rstrip('.')}. Install compatible versions:", line


PYTHON_NAME = re.compile(r"(python|pypy)[\d.]*[a-z]?$")
"""Matches the file name of a Python interpreter."""

_PROBE_SECONDS = 30.0
_VERSION_PROBE = "import sys; print('%d.%d' % sys.version_info[:2])"
_PROBE = """
import json, sys
from importlib import import_module
from importlib.util import find_spec
missing, broken = [name for name in sys.argv[1:] if find_spec(name) is None], []
for name in sys.argv[1:]:
    try:
        name in missing or import_module(name)
    except ImportError as error:
        broken.append(str(error))
print(json.dumps(["%d.%d" % sys.version_info[:2], missing, broken]))
"""


class Interpreter(NamedTuple):
    """A Python that a command starts."""

    path: str
    options: str
    """Letters of its command-line options."""


def check_interpreter(command: Sequence[str], environ: Mapping[str, str]) -> str | None:
    """Check how a command starts Python, as far as can be known without running it.

    Args:
        command: The program and its arguments.
        environ: The environment in which it will be started.

    Returns:
        A warning if recording cannot reach the interpreter, else None.

    Raises:
        LaunchError: The command cannot be started, or its interpreter lacks a requirement of the recorder.
    """
    interpreter = find_interpreter(find_executable(command[0], environ), command[1:], environ)
    if interpreter is None:
        return None
    hiding = hiding_options(interpreter.options)
    if hiding:
        return (
            f"{' '.join(hiding)} in the command hides the recorder from {interpreter.path}, so this process will not "
            f"be recorded; Python processes that it starts without the option will. Leave {' '.join(hiding)} out to "
            "record it."
        )
    _check_packages(interpreter, environ)
    return None


def hiding_options(letters: str) -> list[str]:
    """Return the options, among some letters, that keep Python from running the bootstrap."""
    return [f"-{letter}" for letter in "ISE" if letter in letters]


def find_interpreter(path: str, arguments: Sequence[str], environ: Mapping[str, str]) -> Interpreter | None:
    """Return the Python that an executable is or that its `#!` line names; None if neither is known."""
    if PYTHON_NAME.fullmatch(Path(path).name):
        return Interpreter(path, "".join(option_letters(arguments)))
    words = _shebang(path)
    if words and Path(words[0]).name == "env":
        words = [word for word in words[1:] if not word.startswith("-") and "=" not in word.split("/")[0]]
        found = shutil.which(words[0], path=environ.get("PATH")) if words else None
        words = [found, *words[1:]] if found else []
    if words and PYTHON_NAME.fullmatch(Path(words[0]).name):
        return Interpreter(words[0], "".join(option_letters(words[1:])))
    return None


def version_of(interpreter: Interpreter, environ: Mapping[str, str]) -> tuple[int, ...] | None:
    """Return the first two numbers of an interpreter's version; None if it does not answer."""
    # Isolated, so that nothing of the program's environment is loaded.
    probe = [interpreter.path, "-I", "-S", "-c", _VERSION_PROBE]
    try:
        answer = subprocess.check_output(
            probe, env=environ, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True, timeout=_PROBE_SECONDS
        )
        return tuple(map(int, answer.split(".")))
    except (OSError, ValueError, subprocess.SubprocessError):
        return None


def _shebang(path: str) -> list[str]:
    """Return the words of a script's `#!` line."""
    try:
        with open(path, "rb") as file:
            if file.read(2) != b"#!":
                return []
            lines = [file.readline(4096).decode(errors="replace"), file.readline(4096).decode(errors="replace")]
            words = shlex.split(lines[0])
            # Installers write this form for interpreters with long paths.
            if words[:1] == ["/bin/sh"] and lines[1].startswith("'''exec' "):
                words = shlex.split(lines[1])[1:2]
            return words
    except (OSError, ValueError):
        return []


def option_letters(arguments: Sequence[str]) -> Iterator[str]:
    """Yield Python's one-letter options before the script, `-c` or `-m`."""
    remaining = iter(arguments)
    for argument in remaining:
        if not argument.startswith("-") or argument == "-":
            return
        if argument.startswith("--"):
            if argument == "--check-hash-based-pycs":
                next(remaining, None)
            continue
        for position, letter in enumerate(argument[1:], start=2):
            if letter in "cm":
                return
            if letter in "XW":
                if position == len(argument):
                    next(remaining, None)
                break
            yield letter


def _check_packages(interpreter: Interpreter, environ: Mapping[str, str]) -> None:
    options = ["-s"] if "s" in interpreter.options else []
    probe = [interpreter.path, *options, "-c", _PROBE, *RECORDER_PACKAGES]
    try:
        answer = subprocess.check_output(
            probe, env=environ, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL, text=True, timeout=_PROBE_SECONDS
        )
    except (OSError, ValueError, subprocess.SubprocessError):
        # It does not answer as Python does; running the program will show what it is.
        return
    try:
        version, missing, broken = json.loads(answer.strip().rpartition("\n")[2])
    except ValueError:
        return
    if tuple(map(int, version.split("."))) < OLDEST_PYTHON:
        raise LaunchError(
            "interpreter-too-old",
            f"{interpreter.path} is Python {version}, so the program was not started: recording needs "
            f"{'.'.join(map(str, OLDEST_PYTHON))} or newer. Run the program with a newer Python.",
        )
    if missing:
        raise LaunchError(
            "interpreter-lacks-packages",
            f"{interpreter.path} lacks {' and '.join(missing)}, which the recorder needs inside the program, so the "
            "program was not started. Install with:",
            install_line(interpreter.path),
        )
    if broken:
        reason, line = unusable(interpreter.path, broken[0])
        raise LaunchError(
            "interpreter-lacks-packages",
            f"{interpreter.path} cannot import what the recorder needs inside the program, so the program was not "
            f"started: {reason}",
            line,
        )
