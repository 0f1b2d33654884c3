"""Compares a run with a golden: the first step and group that differ, and environment differences, reported as lines and as JSON."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from determinism.environment import EnvironmentDifference, fact_sort_key
from determinism.errors import DifferenceError
from determinism.golden.ledger import FINGERPRINTED, NO_VALUE, Ledger, ProcessLedger, generators_digest
from determinism.report.entries import path_text, short_op
from determinism.trace.ledger import GROUPS
from determinism.trace.schema import Frame
from determinism.types import Verdict


def compare_ledgers(golden: Ledger, run: Ledger) -> GoldenComparison:
    """Compare a run with a golden."""
    difference = min(_differences(golden, run), key=_moment, default=None)
    return GoldenComparison(
        Verdict.SAME if difference is None else Verdict.DIFFERENT,
        max((len(process.rows) for process in golden.processes), default=0),
        difference,
        tuple(_facts_apart(golden.environment, run.environment)),
        tuple(_facts_apart(golden.settings, run.settings)),
        (golden.commit, run.commit),
        ended_after=golden.steps,
    )


def _moment(difference: GoldenDifference) -> tuple[int, int]:
    order = GROUPS.index(difference.group) if difference.group in GROUPS else -1
    return difference.step, order


def _differences(golden: Ledger, run: Ledger) -> Iterator[GoldenDifference]:
    """Yield the first difference of each process."""
    for expected in golden.processes:
        found = run.process(expected.key)
        if found is None:
            yield GoldenDifference(expected.key, 0, "process", "recorded", NOT_RECORDED)
        elif (difference := _first_of_process(expected, found, is_cut=golden.steps is not None)) is not None:
            yield difference
    for process in run.processes:
        if golden.process(process.key) is None:
            yield GoldenDifference(process.key, 0, "process", NOT_RECORDED, "recorded")


def _first_of_process(golden: ProcessLedger, run: ProcessLedger, *, is_cut: bool) -> GoldenDifference | None:
    for step, (expected, found) in enumerate(zip(golden.rows, run.rows, strict=False)):
        mine = dict(found.digests)
        if run.generator_states:
            # Generators that nothing draws from may be in any state.
            mine["generators"] = generators_digest(run.generator_states[step], golden.generators)
        groups = [group for group in GROUPS if not _agree(expected.digests[group], mine[group])]
        if groups:
            first = groups[0]
            losses = (expected.loss, found.loss) if NO_VALUE not in (expected.loss, found.loss) else None
            tensors = _differing_tensors(golden, run, first) if step == 0 else ()
            width = max(len(expected.digests[first]), 4)
            return GoldenDifference(
                golden.key,
                step,
                first,
                expected.digests[first],
                mine[first][:width],
                tensors,
                tuple(groups[1:]),
                losses,
            )
    counts = len(golden.rows), len(run.rows)
    if counts[1] < counts[0] or (counts[1] > counts[0] and not is_cut):
        return GoldenDifference(golden.key, min(counts), "steps", str(counts[0]), str(counts[1]))
    return None


def _agree(stored: str, found: str) -> bool:
    if NO_VALUE in (stored, found):
        return stored == found
    length = min(len(stored), len(found))
    return stored[:length] == found[:length]


def _differing_tensors(golden: ProcessLedger, run: ProcessLedger, group: str) -> tuple[str, ...]:
    if group not in FINGERPRINTED:
        return ()
    stored, present, names = (
        golden.fingerprints.get(group, ()), run.fingerprints.get(group, ()), run.names.get(group, ())
    )  # fmt: skip
    if not len(stored) == len(present) == len(names):
        return ()
    return tuple(
        name for name, expected, found in zip(names, stored, present, strict=True) if not _agree(expected, found)
    )


def _facts_apart(golden: Mapping[str, str], run: Mapping[str, str]) -> Sequence[EnvironmentDifference]:
    names = {*golden, *run}
    pairs = [(name, golden.get(name, NOT_RECORDED), run.get(name, NOT_RECORDED)) for name in names]
    return sorted((pair for pair in pairs if pair[1] != pair[2]), key=lambda pair: fact_sort_key(pair[0]))


NOT_RECORDED = "absent"
"""Value of a fact that one side does not have."""


@dataclass(frozen=True)
class Place:
    """An op, and the line of the program that ran it."""

    op: str
    step: int
    frame: Frame | None
    """None if no line of the program is known."""
    until: Frame | None = None
    """Set if the op is one of several: the line of the last one."""


@dataclass(frozen=True)
class GoldenDifference:
    """Where a run first differs from its golden."""

    process: str
    step: int
    group: str
    """A column of the golden; `steps` if the number of steps differs, `process` if a process is missing on one side."""
    expected: str
    """The golden's value."""
    found: str
    tensors: tuple[str, ...] = ()
    """Names of the tensors that differ, if the golden has their fingerprints."""
    later: tuple[str, ...] = ()
    """The other groups that differ at this step."""
    losses: tuple[str, str] | None = None
    """The losses at that step, in the golden and in the run."""


@dataclass(frozen=True)
class GoldenComparison:
    """A run and its golden, compared.

    Attributes:
        verdict: `same` or `different`.
        steps: How many steps were compared.
        difference: The first difference; None if there is none.
        environment: Facts on hardware, libraries and variables that differ, with both values; the most important first.
        settings: Settings of the framework that differ, with both values; the program may have set them.
        commits: Where the golden and the run come from.
        place: The first op with a different value, as far as it is known.
        is_first_op: Whether that is the first op with a different value, rather than the op that gave the group its value.
        is_nondeterministic: Whether a second run differed from the first; None if none was made.
        ended_after: The number of steps after which the golden's run was ended; None if it ran to its own end.
    """

    verdict: Verdict
    steps: int
    difference: GoldenDifference | None
    environment: tuple[EnvironmentDifference, ...]
    settings: tuple[EnvironmentDifference, ...]
    commits: tuple[str, str]
    place: Place | None = None
    is_first_op: bool = False
    is_nondeterministic: bool | None = None
    ended_after: int | None = None

    def raise_if_different(self) -> None:
        """Raise the report as an error, for tests.

        Raises:
            DifferenceError: The run differs from its golden.
        """
        if self.verdict is not Verdict.SAME:
            raise DifferenceError("golden-differs", *answer(self))


def comparison_document(comparison: GoldenComparison) -> dict[str, Any]:
    """Return the comparison as JSON, in the form that `docs/goldens.md` describes."""
    difference, place = comparison.difference, comparison.place
    return {
        "format": "determinism.golden-check/1",
        "verdict": comparison.verdict.value,
        "steps": comparison.steps,
        "commits": {"golden": comparison.commits[0], "run": comparison.commits[1]},
        "environment": [
            {"name": name, "golden": expected, "run": found} for name, expected, found in comparison.environment
        ],
        "settings": [{"name": name, "golden": expected, "run": found} for name, expected, found in comparison.settings],
        "nondeterministic": comparison.is_nondeterministic,
        "difference": None if difference is None else {
            "process": difference.process, "step": difference.step, "group": difference.group,
            "golden": difference.expected, "run": difference.found, "tensors": list(difference.tensors),
            "later": list(difference.later),
            "losses": None if difference.losses is None else dict(zip(("golden", "run"), difference.losses, strict=True)),
        },
        "op": None if place is None else {
            "name": place.op, "step": place.step, "is_first": comparison.is_first_op,
            "site": None if place.frame is None else place.frame._asdict(),
            "until": None if place.until is None else place.until._asdict(),
        },
    }  # fmt: skip


# The lines shown to the user: a sentence first, then where, and why.

_MOST_TENSORS = 4
_MOST_FACTS = 5
_NAMES = {"optimizer": "optimizer state", "generators": "random generators"}
_WHERE_FOUND = 13


def answer(comparison: GoldenComparison) -> list[str]:
    """Return the lines of the report."""
    difference = comparison.difference
    if comparison.verdict is Verdict.SAME or difference is None:
        steps = "1 step" if comparison.steps == 1 else f"{comparison.steps} steps"
        lines = [f"Same: {steps} as in the golden"]
        if comparison.environment:
            lines.append(
                f"  although the environment differs: {_fact(comparison.environment[0])}{_more(len(comparison.environment) - 1)}"
            )
        return lines
    return [_headline(comparison, difference), "", *_details(comparison, difference)]


def _headline(comparison: GoldenComparison, difference: GoldenDifference) -> str:
    if difference.group == "process":
        side = "is missing in this run" if difference.expected == "recorded" else "is not in the golden"
        return f"Different from the golden: process {difference.process} {side}"
    if difference.group == "steps":
        return f"Different from the golden: {difference.found} steps instead of {difference.expected}"
    verb = "differs" if difference.group in ("loss", "optimizer") else "differ"
    place = comparison.place
    at = f", {_line(place.frame)}" if place is not None and place.frame is not None and place.until is None else ""
    return f"Different from the golden: the {_name(difference.group)} {verb} at step {difference.step}{at}"


def _details(comparison: GoldenComparison, difference: GoldenDifference) -> Iterator[str]:
    place = comparison.place
    if place is not None and place.frame is not None:
        yield f"  {_line(place.frame)}  {place.frame.code.strip()}"
        if place.until is not None:
            yield f"  to {_line(place.until)}  {place.until.code.strip()}"
    if place is not None:
        what = "first op" if comparison.is_first_op else "computed by"
        step = f"step {place.step}"
        yield _entry(what, f"{short_op(place.op)}, {step}")
    if difference.tensors:
        shown = ", ".join(difference.tensors[:_MOST_TENSORS])
        yield _entry("tensors", f"{shown}{_more(len(difference.tensors) - _MOST_TENSORS)}")
    if difference.later:
        yield _entry("also", f"{', '.join(map(_name, difference.later))} at step {difference.step}")
    if difference.losses is not None and difference.losses[0] != difference.losses[1]:
        yield _entry("loss", f"{difference.losses[0]} in the golden, {difference.losses[1]} now")
    if difference.process != "main":
        yield _entry("process", difference.process)
    golden, run = comparison.commits
    if golden != run:
        yield _entry("commit", f"{golden} in the golden, {run} now")
    yield from _reasons(comparison)


def _reasons(comparison: GoldenComparison) -> Iterator[str]:
    for fact in comparison.settings[:_MOST_FACTS]:
        yield _entry("setting", _fact(fact))
    if comparison.is_nondeterministic:
        yield _entry("reason", "the program is nondeterministic: a second run differs from the first")
        return
    repeated = "two runs agree with each other; " if comparison.is_nondeterministic is False else ""
    facts = comparison.environment
    if not facts:
        same = "hardware, libraries and variables are those of the golden, so the program or its data changed"
        yield _entry("reason", f"{repeated}{same}")
        return
    yield _entry("reason", f"{repeated}the environment changed, which may be why, or the program did:")
    for fact in facts[:_MOST_FACTS]:
        yield f"    {_fact(fact)}"
    if len(facts) > _MOST_FACTS:
        yield f"    and {len(facts) - _MOST_FACTS} more (--json lists all)"


def _fact(fact: EnvironmentDifference) -> str:
    name, expected, found = fact
    if name == "instruction sets":
        # Only what one side lacks is informative.
        mine, its = set(expected.split()), set(found.split())
        expected, found = (" ".join(sorted(sets)) or "no others" for sets in (mine - its, its - mine))
    return f"{name}: {expected} in the golden, {found} now"


def _more(count: int) -> str:
    return f" and {count} more" if count > 0 else ""


def _name(group: str) -> str:
    return _NAMES.get(group, group)


def _entry(label: str, text: str) -> str:
    return f"  {label.ljust(_WHERE_FOUND)}{text}"


def _line(frame: Frame) -> str:
    return f"{path_text(frame.file)}:{frame.line}"


def unrepeatable(comparison: GoldenComparison, command: Sequence[str]) -> list[str]:
    """Return the lines for a program for which no golden was written, because two runs of it differ."""
    difference = comparison.difference
    assert difference is not None
    where = f"process {difference.process}" if difference.group == "process" else _name(difference.group)
    return [
        f"No golden was written: two runs differ, first in the {where} at step {difference.step}.",
        "To find the cause:",
        shlex.join(["determinism", "check", *_steps(comparison), "--", *command]),
    ]


def follow_up(comparison: GoldenComparison, path: Path, command: Sequence[str]) -> list[str]:
    """Return what to do next, as lines to copy."""
    if comparison.difference is None:
        return []
    if comparison.is_nondeterministic:
        return ["", "To find the cause:", shlex.join(["determinism", "check", *_steps(comparison), "--", *command])]
    update = ["determinism", "golden", "create", *_steps(comparison), "--update", str(path), "--", *command]
    return ["", "If the change is intended:", shlex.join(update)]


def _steps(comparison: GoldenComparison) -> list[str]:
    """Return the option that makes another run end where the golden's run did."""
    return [] if comparison.ended_after is None else ["--steps", str(comparison.ended_after)]
