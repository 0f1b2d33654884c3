"""Sections of a report that only some commands have: whether rows depend on their batch (`check-batch`), and how a divergence of long runs was narrowed
to a few steps (`narrow`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from determinism.comparison.divergence import Divergence, Fix
from determinism.comparison.result import BatchFindings, BatchKind, Comparison, Narrowing, Window, size_pair
from determinism.report.entries import (
    Entry,
    Section,
    counted,
    entries_under,
    fields_of,
    fix_document,
    frame_text,
    listed,
    one_paragraph,
)
from determinism.types import Verdict

_MOST_FRAMES = 4
_MOST_MODULES = 4

_KINDS = {
    BatchKind.OP: "op: it processes each row on its own, but computes it differently in a batch of another size",
    BatchKind.MIXING: "mixing: the op combines the rows of a batch",
    BatchKind.RNG: "rng: the op draws random numbers for each batch",
    BatchKind.PADDING: "padding: the same row was padded to a different length",
    None: "not known: the whole model gave equal rows different results, and no recorded op explains it",
}


def batch_headline(comparison: Comparison, rows: BatchFindings) -> str:
    """Write the first line of the report."""
    sizes = listed([str(size) for size in rows.sizes])
    if comparison.verdict is Verdict.SAME:
        places = counted(rows.places, "place")
        what = "were equal" if rows.results_differ is None else "had equal results"
        return f"Same: {counted(rows.rows_matched, 'row')} {what} in batches of {sizes}, at {places} of the program"
    difference = rows.difference
    if difference is None:
        return f"Different: results depend on the batch (sizes {sizes})"
    return f"Different: equal rows have different results in batches of {size_pair(difference.sizes)}"


def batch_entries(comparison: Comparison, rows: BatchFindings) -> Iterator[Entry]:
    """Yield the story: why and what fixes it, then which op and where."""
    if comparison.verdict is Verdict.INCONCLUSIVE:
        return
    yield from _fixes(comparison)
    if comparison.first_divergence is not None:
        yield from _origin_entries(comparison.first_divergence, rows)
    yield from _row_entries(rows)
    failed = [one for one in rows.tried if not one.verified]
    if failed:
        yield Entry(f"{'; '.join(_written(one) for one in failed)}: rows still depended on their batch", "tried")


def _origin_entries(first: Divergence, rows: BatchFindings) -> Iterator[Entry]:
    difference = rows.difference
    yield Entry(_KINDS[difference.kind if difference else None], "kind")
    yield Entry(first.op, "op")
    if first.module is not None:
        yield Entry(first.module or "the outermost module", "module")
    if first.site is None:
        yield Entry("No line of the program's own code is known for this record.", "site")
    for number, frame in enumerate(first.stack[: 1 + _MOST_FRAMES]):
        yield Entry(frame_text(frame), ("site", "called by")[number] if number < 2 else "")
        if not number and frame.code.strip():
            yield Entry(frame.code.strip(), is_code=True)
    yield Entry(one_paragraph(first.detail), "detail")
    if difference is not None and difference.rows is not None and difference.rows_compared:
        of = f"{difference.rows:,} of {counted(difference.rows_compared, 'row')} that went into it in two sizes or more"
        yield Entry(of, "rows")


def _row_entries(rows: BatchFindings) -> Iterator[Entry]:
    counts = ", ".join(f"{count:,} in batches of {size}" for size, count in rows.rows.items())
    if counts:
        text = f"{rows.rows_matched:,} different rows were compared; there were {counts}"
        yield Entry(text, "compared")
    if rows.results_differ is None:
        text = "No model was called that returns one result per row, so rows were compared up to the last op that produces rows."
        yield Entry(text, "limits")
    if rows.results_differ is False and rows.difference is not None:
        text = "The results of the whole model were equal nevertheless: what differed inside it made no difference for these rows."
        yield Entry(text, "absorbed")
    if rows.training:
        names = [f"{one.module or 'the outermost module'} ({one.name})" for one in rows.training]
        more = len(names) - _MOST_MODULES
        shown = listed(names[:_MOST_MODULES]) + (f" and {more} more" if more > 0 else "")
        yield Entry(f"Modules in training mode, in which they compute differently: {shown}", "training")
    if rows.not_told is not None:
        yield Entry(rows.not_told, "not told")


def _fixes(comparison: Comparison) -> Iterator[Entry]:
    yield from entries_under("cause", (f"{cause.title} ({cause.status})" for cause in comparison.causes))
    for number, one in enumerate(comparison.fixes):
        yield Entry(f"{_written(one)}: {one.title}", "" if number else "fix")
        yield Entry("Verified: with it, all rows were equal in batches of all sizes.")


def _written(fix: Fix) -> str:
    parts = [f"{name}={value}" for name, value in fix.environment or ()]
    code = fix.code.replace("\n", "; ") if fix.code else None
    return " and ".join([*([" ".join(parts)] if parts else []), *([code] if code else [])])


def batch_document(rows: BatchFindings) -> dict[str, Any]:
    """Return the part of the JSON document about batches."""
    difference = rows.difference
    return {
        "sizes": rows.sizes,
        "rows": [{"size": size, "count": count} for size, count in rows.rows.items()],
        **fields_of(rows, "rows_matched places"),
        "difference": difference
        and {**fields_of(difference, "kind sizes rows rows_compared"), "training": difference.is_training},
        "results_differ": rows.results_differ,
        "training_modules": [{"module": one.module, "class": one.name} for one in rows.training],
        "tried": [fix_document(one) for one in rows.tried],
        "not_told": rows.not_told,
    }


# How a divergence was narrowed down.


_NAMES = {"optimizer": "optimizer state", "generators": "states of random generators"}


def narrowing_document(narrowing: Narrowing) -> dict[str, Any]:
    """Return the part of the JSON document about narrowing."""
    return {
        **fields_of(narrowing, "process step groups steps losses checkpoint seconds run_seconds"),
        "pinned": narrowing.is_pinned,
        **fields_of(narrowing, "repeats_itself windows"),
    }


def narrowing_entries(narrowing: Narrowing) -> Iterator[Entry]:
    """Say where the ledgers part, what was recorded, whether the difference recurred, and what that cost."""
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
