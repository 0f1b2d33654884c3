"""The report of `check-batch`: whether rows depend on their batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from determinism.comparison.result import BatchFindings, BatchKind, Comparison, Divergence, Fix, size_pair
from determinism.report.entries import Entry, counted, fix_document, frame_text, listed, prose
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


def batch_sections(comparison: Comparison, rows: BatchFindings, *, with_causes: bool = True) -> list[list[Entry]]:
    """The story: which op, where, why, and what cures it.

    Args:
        comparison: What was found.
        rows: What was found of the rows.
        with_causes: Whether causes and cures are part of it.
    """
    if comparison.verdict is Verdict.INCONCLUSIVE:
        return []
    first = comparison.first_divergence
    return [
        [] if first is None else list(_origin_entries(first, rows)),
        list(_row_entries(rows)),
        list(batch_cures(comparison, rows)) if with_causes else [],
    ]


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
    yield Entry(prose(first.detail), "detail")
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
        yield Entry(f"In training mode, which changes what they compute: {shown}", "training")
    if rows.not_told is not None:
        yield Entry(rows.not_told, "not told")


def batch_cures(comparison: Comparison, rows: BatchFindings) -> Iterator[Entry]:
    """Write the causes, what was seen to cure the program, and what was tried in vain."""
    for number, cause in enumerate(comparison.causes):
        yield Entry(f"{cause.title} ({cause.status})", "" if number else "cause")
    for number, one in enumerate(comparison.fixes):
        yield Entry(f"{_written(one)}: {one.title}", "" if number else "cure")
        yield Entry("Verified: with it, all rows were equal in batches of all sizes.")
    failed = [one for one in rows.tried if not one.verified]
    if failed:
        text = f"{'; '.join(_written(one) for one in failed)}: rows still depended on their batch"
        yield Entry(text, "tried")


def _written(fix: Fix) -> str:
    parts = [f"{name}={value}" for name, value in fix.environment or ()]
    code = fix.code.replace("\n", "; ") if fix.code else None
    return " and ".join([*([" ".join(parts)] if parts else []), *([code] if code else [])])


def batch_document(rows: BatchFindings) -> dict[str, Any]:
    """The part of the JSON document on batches."""
    difference = rows.difference
    return {
        "sizes": list(rows.sizes),
        "rows": [{"size": size, "count": count} for size, count in rows.rows.items()],
        "rows_matched": rows.rows_matched,
        "places": rows.places,
        "difference": None
        if difference is None
        else {
            "kind": difference.kind,
            "sizes": list(difference.sizes),
            "rows": difference.rows,
            "rows_compared": difference.rows_compared,
            "training": difference.is_training,
        },
        "results_differ": rows.results_differ,
        "training_modules": [{"module": one.module, "class": one.name} for one in rows.training],
        "tried": [fix_document(one) for one in rows.tried],
        "not_told": rows.not_told,
    }
