"""Compares a run with a golden: the first step and group that differ, and what of the environment does."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from determinism.environment import EnvironmentDifference, weight_of
from determinism.golden.ledger import FINGERPRINTED, NO_VALUE, Ledger, ProcessLedger, generators_digest
from determinism.golden.result import NOT_RECORDED, GoldenComparison, GoldenDifference
from determinism.trace.ledger import GROUPS
from determinism.types import Verdict


def compare_ledgers(golden: Ledger, run: Ledger) -> GoldenComparison:
    """Compare a run with a golden.

    Args:
        golden: What is expected.
        run: What was computed now.
    """
    difference = min(_differences(golden, run), key=_moment, default=None)
    return GoldenComparison(
        Verdict.SAME if difference is None else Verdict.DIFFERENT,
        max((len(process.rows) for process in golden.processes), default=0),
        difference,
        tuple(_facts_apart(golden.environment, run.environment)),
        tuple(_facts_apart(golden.settings, run.settings)),
        (golden.commit, run.commit),
    )


def _moment(difference: GoldenDifference) -> tuple[int, int]:
    order = GROUPS.index(difference.group) if difference.group in GROUPS else -1
    return difference.step, order


def _differences(golden: Ledger, run: Ledger) -> Iterator[GoldenDifference]:
    """The first difference of each process."""
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
            # Those that nothing draws from may be in any state.
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
    return sorted((pair for pair in pairs if pair[1] != pair[2]), key=lambda pair: weight_of(pair[0]))
