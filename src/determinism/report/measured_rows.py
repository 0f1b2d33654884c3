"""What was measured of one op, as rows of a table: a row per case and direction, with deterministic mode and without, and patched."""

from __future__ import annotations

from collections.abc import Sequence

from determinism.knowledge.measurement import Measurement
from determinism.report.columns import Cell

_HEADS = ("case", "direction", "dtypes", "default", "deterministic mode")


def measured_rows(found: Sequence[Measurement]) -> list[list[Cell]]:
    """The rows, with their heads.

    Args:
        found: Measurements of one op.
    """
    ways = [(False, False), (True, False)]
    if any(one.patched for one in found):
        ways.append((True, True))
    rows = [[Cell(head, "dim") for head in (*_HEADS, "patched")[: len(_HEADS) - 2 + len(ways)]]]
    for case, direction in dict.fromkeys((one.case, one.direction) for one in found):
        same = [one for one in found if (one.case, one.direction) == (case, direction)]
        dtypes = ", ".join(dict.fromkeys(one.dtype for one in same))
        results = [_result([one for one in same if (one.deterministic_mode, one.patched) == way]) for way in ways]
        rows.append([Cell(case), Cell(direction), Cell(dtypes), *results])
    return rows


def _result(found: Sequence[Measurement]) -> Cell:
    if not found:
        return Cell("not measured", "dim")
    if all(one.raised is not None for one in found):
        return Cell("raises", "yellow")
    varied = [one for one in found if one.varies]
    if varied:
        most = max(varied, key=lambda one: one.distinct)
        threads = {one.threads for one in varied}
        where = "" if threads == {one.threads for one in found} else f" on {max(threads)} threads"
        return Cell(f"{most.distinct} results in {most.runs} runs{where}", "red")
    return Cell(f"equal in {min(one.runs for one in found if one.raised is None)} runs", "green")
