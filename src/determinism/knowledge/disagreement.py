"""Where what was measured contradicts what is declared."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from determinism.errors import UsageError
from determinism.knowledge.measurement import Audit, Measurement
from determinism.knowledge.query import status
from determinism.knowledge.status import OpVerdict, Status

_MAY_VARY = {OpVerdict.NONDETERMINISTIC, OpVerdict.DEPENDS, OpVerdict.UNKNOWN}


@dataclass(frozen=True, slots=True)
class Disagreement:
    """Something measured that nothing declared accounts for.

    Attributes:
        measurement: What was measured.
        declared: The statuses for this version, device and direction.
        why: What contradicts what, in words.
    """

    measurement: Measurement
    declared: tuple[Status, ...]
    why: str


def disagreements(audit: Audit) -> Iterator[Disagreement]:
    """Compare what was measured with what is declared for the same version, device, direction and mode.

    Equal results in some runs contradict nothing: an op that is declared nondeterministic may not have met its condition. What
    replaced ops do says nothing of the framework's own.
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
    try:
        answers = status(
            one.op, framework=audit.framework, version=release, device=audit.device, direction=one.direction
        )
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
        return "it ran, declared to raise"
    return None
