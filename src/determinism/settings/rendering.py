"""Settings as text and as HTML."""

from __future__ import annotations

from html import escape

from determinism.settings.setting import Effect, Setting

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence

    from determinism.settings.facts import Remaining

_LISTED = (
    Effect.FAILED, Effect.MISSING, Effect.FRESH, Effect.NOW, Effect.WAITING, Effect.ALREADY, Effect.KEPT,
)  # fmt: skip
"""In this order; the others are only counted."""
_LONGEST_VALUE = 40
_GAP = "  "


def table(settings: Sequence[Setting], remaining: Sequence[Remaining] = ()) -> str:
    """One line for each setting that matters here, what needs attention first.

    Args:
        settings: The settings.
        remaining: What stays nondeterministic.
    """
    rows = [(one.effect.value, one.name, _change(one)) for one in _sorted(settings)]
    widths = [max((len(row[column]) for row in rows), default=0) for column in (0, 1)]
    lines = [_GAP.join((row[0].ljust(widths[0]), row[1].ljust(widths[1]), row[2])).rstrip() for row in rows]
    lines += [f"{'':{widths[0]}}{_GAP}{one}" for one in _counts(settings)]
    if remaining:
        lines += ["", "Still nondeterministic in the installed versions:"]
        lines += [f"{_GAP}{one.group} on {one.device}: {one.name}" for one in remaining]
    return "\n".join(lines)


def explanation(settings: Sequence[Setting], remaining: Sequence[Remaining] = ()) -> str:
    """Each setting with its reason, its source and the line that makes it.

    Args:
        settings: The settings.
        remaining: What stays nondeterministic.
    """
    parts = []
    for one in _sorted(settings):
        lines = [f"{one.name}: {one.effect.value} ({_change(one)})", f"{_GAP}{one.why}"]
        lines += [f"{_GAP}{one.detail[0].upper()}{one.detail[1:]}."] if one.detail else []
        lines += [f"{_GAP}By hand: {one.line}"] if one.line else []
        parts.append("\n".join([*lines, f"{_GAP}Source: {one.source}"]))
    parts += [
        f"{one.group} on {one.device}: {one.name} stays nondeterministic\n{_GAP}{one.why}\n{_GAP}{one.advice}\n{_GAP}"
        f"Source: {one.source}"
        for one in remaining
    ]
    return "\n\n".join([*parts, *_counts(settings)])


def html_table(settings: Sequence[Setting], remaining: Sequence[Remaining] = ()) -> str:
    """The same as a table for notebooks; every text is escaped.

    Args:
        settings: The settings.
        remaining: What stays nondeterministic.
    """
    cells = [
        (one.effect.value, one.name, _change(one), " ".join(filter(None, (one.why, one.detail))))
        for one in _sorted(settings)
    ]
    cells += [("still nondeterministic", one.name, f"{one.group} on {one.device}", one.why) for one in remaining]
    head = "".join(f"<th>{name}</th>" for name in ("effect", "setting", "value", "why"))
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in cells)
    notes = "".join(f"<p>{escape(one)}</p>" for one in _counts(settings))
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{notes}"


def _sorted(settings: Sequence[Setting]) -> list[Setting]:
    listed = [one for one in settings if one.effect in _LISTED]
    return sorted(listed, key=lambda one: _LISTED.index(one.effect))


def _counts(settings: Sequence[Setting]) -> list[str]:
    """How many settings are not listed, and why."""
    counts = [(effect, sum(one.effect is effect for one in settings)) for effect in (Effect.UNNEEDED, Effect.ABSENT)]
    return [f"and {count} setting{'s' if count > 1 else ''}: {effect.value}" for effect, count in counts if count]


def _change(one: Setting) -> str:
    before, after = _text(one.before), _text(one.after)
    if one.effect is Effect.WAITING and one.after is None:
        return f"when {one.group} is imported"
    return before if before == after else f"{before} -> {after}"


def _text(value: object) -> str:
    text = "not set" if value is None else str(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 3]}..."
