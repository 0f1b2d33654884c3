"""Whether runs were recorded alike, so that a difference between their traces is one between the runs."""

from __future__ import annotations

from collections.abc import Sequence

from determinism.errors import UsageError
from determinism.trace.parts import part_names
from determinism.trace.reader import Trace


def require_comparable(traces: Sequence[Trace]) -> None:
    """Refuse runs that were recorded in different ways.

    Args:
        traces: Two or more runs.

    Raises:
        UsageError: Their parts, levels, steps or digests differ.
        TraceError: A trace cannot be read.
    """
    _check_parts(traces)
    _check_levels(traces)
    _check_steps(traces)
    _check_digests(traces)


def _check_parts(traces: Sequence[Trace]) -> None:
    """Runs that were recorded in parts have the same ones: a part that somebody forgot is no difference between runs."""
    parts = [part_names(trace.folder) for trace in traces]
    for number, names in enumerate(parts[1:], start=2):
        if names != parts[0]:
            texts = [f"run {at} has {_few(found)}" for at, found in ((1, parts[0]), (number, names))]
            raise UsageError(
                "parts-differ",
                f"The runs were recorded in different parts: {' and '.join(texts)}. So processes of one run have no partner in "
                "the other. Record both with the same names for --part, and compare when all parts are there.",
            )


def _few(names: Sequence[str]) -> str:
    """The parts of a run in words; the first ones where they are many."""
    shown = ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
    return f"{len(names)} part{'' if len(names) == 1 else 's'} ({shown})" if names else "no parts"


def _check_levels(traces: Sequence[Trace]) -> None:
    levels = [sorted({str(p.description.get("level")) for p in trace.processes}) for trace in traces]
    for level in levels[1:]:
        if level and levels[0] and level != levels[0]:
            raise UsageError(
                "levels-differ",
                f"The runs were recorded at different levels ({', '.join(levels[0])} and {', '.join(level)}), so their "
                "records cannot be compared. Record both with the same --level.",
            )


def _check_steps(traces: Sequence[Trace]) -> None:
    asked = [trace.manifest.get("steps") for trace in traces]
    if len(set(asked)) > 1:
        texts = ["all steps" if steps is None else f"--steps {steps}" for steps in asked]
        raise UsageError(
            "steps-differ",
            f"The runs were recorded for different numbers of steps ({', '.join(texts)}), so one would seem to lack what it "
            "was told to leave out. Record both with the same --steps.",
        )


def _check_digests(traces: Sequence[Trace]) -> None:
    """Each sort of device has one digest in all runs: the same bytes have others by another algorithm."""
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
