"""Queries over the knowledge: the status of ops for a version, a device, and a direction."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar

from determinism.errors import UsageError
from determinism.knowledge.entries import (
    DATA,
    Audit,
    Device,
    Direction,
    Entry,
    Index,
    Measurement,
    Op,
    OpVerdict,
    Source,
    Status,
    VersionRange,
    index,
    key_of,
    known_audits,
    last_part,
    op_at,
    read_toml,
    release,
    source_of,
)

# Frameworks and libraries: their names, the releases that were examined, and the deterministic mode of each.

FOLDER = DATA / "frameworks"
_SPELLINGS = {"pytorch": "torch", "tf": "tensorflow", "ngc": "ngc-tensorflow", "keras": "tensorflow"}


@dataclass(frozen=True, slots=True)
class Mode:
    """How deterministic mode is turned on in a range of releases.

    Attributes:
        versions: The releases.
        how: What to call or set.
        note: Further information; None if there is none.
        sources: The sources of this.
    """

    versions: VersionRange
    how: str
    note: str | None
    sources: tuple[Source, ...]


@dataclass(frozen=True, slots=True)
class Base:
    """The TensorFlow on which a range of containers is built.

    Attributes:
        versions: The containers.
        version: Their release of TensorFlow.
        version_tf1: The release in the variant with the API of version 1; None if there is no such variant.
    """

    versions: VersionRange
    version: str
    version_tf1: str | None


@dataclass(frozen=True, slots=True)
class Framework:
    """A framework or library.

    Attributes:
        identifier: The word that `--framework` takes.
        title: Its name in sentences.
        distributions: Names under which it may be installed.
        first: The oldest release that was examined; None if releases are not distinguished.
        last: The newest release that was examined.
        modes: How deterministic mode is turned on.
        bases: For containers, the releases of TensorFlow on which they are built.
    """

    identifier: str
    title: str
    distributions: tuple[str, ...]
    first: str | None
    last: str | None
    modes: tuple[Mode, ...]
    bases: tuple[Base, ...]

    def mode(self, version: str | None) -> Mode | None:
        """The deterministic mode of a release; of the newest one if none is named."""
        held = [
            mode
            for mode in self.modes
            if (mode.versions.until is None if version is None else version in mode.versions)
        ]
        return held[0] if held else None

    def base(self, version: str) -> str | None:
        """The release of TensorFlow within a container, such as 2.1 within `20.03` and 1.15 within `20.03-tf1`."""
        for base in self.bases:
            if version in base.versions:
                return base.version_tf1 if version.endswith("tf1") else base.version
        return None

    def knows(self, version: str) -> bool:
        """Whether a release is in the range that was examined."""
        numbers = release(version)
        if self.first is not None and numbers < release(self.first):
            return False
        return self.last is None or numbers[: len(release(self.last))] <= release(self.last)


def framework_names() -> list[str]:
    """The words that `--framework` takes."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def framework_named(name: str) -> Framework:
    """A framework by its word.

    Raises:
        UsageError: Nothing is known about it.
    """
    word = name.strip().lower()
    word = _SPELLINGS.get(word, word)
    if word not in framework_names():
        raise UsageError(
            "framework-unknown",
            f"Nothing is known about a framework called {name!r}. Choose from: {', '.join(framework_names())}.",
        )
    return _read(word)


@cache
def _read(word: str) -> Framework:
    document = read_toml(FOLDER / f"{word}.toml")
    return Framework(
        identifier=document["id"],
        title=document["title"],
        distributions=tuple(document["distributions"]),
        first=document.get("first"),
        last=document.get("last"),
        modes=tuple(_mode(entry) for entry in document.get("mode", ())),
        bases=tuple(
            Base(VersionRange(entry.get("since"), entry.get("until")), entry["version"], entry.get("version_tf1"))
            for entry in document.get("base", ())
        ),
    )


def _mode(entry: dict[str, Any]) -> Mode:
    sources = tuple(source_of(text) for text in entry["sources"])
    return Mode(VersionRange(entry.get("since"), entry.get("until")), entry["how"], entry.get("note"), sources)


# Which version of a framework is installed, without importing it.

CONTAINER_VARIABLE = "NVIDIA_TENSORFLOW_VERSION"
"""Set in NVIDIA's containers, to the version of the container."""


def installed_version(framework: Framework) -> str | None:
    """The version that a Python started like this one would import; None if it is not installed.

    It is read from the names of the folders that installers create. The module `importlib.metadata` reads the same, but
    takes too long to load for the command that needs it.
    """
    if framework.identifier == "ngc-tensorflow":
        return os.environ.get(CONTAINER_VARIABLE)
    if framework.identifier == "python":
        return ".".join(map(str, sys.version_info[:3]))
    for distribution in framework.distributions:
        version = _versions(tuple(sys.path)).get(_normalized(distribution))
        if version is not None:
            return version
    return None


def _normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


@cache
def _versions(places: tuple[str, ...]) -> dict[str, str]:
    """Every installed distribution and its version; of two with the same name, the one that is imported."""
    found: dict[str, str] = {}
    for place in places:
        try:
            names = os.listdir(Path(place or "."))
        except OSError:
            continue
        for name in names:
            stem, dot, ending = name.rpartition(".")
            distribution, dash, version = stem.partition("-")
            if ending in ("dist-info", "egg-info") and dot and dash:
                found.setdefault(_normalized(distribution), version.partition("-py")[0])
    return found


# Finds the ops that a text refers to: by a name, a kernel, or the text of an error.

_ALERT = " does not have a deterministic implementation"
_SHORTEST_PART_OF_A_TEXT = 8
_MOST_SUGGESTIONS = 5
_NEAR_ENOUGH = 0.7
_LONGEST_NAME = 200


def entries_for(text: str, framework: str | None = None) -> list[Entry]:
    """The ops that a text refers to, in the order of the data; empty if there are none.

    Tried in this order: a whole name; a kernel or the text of an alert; the last part of a name, if the text has no dots.

    Args:
        text: A name, a kernel's name, or a message that contains one.
        framework: Only ops with statuses of this framework.
    """
    everything = index()
    for numbers in (_by_name(text, everything), _by_text(text, everything), _by_last_part(text, everything)):
        entries = [everything.entries[number] for number in sorted(set(numbers))]
        held = [entry for entry in entries if framework is None or is_of(entry, framework)]
        if held:
            return held
    return []


def is_of(entry: Entry, framework: str) -> bool:
    """Whether an op is one of a framework. A container has all ops of the framework within it."""
    return framework in entry.frameworks or (framework == "ngc-tensorflow" and "tensorflow" in entry.frameworks)


def near_names(text: str, framework: str | None = None) -> list[str]:
    """Names of ops that are similar to a text, the nearest first."""
    from difflib import get_close_matches

    everything = index()
    ops: dict[str, dict[str, None]] = {}
    for key, numbers in everything.names.items():
        entries = [everything.entries[number] for number in numbers]
        names = {entry.name: None for entry in entries if framework is None or is_of(entry, framework)}
        for spelling in (key, last_part(key)) if names else ():
            ops.setdefault(spelling, {}).update(names)
    wanted = key_of(text[:_LONGEST_NAME])
    near = [
        *get_close_matches(wanted, ops, _MOST_SUGGESTIONS, _NEAR_ENOUGH),
        *get_close_matches(last_part(wanted), ops, _MOST_SUGGESTIONS, _NEAR_ENOUGH),
    ]
    return list(dict.fromkeys(name for key in near for name in ops[key]))[:_MOST_SUGGESTIONS]


def _by_name(text: str, everything: Index) -> list[int]:
    return everything.names.get(key_of(text), [])


def _by_text(text: str, everything: Index) -> list[int]:
    lowered = " ".join(text.lower().split())
    before, alert, _ = lowered.partition(_ALERT)
    for candidate in (lowered, before.rpartition(": ")[2] if alert else ""):
        if candidate in everything.texts:
            return everything.texts[candidate]
    held = [known for known in everything.texts if len(known) >= _SHORTEST_PART_OF_A_TEXT and known in lowered]
    return _of_longest(held, everything)


def _of_longest(texts: Iterable[str], everything: Index) -> list[int]:
    longest = max(texts, key=len, default=None)
    return [] if longest is None else everything.texts[longest]


def _by_last_part(text: str, everything: Index) -> list[int]:
    key = key_of(text)
    if "." in key or not key:
        return []
    return [number for known, numbers in everything.names.items() if last_part(known) == key for number in numbers]


_GPUS = {Device.CUDA, Device.ROCM, Device.XPU, Device.MPS, Device.GPU}
_Word = TypeVar("_Word", bound=StrEnum)


@dataclass(frozen=True, slots=True)
class OpStatus:
    """The answer for one op.

    Attributes:
        op: The op, with the statuses of all versions.
        framework: The framework to which `version` refers.
        version: The version of the answer; None for all versions.
        installed: Whether that version was not named but found installed.
        device: The device of the answer; None for all devices.
        statuses: The statuses that hold.
    """

    op: Op
    framework: Framework
    version: str | None
    installed: bool
    statuses: tuple[Status, ...]
    device: Device | None = None

    @property
    def measured(self) -> tuple[tuple[Audit, tuple[Measurement, ...]], ...]:
        """The measurements of the op in this version, by audit."""
        whose = self.framework.identifier
        audits = (
            audit
            for audit in known_audits(whose)
            if audit.is_for(whose, self.version)
            and (self.device is None or _runs_on(Device(audit.device), self.device))
        )
        return tuple((audit, found) for audit in audits if (found := audit.of(self.op.name)))

    @property
    def is_beyond_what_is_known(self) -> bool:
        """Whether the version is older or newer than all that were examined."""
        return self.version is not None and not self.framework.knows(self.version)


@dataclass(frozen=True, slots=True)
class _Wanted:
    framework: Framework | None
    version: str | None
    device: Device | None
    direction: Direction | None
    verdict: OpVerdict | None


def status(
    *ops: str,
    framework: str | None = None,
    version: str | None = None,
    device: str | None = None,
    direction: Literal["forward", "backward"] | None = None,
    verdict: Literal["deterministic", "nondeterministic", "raises", "depends", "unknown"] | None = None,
) -> list[OpStatus]:
    """Look up what is known about the determinism of ops.

    Args:
        *ops: Names (`torch.Tensor.scatter_add_`, `scatter_add`, `tf.nn.bias_add`, a Keras layer, an overload of ATen), names
            of kernels, or texts of alerts; none for everything that is known.
        framework: Only ops of this framework or library, such as `torch`.
        version: The version to answer for, such as `2.13.0`; None means the installed one. If an op's framework is not
            installed, the answer covers all versions; but if several frameworks know a name, and some are installed, it covers
            only these.
        device: Only what holds on `cpu`, `cuda`, `rocm`, `xpu`, `mps`, `tpu`, `meta`, or any `gpu`.
        direction: Only what holds `forward` or `backward`.
        verdict: Only statuses with this verdict, with or without deterministic mode: `deterministic`,
            `nondeterministic`, `raises`, `depends` or `unknown`.

    Returns:
        One answer for each matching op. The statuses of an op may be empty: then nothing is known for that version, device
        and direction.

    Raises:
        UsageError: An op, a framework or a version is not known, or a version is given without a framework, and several match.

    Example:
        >>> for found in determinism.status("scatter_add", framework="torch", version="2.13.0", device="cuda"):
        ...     print(found.op.name)
        torch.Tensor.scatter_add_
        torch_scatter.scatter
    """
    wanted = _Wanted(
        framework=None if framework is None else framework_named(framework),
        version=version,
        device=None if device is None else _member(Device, device, "device"),
        direction=None if direction is None else _member(Direction, direction, "direction"),
        verdict=None if verdict is None else _member(OpVerdict, verdict, "verdict"),
    )
    if version is not None:
        release(version)
    shown, _ = _shown(ops, wanted)
    answers = [_answer(op_at(entry), wanted) for entry in shown]
    return [answer for answer in answers if answer.statuses or ops]


def not_installed(*ops: str) -> list[str]:
    """Names of ops to which texts also refer, but that `status` leaves out because their framework is not installed.

    Raises:
        UsageError: An op is not known.
    """
    _, others = _shown(ops, _Wanted(None, None, None, None, None))
    return [f"{entry.name} ({entry.frameworks[0]})" for entry in others]


def _shown(ops: Sequence[str], wanted: _Wanted) -> tuple[list[Entry], list[Entry]]:
    """The ops to answer for, and those that are left out."""
    entries = list(_entries(ops, wanted))
    _require_one_framework(entries, wanted)
    if wanted.framework is not None or wanted.version is not None or not ops:
        return entries, []
    here = [entry for entry in entries if any(map(_is_installed, entry.frameworks))]
    return (here, [entry for entry in entries if entry not in here]) if here else (entries, [])


def _is_installed(name: str) -> bool:
    return installed_version(framework_named(name)) is not None


def _member(kind: type[_Word], text: str, what: str) -> _Word:
    try:
        return kind(text.strip().lower())
    except ValueError:
        words = ", ".join(member.value for member in kind)
        raise UsageError(
            "filter-unknown", f"{text!r} is not a {what}, so nothing was looked up. Choose from: {words}."
        ) from None


def _entries(ops: Sequence[str], wanted: _Wanted) -> Iterator[Entry]:
    name = None if wanted.framework is None else wanted.framework.identifier
    if not ops:
        yield from (entry for entry in index().entries if name is None or is_of(entry, name))
    seen: set[Entry] = set()
    for text in ops:
        found = entries_for(text, name)
        if not found:
            raise _unknown(text, wanted)
        yield from (entry for entry in found if entry not in seen)
        seen.update(found)


def _unknown(text: str, wanted: _Wanted) -> UsageError:
    shown = text if len(text) <= 200 else f"{text[:200]}..."
    of = ""
    if wanted.framework is not None:
        elsewhere = sorted({entry.frameworks[0] for entry in entries_for(text)})
        of = f" of {wanted.framework.title}"
        if elsewhere:
            of += f" (it is one of {', '.join(elsewhere)})"
    near = near_names(text, None if wanted.framework is None else wanted.framework.identifier)
    advice = f"Did you mean {', '.join(near)}?" if near else "`determinism status --all` lists what is known."
    return UsageError(
        "op-unknown",
        f"Nothing is known about an op{of} called {shown!r}. That does not mean that it is deterministic. {advice}",
    )


def _require_one_framework(entries: list[Entry], wanted: _Wanted) -> None:
    frameworks = sorted({entry.frameworks[0] if len(entry.frameworks) == 1 else "tensorflow" for entry in entries})
    if wanted.version is not None and wanted.framework is None and len(frameworks) > 1:
        raise UsageError(
            "version-without-framework",
            f"Version {wanted.version} was given without a framework, and the query matches "
            f"{', '.join(frameworks)}. Name one with --framework.",
        )


def _answer(op: Op, wanted: _Wanted) -> OpStatus:
    whose = wanted.framework or framework_named(op.framework)
    version = wanted.version or installed_version(whose)
    held = tuple(one for one in op.statuses if _holds(one, whose, version, wanted))
    return OpStatus(op, whose, version, wanted.version is None and version is not None, held, wanted.device)


def _holds(one: Status, whose: Framework, version: str | None, wanted: _Wanted) -> bool:
    return (
        _is_for_version(one, whose, version, wanted.framework is not None)
        and (wanted.device is None or _runs_on(one.device, wanted.device))
        and (wanted.direction in (None, Direction.BOTH, one.direction) or one.direction is Direction.BOTH)
        and (wanted.verdict is None or wanted.verdict in one.verdicts)
    )


def _is_for_version(one: Status, whose: Framework, version: str | None, named: bool) -> bool:
    if one.framework == whose.identifier:
        return version is None or version in one.versions
    if version is None:
        # Without a version or a framework, the knowledge about containers is shown as well.
        return not named or bool(whose.bases)
    base = whose.base(version)
    return base is not None and base in one.versions


def _runs_on(device: Device, wanted: Device) -> bool:
    if device in (Device.ANY, wanted) or wanted is Device.ANY:
        return True
    return (wanted is Device.GPU and device in _GPUS) or (device is Device.GPU and wanted in _GPUS)


# Finds measurements that contradict what is declared.

_MAY_VARY = {OpVerdict.NONDETERMINISTIC, OpVerdict.DEPENDS, OpVerdict.UNKNOWN}


@dataclass(frozen=True, slots=True)
class Disagreement:
    """A measurement that nothing declared accounts for.

    Attributes:
        measurement: The measurement.
        declared: The statuses for this version, device and direction.
        why: The contradiction, in words.
    """

    measurement: Measurement
    declared: tuple[Status, ...]
    why: str


def disagreements(audit: Audit) -> Iterator[Disagreement]:
    """Compare measurements with what is declared for the same version, device, direction and mode.

    Equal results in some runs contradict nothing: an op that is declared nondeterministic may not have met its condition.
    Measurements of replaced ops say nothing about the framework's own.
    """
    refused = {id(one) for one in audit.refused}
    for one in audit.measurements:
        if one.patched or (one.raised is not None and id(one) not in refused):
            continue
        declared = _declared(audit, one)
        given = [s.deterministic if one.deterministic_mode else s.default for s in declared]
        verdicts = {verdict for verdict in given if verdict is not None}
        why = _why(one, verdicts)
        if why is not None:
            yield Disagreement(one, declared, why)


def _declared(audit: Audit, one: Measurement) -> tuple[Status, ...]:
    release = audit.version.partition("+")[0]
    direction: Any = one.direction
    try:
        answers = status(one.op, framework=audit.framework, version=release, device=audit.device, direction=direction)
    except UsageError:
        # Nothing is known about it.
        return ()
    exact = [answer for answer in answers if answer.op.name == one.op]
    return tuple(found for answer in exact or answers for found in answer.statuses)


def _why(one: Measurement, verdicts: set[OpVerdict]) -> str | None:
    said = f"declared {' or '.join(sorted(verdicts))}" if verdicts else "nothing is declared"
    if one.raised is not None:
        return f"it raises, {said}" if OpVerdict.RAISES not in verdicts else None
    if one.varies and not verdicts & _MAY_VARY:
        return f"it gave {one.distinct} results in {one.runs} runs, {said}"
    if verdicts == {OpVerdict.RAISES}:
        return "it ran, although it is declared to raise"
    return None
