"""Tells whether an optimizer's state, or its learning rates, came to other parameters than those they were saved for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from determinism.comparison.held_at import HeldAt
from determinism.comparison.origins import entry
from determinism.comparison.resumed import ResumedProcess
from determinism.trace.reader import ProcessTrace

_MOST_WRITES = 16
"""So many ops write into one tensor of state in a step at most."""

Taken = dict[str, str]
"""By the name of a parameter whose state or learning rate it took."""


def taken_by_others(
    process: ResumedProcess, held: Mapping[tuple[str, str], bytes], full: HeldAt, resumed: HeldAt
) -> Taken:
    """Which parameters took what belongs to others; empty if none did.

    Args:
        process: How a process of the resumed run compares.
        held: What the full run held at the checkpoint, by kind and name.
        full: What it held at the end of the first step after it.
        resumed: What the resumed run held at the end of its first step.

    Raises:
        TraceError: A trace is damaged.
    """
    return _by_states(process.resumed, held, resumed) or _by_arguments((process.full, process.resumed), (full, resumed))


def _by_states(process: ProcessTrace, held: Mapping[tuple[str, str], bytes], resumed: HeldAt) -> Taken:
    """By the states that were there before the optimizer wrote into them."""
    owners: dict[tuple[str, bytes], set[str]] = {}
    for (kind, name), digest in held.items():
        sort, _, parameter = name.partition(" of ")
        if kind == "optimizer state":
            owners.setdefault((sort, digest), set()).add(parameter)
    taken = {}
    for (kind, name), maker in resumed.makers.items():
        sort, _, parameter = name.partition(" of ")
        if kind != "optimizer state" or (before := _before_writes(process, maker)) is None:
            continue
        others = owners.get((sort, before), {parameter})
        if parameter not in others:
            taken[parameter] = min(others)
    return taken


def _before_writes(process: ProcessTrace, number: int) -> bytes | None:
    """What a tensor held before a step wrote into it; None if that is not known."""
    for _ in range(_MOST_WRITES):
        if number < 0:
            return None
        one = entry(process, *process.record(number))
        if not one.inputs or one.takes_each_by_itself:
            return None
        if one.inputs[0].producer < 0 or not _is_in_place(one.op):
            return one.inputs[0].digest
        before = entry(process, *process.record(one.inputs[0].producer))
        if not _is_in_place(before.op) or before.op.startswith("aten::copy_"):
            made = before.outputs[one.inputs[0].output : one.inputs[0].output + 1]
            return made[0].digest if made else None
        number = before.number
    return None


def _is_in_place(op: str) -> bool:
    return op.partition(".")[0].endswith("_")


def _by_arguments(processes: tuple[ProcessTrace, ProcessTrace], ends: tuple[HeldAt, HeldAt]) -> Taken:
    """By the numbers with which each parameter was written last: the same in sum, and others for each."""
    given: list[dict[str, str]] = []
    for process, end in zip(processes, ends, strict=True):
        makers = {name: maker for (kind, name), maker in end.makers.items() if kind == "parameter" and maker >= 0}
        given.append({name: entry(process, *process.record(maker)).arguments for name, maker in makers.items()})
    mine, other = given
    if Counter(mine.values()) != Counter(other.values()) or mine.keys() != other.keys():
        return {}
    owner = {arguments: name for name, arguments in reversed(mine.items())}
    return {name: owner[arguments] for name, arguments in other.items() if mine[name] != arguments}
