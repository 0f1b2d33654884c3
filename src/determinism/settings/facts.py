"""What is known of each setting: in which versions it exists, what it should be, why, and who says so."""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from determinism.settings.versions import is_within

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

DATA = Path(__file__).parent / "data"
GROUPS = ("python", "libraries", "torch", "tensorflow", "jax")
"""The files, in the order in which their settings are made."""

KINDS = ("variable", "flag", "control")
MOMENTS = ("any", "start", "import", "libraries", "device", "collectives")
CONDITIONS = ("", "nvidia", "mkl", "warn-only")


@dataclass(frozen=True)
class Fact:
    """One setting."""

    group: str
    """The framework that it belongs to; "python" or "libraries" for none."""
    name: str
    kind: str
    """"variable": of the environment; "flag": of `XLA_FLAGS`; "control": of the framework, by its adapter."""
    value: Any
    """What it should be; None for a variable that must not be set, or for a control that is only looked at."""
    why: str
    source: str
    versions: str = ""
    """The range of versions in which it exists and is needed; empty for all."""
    accepted: str = ""
    """A regular expression for other values that are as good."""
    moment: str = "any"
    """Up to when it must be set: the start of Python, the import of its framework, the loading of numerical libraries, the first use
    of a device, or the first collective operation."""
    condition: str = ""
    """Where it matters at all: "nvidia", "mkl", "package:NAME" or "warn-only"; empty for everywhere."""
    value_if_warning: Any = None
    """What it should be if only warnings are wanted, where that is something else."""
    option: str = ""
    """The argument of `enable` that gives the value; without it the setting is only looked at."""
    line: str = ""
    """What to write to make it by hand."""

    def exists_in(self, version: str) -> bool:
        """Whether it exists, and is needed, in a version of its framework."""
        return is_within(version, self.versions)

    def accepts(self, value: Any, wanted: Any) -> bool:
        """Whether a value is as good as the one that is wanted."""
        if value == wanted:
            return True
        return bool(self.accepted and value is not None and re.fullmatch(self.accepted, str(value)))


@dataclass(frozen=True)
class Remaining:
    """Something that stays nondeterministic with every setting made."""

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
    return tuple(Fact(group, **entry) for entry in _read(group, folder).get("setting", ()))


@cache
def remaining_of(group: str, folder: Path = DATA) -> tuple[Remaining, ...]:
    """What stays nondeterministic in a framework.

    Args:
        group: One of `GROUPS`.
        folder: Where the data is.
    """
    return tuple(Remaining(group, **entry) for entry in _read(group, folder).get("remaining", ()))


def _read(group: str, folder: Path) -> dict[str, Any]:
    with (folder / f"{group}.toml").open("rb") as file:
        return {key: _with_none(entries) for key, entries in tomllib.load(file).items()}


def _with_none(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    # TOML has no null: a setting without a value is one.
    return [{"value": None, **entry} if "kind" in entry else entry for entry in entries]
