"""What runs say about themselves, besides their records: whether recordings match and are complete, how runs ended, what they ran on.

Runs that kept only their newest records are compared by the steps that both have, and by their ledgers before those.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from determinism.comparison.divergence import Divergence
from determinism.comparison.fingerprints import stream_of
from determinism.comparison.processes import ProcessPair
from determinism.comparison.result import BlindSpot, Comparison, Narrowing, Recorded, RunSummary, Trouble
from determinism.environment import EnvironmentDifference, fact_sort_key
from determinism.errors import UsageError, first_few
from determinism.op_semantics import Op, OpSemantics
from determinism.trace.ledger import LedgerParting, earliest, first_parting, has_ledger, read_ledger
from determinism.trace.opening import name_of, part_names
from determinism.trace.process import ProcessTrace, Trace
from determinism.trace.schema import END_OP, INTERRUPT, STEP_OP, STOPPED_BY_US, Table
from determinism.types import Level, Stream, Verdict


def require_comparable(traces: Sequence[Trace]) -> None:
    """Refuse runs that were recorded in different ways.

    Raises:
        UsageError: Their parts, levels, states, recorders, steps or digests differ.
        TraceError: A trace cannot be read.
    """
    _check_parts(traces)
    _check_levels(traces)
    _check_states(traces)
    _check_recorders(traces)
    _check_steps(traces)
    _check_digests(traces)


def _check_parts(traces: Sequence[Trace]) -> None:
    """Refuse runs whose recorded parts do not match: a missing part does not mean that the runs differ."""
    parts = [part_names(trace.folder) for trace in traces]
    for number, names in enumerate(parts[1:], start=2):
        if names != parts[0]:
            texts = [f"run {at} has {_few(found)}" for at, found in ((1, parts[0]), (number, names))]
            raise UsageError(
                "parts-differ",
                f"The runs were recorded in different parts: {' and '.join(texts)}. Processes of one run therefore "
                "have no counterpart in the other. Record both with the same names for --part, and compare when all "
                "parts exist.",
            )


def _few(names: Sequence[str]) -> str:
    """List the parts of a run in words, or the first ones if there are many."""
    return f"{len(names)} part{'' if len(names) == 1 else 's'} ({first_few(names, 8)})" if names else "no parts"


def _check_levels(traces: Sequence[Trace]) -> None:
    levels = [sorted({str(p.description.get("level")) for p in trace.processes}) for trace in traces]
    for level in levels[1:]:
        if level and levels[0] and level != levels[0]:
            raise UsageError(
                "levels-differ",
                f"The runs were recorded at different levels ({', '.join(levels[0])} and {', '.join(level)}), so their "
                "records cannot be compared. Record both with the same --level.",
            )


def _check_states(traces: Sequence[Trace]) -> None:
    """Refuse ledgers whose state was digested at different steps: a missing record does not mean that the runs differ."""
    found = [trace.state_every for trace in traces]
    for number, every in enumerate(found[1:], start=2):
        if every is not None and found[0] is not None and every != found[0]:
            raise UsageError(
                "state-every-differs",
                f"Run 1 was recorded with --state-every {found[0]} and run {number} with --state-every {every}, so "
                "the state of a step may be in only one run, and nothing was compared. Record both with the same "
                "number.",
            )


def _check_recorders(traces: Sequence[Trace]) -> None:
    """Refuse a mix of the native and the Python recorder: they see different ops of the same program."""
    chosen = [
        {
            process.key: str(process.description["recorder"])
            for process in trace.processes
            if process.description.get("recorder") and process.description.get("level") == Level.OP
        }
        for trace in traces
    ]
    for number, others in enumerate(chosen[1:], start=2):
        for key, name in chosen[0].items():
            if others.get(key, name) != name:
                raise UsageError(
                    "recorders-differ",
                    f"Run 1 was recorded by the {name} recorder of PyTorch and run {number} by the {others[key]} "
                    "recorder, which sees different ops in the same program, so their records cannot be compared. "
                    "Record both with DETERMINISM_RECORDER=python.",
                )


def _check_steps(traces: Sequence[Trace]) -> None:
    asked = [trace.manifest.get("steps") for trace in traces]
    if len(set(asked)) > 1:
        texts = ["all steps" if steps is None else f"--steps {steps}" for steps in asked]
        raise UsageError(
            "steps-differ",
            f"The runs were recorded for different numbers of steps ({', '.join(texts)}), so one would seem to lack "
            "steps that it was told not to record. Record both with the same --steps.",
        )


def _check_digests(traces: Sequence[Trace]) -> None:
    """Refuse runs that digested a kind of device in two ways: each algorithm gives the same bytes a different digest."""
    known: dict[str, str] = {}
    for trace in traces:
        for process in trace.processes:
            for device, algorithm in (process.description.get("device_digests") or {}).items():
                if known.setdefault(device, algorithm) != algorithm:
                    raise UsageError(
                        "digests-differ",
                        f"Tensors on {device} were digested in two ways in these runs ({known[device]} and {algorithm}), so that "
                        "equal tensors would seem different. Record both with the same version, and with Triton in both or in "
                        "neither.",
                    )


def num_records(process: ProcessTrace) -> int:
    """Count the records, without the one that says that the process ended."""
    ops = process.names.texts(Table.OP)
    count, last = 0, -1
    for chunk in process.chunks():
        count, last = count + chunk.rows, int(chunk.columns["op"][-1])
    return count - (last >= 0 and ops[last] == END_OP)


def cut_reasons(trace: Trace) -> list[str]:
    """Return why records of a run are missing, as identifiers of troubles; complete only once the run has been read."""
    stops = [process.stopped_by for process in trace.processes if process.stopped_by is not None]
    found = ["interrupted" if stop == INTERRUPT else stop for stop in stops]
    if any(process.truncated for process in trace.processes):
        found.append("trace-truncated")
    if trace.missing_processes:
        found.append("process-missing")
    if trace.manifest.get("stopped_by") == INTERRUPT:
        found.append("interrupted")
    elif trace.manifest.get("stopped_by") in STOPPED_BY_US:
        found.append(str(trace.manifest["stopped_by"]))
    elif not trace.manifest.get("complete"):
        found.append("run-unfinished")
    return found


def cut_troubles(traces: Sequence[Trace], reasons: Sequence[list[str]]) -> Iterator[Trouble]:
    """Yield a trouble for each reason why recordings were cut off, given the result of `cut_reasons` for each run."""
    for reason in sorted({reason for found in reasons for reason in found}):
        concerned = [number for number, found in enumerate(reasons, start=1) if reason in found]
        runs = f"run {concerned[0]}" if len(concerned) == 1 else f"runs {' and '.join(map(str, concerned))}"
        trace = traces[concerned[0] - 1]
        records = sum(num_records(process) for process in trace.processes)
        lacks = first_few([repr(name) for name in trace.missing_processes], 4)
        texts = {"runs": runs, "records": f"{records:,}", "folder": trace.folder, "missing": lacks}
        yield Trouble(reason, _CUT_MESSAGES[reason].format(**texts))


_CUT_MESSAGES = {
    "max-disk": "The trace of {runs} reached --max-disk after {records} records, and nothing after that was recorded. What "
    "was recorded is equal. Raise the limit, or record less with --steps or --level.",
    "disk-full": "The disk was full or the file size limit was reached after {records} records of {runs}, and "
    "nothing after that was recorded. What was recorded is equal. Free up space, or give another folder with "
    "--output.",
    "fail-fast": "{runs} was stopped by --fail-fast after {records} records, but everything recorded up to then is "
    "equal. Repeat the run without it.",
    "interrupted": "SIGINT (Ctrl-C) ended {runs} after {records} records. Everything recorded up to then is equal. "
    "Let the program run to its end, or end all runs at the same step with --steps.",
    "run-unfinished": "How {runs} ended was not recorded: the recording was killed, or is still running. The "
    "{records} records that exist are equal. Repeat the run.",
    "time-limit": "{runs} exceeded its time limit and was stopped after {records} records. Everything recorded up to "
    "then is equal. Repeat the run.",
    "process-missing": "The trace of {runs} ({folder}) lacks processes that its manifest lists ({missing}): their "
    "folders were removed or emptied, or were not copied. The {records} records that exist are equal. Copy the trace "
    "again, or repeat the run.",
    "trace-truncated": "The trace of {runs} ({folder}) ends after {records} records although more were written: its "
    "files are truncated or damaged. What can be read is equal. Copy it again, or repeat the run.",
}


_NUMBERED = re.compile(r"(?P<among>.*\b(?P<word>rank|task)-)(?P<number>\d+)")


_MOST_RANGES = 8


def missing_ranks(trace: Trace) -> Iterator[BlindSpot]:
    """Yield a blind spot for each incomplete group of ranks, where a rank that did record knows how many there are."""
    found: dict[tuple[str, str], set[int]] = {}
    sizes: dict[tuple[str, str], int] = {}
    for process in trace.processes:
        numbered = _NUMBERED.fullmatch(process.key)
        if numbered is None:
            continue
        group = numbered["among"], numbered["word"]
        found.setdefault(group, set()).add(int(numbered["number"]))
        sizes[group] = max(sizes.get(group, 0), process.description.get("world_size") or 0)
    for group, numbers in found.items():
        missing = sorted(set(range(sizes[group])) - numbers)
        if missing:
            word = group[1]
            reason = (
                f"{sizes[group]:,} {word}s were started, but these recorded nothing here; if they run on another "
                "machine, record there too, each machine with --part"
            )
            yield BlindSpot(
                "ranks-missing", f"{word}{'s' * (len(missing) > 1)} {_ranges(missing)}", reason, len(missing)
            )


def _ranges(numbers: Sequence[int]) -> str:
    """Format numbers in ascending order as text: `1, 4 to 7`."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    texts = [f"{first}" if first == last else f"{first} to {last}" for first, last in ranges[:_MOST_RANGES]]
    return ", ".join(texts) + (" and more" if len(ranges) > _MOST_RANGES else "")


_MAY_LACK = ("variable ", "package ", "gpu ")
"""Prefixes of facts that one run may have and another lack. Others are always recorded, though not by every version."""


def environment_differences(one: Trace, other: Trace) -> list[EnvironmentDifference]:
    """Return what differs between the environments of two runs, the most influential on numbers first."""
    first, second = (facts_of(trace) for trace in (one, other))
    names = [
        name
        for name in first.keys() | second.keys()
        if first.get(name) != second.get(name) and (name.startswith(_MAY_LACK) or (name in first and name in second))
    ]
    return [
        (name, first.get(name, "not set"), second.get(name, "not set")) for name in sorted(names, key=fact_sort_key)
    ]


def facts_of(trace: Trace) -> dict[str, str]:
    """Return the name and value of each fact about the environment of a run's first process."""
    if not trace.processes:
        return {}
    description = trace.processes[0].description
    return {**(description.get("environment") or {}), **(description.get("settings") or {})}


def summary_of(trace: Trace) -> RunSummary:
    """Summarize how one run went."""
    manifest = trace.manifest
    return RunSummary(
        command=[str(part) for part in manifest.get("command") or []],
        exit_status=manifest.get("exit_status"),
        stopped_by=manifest.get("stopped_by") or _stopped_by(trace),
        seconds=float(manifest.get("seconds") or 0.0),
        trace=name_of(trace.folder),
        waited=float(manifest.get("waited") or 0.0),
    )


def _stopped_by(trace: Trace) -> str | None:
    return next((process.stopped_by for process in trace.processes if process.stopped_by is not None), None)


def recorded_by(traces: Sequence[Trace]) -> Recorded:
    """Summarize how much was recorded: records and steps of the first run, blind spots of all."""
    processes = traces[0].processes
    frameworks = {str(process.description.get("framework", "torch")) for trace in traces for process in trace.processes}
    extents = [process.extent for process in processes]
    steps = max((steps for _, steps in extents), default=0)
    steps_by = next((process.steps_by for process in processes if process.steps_by), None)
    spots: dict[tuple[str, str, str], int] = {}
    for number, trace in enumerate(traces, start=1):
        for described in (trace.manifest, *(process.description for process in trace.processes)):
            for key, count in _blind_spots(described):
                spots[key] = max(spots.get(key, 0), count)
        for spot in (*missing_ranks(trace), *removed_spots(trace, number)):
            spots[spot.identifier, spot.what, spot.reason] = spot.count
    return Recorded(
        records=sum(records for records, _ in extents),
        steps=steps,
        steps_by=steps_by or ("batches" if steps else None),
        processes=sum(stream_of(process) is not Stream.THREADS for process in processes),
        blind_spots=tuple(BlindSpot(*key, count) for key, count in spots.items()),
        frameworks=frozenset(frameworks or {"torch"}),
        recorders=sorted(_recorders(traces)),
    )


def _recorders(traces: Sequence[Trace]) -> set[tuple[str, str]]:
    described = [process.description for trace in traces for process in trace.processes]
    return {(str(one["recorder"]), str(one.get("recorder_reason") or "")) for one in described if one.get("recorder")}


def _blind_spots(described: dict[str, Any]) -> list[tuple[tuple[str, str, str], int]]:
    return [((s["id"], s["what"], s["reason"]), int(s["count"])) for s in described.get("blind_spots") or []]


# Runs without records of their first steps: only the newest were kept, or only later ones were requested.


def _first_recorded(process: ProcessTrace) -> int:
    """Return the first step for which a process has all records."""
    return process.first_step if process.num_removed else _asked_from(process)


def _asked_from(process: ProcessTrace) -> int:
    """Return the step from which ops were to be recorded."""
    return int(process.description.get("from_step") or 0)


def from_common_step(pair: ProcessPair) -> ProcessPair:
    """Cut both processes to start at the first step for which both have all records; unchanged if nothing is missing.

    Raises:
        TraceError: A trace is damaged.
    """
    step = _first_common(pair)

    def from_there(process: ProcessTrace) -> ProcessTrace:
        # No end of a step marks where the records begin if they were recorded from there on.
        return process.since(step) if process.num_removed or _asked_from(process) < step else process

    first, second = pair
    return from_there(first), from_there(second)


def ledgers_part(pairs: Sequence[ProcessPair]) -> LedgerParting | None:
    """Find where ledgers part in steps whose records one of the runs lacks; None if they do not, or that is unknown.

    Raises:
        TraceError: A ledger is damaged.
    """
    # Records and exit statuses already show whether one run made fewer steps.
    return earliest(
        parting
        for pair in pairs
        if (parting := _parting(pair)) and parting.groups and parting.step < _first_common(pair)
    )


def _first_common(pair: ProcessPair) -> int:
    return max(map(_first_recorded, pair))


def _parting(pair: ProcessPair) -> LedgerParting | None:
    if not _first_common(pair) or not all(has_ledger(process.folder) for process in pair):
        return None
    first, second = (read_ledger(process.folder) for process in pair)
    return first_parting(first, second, pair[0].key)


def parted_before(comparison: Comparison, parting: LedgerParting, pairs: Sequence[ProcessPair]) -> Comparison:
    """Conclude for runs whose ledgers part in steps without records."""
    groups = ", ".join(parting.groups[:-1]) + " and " * (len(parting.groups) > 1) + parting.groups[-1]
    pair = next(pair for pair in pairs if pair[0].key == parting.process)
    is_removed = any(process.num_removed and process.first_step > parting.step for process in pair)
    lack = (
        "The ops of this step were removed to stay within --max-disk."
        if is_removed
        else f"Ops were recorded only from step {_first_common(pair):,} on."
    )
    from_step = f"--from-step {parting.step - 2} " if parting.step > 2 else ""
    divergence = Divergence(
        None, parting.process, 0, 0, parting.step, "other", Op(STEP_OP, OpSemantics.NOT_ONE_OP), None, None, None, (), None, (),
        f"The ledgers of the runs differ in {groups}. {lack} To see those of this step, record "
        f"both runs with {from_step}--steps {parting.step + 3}, or use determinism narrow.",
    )  # fmt: skip
    narrowing = Narrowing(
        parting.process,
        parting.step,
        parting.groups,
        parting.steps,
        parting.losses,
        (),
        0,
        seconds=0.0,
        run_seconds=0.0,
    )
    return replace(comparison, verdict=Verdict.DIFFERENT, first_divergence=divergence, narrowing=narrowing)


def has_no_common_step(pair: ProcessPair) -> bool:
    """Whether one run has no records of any step for which the other still has all, given the result of `from_common_step`."""
    return any(process.from_step for process in pair) and not all(
        any(chunk.rows for chunk in process.chunks()) for process in pair
    )


def troubles(pairs: Sequence[ProcessPair]) -> Iterator[Trouble]:
    """Yield why nothing is known about steps without records, although what is left is equal."""
    for pair in pairs:
        step = _first_common(pair)
        if not step:
            continue
        is_removed = any(process.num_removed for process in pair)
        if not all(has_ledger(process.folder) for process in pair):
            why, remedy = (
                ("were removed to stay within --max-disk", "Raise the limit")
                if is_removed
                else ("are missing in one run (--from-step)", "Record both with the same --from-step")
            )
            yield Trouble(
                "steps-removed",
                f"The records of steps before {step:,} of process {pair[0].key} {why}, and no ledger says whether they were equal. "
                f"What is left is equal. {remedy}.",
            )
        elif has_no_common_step(from_common_step(pair)):
            yield Trouble(
                "steps-apart",
                f"One run has records of process {pair[0].key} only from step {step:,} on"
                f"{', since earlier ones were removed to stay within --max-disk' if is_removed else ''}, and the other ended before "
                "that step. The ledgers are equal for all steps that both have. Record the longer run with --steps"
                f"{', or raise the limit' if is_removed else ''}.",
            )


def removed_spots(trace: Trace, number: int) -> Iterator[BlindSpot]:
    """Yield what was removed from a run, or not recorded because only later steps were requested; runs are counted from 1."""
    for process in trace.processes:
        if process.num_removed:
            reason = "the oldest were removed to stay within --max-disk"
            if has_ledger(process.folder):
                reason += "; the ledger has digests of these steps"
            what = f"ops before step {process.first_step:,} of process {process.key} in run {number}"
            yield BlindSpot("ops-removed", what, reason, process.num_removed)
        elif step := _asked_from(process):
            reason = "--from-step was given; the ledger has digests of these steps"
            yield BlindSpot("ops-before", f"ops before step {step:,} of process {process.key}", reason, 1)
