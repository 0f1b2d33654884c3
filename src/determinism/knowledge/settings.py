"""The settings that make frameworks deterministic: facts by version with their sources, and the effect of each."""

from __future__ import annotations

import mmap
import operator
import os
import platform
import re
import sys
import tomllib
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from html import escape
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

from determinism.errors import UsageError
from determinism.types import PRECISIONS

TYPE_CHECKING = False

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any


# A setting of a framework that can be read and written while the program runs.


@dataclass(frozen=True)
class Control:
    """How to read and write one setting; both raise AttributeError or ImportError if this version lacks it."""

    read: Callable[[], Any]
    write: Callable[[Any], None]


# The settings that were requested in this process and could not be made, for the recorder of the process.

_askers: list[Callable[[], Iterable[Setting]]] = []


def add(open_settings: Callable[[], Iterable[Setting]]) -> None:
    """Note that settings were requested.

    Args:
        open_settings: Returns those that currently are not as they should be.
    """
    _askers.append(open_settings)


def remove(open_settings: Callable[[], Iterable[Setting]]) -> None:
    """Note that they are no longer requested."""
    if open_settings in _askers:
        _askers.remove(open_settings)


def facts() -> dict[str, str]:
    """Name of each such setting, and why it could not be made."""
    return {one.name: f"{one.effect}. {one.detail}".strip() for asker in _askers for one in asker()}


# The request for settings.


@dataclass(frozen=True)
class Request:
    """Which settings are to be made, and how."""

    warn_only: bool = False
    """Ops without a deterministic implementation warn instead of raising."""
    threads: int | None = None
    """How many threads compute on the CPU; None leaves it."""
    precision: str | None = None
    """How exact float32 matrix products are; None leaves it."""
    change: bool = True
    """False only reads the settings."""

    def __post_init__(self) -> None:
        if self.threads is not None and (
            not isinstance(self.threads, int) or isinstance(self.threads, bool) or self.threads < 1
        ):
            raise UsageError(
                "threads-unusable",
                f"threads={self.threads!r} is not a number of threads, so nothing was set. Give 1 or more.",
            )
        if self.precision is not None and self.precision not in PRECISIONS:
            raise UsageError(
                "precision-unknown",
                f"precision={self.precision!r} is not one of {', '.join(PRECISIONS)}, so nothing was set. Give one of these.",
            )


# The outcome for one setting.


class Effect(StrEnum):
    """The effect of requesting a setting."""

    NOW = "took effect now"
    ALREADY = "already set"
    FRESH = "needs a fresh process"
    WAITING = "waits for the import"
    ABSENT = "does not exist in this version"
    UNNEEDED = "not needed here"
    KEPT = "left unchanged"
    FAILED = "could not be applied"
    OVERRIDDEN = "changed by the program"
    """It was set, and is no longer as it should be."""
    PROGRAM = "made by the program"
    """Only if nothing was to be changed: it is not as it should be, but the program's source makes it."""
    MISSING = "missing"
    """Only if nothing was to be changed: it is not as it should be."""

    @property
    def is_open(self) -> bool:
        """Whether anything is left to do."""
        return self in (Effect.FRESH, Effect.FAILED, Effect.OVERRIDDEN, Effect.MISSING)


@dataclass(frozen=True)
class Setting:
    """One setting: what it was, what it is, and what that means."""

    name: str
    group: str
    """The framework that it belongs to, or "python" or "libraries"."""
    before: Any
    after: Any
    """The current value. If it needs a fresh process, the value in processes started from now on."""
    effect: Effect
    why: str
    source: str
    detail: str = ""
    """Details that `effect` alone does not show."""
    line: str = ""
    """What to write to make it by hand."""


# Settings as text and as HTML.

_LISTED = (
    Effect.FAILED, Effect.OVERRIDDEN, Effect.MISSING, Effect.PROGRAM, Effect.FRESH, Effect.NOW, Effect.WAITING, Effect.ALREADY, Effect.KEPT,
)  # fmt: skip
"""Listed in this order; the others are only counted."""
_LONGEST_VALUE = 40
_GAP = "  "


def table(settings: Sequence[Setting], remaining: Sequence[Remaining] = ()) -> str:
    """One line for each setting that matters here, what needs attention first."""
    rows = [(one.effect.value, one.name, _change(one)) for one in _sorted(settings)]
    widths = [max((len(row[column]) for row in rows), default=0) for column in (0, 1)]
    lines = [_GAP.join((row[0].ljust(widths[0]), row[1].ljust(widths[1]), row[2])).rstrip() for row in rows]
    lines += [f"{'':{widths[0]}}{_GAP}{one}" for one in _counts(settings)]
    if remaining:
        lines += ["", "Still nondeterministic in the installed versions:"]
        lines += [f"{_GAP}{one.group} on {one.device}: {one.name}" for one in remaining]
    return "\n".join(lines)


def explanation(settings: Sequence[Setting], remaining: Sequence[Remaining] = ()) -> str:
    """Each setting with its reason, its source and the line that makes it."""
    parts = []
    for one in _sorted(settings):
        lines = [f"{one.name}: {one.effect.value} ({_change(one)})", f"{_GAP}{one.why}"]
        lines += [f"{_GAP}{one.detail[0].upper()}{one.detail[1:]}."] if one.detail else []
        lines += [f"{_GAP}By hand: {one.line}"] if one.line else []
        parts.append("\n".join([*lines, f"{_GAP}Source: {one.source}"]))
    parts += [
        f"{one.group} on {one.device}: {one.name} stays nondeterministic\n{_GAP}{one.why}\n{_GAP}{one.advice}\n{_GAP}"
        f"Source: {one.source}"
        for one in remaining
    ]
    return "\n\n".join([*parts, *_counts(settings)])


def html_table(settings: Sequence[Setting], remaining: Sequence[Remaining] = ()) -> str:
    """The same as a table for notebooks; every text is escaped."""
    cells = [
        (one.effect.value, one.name, _change(one), " ".join(filter(None, (one.why, one.detail))))
        for one in _sorted(settings)
    ]
    cells += [("still nondeterministic", one.name, f"{one.group} on {one.device}", one.why) for one in remaining]
    head = "".join(f"<th>{name}</th>" for name in ("effect", "setting", "value", "why"))
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in cells)
    notes = "".join(f"<p>{escape(one)}</p>" for one in _counts(settings))
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{notes}"


def _sorted(settings: Sequence[Setting]) -> list[Setting]:
    listed = [one for one in settings if one.effect in _LISTED]
    return sorted(listed, key=lambda one: _LISTED.index(one.effect))


def _counts(settings: Sequence[Setting]) -> list[str]:
    """How many settings are not listed, and why."""
    counts = [(effect, sum(one.effect is effect for one in settings)) for effect in (Effect.UNNEEDED, Effect.ABSENT)]
    return [f"and {count} setting{'s' if count > 1 else ''}: {effect.value}" for effect, count in counts if count]


def _change(one: Setting) -> str:
    before, after = _text(one.before), _text(one.after)
    if one.effect is Effect.WAITING and one.after is None:
        return f"when {one.group} is imported"
    return before if before == after else f"{before} -> {after}"


def _text(value: object) -> str:
    text = "not set" if value is None else str(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 3]}..."


# The surroundings of the process that decide which settings matter: devices, packages, versions.

_NVIDIA_DEVICES = ("/dev/nvidiactl", "/dev/nvidia0", "/dev/dxg")
_DISTRIBUTIONS = {
    "torch": ("torch",),
    "tensorflow": (
        "tensorflow", "tensorflow-cpu", "tensorflow-gpu", "tensorflow-intel", "tensorflow-rocm", "tf-nightly", "tf_nightly_cpu",
    ),
    "jax": ("jax",),
}  # fmt: skip
_XLA_LIBRARIES = (
    "jaxlib/libjax_common.so", "jaxlib/xla_extension.so", "jax_plugins/xla_cuda12/xla_cuda_plugin.so",
    "jax_plugins/xla_cuda13/xla_cuda_plugin.so", "jax_plugins/xla_rocm7/xla_rocm_plugin.so",
)  # fmt: skip


def has_nvidia() -> bool:
    """Whether this machine has an NVIDIA device that programs can use."""
    return any(Path(path).exists() for path in _NVIDIA_DEVICES)


def may_use_mkl() -> bool:
    """Whether programs may compute with oneMKL here: PyTorch for x86 contains it, NumPy may be linked with the package."""
    return platform.machine() in ("x86_64", "AMD64") and (is_installed("torch") or is_installed("mkl"))


def is_installed(package: str) -> bool:
    """Whether a package can be imported here, without importing it.

    A folder of that name on the path does not count, although Python would import it as a package without content.
    """
    module = sys.modules.get(package)
    if module is not None:
        return getattr(module, "__file__", None) is not None
    try:
        spec = find_spec(package)
    except (ImportError, ValueError):
        return False
    return spec is not None and spec.origin is not None


def is_loaded(package: str) -> bool:
    """Whether the program has imported a package."""
    return package in sys.modules and is_installed(package)


def version_of(framework: str) -> str | None:
    """The version of a framework that a program would get here; None if it is not installed.

    Args:
        framework: "torch", "tensorflow" or "jax".
    """
    module = sys.modules.get(framework)
    version = getattr(module, "__version__", None)
    if version is not None:
        return str(version)
    if not is_installed(framework):
        return None
    for distribution in _DISTRIBUTIONS[framework]:
        try:
            return metadata.version(distribution)
        except metadata.PackageNotFoundError:
            continue
    return None


def condition_holds(condition: str) -> bool:
    """Whether a fact's condition about machine and packages holds.

    Args:
        condition: "nvidia", "mkl" or "package:NAME"; empty holds always.
    """
    if condition.startswith("package:"):
        return is_installed(condition.removeprefix("package:"))
    return {"nvidia": has_nvidia, "mkl": may_use_mkl}.get(condition, lambda: True)()


@cache
def xla_accepts(flag: str) -> bool:
    """Whether every XLA that JAX may load here knows a flag; one that does not would end the process.

    A flag is registered under its name as a C string, between two zero bytes. Names of removed flags are still in the library,
    as reserved names of a protocol buffer, without zero bytes around them.

    Args:
        flag: Its name, with or without dashes.
    """
    needle = b"\0" + flag.lstrip("-").encode() + b"\0"
    libraries = _xla_libraries()
    return bool(libraries) and all(_contains(library, needle) for library in libraries)


def _xla_libraries() -> list[Path]:
    folders = {Path(entry or ".") for entry in sys.path}
    return [folder / name for folder in sorted(folders) for name in _XLA_LIBRARIES if (folder / name).is_file()]


def _contains(path: Path, needle: bytes) -> bool:
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            return content.find(needle) >= 0
    except (OSError, ValueError):
        return False


# Environment variables, as they are now and as they were when the process started.

XLA_FLAGS = "XLA_FLAGS"


@cache
def initial_environment() -> dict[str, str]:
    """The environment that this process was started with; the current one if the system does not provide it."""
    try:
        data = Path("/proc/self/environ").read_bytes()
    except OSError:
        return dict(os.environ)
    pairs = (os.fsdecode(entry).partition("=") for entry in data.split(b"\0") if entry)
    return {name: value for name, _, value in pairs}


def value_at_start(name: str) -> str | None:
    """The value of a variable when this Python started; None if it was not set, or if this Python ignored it."""
    if name.startswith("PYTHON") and sys.flags.ignore_environment:
        return None
    return initial_environment().get(name)


def write(name: str, value: str | None) -> None:
    """Set a variable for this process and those that it starts; None removes it."""
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


# Versions of frameworks, and ranges of them.

_PARTS = 3
_COMPARISONS: dict[str, Callable[[tuple[int, ...], tuple[int, ...]], bool]] = {
    ">=": operator.ge,
    "<": operator.lt,
}
_BOUND = re.compile(r"(>=|<)(\d+(?:\.\d+)*)")


def release(version: str) -> tuple[int, ...]:
    """The first three numbers of a version; missing ones count as 0.

    Suffixes (`rc1`, `.dev20260101`, `+cpu`) do not matter: a pre-release has the settings of its release.
    """
    match = re.match(r"\s*v?(\d+(?:\.\d+)*)", version)
    numbers = [int(part) for part in match[1].split(".")] if match else []
    return tuple((numbers + [0] * _PARTS)[:_PARTS])


def is_within(version: str, bounds: str) -> bool:
    """Whether a version is in a range.

    Args:
        version: Such as `2.13.0+cpu`.
        bounds: Such as `>=1.8,<2.10`; empty for all versions.

    Raises:
        ValueError: The range does not have this form.
    """
    for bound in filter(None, (part.strip() for part in bounds.split(","))):
        match = _BOUND.fullmatch(bound)
        if match is None:
            raise ValueError(f"{bound!r} is not a version bound; write >=2.1 or <2.10")
        if not _COMPARISONS[match[1]](release(version), release(match[2])):
            return False
    return True


# The facts about each setting: the versions in which it exists, what it should be, why, and the source. The data also
# describes, for the documents, what a setting does; `enabled` has what `enable` sets, `remaining` what stays nondeterministic.

DATA = Path(__file__).parent / "data" / "settings"
GROUPS = ("python", "libraries", "torch", "tensorflow", "jax")
"""The files, in the order in which their settings are made."""

KINDS = ("variable", "flag", "control")
_KINDS = {"environment variable": "variable", "flag": "flag"}
"""By their names in the data; functions and options are controls."""
MOMENTS = ("any", "start", "import", "libraries", "device", "collectives")
CONDITIONS = ("", "nvidia", "mkl", "warn-only")


@dataclass(frozen=True)
class Fact:
    """One setting."""

    group: str
    """The framework that it belongs to, or "python" or "libraries"."""
    name: str
    kind: str
    """"variable": of the environment; "flag": of `XLA_FLAGS`; "control": of the framework, by its adapter."""
    value: Any
    """What it should be; None for a variable that must not be set, or for a control that is only read."""
    why: str
    source: str
    versions: str = ""
    """The range of versions in which it exists and is needed; empty for all."""
    accepted: str = ""
    """A regular expression for other values that are equally good."""
    moment: str = "any"
    """Before what it must be set: the start of Python, the import of its framework, the loading of numerical libraries, the
    first use of a device, or the first collective operation."""
    condition: str = ""
    """When it matters: "nvidia", "mkl", "package:NAME" or "warn-only"; empty for always."""
    value_if_warning: Any = None
    """What it should be if only warnings are wanted, if that differs."""
    option: str = ""
    """The argument of `enable` that supplies the value; without it the setting is only read."""
    line: str = ""
    """What to write to make it by hand."""

    def exists_in(self, version: str) -> bool:
        """Whether it exists, and is needed, in a version of its framework."""
        return is_within(version, self.versions)

    def accepts(self, value: Any, wanted: Any) -> bool:
        """Whether a value is as good as the wanted one."""
        if value == wanted:
            return True
        return bool(self.accepted and value is not None and re.fullmatch(self.accepted, str(value)))


@dataclass(frozen=True)
class Remaining:
    """An operation that stays nondeterministic even with every setting made."""

    group: str
    name: str
    versions: str
    device: str
    why: str
    advice: str
    source: str


@cache
def facts_of(group: str, folder: Path = DATA) -> tuple[Fact, ...]:
    """The settings of a framework, in the order in which they are to be made.

    Args:
        group: One of `GROUPS`.
        folder: Where the data is.
    """
    return tuple(
        Fact(group, entry["name"], _KINDS.get(entry["kind"], "control"), **{"value": None, **enabled})
        for entry in _read(group, folder).get("setting", ())
        for enabled in entry.get("enabled", ())
    )


@cache
def effects_of(group: str) -> dict[str, str]:
    """What each setting of a framework, one of `GROUPS`, does, by its full import name."""
    entries = _read(group, DATA).get("setting", ())
    return {re.sub(r"^tf\.", "tensorflow.", entry["name"]): entry["effect"] for entry in entries if "effect" in entry}


@cache
def remaining_of(group: str) -> tuple[Remaining, ...]:
    """What stays nondeterministic in a framework, one of `GROUPS`."""
    return tuple(Remaining(group, **entry) for entry in _read(group, DATA).get("remaining", ()))


def _read(group: str, folder: Path) -> dict[str, Any]:
    with (folder / f"{group}.toml").open("rb") as file:
        return tomllib.load(file)
