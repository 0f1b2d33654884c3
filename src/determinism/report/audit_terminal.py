"""What was measured of ops on the terminal: what varied or raised, and what contradicts what is declared."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence

from determinism.knowledge.disagreement import Disagreement
from determinism.knowledge.measurement import Audit, Measurement
from determinism.report.columns import Cell, in_columns

_HEADS = ("op", "case", "direction", "dtype", "threads", "deterministic mode", "result")
_CASE = _HEADS.index("case")


def audit_text(audit: Audit) -> str:
    """What varied and what raised, and how many did not."""
    refused = {id(one) for one in audit.refused}
    shown = [one for one in audit.measurements if one.varies or id(one) in refused]
    equal = f"{sum(one.distinct == 1 for one in audit.measurements)} of {len(audit.measurements)} measurements gave equal results."
    rows = [[Cell(head, "dim") for head in _HEADS], *(_row(one) for one in shown)]
    return "\n".join([audit.title, "", *(_laid(rows) if shown else []), equal])


def disagreements_text(news: Mapping[str, Sequence[Disagreement]]) -> str:
    """What was measured and contradicts what is declared, by the title of the audit."""
    if not news:
        return "There are no results to compare with what is declared."
    blocks = []
    for title, found in news.items():
        if not found:
            blocks.append(f"{title}: nothing contradicts what is declared.")
            continue
        rows = [[*_row(one.measurement)[:-1], Cell(one.why, "red")] for one in found]
        heads = [Cell(head, "dim") for head in (*_HEADS[:-1], "news")]
        blocks.append(
            "\n".join([f"{title}: {len(found)} measurements contradict what is declared.", "", *_laid([heads, *rows])])
        )
    return "\n\n".join(blocks)


def _row(one: Measurement) -> list[Cell]:
    mode = ("on" if one.deterministic_mode else "off") + (", patched" if one.patched else "")
    return [
        Cell(text) for text in (one.op, one.case, one.direction, one.dtype, str(one.threads), mode, result_text(one))
    ]


def result_text(one: Measurement) -> str:
    """What came out, in words."""
    if one.raised is not None:
        return "raises"
    if one.varies:
        return f"{one.distinct} results in {one.runs} runs"
    return f"equal in {one.runs} runs"


def _laid(rows: list[list[Cell]]) -> list[str]:
    width = max(shutil.get_terminal_size().columns, 120)
    return in_columns(rows, width, _CASE, colors=False)
