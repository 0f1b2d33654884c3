"""What a report says of how a divergence of long runs was narrowed: by which steps, whether it came again, and at what cost."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from determinism.comparison.narrowing import Narrowing, Window
from determinism.report.entries import Entry, Section, counted, listed

_NAMES = {"optimizer": "optimizer state", "generators": "states of random generators"}


def narrowing_document(narrowing: Narrowing) -> dict[str, Any]:
    """The part of the JSON document."""
    return {
        "process": narrowing.process,
        "step": narrowing.step,
        "groups": list(narrowing.groups),
        "steps": list(narrowing.steps),
        "losses": list(narrowing.losses),
        "checkpoint": narrowing.checkpoint,
        "seconds": narrowing.seconds,
        "run_seconds": narrowing.run_seconds,
        "pinned": narrowing.is_pinned,
        "repeats_itself": narrowing.repeats_itself,
        "windows": [dict(window._asdict()) for window in narrowing.windows],
    }


def narrowing_entries(narrowing: Narrowing) -> Iterator[Entry]:
    """Say where the ledgers part, what was recorded, whether the difference came again, and what that cost.

    Args:
        narrowing: How it was narrowed.
    """
    yield Entry(_parting(narrowing), "narrowed", Section.PLACE)
    for window in narrowing.windows:
        yield Entry(_window(window, narrowing), section=Section.PLACE)
    if narrowing.repeats_itself:
        yield Entry(_changed(narrowing), "changed since", Section.PLACE)
    elif narrowing.windows and not narrowing.is_pinned:
        yield Entry(_not_again(narrowing), "not reproduced", Section.PLACE)
    if narrowing.run_seconds > 0:
        ratio = narrowing.seconds / narrowing.run_seconds
        text = f"{_duration(narrowing.seconds)} in all, {ratio:.1f} times one run of {_duration(narrowing.run_seconds)}"
        yield Entry(text, "cost", Section.PLACE)


def _parting(narrowing: Narrowing) -> str:
    first, second = narrowing.steps
    process = "" if narrowing.process == "main" else f" of process {narrowing.process}"
    if not narrowing.groups:
        return (
            f"one run made {counted(first, 'step')}, the other {second:,}; up to there their ledgers{process} are equal"
        )
    groups = listed([_NAMES.get(group, group) for group in narrowing.groups])
    of = f"{counted(max(first, second), 'step')}"
    losses = ""
    if None not in narrowing.losses and narrowing.losses[0] != narrowing.losses[1]:
        losses = f" (loss {narrowing.losses[0]:.9g} and {narrowing.losses[1]:.9g})"
    return f"the ledgers of two runs{process}, of {of}, first differ at step {narrowing.step:,}: {groups}{losses}"


def _window(window: Window, narrowing: Narrowing) -> str:
    from_where = (
        f", resumed after {counted(narrowing.checkpoint, 'step')}" if narrowing.checkpoint else ", from the beginning"
    )
    text = (
        f"ops of steps {window.first:,} to {window.last:,} were recorded in {counted(window.runs, 'run')}{from_where}: "
    )
    if not window.differs:
        return f"{text}these were equal"
    if window.parted_at is None or window.first <= window.parted_at <= window.last:
        return f"{text}the difference recurred"
    return f"{text}these already differed at step {window.parted_at:,}"


def _not_again(narrowing: Narrowing) -> str:
    runs = sum(window.runs for window in narrowing.windows)
    elsewhere = any(window.parted_at is not None for window in narrowing.windows)
    if elsewhere:
        return (
            f"The step varies from run to run, so a window does not catch it: {counted(runs, 'run')} recorded ops. It "
            "depends on timing, or on what the program takes from outside. Provoke it earlier with --vary all, or "
            "check a shorter program op by op."
        )
    return (
        f"The difference did not recur in {counted(runs, 'run')} that recorded the ops around it. It depends on "
        "timing, such as the order of threads, or on what recording changes. Run the command again for more tries; "
        "--vary threads makes a race more likely."
    )


def _changed(narrowing: Narrowing) -> str:
    window = narrowing.windows[-1]
    return (
        "The new runs are equal to each other, so the program repeats itself: its code, its data or the environment "
        "changed since the stored run. To see the ops of both, record these steps with each and compare: determinism "
        f"record --from-step {max(window.first, 1)} --steps {window.last + 1}"
    )


def _duration(seconds: float) -> str:
    return (
        f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.1f} minutes"
    )
