"""What `determinism doctor` found, as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from determinism.settings.facts import Remaining
from determinism.settings.rendering import table
from determinism.settings.setting import Setting

_GAP = "  "


class Inspected(Protocol):
    """What is shown."""

    @property
    def interpreter(self) -> str: ...  # noqa: D102
    @property
    def python(self) -> str: ...  # noqa: D102
    @property
    def frameworks(self) -> Mapping[str, str]: ...  # noqa: D102
    @property
    def failures(self) -> Mapping[str, str]: ...  # noqa: D102
    @property
    def settings(self) -> Sequence[Setting]: ...  # noqa: D102
    @property
    def remaining(self) -> Sequence[Remaining]: ...  # noqa: D102
    @property
    def missing(self) -> Sequence[Setting]: ...  # noqa: D102


def story(inspection: Inspected) -> str:
    """Verdict, the table of settings, and the lines to add.

    Args:
        inspection: What was found.
    """
    versions = ", ".join(f"{name} {version}" for name, version in inspection.frameworks.items()) or "no framework"
    lines = [
        f"{_verdict(inspection)}: Python {inspection.python} with {versions}",
        f"{_GAP}{inspection.interpreter}",
        "",
    ]
    lines += [f"{name} is installed and cannot be imported: {reason}" for name, reason in inspection.failures.items()]
    lines.append(table(inspection.settings, inspection.remaining))
    if inspection.missing:
        lines += ["", "To make all of them, without a change to the program:"]
        lines += [f"{_GAP}determinism run --seed 1 -- COMMAND"]
        lines += ["or, in the program, with what Python reads when it starts set before:"]
        lines += [f"{_GAP}determinism.enable(seed=1)", "or one by one:"]
        lines += [f"{_GAP}{line}" for line in dict.fromkeys(one.line for one in inspection.missing if one.line)]
    return "\n".join(lines)


def _verdict(inspection: Inspected) -> str:
    count = len(inspection.missing)
    if count:
        return f"{count} setting{'s are' if count > 1 else ' is'} missing"
    return "Frameworks cannot be imported" if inspection.failures else "Nothing is missing"
