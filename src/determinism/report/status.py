"""Shows what is known about ops, and measurements of them, on the terminal and as JSON."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from textwrap import wrap
from typing import Any, NamedTuple

from determinism.errors import DeterminismError, first_few
from determinism.knowledge.entries import Audit, Measurement, OpVerdict, Source, Status
from determinism.knowledge.query import Disagreement, Mode, OpStatus

# Text in columns, one of which is wrapped. Nothing that loads NumPy, Arrow or Rich may be imported here: a command that
# only looks up facts must answer immediately.

_GAP = 2
_NARROWEST = 24
_LONGEST_WORD = 48
_CODES = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33"}


class Cell(NamedTuple):
    """A text and its style."""

    text: str
    style: str | None = None


def styled(cell: Cell, colors: bool) -> str:
    """Format a text for a terminal.

    Args:
        cell: The text and `bold`, `dim`, `red`, `green` or `yellow`.
        colors: Whether the output supports styles.
    """
    if cell.style is None or not colors or not cell.text.strip():
        return cell.text
    return f"\x1b[{_CODES[cell.style]}m{cell.text}\x1b[0m"


def in_columns(rows: Sequence[Sequence[Cell]], width: int, wrapped: int, colors: bool) -> list[str]:
    """Lay rows out in columns.

    Args:
        rows: Rows with the same number of cells.
        width: The width of the output.
        wrapped: Index of the column that is wrapped to fit; all others keep their width.
        colors: Whether the output supports styles.
    """
    if not rows:
        return []
    widths = [max(len(row[column].text) for row in rows) for column in range(len(rows[0]))]
    rest = width - sum(widths) + widths[wrapped] - _GAP * (len(widths) - 1)
    longest = max((len(word) for row in rows for word in row[wrapped].text.split()), default=0)
    # Only words longer than a name may be are broken.
    widths[wrapped] = min(widths[wrapped], max(rest, _NARROWEST, min(longest, _LONGEST_WORD)))
    return [line for row in rows for line in _lines(row, widths, wrapped, colors)]


def paragraph(text: str, width: int, margin: int = 0) -> list[str]:
    """Wrap a text, with a margin on the left."""
    return wrap(text, max(width, _NARROWEST), initial_indent=" " * margin, subsequent_indent=" " * margin)


def _lines(row: Sequence[Cell], widths: list[int], wrapped: int, colors: bool) -> list[str]:
    parts = wrap(row[wrapped].text, widths[wrapped], break_on_hyphens=False) or [""]
    lines = []
    for number, part in enumerate(parts):
        cells = [
            Cell((part if column == wrapped else "" if number else cell.text).ljust(widths[column]), cell.style)
            for column, cell in enumerate(row)
        ]
        lines.append((" " * _GAP).join(styled(cell, colors) for cell in cells).rstrip())
    return lines


# Measurements of ops on the terminal: those that varied or raised, and those that contradict declared facts.

_AUDIT_HEADS = ("op", "case", "direction", "dtype", "threads", "deterministic mode", "result")
_CASE = _AUDIT_HEADS.index("case")


def audit_text(audit: Audit) -> str:
    """Write which measurements varied or raised, and how many did not."""
    refused = {id(one) for one in audit.refused}
    shown = [one for one in audit.measurements if one.varies or id(one) in refused]
    short = [one.runs for one in audit.measurements if audit.is_short(one)]
    num_equal = sum(one.distinct == 1 for one in audit.measurements) - len(short)
    asked = audit.most_runs
    said = [f"{num_equal} of {len(audit.measurements)} measurements gave equal results in {asked} runs."]
    if short:
        runs = str(min(short)) if min(short) == max(short) else f"{min(short)} to {max(short)}"
        said.append(
            f"{len(short)} were left after {runs} of {asked} runs, without a difference, because their time ran out; "
            "--seconds allows more."
        )
    if audit.stopped is not None:
        said.append(f"Not everything was measured: {audit.stopped}")
    rows = [[Cell(head, "dim") for head in _AUDIT_HEADS], *(_row(one) for one in shown)]
    return "\n".join([audit.title, "", *(_laid(rows) if shown else []), *said])


def disagreements_text(news: Mapping[str, Sequence[Disagreement]]) -> str:
    """Write which measurements contradict declared facts, by the title of the audit."""
    if not news:
        return "There are no results to compare with the declared facts."
    blocks = []
    for title, found in news.items():
        if not found:
            blocks.append(f"{title}: no result contradicts the declared facts.")
            continue
        rows = [[*_row(one.measurement)[:-1], Cell(one.why, "red")] for one in found]
        heads = [Cell(head, "dim") for head in (*_AUDIT_HEADS[:-1], "news")]
        blocks.append(
            "\n".join(
                [f"{title}: {len(found)} measurements contradict the declared facts.", "", *_laid([heads, *rows])]
            )
        )
    return "\n\n".join(blocks)


def _row(one: Measurement) -> list[Cell]:
    mode = ("on" if one.deterministic_mode else "off") + (", patched" if one.patched else "")
    return [
        Cell(text) for text in (one.op, one.case, one.direction, one.dtype, str(one.threads), mode, result_text(one))
    ]


def result_text(one: Measurement) -> str:
    """Describe a result in words."""
    if one.raised is not None:
        return "raises"
    if one.varies:
        return f"{one.distinct} results in {one.runs} runs"
    return f"equal in {one.runs} runs"


def _laid(rows: list[list[Cell]]) -> list[str]:
    width = max(shutil.get_terminal_size().columns, 120)
    return in_columns(rows, width, _CASE, colors=False)


# Measurements of one op, as rows of a table: one per case and direction, without and with deterministic mode, and
# patched.

_MEASURED_HEADS = ("case", "direction", "dtypes", "default", "deterministic mode")


def measured_rows(found: Sequence[Measurement], asked: int) -> list[list[Cell]]:
    """Return the rows for the measurements of one op, with a header row; each case was to be run so often."""
    ways = [(False, False), (True, False)]
    if any(one.patched for one in found):
        ways.append((True, True))
    rows = [[Cell(head, "dim") for head in (*_MEASURED_HEADS, "patched")[: len(_MEASURED_HEADS) - 2 + len(ways)]]]
    for case, direction in dict.fromkeys((one.case, one.direction) for one in found):
        same = [one for one in found if (one.case, one.direction) == (case, direction)]
        dtypes = ", ".join(dict.fromkeys(one.dtype for one in same))
        results = [
            _result([one for one in same if (one.deterministic_mode, one.patched) == way], asked) for way in ways
        ]
        rows.append([Cell(case), Cell(direction), Cell(dtypes), *results])
    return rows


def _result(found: Sequence[Measurement], asked: int) -> Cell:
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
    runs = min(one.runs for one in found if one.raised is None)
    if runs < asked:
        return Cell(f"no difference in {runs} of {asked} runs", "dim")
    return Cell(f"equal in {runs} runs", "green")


# What is known about ops as one JSON document, `determinism.status/1`, described in docs/knowledge.md.

SCHEMA = "determinism.status/1"


def status_document(answers: list[OpStatus], trouble: DeterminismError | None = None) -> str:
    """Write answers as JSON. Absent values are null; keys are never missing.

    Args:
        answers: The result of `determinism.status`.
        trouble: Why there are none.
    """
    found = [] if trouble is None else [{"id": trouble.identifier, "message": trouble.message}]
    document = {"schema": SCHEMA, "trouble": found, "answers": [_answer_document(answer) for answer in answers]}
    return json.dumps(document, indent=2, ensure_ascii=True)


def _answer_document(answer: OpStatus) -> dict[str, Any]:
    op = answer.op
    return {
        "op": op.name,
        "names": list(op.names),
        "kernels": list(op.kernels),
        "alerts": list(op.alerts),
        "patches": list(op.patches),
        "summary": op.summary,
        "framework": answer.framework.identifier,
        "version": answer.version,
        "installed": answer.installed,
        "beyond_what_is_known": answer.is_beyond_what_is_known,
        "mode": _mode(answer.framework.mode(answer.version)),
        "statuses": [_status(status) for status in answer.statuses],
        "measured": [_measured(audit, found) for audit, found in answer.measured],
    }


def _measured(audit: Audit, found: Sequence[Measurement]) -> dict[str, Any]:
    facts = {name: value for name, value in asdict(audit).items() if name != "measurements"}
    return {**facts, "measurements": [asdict(one) for one in found]}


def _mode(mode: Mode | None) -> dict[str, Any] | None:
    if mode is None:
        return None
    return {"how": mode.how, "note": mode.note, "sources": [_source(source) for source in mode.sources]}


def _status(status: Status) -> dict[str, Any]:
    return {
        "id": status.identifier,
        "framework": status.framework,
        "since": status.versions.since,
        "until": status.versions.until,
        "device": status.device,
        "direction": status.direction,
        "dtype": status.dtype,
        "condition": status.condition,
        "basis": status.basis,
        "default": status.default,
        "deterministic": status.deterministic,
        "solution": status.solution,
        "note": status.note,
        "sources": [_source(source) for source in status.sources],
    }


def _source(source: Source) -> dict[str, Any]:
    return {"kind": source.kind, "reference": source.reference, "date": source.date}


_STYLES = {
    OpVerdict.DETERMINISTIC: "green",
    OpVerdict.NONDETERMINISTIC: "red",
    OpVerdict.RAISES: "yellow",
    OpVerdict.DEPENDS: "yellow",
    OpVerdict.UNKNOWN: "yellow",
}
_MARGIN = 2
_MOST_NAMES = 12
_STATUS_HEADS = ("versions", "device", "direction", "when", "default", "deterministic mode", "basis")
_WHEN = _STATUS_HEADS.index("when")


def op_status_text(answers: Sequence[OpStatus], others: Sequence[str], width: int, colors: bool) -> str:
    """Write what is known about some ops in full; name those that only frameworks which are not installed have."""
    blocks = ["\n".join(_answer_lines(answer, width, colors)) for answer in answers]
    blocks += ["\n".join(paragraph(line, width)) for line in _modes(answers)]
    if others:
        text = f"Not installed, so not shown: {', '.join(others)}. Name the framework with --framework to see them."
        blocks.append("\n".join(paragraph(text, width)))
    return "\n\n".join(blocks)


def list_text(answers: Sequence[OpStatus], width: int, colors: bool) -> str:
    """Write one line for each status."""
    rows = [[Cell(answer.op.name), *_cells(status)] for answer in answers for status in answer.statuses]
    if not rows:
        return "No known fact matches."
    heads = [Cell(head, "dim") for head in ("op", *_STATUS_HEADS)]
    lines = in_columns([heads, *rows], width, _WHEN + 1, colors)
    count = f"{len(rows)} {'status' if len(rows) == 1 else 'statuses'} of {len(answers)} {'op' if len(answers) == 1 else 'ops'}."
    modes = ["\n".join(paragraph(line, width)) for line in _modes(answers)]
    return "\n\n".join(["\n".join(lines), count, *modes])


def _answer_lines(answer: OpStatus, width: int, colors: bool) -> Iterator[str]:
    op = answer.op
    yield f"{styled(Cell(op.name, 'bold'), colors)}  {styled(Cell(_release(answer), 'dim'), colors)}"
    yield from paragraph(op.summary, width, _MARGIN)
    names = [*op.names, *op.kernels]
    if names:
        yield from paragraph(f"Also: {first_few(names, _MOST_NAMES)}.", width, _MARGIN)
    if op.patches:
        text = f"Replaced by determinism.patch(), where it has a kernel for CUDA or varies on the CPU: {', '.join(op.patches)}."
        yield from paragraph(text, width, _MARGIN)
    if answer.is_beyond_what_is_known:
        known = f"{answer.framework.first} to {answer.framework.last}"
        yield from paragraph(f"Only {known} were examined; this version may differ.", width, _MARGIN)
    yield ""
    if not answer.statuses:
        yield from paragraph(_nothing(answer), width, _MARGIN)
        return
    rows = [[Cell(str(number)), *_cells(status)] for number, status in enumerate(answer.statuses, 1)]
    heads = [Cell("", "dim"), *(Cell(head, "dim") for head in _STATUS_HEADS)]
    yield from _indented(in_columns([heads, *rows], width - _MARGIN, _WHEN + 1, colors))
    yield ""
    yield from _indented(in_columns(list(_details(answer)), width - _MARGIN, 2, colors))
    for audit, found in answer.measured:
        yield ""
        yield from paragraph(f"Measured: {audit.title}", width, _MARGIN)
        yield from _indented(in_columns(measured_rows(found, audit.most_runs), width - _MARGIN, 0, colors))


def _indented(lines: list[str]) -> Iterator[str]:
    return (" " * _MARGIN + line for line in lines)


def _cells(status: Status) -> list[Cell]:
    when = "; ".join(part for part in (status.dtype, status.condition) if part)
    verdicts = [
        Cell("not said", "dim") if verdict is None else Cell(verdict.value, _STYLES[verdict])
        for verdict in (status.default, status.deterministic)
    ]
    place = [Cell(str(status.versions)), Cell(status.device.value), Cell(status.direction.value)]
    return [*place, Cell(when or "always"), *verdicts, Cell(status.basis.value)]


def _details(answer: OpStatus) -> Iterator[list[Cell]]:
    """Yield the solution, note and sources of each status."""
    for number, status in enumerate(answer.statuses, 1):
        sources = "; ".join(
            f"{source.kind}: {source.reference}{f' ({source.date})' if source.date else ''}"
            for source in status.sources
        )
        rows = [("solution", status.solution), ("note", status.note), ("sources", sources)]
        for position, (label, text) in enumerate((label, text) for label, text in rows if text):
            yield [Cell("" if position else str(number)), Cell(label, "dim"), Cell(text)]


def _release(answer: OpStatus) -> str:
    title = answer.framework.title
    if answer.version is None:
        return f"{title}, all versions"
    return f"{title} {answer.version}{', installed' if answer.installed else ''}"


def _nothing(answer: OpStatus) -> str:
    of_framework = [status for status in answer.op.statuses if status.framework == answer.framework.identifier]
    of_version = [status for status in of_framework if answer.version is None or answer.version in status.versions]
    devices = dict.fromkeys(status.device.value for status in of_version)
    ranges = dict.fromkeys(str(status.versions) for status in of_framework)
    if devices:
        known = f" Leave out --device, --direction and --verdict to see what is known for {', '.join(devices)}."
    else:
        known = f" Something is known for the versions {'; '.join(ranges)}." if ranges else ""
    return f"Nothing is known about it for this query, which does not mean that it is deterministic.{known}"


def _modes(answers: Sequence[OpStatus]) -> Iterator[str]:
    """Describe deterministic mode for each framework and version in the answers."""
    for framework, version in dict.fromkeys((answer.framework, answer.version) for answer in answers):
        mode = framework.mode(version)
        if mode is not None:
            release = f" {version}" if version is not None else ""
            note = f" {mode.note}" if mode.note else ""
            yield f"Deterministic mode in {framework.title}{release}: {mode.how}.{note}"
