"""What holds: the statuses of ops for a version, a device, a direction."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

from determinism.errors import UsageError
from determinism.knowledge.framework import Framework, framework_named
from determinism.knowledge.index import Entry, index, op_at
from determinism.knowledge.installed import installed_version
from determinism.knowledge.measurement import Audit, Measurement, known_audits
from determinism.knowledge.search import entries_for, is_of, near_names
from determinism.knowledge.status import Device, Direction, Op, OpVerdict, Status
from determinism.knowledge.versions import release

_GPUS = {Device.CUDA, Device.ROCM, Device.XPU, Device.MPS, Device.GPU}
_Word = TypeVar("_Word", bound=StrEnum)


@dataclass(frozen=True, slots=True)
class OpStatus:
    """What holds for one op.

    Attributes:
        op: The op, with the statuses of all versions.
        framework: Whose version `version` is.
        version: For which version the answer is; None if it is for all.
        installed: Whether that version was not named but found installed.
        device: For which device the answer is; None if it is for all.
        statuses: What holds.
    """

    op: Op
    framework: Framework
    version: str | None
    installed: bool
    statuses: tuple[Status, ...]
    device: Device | None = None

    @property
    def measured(self) -> tuple[tuple[Audit, tuple[Measurement, ...]], ...]:
        """What was measured of the op in this version, file by file."""
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
        """Whether the version is older or newer than all that were looked at."""
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
    direction: str | None = None,
    verdict: str | None = None,
) -> list[OpStatus]:
    """What is known about the determinism of ops.

    Args:
        *ops: Names (`torch.Tensor.scatter_add_`, `scatter_add`, `tf.nn.bias_add`, a Keras layer, an overload of ATen), names
            of kernels, or texts of alerts; none for everything that is known.
        framework: Only ops of this framework or library, such as `torch`.
        version: For which version, such as `2.13.0`. If None, for the installed one. Where an op's framework is not installed, for
            all; but if a name is known for several frameworks, and some are installed, only for these.
        device: Only what holds on `cpu`, `cuda`, `rocm`, `xpu`, `mps`, `tpu`, `meta`, or any `gpu`.
        direction: Only what holds `forward` or `backward`.
        verdict: Only statuses with this verdict, with or without deterministic mode: `deterministic`,
            `nondeterministic`, `raises`, `depends` or `unknown`.

    Returns:
        One answer for each op that a text means. The statuses of an op may be empty: then nothing is
        known for that version, device and direction.

    Raises:
        UsageError: An op, a framework or a version is not known, or a version is given without saying whose it is.
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
    """Names of ops that texts mean too, but that `status` leaves out because their framework is not installed.

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
            "filter-unknown", f"{text!r} is no {what}, so nothing was looked up. There are: {words}."
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
            f"Version {wanted.version} was given without saying whose: what was asked for is known for "
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
        # Without a version or a framework, what is known of containers is shown as well.
        return not named or bool(whose.bases)
    base = whose.base(version)
    return base is not None and base in one.versions


def _runs_on(device: Device, wanted: Device) -> bool:
    if device in (Device.ANY, wanted) or wanted is Device.ANY:
        return True
    return (wanted is Device.GPU and device in _GPUS) or (device is Device.GPU and wanted in _GPUS)
