"""What is known of ops on the terminal: one op at length, or many as a list."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from determinism.knowledge.query import OpStatus
from determinism.knowledge.status import OpVerdict, Status
from determinism.report.columns import Cell, in_columns, paragraph, styled
from determinism.report.measured_rows import measured_rows

_STYLES = {
    OpVerdict.DETERMINISTIC: "green",
    OpVerdict.NONDETERMINISTIC: "red",
    OpVerdict.RAISES: "yellow",
    OpVerdict.DEPENDS: "yellow",
    OpVerdict.UNKNOWN: "yellow",
}
_MARGIN = 2
_MOST_NAMES = 12
_HEADS = ("versions", "device", "direction", "when", "default", "deterministic mode", "basis")
_WHEN = _HEADS.index("when")


def answers_text(answers: Sequence[OpStatus], others: Sequence[str], width: int, colors: bool) -> str:
    """What is known of some ops, at length.

    Args:
        answers: The ops.
        others: Ops of the same name in frameworks that are not installed.
        width: Of the output.
        colors: Whether the output understands styles.
    """
    blocks = ["\n".join(_answer(answer, width, colors)) for answer in answers]
    blocks += ["\n".join(paragraph(line, width)) for line in _modes(answers)]
    if others:
        text = f"Not installed, so not shown: {', '.join(others)}. Name the framework with --framework to see them."
        blocks.append("\n".join(paragraph(text, width)))
    return "\n\n".join(blocks)


def list_text(answers: Sequence[OpStatus], width: int, colors: bool) -> str:
    """One line for each status.

    Args:
        answers: The ops.
        width: Of the output.
        colors: Whether the output understands styles.
    """
    rows = [[Cell(answer.op.name), *_cells(status)] for answer in answers for status in answer.statuses]
    if not rows:
        return "Nothing is known that fits."
    heads = [Cell(head, "dim") for head in ("op", *_HEADS)]
    lines = in_columns([heads, *rows], width, _WHEN + 1, colors)
    count = f"{len(rows)} {'status' if len(rows) == 1 else 'statuses'} of {len(answers)} {'op' if len(answers) == 1 else 'ops'}."
    modes = ["\n".join(paragraph(line, width)) for line in _modes(answers)]
    return "\n\n".join(["\n".join(lines), count, *modes])


def _answer(answer: OpStatus, width: int, colors: bool) -> Iterator[str]:
    op = answer.op
    yield f"{styled(Cell(op.name, 'bold'), colors)}  {styled(Cell(_release(answer), 'dim'), colors)}"
    yield from paragraph(op.summary, width, _MARGIN)
    names = [*op.names, *op.kernels]
    if names:
        more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
        yield from paragraph(f"Also: {', '.join(names[:_MOST_NAMES])}{more}.", width, _MARGIN)
    if op.patches:
        text = f"Replaced by determinism.patch(), where it has a kernel for CUDA or varies on the CPU: {', '.join(op.patches)}."
        yield from paragraph(text, width, _MARGIN)
    if answer.is_beyond_what_is_known:
        known = f"{answer.framework.first} to {answer.framework.last}"
        yield from paragraph(
            f"Only {known} were looked at. What follows may be different in this version.", width, _MARGIN
        )
    yield ""
    if not answer.statuses:
        yield from paragraph(_nothing(answer), width, _MARGIN)
        return
    rows = [[Cell(str(number)), *_cells(status)] for number, status in enumerate(answer.statuses, 1)]
    heads = [Cell("", "dim"), *(Cell(head, "dim") for head in _HEADS)]
    yield from _indented(in_columns([heads, *rows], width - _MARGIN, _WHEN + 1, colors))
    yield ""
    yield from _indented(in_columns(list(_details(answer)), width - _MARGIN, 2, colors))
    for audit, found in answer.measured:
        yield ""
        yield from paragraph(f"Measured: {audit.title}", width, _MARGIN)
        yield from _indented(in_columns(measured_rows(found), width - _MARGIN, 0, colors))


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
    """Solutions, notes and sources of each status."""
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
    ranges = dict.fromkeys(str(status.versions) for status in of_framework)
    known = f" Something is known for the versions {'; '.join(ranges)}." if ranges else ""
    return f"Nothing is known of it for what was asked, which does not mean that it is deterministic.{known}"


def _modes(answers: Sequence[OpStatus]) -> Iterator[str]:
    """What deterministic mode is, for each framework and version that is answered for."""
    for framework, version in dict.fromkeys((answer.framework, answer.version) for answer in answers):
        mode = framework.mode(version)
        if mode is not None:
            release = f" {version}" if version is not None else ""
            note = f" {mode.note}" if mode.note else ""
            yield f"Deterministic mode in {framework.title}{release}: {mode.how}.{note}"
